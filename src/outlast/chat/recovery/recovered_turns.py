"""Changes of `on_recovery_boot` to the waiting requests, in the commit of the decision."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from outlast.agent.commit import Commit
from outlast.chat.inbox.inbox import Inbox, Request
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.recovery.judge import Interruption, Verdict
from outlast.chat.turn.settle import Settler
from outlast.core import json

LEFT_OUT = "on_recovery_boot omitted it"


@dataclass(frozen=True, slots=True)
class RecoveredTurns:
    """Waiting requests that end without a turn, and new requests."""

    left_out: tuple[EntryRow, ...] = ()
    added: tuple[Request, ...] = ()

    def write(self, commit: Commit, inbox: Inbox, settler: Settler) -> None:
        """Add the changes to the commit, last, so that their effects follow those of the interrupted turn."""
        for entry in self.left_out:
            settler.end(commit, entry, "skipped", error=LEFT_OUT)
        for request in self.added:
            inbox.add(commit, inbox.entry(request))


async def recovered_turns(
    inbox: Inbox, what: Interruption, verdict: Verdict | None
) -> RecoveredTurns:
    """Return the changes that a hook requested, if any."""
    wanted = None if verdict is None else verdict.boot.recovered_turns
    if verdict is None or wanted is None:
        return RecoveredTurns()
    left_out: list[EntryRow] = []
    added: list[Request] = []
    left = {message["id"] for message in wanted}
    for other in inbox.open:
        if other.state != "accepted" or other.messages is None:
            continue
        brought = {message["id"] for message in json.decode(other.messages)}
        if brought & left:
            left -= brought
        elif other.seq > what.entry.seq:
            left_out.append(other)
    shown = {message["id"] for message in what.path}
    is_left_out = verdict.chain is not None and verdict.chain.answer is None
    for message in wanted:
        key = f"recovery:{what.entry.id}:{_digest(message)}"
        if message["id"] not in left or await inbox.existing(None, key) is not None:
            continue
        if message["id"] not in shown:
            added.append(Request("message", "recovery", [message], key=key))
        elif message["id"] == what.entry.target and is_left_out:  # another answer to the message
            added.append(Request("regenerate", "recovery", key=key, target=message["id"]))
    return RecoveredTurns(tuple(left_out), tuple(added))


def _digest(message: dict[str, Any]) -> str:
    """Return a digest without the id: a text that a hook returns gets a new id each time."""
    content = json.encode([message.get("role"), message.get("parts")])
    return blake2b(content.encode(errors="replace"), digest_size=12).hexdigest()
