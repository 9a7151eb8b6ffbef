"""The content of a tool's result, as a model takes it: texts, JSON, pictures and other files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.chat.context.shorten import MAX_OUTPUT_CHARACTERS, shortened_value

MAX_RESULT_CHARACTERS = 100_000  # of one result of a tool, as JSON; more is cut for the model


def as_content(value: Any) -> Any:
    """Return what `to_model` returned as content: files as they are, everything else as JSON.

    Raises what Pydantic raises if it is neither.
    """
    plain = _plain(value)
    if not holds_files(plain):
        return shortened_value(plain, MAX_RESULT_CHARACTERS)
    if not isinstance(plain, list):
        return plain
    return [
        each if holds_files(each) else shortened_value(each, MAX_RESULT_CHARACTERS)
        for each in plain
    ]


def _plain(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    if _is_file(value) or value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return to_jsonable_python(value, inf_nan_mode="null", bytes_mode="base64")


def shortened_content(content: Any) -> Any:
    """Return content of an older message: files are only named, and the rest is cut."""
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
    """Whether there is anything in it that is not JSON."""
    if isinstance(content, list):
        return any(map(holds_files, content))
    if isinstance(content, dict):
        return any(map(holds_files, content.values()))
    return not isinstance(content, str | int | float | None)


def _is_file(value: Any) -> bool:
    from pydantic_ai.messages import is_multi_modal_content

    return is_multi_modal_content(value)
