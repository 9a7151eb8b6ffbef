"""Truncates older messages for the model. Stored messages are not changed.

Structure is kept: a list stays a list and a dict a dict, so that a model sees what a tool returns, only less
of it. No result is omitted altogether.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.chat.message.tool_part import tool_name

WHOLE_MESSAGES = 4  # the last messages, which are never truncated
STEP = 8  # messages by which the cut moves, so that provider caches keep hitting in between
MAX_OUTPUT_CHARACTERS = 500
MAX_TEXT_CHARACTERS = 10_000

_MAX_DEPTH = 8
_LEAST_BUDGET = 40


def older_of(count: int) -> int:
    """Return how many of so many messages are truncated: all but the last few, in steps."""
    return max(0, count - WHOLE_MESSAGES) // STEP * STEP


def shortened(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Truncate long tool outputs and texts in all but the last few messages."""
    older = older_of(len(messages))
    return [*map(shortened_message, messages[:older]), *messages[older:]]


def shortened_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Truncate long texts and outputs; returns the same object if there are none."""
    parts = message.get("parts") if isinstance(message, Mapping) else None
    if not isinstance(parts, list):
        return message
    after = [_shortened_part(part) for part in parts]
    if all(new is old for new, old in zip(after, parts, strict=True)):
        return message
    return {**message, "parts": after}


def with_shortened_steps(message: dict[str, Any]) -> dict[str, Any]:
    """Truncate long tool outputs in all steps of an answer but the newest; the same object if there are none.

    For the message of a turn that is still running.
    """
    parts = message.get("parts")
    if not isinstance(parts, list):
        return message
    starts = [place for place, part in enumerate(parts) if _is_start(part)]
    settled = [
        place
        for place, part in enumerate(parts)
        if tool_name(part) is not None and "output" in part
    ]
    newest = max((place for place in starts if settled and place <= settled[-1]), default=0)
    after = [_shortened_part(part) for part in parts[:newest]]
    if all(new is old for new, old in zip(after, parts, strict=False)):
        return message
    return {**message, "parts": [*after, *parts[newest:]]}


def _is_start(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "step-start"


def _shortened_part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    text = part.get("text")
    if part.get("type") == "text" and isinstance(text, str) and len(text) > MAX_TEXT_CHARACTERS:
        return {**part, "text": _cut(text, MAX_TEXT_CHARACTERS)}
    if tool_name(part) is not None and "output" in part:
        output = shortened_value(part["output"], MAX_OUTPUT_CHARACTERS)
        return part if output is part["output"] else {**part, "output": output}
    return part


def shortened_value(value: Any, budget: int) -> Any:
    """Truncate a JSON value to about this many characters; returns the same object if it is shorter."""
    size = _size(value)
    if size <= budget:
        return value
    after = _cut_value(value, budget, 0)
    return after if _size(after) < size else value


def _cut_value(value: Any, budget: int, depth: int) -> Any:
    if _size(value) <= budget:
        return value
    if isinstance(value, str):
        return _cut(value, budget)
    if isinstance(value, list):
        return _cut_list(value, budget, depth)
    if isinstance(value, dict):
        return _cut_object(value, budget, depth)
    return value


def _cut_list(items: list[Any], budget: int, depth: int) -> list[Any]:
    kept: list[Any] = []
    left = budget
    share = max(_LEAST_BUDGET, budget // min(len(items), 10))
    for item in items if depth < _MAX_DEPTH else []:
        short = _cut_value(item, share, depth + 1)
        left -= _size(short) + 1
        if left < 0:
            break
        kept.append(short)
    missing = len(items) - len(kept)
    return [*kept, f"[{missing} more]"] if missing else kept


def _cut_object(fields: dict[str, Any], budget: int, depth: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    left = budget
    share = max(_LEAST_BUDGET, budget // min(len(fields), 10))
    for name, value in fields.items() if depth < _MAX_DEPTH else ():
        short = _cut_value(value, share, depth + 1)
        left -= len(name) + _size(short) + 4
        if left < 0:
            break
        kept[name] = short
    missing = len(fields) - len(kept)
    return {**kept, "[truncated]": f"{missing} more"} if missing else kept


def _cut(text: str, budget: int) -> str:
    """Return the beginning of a text, and the number of missing characters."""
    mark = f"... [truncated {len(text) - budget} chars]"
    return text[: max(0, budget - len(mark))] + mark


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    import pydantic_core

    try:
        return len(pydantic_core.to_json(value, inf_nan_mode="null").decode())
    except (ValueError, RecursionError):  # not JSON
        return len(str(value))
