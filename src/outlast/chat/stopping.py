"""Stopping turns: one, all that were asked for, or the whole conversation. Durable first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.agent.unit import Commits
from outlast.chat import events, incidents, stream_rows
from outlast.chat.inbox import Inbox
from outlast.chat.inbox_rows import EntryRow, Outcome
from outlast.chat.interactions import Interactions
from outlast.chat.notices import Cleared
from outlast.chat.results import TurnEnd
from outlast.chat.retention import Retention
from outlast.chat.transcript import Transcript
from outlast.core.errors import CommitRefused
from outlast.core.text import storable
from outlast.host.activation import Activation
from outlast.store.operations import Operation

if TYPE_CHECKING:
    from outlast.chat.turns import Turns


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
    ) -> None:
        self._turns = turns
        self._agent = activation.address.text
        self._activation = activation
        self._commits = commits
        self._inbox = inbox
        self._transcript = transcript
        self._interactions = interactions
        self._retention = retention

    async def cancel(self, id: str, reason: str) -> bool:
        """Durable first, then the turn is stopped. False: there is none, or it has ended."""
        reason = storable(reason)
        async with self._transcript.changing:  # nothing is being claimed or settled
            entry = self._inbox.open_one(id)
            if entry is None:
                return False
            if entry.state == "accepted":
                ended, operation = self._inbox.end(entry, "aborted", reason, None)

                def taken_back() -> None:
                    self._retention.armed()
                    self._turns.tell(ended, TurnEnd("aborted", None, reason))

                operations = [operation, *self._retention.arm()]
                try:
                    await self._commits.commit_then(operations, taken_back)
                except CommitRefused:
                    return False
                return True
            recording = [self._inbox.cancel(entry, reason)]
            await self._commits.commit_then(recording, lambda: self._recorded(entry, reason))
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

            def given_up() -> None:
                self._retention.armed()
                for entry in self._inbox.up_to(seq):
                    if entry.state == "accepted":
                        self._turns.tell(entry, TurnEnd("skipped", None, reason))
                    else:
                        self._recorded(entry, reason)

            operations = [skipping, *cancels, *self._arm_if_open()]
            await self._commits.commit_then(operations, given_up)

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
