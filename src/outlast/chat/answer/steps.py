"""The steps and calls that a message holds already. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from outlast.chat.answer.place import Called
from outlast.chat.context.history import to_model_messages
from outlast.chat.message.tool_part import tool_name
from outlast.chat.types.contexts import Step


def due_calls(parts: Iterable[Any], step: int) -> list[Called]:
    """Return the calls that were allowed and are to run here, which they have not done yet."""
    return [_called(part, step) for part in parts if tool_name(part) is not None and _is_due(part)]


def left_calls(parts: Iterable[Any], step: int, lost: Container[str] = ()) -> list[Called]:
    """Return the calls of an interrupted answer that have not been made, or may be made again.

    `lost`: the names of tools of a client that is gone.
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
    """Whether all that came of this call is what it has shown on its way."""
    return part.get("state") == "output-available" and part.get("preliminary") is True


def count_steps(message: dict[str, Any] | None) -> int:
    """Return how many steps a message shows."""
    parts = (message or {}).get("parts") or []
    return sum(isinstance(part, dict) and part.get("type") == "step-start" for part in parts)


def earlier_steps(message: dict[str, Any], first: int) -> list[Step]:
    """The steps that a message shows, as the attempts that made them knew them; `first`: their number."""
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
