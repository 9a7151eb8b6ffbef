"""The state of an agent's turns: the running turn, the waiters, and what clients see."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.results import TurnEnd
from outlast.chat.stream.streams import Streams
from outlast.chat.transcript.shown import Shown, Stamp, stamp_of, with_waiting
from outlast.chat.transcript.transcript import Transcript, message_body
from outlast.chat.turn.notices import Accepted, Ended, Recovering, Started, TranscriptChanged
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settlement import Settlement
from outlast.chat.turn.telemetry import tell_end
from outlast.chat.turn.turn import Turn
from outlast.chat.types import events
from outlast.chat.types.recovery import Cause
from outlast.core import json
from outlast.core.errors import again


@dataclass(frozen=True, slots=True)
class TurnStatistics:
    """A snapshot of a chat agent's activity."""

    running: str | None  # the request of the running turn
    attempt: int  # of that turn
    waiting: tuple[str, ...]  # accepted requests whose turns have not begun, in order
    recovering: str | None  # the request that continues after an interruption
    chunks: int  # durable chunks of the running turn
    open_calls: tuple[str, ...]  # calls that wait for the client, or for an approval
    waiters: int  # callers that wait for the end of a request
    is_settling: bool  # the conversation is being changed


class TurnState(ChatPart):
    """The state of one agent's turns, for other parts."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._streams = parts[Streams]
        self.running: Turn | None = None
        self.live: Turn | None = None  # the same, until its message is stored
        self.recovering: str | None = None  # the request that continues after an interruption
        self.broken_off: dict[
            str, tuple[Cause, int]
        ] = {}  # interrupted here: cause and time, by request
        self._waiters: dict[str, list[asyncio.Future[TurnEnd]]] = {}
        self._watchers: list[asyncio.Future[None]] = []  # resolved on any change
        self._message_ids: dict[str, tuple[str, ...]] = {}  # the messages of open requests
        self._known_aborted: dict[str, None] = {}  # waiting requests whose end was announced

    # --- what clients see ------------------------------------------------------------------------

    def shown_messages(self) -> Shown:
        """Return the stored path, then accepted messages that are not part of it yet, in order."""
        waiting = [
            (entry.kind == "regenerate", _brought(entry))
            for entry in self._inbox.open
            if entry.state == "accepted" and entry.messages is not None
        ]
        stored = self._transcript.as_shown()
        return with_waiting(stored, waiting) if waiting else stored

    def message_ids(self, entry: EntryRow) -> tuple[str, ...]:
        """Return the messages of a request; only the last if another process accepted it."""
        known = self._message_ids.get(entry.id)
        if known is not None:
            return known
        return () if entry.target is None or entry.kind != "message" else (entry.target,)

    def started(self) -> Started | None:
        """Return the notice about the running turn, for clients that join now."""
        live = self.live
        if live is None or live.stream.end is not None:
            return None
        ids = self.message_ids(live.entry)
        continues, message_id = live.is_continuation, live.message_id
        return Started(
            live.request_id, live.stream, continues, ids, message_id, self.shown_messages
        )

    def set_recovering(self, id: str | None) -> None:
        """Set the recovering request, and notify clients when that starts or ends."""
        was, self.recovering = self.recovering, id
        if (was is None) != (id is None):
            self.activation.tell(Recovering(id is not None, id or was))

    # --- moments ---------------------------------------------------------------------------------

    def accepted(self, commit: Commit, entry: EntryRow) -> None:
        commit.then(lambda: self._announce_accepted(entry))

    def _announce_accepted(self, entry: EntryRow) -> None:
        if entry.messages is not None:
            ids = [message["id"] for message in json.decode(entry.messages)]
            self._message_ids[entry.id] = tuple(ids)
        self.activation.tell(Accepted(entry.id, entry.kind, self.shown_messages))

    def begin(self, turn: Turn | None) -> None:
        """Set the running turn; None if it was put back or interrupted."""
        self.running = self.live = turn

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        seq = settlement.entry.seq

        def not_live() -> None:
            if self.live is not None and self.live.entry.seq == seq:
                self.live = None

        commit.then(not_live)
        commit.undo(not_live)
        if not settlement.is_put_back:
            commit.then(lambda: self._announce_end(settlement))

    def _announce_end(self, settlement: Settlement) -> None:
        entry, end = settlement.entry, settlement.end
        self.broken_off.pop(entry.id, None)
        if entry.id in self._known_aborted:  # its messages are in the transcript now
            del self._known_aborted[entry.id]
            self._message_ids.pop(entry.id, None)
            self._release(entry.id, end)
            self.activation.tell(TranscriptChanged(self.shown_messages))
            self.changed()
            return
        if self.recovering == entry.id:
            self._announce_recovered(entry, end)
        tell_end(self.parts, entry, end)
        self.changed()
        chunks = self._release(entry.id, end)
        ids = self.message_ids(entry)
        self._message_ids.pop(entry.id, None)
        begun, continues = entry.started_at is not None, entry.kind == "continue"
        shown = self.shown_messages
        self.activation.tell(Ended(entry.id, end, begun, shown, continues, ids, chunks))

    def _announce_recovered(self, entry: EntryRow, end: TurnEnd) -> None:
        self.set_recovering(None)
        emit = self.activation.events.emit
        if end.status in ("error", "interrupted"):
            reason = entry.detail or end.error or end.status
            emit(events.RecoveryFailed, self.address, entry.id, reason)
        else:
            emit(events.RecoveryCompleted, self.address, entry.id)

    def announce_aborted(self, entry: EntryRow, reason: str) -> None:
        """Announce the end of a waiting request that will not be answered, once that is durable."""
        end = TurnEnd("aborted", None, reason)
        ids = self.message_ids(entry)
        tell_end(self.parts, replace(entry, outcome="aborted", error=reason), end)
        self._known_aborted[entry.id] = None
        self._release(entry.id, end)
        continues = entry.kind == "continue"
        self.activation.tell(Ended(entry.id, end, False, self.shown_messages, continues, ids, ()))

    def _release(self, id: str, end: TurnEnd) -> Sequence[str]:
        """Resolve the waiters and end the readers of a request. Returns its chunks."""
        stream = self._streams.open.pop(id, None)
        if stream is not None:
            stream.close(end)
        for waiter in self._waiters.pop(id, ()):
            if not waiter.done():
                waiter.set_result(end)
        return () if stream is None else stream.chunks

    # --- waiting ---------------------------------------------------------------------------------

    async def wait(self, id: str) -> TurnEnd:
        """Wait for the end of a request. Cancelling the caller cancels nothing else."""
        waiter: asyncio.Future[TurnEnd] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(id, []).append(waiter)
        return await waiter

    def waits_for(self, turn: Turn) -> bool:
        """Return whether the next turn here can begin only after this turn, of another agent, has ended."""
        running = self.running
        return running is not None and (
            running is turn or any(other.waits_for(turn) for other in running.waits_for)
        )

    def changed(self) -> None:
        """Wake the tasks that wait for a change of the turns or of the pending calls."""
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def change(self) -> None:
        """Wait until something changes."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        try:
            await watcher
        finally:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def transcript_changed(self) -> None:
        """Announce a change that no turn made: a waiting request may be able to proceed."""
        self.changed()
        for proceed in self.parts.overriding("proceed"):
            proceed()

    def leave(self, reason: Exception) -> None:
        if self.running is not None:
            id = self.running.request_id
            self.activation.events.emit(events.TurnInterrupted, self.address, id, str(reason))
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(again(reason))
        self._waiters.clear()
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_exception(again(reason))
        self._watchers.clear()

    def statistics(self, open_calls: Sequence[str]) -> TurnStatistics:
        running = self.running
        return TurnStatistics(
            running=None if running is None else running.request_id,
            attempt=0 if running is None else running.entry.attempt,
            waiting=tuple(entry.id for entry in self._inbox.open if entry.state == "accepted"),
            recovering=self.recovering,
            chunks=0 if running is None else len(running.stream.chunks),
            open_calls=tuple(open_calls),
            waiters=sum(map(len, self._waiters.values())) + len(self._watchers),
            is_settling=self._transcript.changing.locked(),
        )


def _brought(entry: EntryRow) -> list[tuple[dict[str, Any], Stamp]]:
    messages = json.decode(entry.messages or "[]")
    return [(each, stamp_of(each["id"], message_body(each))) for each in messages]
