"""Stopping turns: one request, all requests, or the whole conversation. The stop is durable first."""

from __future__ import annotations

from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import EntryRow, Outcome
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.claim import Claims
from outlast.chat.turn.notices import Cleared
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settle import Settler
from outlast.chat.turn.state import TurnState
from outlast.chat.types import events
from outlast.core.errors import CommitRefused
from outlast.core.text import storable

CLEARED = "the conversation was cleared"


class Stop(ChatPart):
    """Stops the turns of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._state = parts[TurnState]
        self._settler = parts[Settler]
        self._claims = parts[Claims]

    async def cancel(self, id: str, reason: str) -> bool:
        """Record the cancellation of a request, then stop it. False if it does not exist or has ended.

        A message that waits for its turn becomes part of the conversation without an answer.
        """
        reason = storable(reason)
        async with self._transcript.changing:  # nothing is being claimed or settled
            entry = self._inbox.find_open(id)
            if entry is None:
                return False
            if entry.state == "accepted" and entry.cancelled is not None:
                return False  # already cancelled
            commit = self.commits.new()
            if entry.state == "running":
                self._cancel_running(commit, entry, reason)
                await commit.stored()
                return True
            if self._is_behind_others(entry):
                # Its messages follow those of the others, so they are stored when its turn would begin.
                self._inbox.cancel(commit, entry, reason)
                commit.then(lambda: self._state.announce_aborted(entry, reason))
            else:
                change = await self._claims.unanswered(entry)
                self._settler.end(commit, entry, "aborted", error=reason, change=change)
            try:
                await commit.stored()
            except CommitRefused:
                return False
        return True

    def _is_behind_others(self, entry: EntryRow) -> bool:
        """Return whether messages of other waiting requests precede its own."""
        if entry.messages is None or not self._inbox.origins[entry.origin].keeps_messages:
            return False
        return any(
            other.state == "accepted" and other.messages is not None and other.seq < entry.seq
            for other in self._inbox.open
        )

    def _cancel_running(self, commit: Commit, entry: EntryRow, reason: str) -> None:
        self._inbox.cancel(commit, entry, reason)
        commit.then(lambda: self._abort(entry, reason))

    def _abort(self, entry: EntryRow, reason: str) -> None:
        running = self._state.running
        if running is not None and running.entry.seq == entry.seq:
            running.abort.set(reason)

    async def reset(self, reason: str) -> None:
        """End all requests accepted so far; the partial answer of the running turn is kept."""
        reason = storable(reason)
        seq = self._inbox.last_seq  # later requests are not affected
        async with self._transcript.changing:
            entries = await self._open_up_to(seq)
            messages: list[dict[str, Any]] = []
            for entry in entries:
                keeps = self._inbox.origins[entry.origin].keeps_messages
                if entry.state == "accepted" and entry.kind == "message" and keeps:
                    messages += await self._claims.new(entry)
            commit = self.commits.new()
            self._transcript.apply(commit, self._transcript.appending(messages))
            for entry in entries:
                if entry.state == "accepted":
                    self._settler.end(commit, entry, "skipped", error=reason)
                else:
                    self._cancel_running(commit, entry, reason)
            if commit.operations:
                await commit.stored()

    async def clear(self) -> None:
        """End all requests, and delete the conversation: all messages on all branches, and all streams."""
        seq = self._inbox.last_seq
        async with self._transcript.changing:
            entries = await self._open_up_to(seq)
            commit = self.commits.new()
            self.parts.join("cleared", commit)
            self._transcript.apply(commit, self._transcript.clearing())
            for entry in entries:
                self._end_cleared(commit, entry)
            commit.then(self._announce_cleared)
            await commit.stored()

    async def _open_up_to(self, seq: int) -> list[EntryRow]:
        """Return the open entries with at most this seq."""
        await self._inbox.wait_for_accepting()
        return self._inbox.up_to(seq)

    def _end_cleared(self, commit: Commit, entry: EntryRow) -> None:
        outcome: Outcome = "skipped" if entry.state == "accepted" else "aborted"
        self._settler.end(commit, entry, outcome, error=CLEARED)
        commit.then(lambda: self._abort(entry, CLEARED))

    def _announce_cleared(self) -> None:
        self.activation.events.emit(events.MessagesCleared, self.address)
        self.activation.tell(Cleared())
        self._state.transcript_changed()
