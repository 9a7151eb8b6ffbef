"""The turns of one agent: one after another, in the order of the inbox, each to a durable end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from outlast.agent.commit import Commits
from outlast.chat.answer.attempt import AnsweringTurns, Chatting
from outlast.chat.answer.chunk_hook import Following
from outlast.chat.context.compaction import Compactions
from outlast.chat.inbox.concurrency import is_superseded, quiet_for
from outlast.chat.inbox.inbox import COMPOSED, Compose, Inbox
from outlast.chat.inbox.sql import EntryRow, Outcome
from outlast.chat.message.incoming import sanitised, to_messages
from outlast.chat.message.reducer import cleaned
from outlast.chat.message.repair import without_waiting
from outlast.chat.message.results import Message, TurnEnd
from outlast.chat.recovery import incidents
from outlast.chat.recovery.resume import ENDED, TakingUp
from outlast.chat.recovery.upgrade import Leaving, PutBack
from outlast.chat.run.response_hook import Responses
from outlast.chat.run.retention import Retention
from outlast.chat.run.stop import Stopping
from outlast.chat.stream.reading import Streams
from outlast.chat.stream.stream import Stream
from outlast.chat.tools.ledger import Ledger
from outlast.chat.tools.pending import AUTO, Interactions
from outlast.chat.transcript.shown import Shown, Stamp, stamp_of, with_waiting
from outlast.chat.transcript.transcript import Change, Transcript, message_body
from outlast.chat.turn import traces
from outlast.chat.turn.claim import Claims
from outlast.chat.turn.failure import Failure, log_failure, reported
from outlast.chat.turn.telemetry import tell_end, tell_start
from outlast.chat.turn.turn import Turn, TurnAborted, composing_for, current_turn
from outlast.chat.types import events
from outlast.chat.types.contexts import ChatErrorContext, ChatErrorStage, is_overridden, told
from outlast.chat.types.notices import Accepted, Ended, Recovering, Started, TranscriptChanged
from outlast.chat.types.recovery import recovery_of
from outlast.core import json
from outlast.core.errors import CommitRefused, OutlastError, again
from outlast.core.text import described
from outlast.core.tracing import traceparent
from outlast.host.life.activation import Activation
from outlast.store.operations import Operation

logger = logging.getLogger("outlast.chat")

FIRST_RETRY = 1.0  # seconds
LAST_RETRY = 60.0
LOST_FUNCTION = (
    "The process ended before this turn began; the function that was to make its messages is gone."
)


class FunctionLost(OutlastError):
    """The messages of a turn were to be made by a function of a process that is gone."""

    is_for_users = True


_STATUS = {"completed": "settled", "aborted": "stopped", "interrupted": "interrupted"}


class Turns:
    """Sees to the inbox, as long as there is something in it."""

    def __init__(
        self,
        agent: Chatting,
        activation: Activation,
        commits: Commits,
        inbox: Inbox,
        transcript: Transcript,
        interactions: Interactions,
        claims: Claims,
        responses: Responses | None,
        compactions: Compactions,
    ) -> None:
        self._object = agent
        self._agent = activation.address.text
        self._activation = activation
        self._commits = commits
        self._inbox = inbox
        self._transcript = transcript
        self._interactions = interactions
        self._claims = claims
        self._responses = responses  # None: nobody wants to be told
        self._retention = Retention(activation, commits)
        self._ledger = ledger = Ledger(activation)
        self.incidents = incidents.Incidents(activation)
        self._taking_up = TakingUp(
            self,
            agent,
            activation,
            commits,
            inbox,
            transcript,
            interactions,
            ledger,
            self.incidents,
        )
        self.boots = self._taking_up.boots
        self.answering = AnsweringTurns(
            agent,
            activation,
            inbox,
            interactions,
            ledger,
            compactions,
            self._taking_up.broken_off,
        )
        self.stopping = Stopping(
            self, activation, commits, inbox, transcript, interactions, self._retention, claims
        )
        self.leaving = Leaving(self, activation, commits, inbox)
        self.noted: set[str] = set()  # requests about which something is noted, or was
        self.streams = Streams(activation, transcript)
        self._waiters: dict[str, list[asyncio.Future[TurnEnd]]] = {}
        self._watchers: list[asyncio.Future[None]] = []  # who waits for anything to change
        self._pump: asyncio.Task[None] | None = None
        self._pausing: asyncio.Future[None] | None = None
        self.recovering: str | None = None  # the request that goes on after an interruption
        self.running: Turn | None = None
        self.live: Turn | None = None  # the same, until its message is stored
        self._message_ids: dict[str, tuple[str, ...]] = {}  # of what open requests have brought
        self.composing: dict[str, Compose] = {}  # what makes the messages of requests that wait
        self._told_aborted: set[str] = set()  # requests that wait, and whose end is known
        interactions.turns = self
        inbox.on_accepted = self._accepted

    # --- what clients see ------------------------------------------------------------------------

    def shown(self) -> Shown:
        """The stored path, and then what was accepted and is not part of it yet, in order."""
        waiting = [
            (entry.kind == "regenerate", self._brought(entry))
            for entry in self._inbox.open
            if entry.state == "accepted" and entry.messages is not None
        ]
        stored = self._transcript.shown()
        return with_waiting(stored, waiting) if waiting else stored

    @staticmethod
    def _brought(entry: EntryRow) -> list[tuple[dict[str, Any], Stamp]]:
        messages = json.decode(entry.messages or "[]")
        return [(each, stamp_of(each["id"], message_body(each))) for each in messages]

    def message_ids(self, entry: EntryRow) -> tuple[str, ...]:
        """The messages that a request has brought; of one that another life has accepted, the last."""
        known = self._message_ids.get(entry.id)
        if known is not None:
            return known
        return () if entry.target is None or entry.kind != "message" else (entry.target,)

    def started(self) -> Started | None:
        """The turn that runs, for those who come now."""
        live = self.live
        if live is None or live.stream.end is not None:
            return None
        ids = self.message_ids(live.entry)
        continues, message_id = live.is_continuation, live.message_id
        return Started(live.request_id, live.stream, continues, ids, message_id, self.shown)

    def _accepted(self, entry: EntryRow) -> None:
        if entry.messages is not None:
            ids = [message["id"] for message in json.decode(entry.messages)]
            self._message_ids[entry.id] = tuple(ids)
        self._activation.tell(Accepted(entry.id, entry.kind, self.shown))
        self.go_on()

    # --- one after another -----------------------------------------------------------------------

    def go_on(self) -> None:
        """See to what is in the inbox, unless that is being done."""
        is_free = self._pump is None and not self.leaving.is_waiting
        if is_free and self._activation.ended is None and self._next():
            self._pump = self._activation.spawn(self._see_to_all(), "turns")

    async def _see_to_all(self) -> None:
        failures = 0  # in a row
        try:
            while not self.leaving.is_waiting and (entry := self._next()) is not None:
                try:
                    await self._see_to_or_give_up(entry)
                    failures = 0
                except CommitRefused:  # it was ended by somebody else in the meantime
                    self._inbox.ended(entry)
                except OutlastError as error:
                    if self._activation.ended is not None:
                        return
                    failures += 1
                    logger.error("%s: turns cannot go on yet: %s", self._agent, error)
                    await self._pause(min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(failures - 1, 20)))
        finally:
            self._pump = None
            self.changed()

    def _next(self) -> EntryRow | None:
        """What is to be seen to next: what was interrupted, what goes on by itself, what was asked first."""
        entries = self._inbox.open
        for entry in entries:
            if entry.state == "running":
                return entry
        for entry in entries:
            if entry.origin == AUTO:
                return entry
        return None if not entries or self._interactions.holds(entries) else entries[0]

    async def _see_to_or_give_up(self, entry: EntryRow) -> None:
        try:
            await self._see_to(entry)
        except OutlastError:
            raise
        except Exception as failure:  # what is stored of it makes no sense
            logger.exception("%s: the request %s is given up", self._agent, entry.id)
            self._activation.events.emit(
                events.StoredDamaged,
                self._agent,
                f"the request {entry.id}",
                described(failure),
            )
            self.running = self.live = None
            now = self._inbox.current(entry) or entry
            is_recovery = now.state == "running"
            stage: ChatErrorStage = "recovery" if is_recovery else "transcript"
            # The messages of an entry that was never claimed go with it.
            await self._end_failed(now, failure, stage, messages_persisted=is_recovery)

    async def _see_to(self, entry: EntryRow) -> None:
        if entry.state == "running":
            rest = self._activation.rest
            if rest > 0 and entry.cancelled is None and self._activation.unstorable is None:
                await self._pause(rest)
                return
            await self._taking_up.take_up(entry)
            return
        self._activation.unstorable = None  # what was interrupted comes first, and there is nothing
        if entry.cancelled is not None:
            async with self._transcript.changing:
                await self.end(entry, "aborted", change=await self._claims.unanswered(entry))
            return
        if entry.policy != "queue":
            await self._inbox.accepted_so_far()  # whatever supersedes it
        wait = quiet_for(entry, self._activation.clock.now())
        if wait > 0 and not self._is_superseded(entry):
            await self._pause(wait / 1000)
            return  # and look at it again: much may have happened
        if self._inbox.current(entry) is not entry:
            return
        if self._is_superseded(entry):
            async with self._transcript.changing:
                change = self._transcript.appending(await self._claims.new(entry))
                await self.end(entry, "skipped", change=change)
            return
        await self._activation.spawn(self._run(entry), "turn")

    async def _pause(self, seconds: float) -> None:
        """Wait this long, or until something has ended without its turn."""
        self._pausing = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._pausing}, timeout=seconds)
        self._pausing = None

    def _is_superseded(self, entry: EntryRow) -> bool:
        return is_superseded(entry, [other for other in self._inbox.open if other.seq > entry.seq])

    # --- a turn ----------------------------------------------------------------------------------

    async def _run(self, entry: EntryRow) -> None:
        is_composed = entry.target is None and COMPOSED in json.decode(entry.options)
        if is_composed:
            composed = await self._composed(entry)
            if composed is None:
                return
            entry = composed
        async with self._transcript.changing:
            turn = await self._claims.claim(entry, self.streams.of)
            self.running = self.live = turn
        if turn is None:
            await self.end(entry, "skipped")
            return
        if is_composed:
            self._activation.tell(TranscriptChanged(self.shown))
        tell_start(self._activation, turn.entry)
        await self.answer(turn, self._transcript.path)

    async def _composed(self, entry: EntryRow) -> EntryRow | None:
        """The entry with the messages that a function makes for it; None: it has ended with an error."""
        function = self.composing.pop(entry.id, None)
        if function is None:
            lost = FunctionLost(LOST_FUNCTION)
            await self._end_failed(entry, lost, "recovery", messages_persisted=False)
            return None
        composing_for.set(self._agent)
        try:
            made = await told(function, [Message(message) for message in self._transcript.path])
            messages = to_messages(made, self._activation.ids)
            return replace(entry, messages=json.encode(messages, "messages"))
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException as failure:
            if self._activation.ended is not None:
                raise
            logger.exception("%s: the function for the messages of %s", self._agent, entry.id)
            error = failure if isinstance(failure, Exception) else RuntimeError(described(failure))
            await self._end_failed(entry, error, "persist", messages_persisted=False)
            return None
        finally:
            composing_for.set(None)

    async def _end_failed(
        self,
        entry: EntryRow,
        failure: Exception,
        stage: ChatErrorStage,
        *,
        messages_persisted: bool,
    ) -> None:
        """The end of an entry that fails without a turn."""
        found = await self.report(failure, entry.id, stage, messages_persisted=messages_persisted)
        await self.end(entry, "error", error=found.shown, detail=found.detail)

    async def report(
        self,
        failure: Exception,
        request_id: str | None,
        stage: ChatErrorStage,
        *,
        messages_persisted: bool,
        default: str | None = None,
    ) -> Failure:
        """Report a failure that is not one of a turn that runs."""
        context = ChatErrorContext(request_id, stage, messages_persisted)
        emitter = self._activation.events
        return await reported(self._object, self._agent, failure, context, emitter, default=default)

    async def answer(self, turn: Turn, path: Sequence[dict[str, Any]]) -> None:
        """Run a turn to its durable end, unless it is interrupted."""
        entry = turn.entry
        started = self.started()
        if started is not None:
            self._activation.tell(started)
        if turn.repaired:
            self._activation.events.emit(
                events.TranscriptRepaired, self._agent, entry.id, tool_call_ids=turn.repaired
            )
        parent = traceparent()
        if parent is not None:
            turn.stream.attach(traces.remembering(self._agent, entry.id, parent))
        current_turn.set(turn)
        if is_overridden(self._object.on_chunk):
            turn.following = Following(self._object, turn, self._activation)
        if recovery_of(self._object.chat_recovery) is not None:
            turn.on_held = partial(self._note_held, entry.id)
        outcome: Outcome = "completed"
        error: str | None = None
        detail: str | None = None
        try:
            await self.answering.answer(turn, path)
        except TurnAborted:
            outcome, error = self.answering.aborted(turn)
        except PutBack:
            turn.is_running = False
            self.running = self.live = None
            await self.leaving.put_back(turn)
            return
        except (Exception, asyncio.CancelledError) as failure:
            if self._activation.ended is not None:
                raise again(self._activation.ended) from failure
            this = asyncio.current_task()
            if isinstance(failure, asyncio.CancelledError):
                if this and this.cancelling():
                    raise
                failure = RuntimeError("the code of a hook or of a tool was cancelled")
            if await self.answering.breaks_off(turn, failure):
                return
            log_failure(self._agent, entry.id, failure)
            found = await self._failed(turn, failure)
            if found is None:
                outcome, error = self.answering.aborted(turn)
            else:
                outcome, error, detail = "error", found.shown, found.detail
        finally:
            turn.stream.hold()
            turn.is_running = False
            self.running = None
        await self._settle(turn, outcome, error, detail)

    async def _failed(self, turn: Turn, failure: Exception) -> Failure | None:
        """Report an error while the partial answer is part of `messages`.

        The message itself is stored with the turn's end, as always. Its chunks are durable already: if the
        process dies while `on_chat_error` runs, recovery makes the same message of them. A commit before the
        hook would therefore protect nothing.
        """
        self._transcript.coming = partial(self._said, turn, "error"), turn.under
        try:
            return await self.answering.failed(turn, failure)
        finally:
            self._transcript.coming = None

    def _said(
        self, turn: Turn, outcome: Outcome, error: str | None = None
    ) -> dict[str, Any] | None:
        """The message of a turn that ends now; None: it has said nothing."""
        waiting = turn.open_calls if outcome == "completed" else set()
        said = without_waiting(turn.builder.message(), waiting, ENDED)
        reason = error if outcome == "aborted" else None  # that of a failure is not for clients
        return cleaned(said, error=reason or ENDED, waiting=waiting)

    async def _settle(
        self, turn: Turn, outcome: Outcome, error: str | None, detail: str | None
    ) -> None:
        """The end of a turn: answer, outcome and the last chunks in one commit."""
        async with self._transcript.changing:
            if self._inbox.current(turn.entry) is None:  # cleared: nothing of it is kept
                self.live = None
                turn.stream.close(TurnEnd("aborted", None, error))
                return
            message = self._said(turn, outcome, error)
            if message is not None:
                said = turn.builder.message()
                message = self._claims.repair.marking(said, message, turn.begun)
            await self.store_end(
                turn.entry, turn.stream, message, turn.under, outcome, error, turn, detail=detail
            )

    # --- a turn that was interrupted -------------------------------------------------------------

    def set_recovering(self, id: str | None) -> None:
        """Clients see that an interrupted turn goes on, or that this is over."""
        was, self.recovering = self.recovering, id
        if (was is None) != (id is None):
            self._activation.tell(Recovering(id is not None, id or was))

    async def begin_boot(self) -> None:
        """Before anything large is read: a boot with something to recover is counted, should it die."""
        if any(entry.state == "running" for entry in self._inbox.open):
            await self.boots.begin()

    async def mark(self, cause: str) -> None:
        """The process is about to end: the turn that runs is interrupted by this."""
        self.leaving.host_stops()
        await self.boots.failed()
        turn = self.running
        if turn is not None:
            note = self.incidents.note_cause(turn.request_id, cause)
            self.noted.add(turn.request_id)
            await self._commits.commit([note])

    def _note_held(self, id: str, held: str) -> Operation:
        self.noted.add(id)
        return self.incidents.note_held(id, held)

    async def stash(self, turn: Turn, data: Any) -> None:
        """For the hooks, should the turn be interrupted."""
        note = self.incidents.note_stash(turn.request_id, data)
        self.noted.add(turn.request_id)
        turn.stream.attach(note)
        await turn.stream.stored()

    async def store_end(
        self,
        entry: EntryRow,
        stream: Stream,
        message: dict[str, Any] | None,
        under: str | None,
        outcome: Outcome,
        error: str | None,
        turn: Turn | None = None,
        *,
        detail: str | None = None,
        more: Sequence[Operation] = (),
        change: Change | None = None,
    ) -> None:
        """Under `Transcript.changing`. `change`: what becomes of the conversation, if that is known."""
        if message is not None:
            message = sanitised(message)
        message_id = None if message is None else message["id"]
        shown = None if message is None else Message(message)
        end = TurnEnd(outcome, shown, error, None if turn is None else turn.output)
        ended, operation = self._inbox.end(entry, outcome, error, message_id, detail)
        operations = [operation, *more]
        if entry.id in self.noted:
            operations.append(self.incidents.close(entry.id))
        follower: EntryRow | None = None
        facts: list[Operation] = []
        if turn is not None and (outcome == "completed" or turn.has_answer):
            facts += self._interactions.remembering(turn)
        if change is not None:
            operations += change.operations
        if message is not None:
            status = _STATUS.get(outcome, "settled")
            if change is None:
                place = self._transcript.answering(message, under, status=status, turn=entry.id)
                change = await place
                operations += change.operations
            if turn is not None and outcome == "completed" and turn.left_open:
                facts += self._interactions.opening(message)
                follower = self._interactions.continuing(turn, message, change.leaf)
                if follower is not None:
                    operations.append(self._inbox.acceptance(follower))
            if self._responses is not None:
                operations.append(self._responses.due(entry))
        try:
            await stream.settle([*operations, *facts, *self._retention.arm()], end)
        except CommitRefused:  # cleared in between
            stream.close(TurnEnd("aborted", None, error))
            raise
        finally:
            self.live = None
        if change is not None:
            self._transcript.applied(change)
        self._interactions.remember(facts)
        self._retention.armed()
        self.tell(ended, end)
        if follower is not None:
            self._inbox.accepted(follower)
        if self._responses is not None and message is not None:
            self._responses.go_on(entry.id)

    async def end(
        self,
        entry: EntryRow,
        outcome: Outcome,
        *,
        change: Change | None = None,
        error: str | None = None,
        detail: str | None = None,
    ) -> None:
        """The end of an entry that gets no turn."""
        error = error or entry.cancelled
        ended, operation = self._inbox.end(entry, outcome, error, None, detail)
        operations = [operation, *(change.operations if change else ())]
        if entry.state == "running":  # it was being taken up, and makes no sense
            operations += [self.incidents.close(entry.id), self.incidents.up()]
        await self._commits.commit([*operations, *self._retention.arm()])
        self._retention.armed()
        if change is not None:
            self._transcript.applied(change)
        self.tell(ended, TurnEnd(outcome, None, error))

    def tell(self, entry: EntryRow, end: TurnEnd) -> None:
        """It has ended, and that is durable."""
        self._inbox.ended(entry)
        if (
            entry.id in self._told_aborted
        ):  # that is known; its messages stand in the transcript now
            self._told_aborted.discard(entry.id)
            self._message_ids.pop(entry.id, None)
            self._release(entry.id, end)
            self._activation.tell(TranscriptChanged(self.shown))
            self.changed()
            return
        self.noted.discard(entry.id)
        self._taking_up.lives.pop(entry.id, None)
        if self.recovering == entry.id:
            self.set_recovering(None)
            emit, id = self._activation.events.emit, entry.id
            if end.status in ("error", "interrupted"):
                reason = entry.detail or end.error or end.status
                emit(events.RecoveryFailed, self._agent, id, reason)
            else:
                emit(events.RecoveryCompleted, self._agent, id)
        self.answering.executors.pop(entry.id, None)
        self.composing.pop(entry.id, None)
        self.leaving.turn_ended()
        tell_end(self._activation, entry, end)
        self.changed()
        if self._pausing is not None and not self._pausing.done():
            self._pausing.set_result(None)
        chunks = self._release(entry.id, end)
        ids = self.message_ids(entry)
        self._message_ids.pop(entry.id, None)
        begun, goes_on = entry.started_at is not None, entry.kind == "continue"
        self._activation.tell(Ended(entry.id, end, begun, self.shown, goes_on, ids, chunks))

    def tell_aborted(self, entry: EntryRow, reason: str) -> None:
        """A request that waits behind others will not be answered, and that is durable."""
        end = TurnEnd("aborted", None, reason)
        ids = self.message_ids(entry)
        tell_end(self._activation, replace(entry, outcome="aborted", error=reason), end)
        self._told_aborted.add(entry.id)
        self._release(entry.id, end)
        goes_on = entry.kind == "continue"
        self._activation.tell(Ended(entry.id, end, False, self.shown, goes_on, ids, ()))

    def _release(self, id: str, end: TurnEnd) -> Sequence[str]:
        """Whoever waits for a request, or reads its stream, is told its end; what was streamed."""
        stream = self.streams.open.pop(id, None)
        if stream is not None:
            stream.close(end)
        for waiter in self._waiters.pop(id, ()):
            if not waiter.done():
                waiter.set_result(end)
        return () if stream is None else stream.chunks

    # --- waiting and reading ---------------------------------------------------------------------

    def waits_for(self, turn: Turn) -> bool:
        """Whether the next turn here begins only after this one, of another agent, has ended."""
        running = self.running
        return running is not None and (
            running is turn or any(other.waits_for(turn) for other in running.waits_for)
        )

    async def wait(self, id: str) -> TurnEnd:
        """How it ends. Cancelling whoever waits cancels nothing else."""
        waiter: asyncio.Future[TurnEnd] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(id, []).append(waiter)
        return await waiter

    def changed(self) -> None:
        """Something about the turns, or about what they have left open, is not as it was."""
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    def transcript_changed(self) -> None:
        """Not by a turn: what has waited for an answer may have nothing to wait for any more."""
        self.changed()
        self.go_on()

    async def until_stable(self) -> None:
        """Wait until nothing is under way, and nothing waits for an answer."""
        while self._is_unstable():
            watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append(watcher)
            try:
                await watcher
            finally:
                if watcher in self._watchers:
                    self._watchers.remove(watcher)

    def _is_unstable(self) -> bool:
        return self._pump is not None or self._inbox.is_busy or bool(self._interactions.pending)

    async def sweep(self) -> None:
        """The alarm of retention is due."""
        await self._retention.sweep()

    def leave(self, reason: Exception) -> None:
        """This activation is over. Whoever waits here is told; the turns are not over."""
        self.boots.leave()
        if self.running is not None:
            id = self.running.request_id
            self._activation.events.emit(events.TurnInterrupted, self._agent, id, str(reason))
        for stream in self.streams.open.values():
            stream.close()
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(again(reason))
        self._waiters.clear()
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_exception(again(reason))
        self._watchers.clear()
