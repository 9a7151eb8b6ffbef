"""Hydration: conversations that the application stores itself, and provides for the model."""

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
    """The argument of `hydrate_messages`."""

    request_id: str
    trigger: str  # message, regenerate or continue
    attempt: int  # more than 1 after an interruption
    incoming: Sequence[Message]  # the user's new messages, or the answer that is continued
    messages: Sequence[Message]  # the stored conversation, including these
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
    """Return the application's conversation; if its hook returns None, the stored one."""
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
        raise TypeError(f"hydrate_messages must return a list of messages or None, got {given!r}")
    return joined(to_messages(given, ids), incoming)


def _incoming(path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last messages of one role: the user's new messages, or the answer to continue."""
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
    """Join the application's conversation and the messages that it does not contain yet. Pure.

    If it contains a message, only outcomes of calls are taken from ours, which are newer. Calls without an
    outcome in either are closed, as a request to the model requires.
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
