"""The runner: runs the turns of one agent in the order of the inbox, each to a durable end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.answer.attempt import Attempts
from outlast.chat.answer.chunk_hook import ChunkHook
from outlast.chat.inbox.concurrency import is_superseded, quiet_for
from outlast.chat.inbox.inbox import COMPOSED, Compose, Inbox
from outlast.chat.inbox.sql import EntryRow, Outcome
from outlast.chat.message.incoming import to_messages
from outlast.chat.message.reducer import cleaned
from outlast.chat.message.repair import without_waiting
from outlast.chat.message.results import Message, TurnEnd
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.claim import Claims
from outlast.chat.turn.failure import Failure, log_failure, reported
from outlast.chat.turn.notices import TranscriptChanged
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.part_repair import PartRepair
from outlast.chat.turn.pending import PendingCalls
from outlast.chat.turn.settle import Settler, storable
from outlast.chat.turn.settlement import Settlement
from outlast.chat.turn.state import TurnState
from outlast.chat.turn.telemetry import tell_start
from outlast.chat.turn.traces import Traces
from outlast.chat.turn.turn import PutBack, Turn, TurnAborted, composing_for, current_turn
from outlast.chat.types import events
from outlast.chat.types.contexts import ChatErrorContext, ChatErrorStage
from outlast.core import json
from outlast.core.errors import CommitRefused, OutlastError, again
from outlast.core.hooks import call_hook, is_overridden
from outlast.core.text import described
from outlast.core.tracing import traceparent

logger = logging.getLogger("outlast.chat")

FIRST_RETRY = 1.0  # seconds
LAST_RETRY = 60.0
UNANSWERED_CALL = "The turn ended before this call was answered."
LOST_FUNCTION = (
    "The process ended before this turn began, and with it the function that creates its messages."
)


class FunctionLost(OutlastError):
    """The function that creates the messages of a turn was lost with its process."""

    is_for_users = True


class Runner(ChatPart):
    """Works through the inbox while it has entries."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._state = parts[TurnState]
        self._pending = parts[PendingCalls]
        self._settler = parts[Settler]
        self._claims = parts[Claims]
        self._attempts = parts[Attempts]
        self._repair = parts[PartRepair]
        self._work: asyncio.Task[None] | None = None
        self._pausing: asyncio.Future[None] | None = None
        self.is_paused = False  # no turn begins here
        self.composing: dict[str, Compose] = {}  # the functions of waiting requests, by id

    # --- moments ---------------------------------------------------------------------------------

    async def start(self) -> None:
        self.proceed()

    def accepted(self, commit: Commit, entry: EntryRow) -> None:
        commit.then(self.proceed)

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        commit.then(lambda: self._forget(settlement.entry.id))

    def _forget(self, id: str) -> None:
        self.composing.pop(id, None)
        if self._pausing is not None and not self._pausing.done():
            self._pausing.set_result(None)

    # --- one after another -----------------------------------------------------------------------

    def proceed(self) -> None:
        """Start working through the inbox, unless that is in progress."""
        is_free = self._work is None and not self.is_paused
        if is_free and self.activation.ended is None and self._next():
            self._work = self.activation.spawn(self._run_all(), "turns")

    async def until_stable(self) -> None:
        """Wait until no turn runs or waits, and no call is pending."""
        while self._work is not None or self._inbox.is_busy or self._pending.pending:
            await self._state.change()

    async def _run_all(self) -> None:
        failures = 0  # in a row
        try:
            while not self.is_paused and (entry := self._next()) is not None:
                try:
                    await self._run_or_fail(entry)
                    failures = 0
                except CommitRefused:  # something else ended it in the meantime
                    self._inbox.ended(entry)
                except OutlastError as error:
                    if self.activation.ended is not None:
                        return
                    failures += 1
                    logger.error("%s: cannot run turns, will retry: %s", self.address, error)
                    await self._pause(min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(failures - 1, 20)))
        finally:
            self._work = None
            self._state.changed()

    def _next(self) -> EntryRow | None:
        """Return the next entry: an interrupted one, one that goes first, or the oldest."""
        entries = self._inbox.open
        for entry in entries:
            if entry.state == "running":
                return entry
        origins = self._inbox.origins
        for entry in entries:
            if origins[entry.origin].goes_first:
                return entry
        if entries and self._pending.holds(entries):
            return next((each for each in entries if not origins[each.origin].is_held), None)
        return entries[0] if entries else None

    async def _run_or_fail(self, entry: EntryRow) -> None:
        try:
            await self._run(entry)
        except OutlastError:
            raise
        except Exception as failure:  # its stored rows are damaged
            logger.exception("%s: giving up the request %s", self.address, entry.id)
            what, why = f"the request {entry.id}", described(failure)
            self.activation.events.emit(events.StoredDamaged, self.address, what, why)
            self._state.begin(None)
            now = self._inbox.current(entry) or entry
            is_recovery = now.state == "running"
            stage: ChatErrorStage = "recovery" if is_recovery else "transcript"
            # The messages of an entry that was never claimed are deleted with it.
            await self._end_failed(now, failure, stage, messages_persisted=is_recovery)

    async def _run(self, entry: EntryRow) -> None:
        if entry.state == "running":
            rest = self.activation.rest
            if rest > 0 and entry.cancelled is None and self.activation.unstorable is None:
                await self._pause(rest)
                return
            for resume in self.parts.overriding("resume_turn"):
                await resume(entry, self.answer)
            return
        self.activation.unstorable = None  # an interrupted turn would have come first
        if entry.cancelled is not None:
            async with self._transcript.changing:
                change = await self._claims.unanswered(entry)
                await self._end(entry, "aborted", error=entry.cancelled, change=change)
            return
        if entry.policy != "queue":
            await self._inbox.wait_for_accepting()  # one of them may supersede it
        wait = quiet_for(entry, self.activation.clock.now())
        if wait > 0 and not self._is_superseded(entry):
            await self._pause(wait / 1000)
            return  # and check again: the inbox may have changed
        if self._inbox.current(entry) is not entry:
            return
        if self._is_superseded(entry):
            async with self._transcript.changing:
                change = self._transcript.appending(await self._claims.new(entry))
                await self._end(entry, "skipped", change=change)
            return
        await self.activation.spawn(self._begin(entry), "turn")

    async def _pause(self, seconds: float) -> None:
        """Wait this long, or until a request has ended without its turn."""
        self._pausing = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._pausing}, timeout=seconds)
        self._pausing = None

    def _is_superseded(self, entry: EntryRow) -> bool:
        return is_superseded(entry, [other for other in self._inbox.open if other.seq > entry.seq])

    # --- a turn ----------------------------------------------------------------------------------

    async def _begin(self, entry: EntryRow) -> None:
        is_composed = entry.target is None and COMPOSED in json.decode(entry.options)
        if is_composed:
            composed = await self._composed(entry)
            if composed is None:
                return
            entry = composed
        async with self._transcript.changing:
            turn = await self._claims.claim(entry)
            if turn is None:
                await self._end(entry, "skipped", error=entry.cancelled)
                return
            self._state.begin(turn)
        if is_composed:
            self.activation.tell(TranscriptChanged(self._state.shown_messages))
        tell_start(self.parts, turn.entry)
        await self.answer(turn, self._transcript.path)

    async def _composed(self, entry: EntryRow) -> EntryRow | None:
        """Return the entry with the messages that its function creates, or None if that failed."""
        function = self.composing.pop(entry.id, None)
        if function is None:
            lost = FunctionLost(LOST_FUNCTION)
            await self._end_failed(entry, lost, "recovery", messages_persisted=False)
            return None
        composing_for.set(self.address)
        try:
            made = await call_hook(function, [Message(each) for each in self._transcript.path])
            messages = to_messages(made, self.activation.ids)
            return replace(entry, messages=json.encode(messages, "messages"))
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException as failure:
            if self.activation.ended is not None:
                raise
            logger.exception(
                "%s: the function for the messages of %s failed", self.address, entry.id
            )
            error = failure if isinstance(failure, Exception) else RuntimeError(described(failure))
            await self._end_failed(entry, error, "persist", messages_persisted=False)
            return None
        finally:
            composing_for.set(None)

    async def answer(self, turn: Turn, path: Sequence[dict[str, Any]]) -> None:
        """Run a turn to its durable end, unless it is interrupted."""
        self._announce(turn)
        outcome: Outcome = "completed"
        error: str | None = None
        detail: str | None = None
        try:
            await self._attempts.answer(turn, path)
        except TurnAborted:
            outcome, error = self._attempts.aborted(turn)
        except PutBack:
            turn.is_running = False
            self._state.begin(None)
            commit = self.commits.new()
            self._settler.put_back(commit, turn)
            await commit.stored()
            return
        except (Exception, asyncio.CancelledError) as failure:
            if self.activation.ended is not None:
                raise again(self.activation.ended) from failure
            this = asyncio.current_task()
            if isinstance(failure, asyncio.CancelledError):
                if this and this.cancelling():
                    raise
                failure = RuntimeError("a hook or tool was cancelled by its own code")
            if await self._attempts.breaks_off(turn, failure):
                return
            log_failure(self.address, turn.request_id, failure)
            found = await self._failed(turn, failure)
            if found is None:
                outcome, error = self._attempts.aborted(turn)
            else:
                outcome, error, detail = "error", found.shown, found.detail
        finally:
            turn.stream.hold()
            turn.is_running = False
            self._state.running = None
        await self._settle(turn, outcome, error, detail)

    def _announce(self, turn: Turn) -> None:
        """Announce a running turn to clients and listeners, and set it as the current turn."""
        started = self._state.started()
        if started is not None:
            self.activation.tell(started)
        if turn.repaired:
            ids = turn.repaired
            emit = self.activation.events.emit
            emit(events.TranscriptRepaired, self.address, turn.request_id, tool_call_ids=ids)
        parent = traceparent()
        if parent is not None:
            self.parts[Traces].remember(turn, parent)
        current_turn.set(turn)
        if is_overridden(self.parts.agent.on_chunk):
            turn.following = ChunkHook(self.parts.agent, turn, self.activation)

    # --- its end ---------------------------------------------------------------------------------

    async def _failed(self, turn: Turn, failure: Exception) -> Failure | None:
        """Report an error while the partial answer is part of `messages`.

        The message itself is stored with the turn's end. Its chunks are durable already: if the process
        crashes while `on_chat_error` runs, recovery rebuilds the same message from them.
        """
        answer = partial(self._final_message, turn, "error")
        self._transcript.failing_answer = answer, turn.under
        try:
            return await self._attempts.failed(turn, failure)
        finally:
            self._transcript.failing_answer = None

    @staticmethod
    def _final_message(
        turn: Turn, outcome: Outcome, error: str | None = None
    ) -> dict[str, Any] | None:
        """Return the message of a turn that ends now, or None if it is empty."""
        waiting = turn.open_calls if outcome == "completed" else set()
        message = without_waiting(turn.builder.message(), waiting, UNANSWERED_CALL)
        reason = (
            error if outcome == "aborted" else None
        )  # the error of a failure is not for clients
        return cleaned(message, error=reason or UNANSWERED_CALL, waiting=waiting)

    async def _settle(
        self, turn: Turn, outcome: Outcome, error: str | None, detail: str | None
    ) -> None:
        """Store the end of a turn: answer, outcome and the last chunks, in one commit."""
        async with self._transcript.changing:
            if self._inbox.current(turn.entry) is None:  # the conversation was cleared
                self._state.live = None
                turn.stream.close(TurnEnd("aborted", None, error))
                return
            message = self._final_message(turn, outcome, error)
            if message is not None:
                said = turn.builder.message()
                message = storable(self._repair.marking(said, message, turn.begun))
            change = None
            if message is not None:
                change = await self._settler.answer_change(message, turn.entry, turn.under, outcome)
            await turn.stream.drained()
            commit = self.commits.new()
            self._settler.end(
                commit,
                turn.entry,
                outcome,
                error=error,
                detail=detail,
                turn=turn,
                stream=turn.stream,
                message=message,
                change=change,
            )
            await commit.stored()

    async def _end_failed(
        self,
        entry: EntryRow,
        failure: Exception,
        stage: ChatErrorStage,
        *,
        messages_persisted: bool,
    ) -> None:
        """End an entry that failed without a turn."""
        context = ChatErrorContext(entry.id, stage, messages_persisted)
        found = await reported(self.parts, failure, context)
        async with self._transcript.changing:
            if self._inbox.current(entry) is not None:
                await self._end(entry, "error", error=found.shown, detail=found.detail)

    async def _end(self, entry: EntryRow, outcome: Outcome, **about: Any) -> None:
        """End an entry without a turn. The caller holds `Transcript.changing`."""
        commit = self.commits.new()
        self._settler.end(commit, entry, outcome, **about)
        await commit.stored()
