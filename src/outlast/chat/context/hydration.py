"""Conversations that an application keeps itself: what the model is shown comes from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outlast.chat.message.incoming import to_messages
from outlast.chat.message.repair import repaired
from outlast.chat.message.results import Message
from outlast.chat.message.tool_part import is_settled
from outlast.core.hooks import call_hook
from outlast.core.ids import Ids


@dataclass(frozen=True, slots=True)
class HydrationContext:
    """What `hydrate_messages` is asked about."""

    request_id: str
    trigger: str  # message, regenerate or continue
    attempt: int  # 1, and more when it was interrupted
    incoming: Sequence[
        Message
    ]  # what the turn is about: the user's messages, or the answer that goes on
    messages: Sequence[Message]  # the conversation as it is stored here, with these
    body: Mapping[str, Any]


class Hydrating(Protocol):
    def hydrate_messages(self, context: HydrationContext) -> Any: ...


async def hydrated(
    agent: Hydrating,
    path: Sequence[dict[str, Any]],
    ids: Ids,
    request_id: str,
    trigger: str,
    attempt: int,
    body: Mapping[str, Any],
) -> Sequence[dict[str, Any]]:
    """The conversation before an answer, as the application has it. None from it: as it is stored."""
    incoming = _incoming(path)
    context = HydrationContext(
        request_id=request_id,
        trigger=trigger,
        attempt=attempt,
        incoming=[Message(each) for each in incoming],
        messages=[Message(each) for each in path],
        body=body,
    )
    given = await call_hook(agent.hydrate_messages, context)
    if given is None:
        return path
    if not isinstance(given, list | tuple):
        raise TypeError(f"hydrate_messages returns a list of messages or None, not {given!r}")
    return joined(to_messages(given, ids), incoming)


def _incoming(path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last messages of one role: what the user has just said, or the answer that goes on."""
    last = path[-1].get("role") if path else None
    found: list[dict[str, Any]] = []
    for message in reversed(path):
        if message.get("role") != last or (found and last == "assistant"):
            break
        found.insert(0, message)
    return found


def joined(
    chain: Sequence[dict[str, Any]], incoming: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The application's conversation, and what it does not know yet. Pure.

    Of a message that it knows, only outcomes of calls are taken over: they are newer here. Whatever has no
    outcome anywhere is closed, so that the model can be asked.
    """
    ours = {message["id"]: message for message in incoming}
    known = {message["id"] for message in chain}
    chain = [_advanced(each, ours[each["id"]]) if each["id"] in ours else each for each in chain]
    chain += [message for message in incoming if message["id"] not in known]
    changed, _ = repaired(chain)
    closed = {message["id"]: message for message in changed}
    return [closed.get(message["id"], message) for message in chain]


def _advanced(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    settled = {
        part["toolCallId"]: part
        for part in ours["parts"]
        if isinstance(part, dict) and "toolCallId" in part and is_settled(part)
    }
    parts = [
        settled[part["toolCallId"]]
        if isinstance(part, dict) and part.get("toolCallId") in settled and not is_settled(part)
        else part
        for part in theirs["parts"]
    ]
    return {**theirs, "parts": parts}
