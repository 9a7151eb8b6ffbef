"""The first and the last message of a request, such that every provider accepts it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outlast.chat.seam.instruct import is_continue_instruction

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequest

CONTINUE = "Continue exactly where you stopped. Do not repeat anything that you have already said."
BEGINNING = "(The conversation begins.)"
# Parts of a request that configure the model, so that there is nothing to answer.
_SETTINGS = frozenset(
    {
        "system-prompt",
        "instruction-delta",
        "instruction-baseline",
        "tool-availability-delta",
        "capability-load-delta",
        "model-settings-delta",
    }
)


def asks_to_continue(prompt: object) -> bool:
    """Return whether a prompt is our request to continue, and not a user's."""
    return prompt == CONTINUE or is_continue_instruction(prompt)


def with_beginning(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Insert a user prompt before the first answer, if there is none: providers require one."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    place = 0
    for message in messages:
        if message.kind == "response":
            break
        if any(part.part_kind == "user-prompt" for part in message.parts):
            return list(messages)
        place += 1
    opening = ModelRequest(parts=[UserPromptPart(BEGINNING)])
    return [*messages[:place], opening, *messages[place:]]


def with_continuation(
    messages: Sequence[ModelMessage], *, text: str = CONTINUE, instructions: str | None = None
) -> list[ModelMessage]:
    """Append a request to continue, if the messages end with an answer: providers reject such requests.

    It is for this call only and never stored. It carries the `instructions`, or else those of the previous
    request.
    """
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    before: list[ModelRequest] = []  # the requests since the last answer
    for message in reversed(messages):
        if message.kind == "response":
            break
        if any(part.part_kind not in _SETTINGS for part in message.parts):
            return list(messages)
        before.append(message)
    if not messages:
        return []
    if instructions is None:
        instructions = _instructions(messages)
    parts = [*(before[0].parts if before else ()), UserPromptPart(text)]
    kept = messages[: len(messages) - bool(before)]
    return [*kept, ModelRequest(parts=parts, instructions=instructions)]


def _instructions(messages: Sequence[ModelMessage]) -> str | None:
    for message in reversed(messages):
        if message.kind == "request" and message.instructions is not None:
            return message.instructions
    return None
