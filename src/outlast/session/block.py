"""A context block as a value: its settings, what was read, and what can be wrong with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from outlast.core.errors import OutlastError

Kind = Literal["readonly", "writable", "loadable", "searchable"]
WhenChanged = Literal["refresh", "remind"]

MAX_LABEL = 64  # characters
MAX_CONTENT = 1_000_000  # characters that can be written to one block or entry

_LABEL = re.compile(r"[^\W\d][\w-]*")


class ContextBlockError(OutlastError, ValueError):
    """A context block cannot do what was asked of it. The message says why."""


class UnknownContextBlock(ContextBlockError, LookupError):
    """The session has no context block with this label. The message names those it has."""


class ContextBlockFull(ContextBlockError):
    """The content would exceed the `max_tokens` of its block. Nothing was written."""


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """A context block as it was last read."""

    label: str
    kind: Kind
    content: str  # of a loadable block: its catalogue
    description: str | None = None
    max_tokens: int | None = None
    tokens: int = 0  # an estimate
    error: str | None = None  # why it could not be read; the content is empty then
    keys: tuple[str, ...] = ()  # of a loadable block, if its provider lists them


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSettings:
    """The arguments of `with_context`. A provider of None keeps the content in the store."""

    label: str
    description: str | None = None
    max_tokens: int | None = None
    provider: Any = None
    when_changed: WhenChanged = "refresh"

    def __post_init__(self) -> None:
        check_label(self.label)
        if not isinstance(self.description, str | None):
            raise TypeError(
                f"description of {self.label!r} must be a str, got {self.description!r}"
            )
        most = self.max_tokens
        if most is not None and (not isinstance(most, int) or isinstance(most, bool)):
            raise TypeError(f"max_tokens of {self.label!r} must be an int, got {most!r}")
        if most is not None and most < 1:
            raise ValueError(f"max_tokens of {self.label!r} must be at least 1, got {most!r}")
        if self.when_changed not in get_args(WhenChanged):
            raise ValueError(
                f"when_changed of {self.label!r} must be one of {quoted(get_args(WhenChanged))},"
                f" got {self.when_changed!r}"
            )


def check_label(label: object) -> None:
    """Raise an error if this cannot be the label of a block."""
    if not isinstance(label, str):
        raise TypeError(f"the label of a context block must be a str, got {label!r}")
    if not _LABEL.fullmatch(label) or len(label) > MAX_LABEL:
        raise ValueError(
            "the label of a context block must be a letter or _, followed by letters, digits, _ or -,"
            f" at most {MAX_LABEL} in all, got {label[:100]!r}"
        )


def check_labels(settings: Iterable[BlockSettings]) -> None:
    """Raise an error if two blocks have the same label."""
    seen: set[str] = set()
    for each in settings:
        if each.label in seen:
            raise ValueError(f"a session has two context blocks {each.label!r}; rename one")
        seen.add(each.label)


def quoted(texts: Iterable[str]) -> str:
    """Return texts as they stand in a message: 'a', 'b'."""
    return ", ".join(map(repr, texts))


def usage(tokens: int, max_tokens: int) -> str:
    """Return how full a block is: 57% (1,140 of 2,000 tokens)."""
    return f"{tokens * 100 // max_tokens}% ({tokens:,} of {max_tokens:,} tokens)"
