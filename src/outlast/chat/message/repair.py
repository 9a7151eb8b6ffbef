"""Repair of stored messages before a request to a model. Pure.

A request to a model needs an outcome for each call. A stored call without one is closed as an error; it is
never deleted. An existing outcome is never changed, and neither is an approved call that has not run yet.
Repairing is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from outlast.chat.message import tool_part as tool_parts
from outlast.chat.message.tool_part import Part

INTERRUPTED = "The call was interrupted before a result was recorded."
WENT_ON = "The user continued without answering this call."

WAITING = ("input-available", "approval-requested")  # in a stored message: for the client

Repair = Callable[[Part], Part]


def open_calls(message: Mapping[str, Any] | None) -> list[Part]:
    """Return the calls of a stored message that wait for the client, or for an approval."""
    parts = [] if message is None else message.get("parts")
    return [
        part
        for part in (parts if isinstance(parts, list) else [])
        if tool_parts.tool_name(part) is not None
        and part.get("state") in WAITING
        and part.get("providerExecuted") is not True
    ]


def repaired(
    messages: Sequence[dict[str, Any]], repair: Repair | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the messages that needed changes, changed, and the ids of the calls that were closed."""
    changed: list[dict[str, Any]] = []
    closed: list[str] = []
    for message in messages:
        parts = message.get("parts")
        if message.get("role") != "assistant" or not isinstance(parts, list):
            continue
        after = [_closed(part, repair, closed) for part in parts]
        if any(new is not old for new, old in zip(after, parts, strict=True)):
            changed.append({**message, "parts": after})
    return changed, closed


def _closed(part: Any, repair: Repair | None, closed: list[str]) -> Any:
    if tool_parts.tool_name(part) is None:
        return part
    given = part.get("input")
    if "input" in part and not isinstance(given, dict):
        part = {**part, "input": tool_parts.as_object(given)}
    if not needs_closing(part):
        return part
    closed.append(str(part.get("toolCallId")))
    if repair is None:
        return closed_as_error(part)
    return check_repaired(repair(dict(part)))


def check_repaired(after: Any) -> Part:
    """Return the result of the user's repair hook, if it is a part with an outcome; raise otherwise."""
    if not isinstance(after, dict) or not isinstance(after.get("type"), str):
        raise TypeError(f"repair_interrupted_tool_part must return a part, got {after!r}")
    if tool_parts.tool_name(after) is not None and not tool_parts.is_settled(after):
        raise ValueError("repair_interrupted_tool_part must return a call with an outcome")
    return after


def needs_closing(part: Mapping[str, Any]) -> bool:
    if part.get("providerExecuted") is True:
        return False
    return not tool_parts.is_settled(part) and part.get("state") != "approval-responded"


def closed_as_error(part: Part, error: str | None = None) -> Part:
    """Close a call that has no outcome."""
    if error is None:
        error = WENT_ON if part.get("state") in WAITING else INTERRUPTED
    return tool_parts.advanced(part, {"type": "tool-output-error", "errorText": error}) or part


def without_waiting(message: dict[str, Any], kept: Collection[str], error: str) -> dict[str, Any]:
    """Return the final message of a turn, with the waiting calls closed, except those in `kept`."""
    parts = [
        closed_as_error(part, error)
        if tool_parts.tool_name(part) is not None
        and part.get("state") in WAITING
        and part.get("providerExecuted") is not True
        and part.get("toolCallId") not in kept
        else part
        for part in message["parts"]
    ]
    return {**message, "parts": parts}
