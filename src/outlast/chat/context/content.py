"""The content of a tool's result for the model: texts, JSON, images and other files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.chat.context.shorten import MAX_OUTPUT_CHARACTERS, shortened_value
from outlast.core import json

MAX_RESULT_CHARACTERS = 100_000  # of one tool result as JSON; the model sees no more


def as_content(value: Any) -> Any:
    """Return the result of `to_model` as content: files unchanged, everything else as truncated JSON.

    Raises Pydantic's error if it is neither.
    """
    if _is_file(value):
        return value
    if not _has_files(value):
        return shortened_value(_as_json(value), MAX_RESULT_CHARACTERS)
    if isinstance(value, Mapping):
        return {_as_json(str(name)): as_content(each) for name, each in value.items()}
    return [as_content(each) for each in value]


def _has_files(value: Any) -> bool:
    """Return whether a list or a mapping contains files."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return any(_is_file(each) or _has_files(each) for each in value)


def _as_json(value: Any) -> Any:
    """Convert a value to plain JSON, which can be sent to any provider."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(value, inf_nan_mode="null", bytes_mode="base64")
    return json.decode(json.encode(plain, "output"))


def as_text(text: str) -> str:
    """Return a truncated text that can be sent to any provider."""
    return str(shortened_value(_as_json(text), MAX_RESULT_CHARACTERS))


def shortened_content(content: Any) -> Any:
    """Return the content of an older message: files are replaced by their names, the rest is truncated."""
    return shortened_value(_without_files(content), MAX_OUTPUT_CHARACTERS)


def _without_files(content: Any) -> Any:
    if isinstance(content, list):
        return [_without_files(each) for each in content]
    if isinstance(content, dict):
        return {name: _without_files(each) for name, each in content.items()}
    if not _is_file(content):
        return content
    url, data = getattr(content, "url", None), getattr(content, "data", None)
    size = f", {len(data):,} bytes" if isinstance(data, bytes) else ""
    return f"(a file that was shown before: {url or content.media_type}{size})"


def holds_files(content: Any) -> bool:
    """Return whether content contains anything that is not JSON."""
    if isinstance(content, list):
        return any(map(holds_files, content))
    if isinstance(content, dict):
        return any(map(holds_files, content.values()))
    return not isinstance(content, str | int | float | None)


def _is_file(value: Any) -> bool:
    from pydantic_ai.messages import is_multi_modal_content

    return is_multi_modal_content(value)
