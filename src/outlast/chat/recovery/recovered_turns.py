"""What waits behind an interrupted turn, as `on_recovery_boot` wants it: in the commit of the decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from outlast.chat.inbox.inbox import Inbox, Request
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.recovery.judge import Interruption, Verdict
from outlast.core import json
from outlast.store.operations import Operation

LEFT_OUT = "on_recovery_boot left it out"


@dataclass(slots=True)
class RecoveredTurns:
    """Requests that end without a turn, and requests that are new; and what makes that durable."""

    left_out: list[EntryRow] = field(default_factory=list)
    added: list[EntryRow] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


async def recovered_turns(
    inbox: Inbox, what: Interruption, verdict: Verdict | None
) -> RecoveredTurns:
    """What a hook wants; nothing, if there is none or if it left that open."""
    found = RecoveredTurns()
    wanted = None if verdict is None else verdict.boot.recovered_turns
    if verdict is None or wanted is None:
        return found
    left = {message["id"] for message in wanted}
    for other in inbox.open:
        if other.state != "accepted" or other.messages is None:
            continue
        brought = {message["id"] for message in json.decode(other.messages)}
        if brought & left:
            left -= brought
        elif other.seq > what.entry.seq:
            ended, operation = inbox.end(other, "skipped", LEFT_OUT, None)
            found.left_out.append(ended)
            found.operations.append(operation)
    shown = {message["id"] for message in what.path}
    is_left_out = verdict.chain is not None and verdict.chain.answer is None
    for message in wanted:
        key = f"recovery:{what.entry.id}:{_digest(message)}"
        if message["id"] not in left or await inbox.existing(None, key) is not None:
            continue
        if message["id"] not in shown:
            request = Request("message", "recovery", [message], key=key)
        elif message["id"] == what.entry.target and is_left_out:  # another answer to the same
            request = Request("regenerate", "recovery", key=key, target=message["id"])
        else:
            continue
        entry = inbox.entry(request)
        found.added.append(entry)
        found.operations.append(inbox.acceptance(entry))
    return found


def _digest(message: dict[str, Any]) -> str:
    """What is said: a text that a hook returns has another id each time it is asked."""
    said = json.encode([message.get("role"), message.get("parts")])
    return blake2b(said.encode(errors="replace"), digest_size=12).hexdigest()
