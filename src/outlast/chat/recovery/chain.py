"""The conversation that `on_recovery_boot` returned, and its effect on the interrupted answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.chat.message.chunk_json import encoded
from outlast.chat.message.partial import Partial
from outlast.chat.message.rebuild import outcome_of, rebuilt
from outlast.chat.message.reducer import MessageBuilder
from outlast.chat.message.tool_part import is_settled

Message = dict[str, Any]

LEFT_OUT = "on_recovery_boot omitted the answer"


@dataclass(frozen=True, slots=True)
class Chain:
    """A conversation, and the answer that it ends with; None if the answer is omitted."""

    before: list[Message]
    answer: Message | None


def chain_of(messages: Sequence[Message], answer_id: str) -> Chain:
    """Return the chain of a hook's messages; the interrupted answer must be the last."""
    places = [place for place, message in enumerate(messages) if message["id"] == answer_id]
    if not places:
        return Chain(list(messages), None)
    if places != [len(messages) - 1]:
        raise ValueError(
            "the interrupted answer must be the last message of the chain, and only once"
        )
    if messages[-1].get("role") != "assistant":
        raise ValueError("the interrupted answer must have the role 'assistant'")
    return Chain(list(messages[:-1]), messages[-1])


def settled_calls(partial: Partial, answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the calls that had no outcome and have one in this answer."""
    after = {part["toolCallId"]: part for part in answer["parts"] if "toolCallId" in part}
    found = []
    for part in partial.calls:
        given = after.get(part["toolCallId"])
        if given is not None and not is_settled(part) and is_settled(given):
            found.append(given)
    return found


def chunks_to(partial: Partial, answer: Mapping[str, Any]) -> list[str]:
    """Return the chunks that make a client which shows the partial answer show this one.

    New outcomes of calls are sent as such. Any other difference rebuilds the message.
    """
    outcomes = [
        encoded(chunk) for part in settled_calls(partial, answer) for chunk in outcome_of(part)
    ]
    builder = MessageBuilder(partial.raw)
    for chunk in outcomes:
        builder.apply(chunk)
    if builder.message()["parts"] == list(answer["parts"]):
        return outcomes
    return [encoded(chunk) for chunk in rebuilt(answer)]
