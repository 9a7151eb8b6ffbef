"""Which entries the model has loaded, by what it said and was answered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from outlast.chat.message.tool_part import is_settled, tool_name

Entry = tuple[str, str]  # label and key

LOAD, UNLOAD = "load_context", "unload_context"
ERROR = "Error: "  # how every failed result of the tools begins

_MARKER = "[{key} of {label} was unloaded; load it again if you need it]"


def as_result(content: str) -> str:
    """Return the content of an entry as the result of `load_context`: it never looks like an error."""
    return f"\n{content}" if content.startswith(ERROR) else content


def unloaded_marker(label: str, key: str) -> str:
    """Return the line that replaces the result of `load_context` once the entry is unloaded."""
    return _MARKER.format(label=label, key=key)


def loaded_keys(messages: Iterable[Mapping[str, Any]]) -> set[Entry]:
    """Return the label and the key of every entry whose content stands in these messages."""
    loaded: set[Entry] = set()
    for message in messages:
        for part in message.get("parts") or ():
            match followed(part):
                case ("load", entry):
                    loaded.add(entry)
                case ("unload", entry):
                    loaded.discard(entry)
    return loaded


def loads(part: object, label: str, key: str) -> bool:
    """Return whether this part of a message is a `load_context` that has the content of this entry."""
    return _loaded_by(part, LOAD) == (label, key)


def followed(part: object) -> tuple[Literal["load", "unload"], Entry] | None:
    """Return what a part of a message did, and the entry; None if it is no such call."""
    if (entry := _loaded_by(part, LOAD)) is not None:
        return "load", entry
    if (entry := _loaded_by(part, UNLOAD)) is not None:
        return "unload", entry
    return None


def _loaded_by(part: object, tool: str) -> Entry | None:
    """Return the entry that a successful call of this tool was about."""
    if tool_name(part) != tool or not isinstance(part, dict) or not is_settled(part):
        return None
    input, output = part.get("input"), part.get("output")
    if part.get("state") != "output-available" or not isinstance(input, dict):
        return None
    label, key = input.get("label"), input.get("key")
    if not (isinstance(label, str) and isinstance(key, str) and isinstance(output, str)):
        return None
    is_void = output.startswith(ERROR) or output == unloaded_marker(label, key)
    return None if is_void else (label, key)
