"""Stopping turns: one, all that were asked for, or the whole conversation. Durable first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.agent.commit import Commits
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import EntryRow, Outcome
from outlast.chat.message.results import TurnEnd
from outlast.chat.recovery import incidents
from outlast.chat.run.retention import Retention
from outlast.chat.stream import sql as stream_rows
from outlast.chat.tools.pending import Interactions
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.claim import Claims
from outlast.chat.types import events
from outlast.chat.types.notices import Cleared
from outlast.core.errors import CommitRefused
from outlast.core.text import storable
from outlast.host.life.activation import Activation
from outlast.store.operations import Operation

if TYPE_CHECKING:
    from outlast.chat.run.runner import Turns


class Stopping:
    """For the turns of one agent."""

    def __init__(
        self,
        turns: Turns,
        activation: Activation,
        commits: Commits,
        inbox: Inbox,
        transcript: Transcript,
        interactions: Interactions,
        retention: Retention,
        claims: Claims,
    ) -> None:
        self._turns = turns
        self._agent = activation.address.text
        self._activation = activation
        self._commits = commits
        self._inbox = inbox
        self._transcript = transcript
        self._interactions = interactions
        self._retention = retention
        self._claims = claims

    async def cancel(self, id: str, reason: str) -> bool:
        """Durable first, then the turn is stopped. False: there is none, or it has ended.

        A message that waits for its turn becomes part of the conversation, and is not answered.
        """
        reason = storable(reason)
        async with self._transcript.changing:  # nothing is being claimed or settled
            entry = self._inbox.open_one(id)
            if entry is None:
                return False
            if entry.state == "accepted" and entry.cancelled is not None:
                return False  # that is known
            if entry.state == "accepted":
                return await self._cancel_waiting(entry, reason)
            recording = [self._inbox.cancel(entry, reason)]
            await self._commits.commit_then(recording, lambda: self._recorded(entry, reason))
        return True

    async def _cancel_waiting(self, entry: EntryRow, reason: str) -> bool:
        is_kept = entry.messages is not None and entry.origin != "submission"
        if is_kept and any(self._is_before(other, entry) for other in self._inbox.open):
            return await self._cancel_behind_others(entry, reason)
        change = await self._claims.unanswered(entry)
        ended, operation = self._inbox.end(entry, "aborted", reason, None)

        def stopped() -> None:
            self._retention.armed()
            if change is not None:
                self._transcript.applied(change)
            self._turns.tell(ended, TurnEnd("aborted", None, reason))

        kept = [] if change is None else change.operations
        try:
            await self._commits.commit_then([operation, *kept, *self._retention.arm()], stopped)
        except CommitRefused:
            return False
        return True

    @staticmethod
    def _is_before(other: EntryRow, entry: EntryRow) -> bool:
        is_waiting = other.state == "accepted" and other.messages is not None
        return is_waiting and other.seq < entry.seq

    async def _cancel_behind_others(self, entry: EntryRow, reason: str) -> bool:
        """Its messages come behind those that wait before it: they are stored when its turn would begin.

        That it is not answered is certain now, and told.
        """

        def stopped() -> None:
            self._inbox.cancelled(entry, reason)
            self._activation.events.emit(events.CancelRecorded, self._agent, entry.id, reason)
            self._turns.tell_aborted(entry, reason)

        try:
            await self._commits.commit_then([self._inbox.cancel(entry, reason)], stopped)
        except CommitRefused:
            return False
        return True

    def _recorded(self, entry: EntryRow, reason: str) -> None:
        """That it is cancelled is durable."""
        self._inbox.cancelled(entry, reason)
        self._activation.events.emit(events.CancelRecorded, self._agent, entry.id, reason)
        self._stop(entry, reason)

    def _stop(self, entry: EntryRow, reason: str) -> None:
        if self._turns.running is not None and self._turns.running.entry.seq == entry.seq:
            self._turns.running.abort.set(reason)

    async def reset(self, reason: str) -> None:
        """Everything that was admitted before this is over; what the running turn has said is kept."""
        reason = storable(reason)
        seq = self._inbox.last_seq  # what is asked from here on is not meant
        async with self._transcript.changing:  # nothing is being claimed or settled
            running = [entry for entry in self._inbox.open if entry.state == "running"]
            cancels = [self._inbox.cancel(entry, reason) for entry in running]
            skipping = self._inbox.skip_waiting(seq, reason)
            change = self._transcript.appending(await self._waiting_messages(seq))

            def given_up() -> None:
                self._retention.armed()
                self._transcript.applied(change)
                for entry in self._inbox.up_to(seq):
                    if entry.state == "accepted":
                        self._turns.tell(entry, TurnEnd("skipped", None, reason))
                    else:
                        self._recorded(entry, reason)

            operations = [skipping, *cancels, *change.operations, *self._arm_if_open()]
            await self._commits.commit_then(operations, given_up)

    async def _waiting_messages(self, seq: int) -> list[dict[str, Any]]:
        """What users have said that is not going to be answered."""
        found = []
        for entry in self._inbox.up_to(seq):
            is_said = entry.kind == "message" and entry.origin != "submission"
            if entry.state == "accepted" and is_said:
                found += await self._claims.new(entry)
        return found

    async def clear(self) -> None:
        """The same, and nothing is left: no message, on no branch, and no stream."""
        reason = "the conversation was cleared"
        seq = self._inbox.last_seq
        async with self._transcript.changing:
            change = self._transcript.clearing()
            for stream in list(self._turns.streams.open.values()):
                stream.mute()  # what it would write from here on comes after the clearing
            ending = self._inbox.end_all(seq, reason)
            clearing = (stream_rows.CLEAR, (self._agent,))
            forgetting = self._interactions.forgetting()

            def cleared() -> None:
                self._retention.armed()
                self._turns.boots.came_up()
                self._transcript.applied(change)
                self._interactions.remember(forgetting)
                for entry in self._inbox.up_to(seq):
                    outcome: Outcome = "skipped" if entry.state == "accepted" else "aborted"
                    self._turns.tell(entry, TurnEnd(outcome, None, reason))
                    self._stop(entry, reason)
                if (
                    self._turns.live is not None
                    and self._inbox.current(self._turns.live.entry) is None
                ):
                    self._turns.live = None  # nobody can answer what it has left open
                self._activation.events.emit(events.MessagesCleared, self._agent)
                self._activation.tell(Cleared())
                self._turns.transcript_changed()

            forgotten = [(incidents.CLEAR, (self._agent,)), self._turns.incidents.up()]
            operations = [ending, *change.operations, clearing, *forgotten, *forgetting]
            operations += self._arm_if_open()
            await self._commits.commit_then(operations, cleared)

    def _arm_if_open(self) -> list[Operation]:
        return self._retention.arm() if self._inbox.is_busy else []
