"""The steps and calls that a message already contains. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from outlast.chat.answer.place import Called
from outlast.chat.context.history import to_model_messages
from outlast.chat.message.tool_part import tool_name
from outlast.chat.types.contexts import Step


def due_calls(parts: Iterable[Any], step: int) -> list[Called]:
    """Return the calls that were approved to run here, and have not run yet."""
    return [_called(part, step) for part in parts if tool_name(part) is not None and _is_due(part)]


def left_calls(parts: Iterable[Any], step: int, lost: Container[str] = ()) -> list[Called]:
    """Return the calls of an interrupted answer that did not run, or may run again.

    `lost` has the names of tools whose client has disconnected.
    """
    return [
        _called(part, step, tool_name(part) in lost)
        for part in parts
        if tool_name(part) is not None
        and (part.get("state") == "input-available" or _is_unfinished(part) or _is_due(part))
    ]


def _called(part: dict[str, Any], step: int, is_for_client: bool = False) -> Called:
    return Called(
        part["toolCallId"],
        tool_name(part) or "",
        part.get("input"),
        approved=_is_approved(part),
        step=step,
        is_for_client=is_for_client,
    )


def _is_approved(part: dict[str, Any]) -> bool:
    approval = part.get("approval")
    return isinstance(approval, dict) and approval.get("approved") is True


def _is_due(part: dict[str, Any]) -> bool:
    return part.get("state") == "approval-responded" and _is_approved(part)


def _is_unfinished(part: dict[str, Any]) -> bool:
    """Return whether a call has only a preliminary result."""
    return part.get("state") == "output-available" and part.get("preliminary") is True


def count_steps(message: dict[str, Any] | None) -> int:
    """Return the number of steps in a message."""
    parts = (message or {}).get("parts") or []
    return sum(isinstance(part, dict) and part.get("type") == "step-start" for part in parts)


def earlier_steps(message: dict[str, Any], first: int) -> list[Step]:
    """Return the steps of a message, numbered from `first`."""
    from pydantic_ai.messages import ModelResponse

    steps: list[Step] = []
    parts: list[Any] = []
    for part in [*message["parts"], {"type": "step-start"}]:
        if not isinstance(part, dict) or part.get("type") != "step-start":
            parts.append(part)
            continue
        if parts and isinstance(parts[0], dict) and parts[0].get("type") == "step-start":
            shown = {"id": message["id"], "role": "assistant", "parts": parts[1:]}
            found = to_model_messages([shown]).messages
            response = next((each for each in found if isinstance(each, ModelResponse)), None)
            calls = [tool_name(each) for each in parts[1:] if isinstance(each, dict)]
            names = tuple(name for name in calls if name is not None)
            steps.append(Step(first + len(steps), response or ModelResponse(parts=[]), names))
        parts = [part]
    return steps
