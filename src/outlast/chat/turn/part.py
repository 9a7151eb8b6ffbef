"""A part of a chat agent: the durable moments of a turn that it can join, and what it can contribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Part, moment
from outlast.chat.context.overflow import Overflow
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.tools.contribution import Contribution
from outlast.chat.turn.settlement import Settlement
from outlast.chat.turn.turn import Turn
from outlast.store.operations import Operation


class ChatPart(Part):
    """One concern of one chat agent. Every method is a no-op by default.

    The durable moments add operations and effects to a commit. They do no I/O and must not raise.
    """

    # --- durable moments -------------------------------------------------------------------------

    @moment
    def accepted(self, commit: Commit, entry: EntryRow) -> None:
        """An entry is accepted."""

    @moment
    def claimed(self, commit: Commit, turn: Turn) -> None:
        """The turn of an entry begins."""

    @moment
    def settled(self, commit: Commit, settlement: Settlement) -> None:
        """An entry ends, or is put back."""

    @moment
    def cleared(self, commit: Commit) -> None:
        """The conversation is deleted."""

    @moment
    def messages_stored(self, commit: Commit, operations: Sequence[Operation]) -> None:
        """Messages are stored, replaced or deleted by these operations, on any branch."""

    @moment
    def expire(self, commit: Commit, now: int) -> int | None:
        """Delete expired rows. Returns the next expiry in milliseconds, or None if nothing is left."""
        return None

    # --- a turn ----------------------------------------------------------------------------------

    @moment
    async def contribute(self, turn: Turn) -> Contribution | None:
        """Return the tools, prompt sections and capabilities that a turn gets from this part."""
        return None

    @moment
    async def compact(self, overflow: Overflow) -> bool:
        """Shorten what the model sees of a conversation that is too long. False if that is of no use."""
        return False

    @moment
    def shown(self, path: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return the part of the conversation that the model sees."""
        return path
