"""The text by which a message is found: what was said, names of files, and what tools returned. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outlast.chat.message.tool_part import tool_name

MAX_OUTPUT = 20_000  # characters of one tool's output


def searchable_text(message: Mapping[str, Any]) -> str:
    """Return the text of a UI message: its text parts first, then file names, then tool outputs.

    Reasoning and tool inputs are left out.
    """
    parts = message.get("parts")
    if not isinstance(parts, list):
        return ""
    said: list[str] = []
    files: list[str] = []
    outputs: list[str] = []
    for part in parts:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text":
            _add(said, part.get("text"))
        elif part.get("type") == "file":
            _add(files, part.get("filename"))
        elif tool_name(part) is not None:
            _add(outputs, _output(part))
    return "\n".join(said + files + outputs)


def _add(texts: list[str], text: object) -> None:
    if isinstance(text, str) and text:
        texts.append(text)


def _output(part: Mapping[str, Any]) -> str:
    if isinstance(part.get("errorText"), str):
        return str(part["errorText"])[:MAX_OUTPUT]
    found: list[str] = []
    left = MAX_OUTPUT
    for text in _texts(part.get("output")):
        found.append(text[:left])
        left -= len(text) + 1
        if left <= 0:
            break
    return " ".join(found)


def _texts(value: object) -> Iterator[str]:
    """Return the keys and values of a JSON value, in order."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            for key, each in reversed(item.items()):
                pending += (each, key)
        elif isinstance(item, list):
            pending += reversed(item)
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield str(item)
