"""The front matter of a `SKILL.md`: YAML between two lines of `---`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from outlast.session.providers.excerpts import cleaned, in_one_line

MAX_FRONT_MATTER = 16_000  # characters
MAX_NAME = 64
MAX_DESCRIPTION = 1024

_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?\r?\n)?---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill: what its front matter says, and the text that follows it."""

    name: str | None
    description: str | None
    body: str
    problem: str | None = None  # why its front matter could not be read


def parsed_skill(text: str) -> Skill:
    """Return the skill in a text. One without front matter, or with a broken one, has no name."""
    text = text.removeprefix("\ufeff")
    found = _FRONT_MATTER.match(text)
    if found is None or len(found[0]) > MAX_FRONT_MATTER:
        return Skill(None, None, text)
    body = text[found.end() :].lstrip("\r\n")
    try:
        fields = _fields(found[1] or "")
    except ValueError as error:
        return Skill(None, None, body, str(error))
    return Skill(
        _line(fields.get("name"), MAX_NAME), _line(fields.get("description"), MAX_DESCRIPTION), body
    )


def _fields(text: str) -> dict[Any, Any]:
    import yaml  # type: ignore[import-untyped]  # it takes 20 ms

    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(
            f"front matter must be YAML, got {in_one_line(str(error))[:200]}"
        ) from None
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise ValueError(f"front matter must be a mapping, got {type(fields).__name__}")
    return fields


def _line(value: object, most: int) -> str | None:
    """Return a value as one line, or None if it is not a text."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    return cleaned(in_one_line(str(value)))[:most].strip() or None
