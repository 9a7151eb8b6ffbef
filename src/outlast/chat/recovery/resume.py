"""Resumes turns whose process is gone: decides, makes the decision durable, and carries it out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.partial import folded
from outlast.chat.message.reducer import MessageBuilder, cleaned
from outlast.chat.message.tool_part import is_settled
from outlast.chat.recovery import sql as decision_rows
from outlast.chat.recovery.boot import BootStrikes
from outlast.chat.recovery.budget import Incident
from outlast.chat.recovery.chain import LEFT_OUT, Chain
from outlast.chat.recovery.finish import (
    INTERRUPTED,
    NOT_STORED,
    WENT_ON,
    AnswerNotStored,
    InterruptedEnds,
)
from outlast.chat.recovery.incidents import Incidents
from outlast.chat.recovery.judge import Interruption, Judge, Verdict
from outlast.chat.recovery.open_calls import close_calls, settle_by_chain
from outlast.chat.recovery.recovered_turns import recovered_turns
from outlast.chat.stream.streams import Streams
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.notices import TranscriptChanged
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.part_repair import PartRepair, with_replaced
from outlast.chat.turn.settle import Settler
from outlast.chat.turn.settlement import Settlement
from outlast.chat.turn.state import TurnState
from outlast.chat.turn.telemetry import tell_start
from outlast.chat.turn.traces import Traces
from outlast.chat.turn.turn import Turn, TurnAborted
from outlast.chat.types import events
from outlast.chat.types.continuation import continuation_of
from outlast.chat.types.recovery import recovery_of
from outlast.core.errors import CommitRefused, OutlastError
from outlast.core.hooks import call_hook
from outlast.core.text import described
from outlast.host.wakeups.boot_order import delay_before
from outlast.store.operations import Operation

logger = logging.getLogger("outlast.chat")

# The actions without another attempt.
ENDS = ("finalise", "abort", "skip", "seal", "stop", "handled", "splice")

SLOW_DOWN = 1.0  # seconds before the second attempt in a row without progress, then doubling
SLOWEST = 30.0
AFTER_OOM = 3.0


class NotReady(OutlastError):
    """A turn cannot be resumed yet."""


Answer = Callable[[Turn, Sequence[dict[str, Any]]], Awaitable[None]]
"""Runs a turn to its durable end."""


def delay_of(verdict: Verdict, lives: int, now: int) -> float:
    """Return the seconds before the next attempt: 0, unless the model failed repeatedly, or memory ran out.

    A turn that may have killed its process waits for its neighbours, which continue at once.
    """
    incident, least = verdict.incident, AFTER_OOM if verdict.decision.shrinks else 0.0
    if incident is not None and incident.is_suspect:
        return max(least, delay_before(incident.host_deaths, now - incident.begun_at))
    if least:
        return least
    return 0.0 if lives < 2 else min(SLOWEST, SLOW_DOWN * 2.0 ** (lives - 2))


def is_of_a_turn(operations: Sequence[str]) -> bool:
    """Return whether a commit belonged to a running turn, and not to a request being accepted."""
    return not {"streams append", "calls begin", "calls end", "inbox end"}.isdisjoint(operations)


def _last_answers(path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers since the last user message."""
    answers = takewhile(lambda message: message.get("role") == "assistant", reversed(path))
    return list(answers)


def _leaving(
    leave: Callable[[], None], continued: Callable[[], Operation]
) -> Callable[[], Operation]:
    """Let other suspects begin once the answer continues, because this one did not kill the process."""

    def on_continued() -> Operation:
        leave()
        return continued()

    return on_continued


class Resumption(ChatPart):
    """Resumes the interrupted turns of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._streams = parts[Streams]
        self._state = parts[TurnState]
        self._settler = parts[Settler]
        self._incidents = parts[Incidents]
        self._boots = parts[BootStrikes]
        self._judge = parts[Judge]
        self._ends = parts[InterruptedEnds]
        self._lives: dict[str, int] = {}  # interruptions in this process, by request

    # --- moments ---------------------------------------------------------------------------------

    def claimed(self, commit: Commit, turn: Turn) -> None:
        self._prepare(turn)

    def _prepare(self, turn: Turn) -> None:
        if recovery_of(self.parts.agent.chat_recovery) is not None:
            turn.on_held = partial(self._incidents.note_held, turn.request_id)

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        if self._lives:
            commit.then(lambda: self._forget(settlement.entry.id))

    def _forget(self, id: str) -> None:
        self._lives.pop(id, None)

    async def host_stops(self, cause: str) -> None:
        """Record the cause of the running turn's interruption."""
        turn = self._state.running
        if turn is not None:
            await self.commits.commit([self._incidents.note_cause(turn.request_id, cause)])

    async def stash(self, turn: Turn, data: Any) -> None:
        """Store a value for the hooks, in case the turn is interrupted."""
        turn.stream.attach(self._incidents.note_stash(turn.request_id, data))
        await turn.stream.stored()

    # --- a turn whose process is gone ------------------------------------------------------------

    async def resume_turn(self, entry: EntryRow, answer: Answer) -> None:
        """Resume a turn whose process is gone: decide what to do, then do it."""
        what = await self._interruption(entry)
        try:
            await self._resume(what, answer)
        except CommitRefused:
            raise
        except OutlastError:
            if what.live is not None:  # restore the state for the next attempt
                self._state.broken_off[entry.id] = what.live, what.boundary
                self._lives[entry.id] -= 1
            raise

    async def _resume(self, what: Interruption, answer: Answer) -> None:
        entry, config = what.entry, recovery_of(self.parts.agent.chat_recovery)
        refused, self.activation.unstorable = self.activation.unstorable, None
        if refused is not None and is_of_a_turn(refused.unstorable) and entry.cancelled is None:
            logger.error("%s: giving up turn %s: %s", self.address, entry.id, refused)
            await self._ends.failed(what, AnswerNotStored(NOT_STORED), "error", "persist")
            return
        if config is None:
            await self._ends.without_recovery(what)
            return
        verdict = await self._judge.judge(what, config)
        now = self._inbox.current(entry)
        if now is None:  # cleared while the hooks ran: there is no entry left to end
            await self._boots.forget()
            return
        what.entry = now
        is_left_out = verdict.chain is not None and verdict.chain.answer is None
        if is_left_out and verdict.decision.action in ("continue", "retry", "restart", "splice"):
            self._log_end(what, verdict)
            await self._before_boot(what, verdict)
            await self._ends.end(what, "skipped", LEFT_OUT, verdict)
            return
        if verdict.decision.action in ENDS:
            self._log_end(what, verdict)
        match verdict.decision.action:
            case "finalise":
                await self._ends.end(what, "completed", None)
            case "abort" | "skip":
                await self._ends.end(what, "aborted", what.entry.cancelled)
            case "seal":
                await self._judge.exhausted(what, verdict, config)
                await self._ends.end(what, "error", config.terminal_message, verdict)
            case "stop":
                await self._ends.end(what, "interrupted", INTERRUPTED, verdict)
            case "handled":
                await self._ends.end(what, "skipped", verdict.decision.why, verdict)
            case "splice":
                await self._ends.end(what, "skipped", WENT_ON, verdict)
            case _:
                await self._try_again(what, verdict, answer)

    async def _interruption(self, entry: EntryRow) -> Interruption:
        stream = self._streams.of(entry)
        cause, boundary = self._state.broken_off.pop(entry.id, (None, self._inbox.loaded_seq))
        if cause is None:
            stream.chunks = await self._streams.chunks(entry.id)
        begun = None
        if entry.kind == "continue" and entry.message_id is not None:
            begun = await self._transcript.get(entry.message_id)
        path = self._transcript.path
        under = [message["id"] for message in path]
        if begun is None and entry.target in under:
            path = path[: under.index(entry.target) + 1]
        partial = folded(stream.chunks, begun)
        if begun is None:
            partial.start_message(entry.message_id)
        if cause is not None:
            self._lives[entry.id] = self._lives.get(entry.id, 0) + 1
        lives = self._lives.get(entry.id, 0)
        since = self.activation.clock.now()
        died_at = self.activation.died_at
        if cause is None and not self.activation.is_continued and died_at is not None:
            since = min(since, died_at)
        return Interruption(entry, begun, partial, path, cause, lives, boundary, since)

    async def _try_again(self, what: Interruption, verdict: Verdict, answer: Answer) -> None:
        """Make another attempt, after recording it durably."""
        entry, decision, stream = what.entry, verdict.decision, self._streams.of(what.entry)
        await self._before_boot(what, verdict)
        parent = await self.parts[Traces].parent_of(entry.id)
        produced, is_parked = what.partial.produced, decision.action == "park"
        commit = self.commits.new()
        running = self._inbox.retry(commit, entry)
        stream.open_for(running.attempt, self.activation.submit)
        turn = Turn(
            self.address,
            running,
            stream,
            message_id=entry.message_id or self.activation.ids.new("message"),
            under=entry.target,
            begun=what.begun,
        )
        turn.is_recovered = not is_parked
        self._prepare(turn)
        await self._show_seam(turn, what, verdict)
        self._boots.up(commit)
        commit.write(*what.record)
        now = self.activation.clock.now()
        incident, delay = verdict.incident, delay_of(verdict, what.lives, now)
        is_suspect = incident is not None and incident.is_suspect
        if incident is not None and not is_parked:
            waiting = replace(incident, begun=0) if is_suspect else replace(incident, begun_at=now)
            commit.write(self._incidents.record(entry.id, waiting))
        if not is_parked:
            turn.on_continued = lambda: self._continued(turn, what, verdict, produced)
        self._incidents.noted(entry.id)  # the end of the turn deletes a mere note, too
        async with self._transcript.changing:
            recovered = await recovered_turns(self._inbox, what, verdict)
            if verdict.chain is not None:
                await self._chain(commit, turn, what, verdict.chain)
            elif decision.action == "continue" and not turn.held:
                await self._move_on(commit, turn, what)
            commit.then(lambda: self._begin(turn, verdict, parent))
            recovered.write(commit, self._inbox, self._settler)
            stream.ride(commit)
            await stream.stored()
        current = self._inbox.current(entry)
        if current is None:
            raise CommitRefused("the turn ended while it was being resumed")
        turn.entry = replace(turn.entry, cancelled=current.cancelled)
        if current.cancelled is not None:
            turn.abort.set(current.cancelled)
        suspect = incident if is_suspect and not is_parked else None
        work = self._answer_later(turn, what.path, delay, suspect, answer)
        await self.activation.spawn(work, "turn")

    async def _show_seam(self, turn: Turn, what: Interruption, verdict: Verdict) -> None:
        """Write the chunks between the partial answer and the next attempt: it continues, or restarts."""
        stream = turn.stream
        if verdict.decision.action not in ("continue", "park"):
            produced = what.partial.produced
            for chunk in what.partial.discarded():
                stream.append(chunk)
            if produced and what.begun is None:  # in earlier messages of this turn
                turn.earlier = _last_answers(what.path)
            return
        await settle_by_chain(self.parts, what, verdict)
        for chunk in (*what.partial.seam(), *verdict.chunks):
            stream.append(chunk)
        what.partial.take(verdict.chunks)
        turn.repaired = await self._close_calls_of(what)
        turn.builder, turn.resumed = what.partial.builder, what.partial
        turn.held = None if verdict.row is None else verdict.row.held

    def _begin(self, turn: Turn, verdict: Verdict, parent: str | None) -> None:
        """Start the turn again, once the decision is durable."""
        if self._inbox.current(turn.entry) is None:
            return
        self._state.begin(turn)
        tell_start(self.parts, turn.entry, parent)
        if verdict.decision.action != "park":
            id, kind = turn.request_id, verdict.kind
            self._state.set_recovering(id)
            emit = self.activation.events.emit
            emit(events.RecoveryScheduled, self.address, id, recovery_kind=kind)

    async def _close_calls_of(self, what: Interruption) -> tuple[str, ...]:
        """Give calls that must not be repeated an outcome, or the replacement of the repair hook.

        Returns the calls that the hook replaced.
        """
        partial, stream = what.partial, self._streams.of(what.entry)
        repair = self.parts[PartRepair]
        replaced = await close_calls(self.parts, what.entry, partial.builder, stream, resumes=True)
        chunks: list[str] = []
        for part in repair.unasked(partial.raw, what.begun):  # it crashed before calling the hook
            id, text = part["toolCallId"], part.get("errorText", "")
            made = await repair.made_of(part)
            if made is None:
                chunks.append(Encoder().tool_error(id, text, outcome="unknown", mark="asked"))
            else:
                replaced[id] = made
        partial.take(chunks)
        if replaced:
            chunks += (more := with_replaced(partial.raw, replaced))
            partial.take(more)
        for chunk in chunks:
            stream.append(chunk)
        return tuple(replaced)

    async def _chain(self, commit: Commit, turn: Turn, what: Interruption, chain: Chain) -> None:
        """Replace the conversation before the answer as `on_recovery_boot` requested. Under the lock."""
        if what.begun is not None:  # the answer is stored already, and keeps its place
            return
        later = self._transcript.path[len(what.path) :]
        change = await self._transcript.chaining([*chain.before, *later])
        what.path = change.path[: len(chain.before)]
        under = what.path[-1]["id"] if what.path else None
        if under != turn.under:
            turn.entry = self._inbox.move_on(commit, turn.entry, under, turn.message_id)
            turn.under = under
        if self._transcript.is_changed_by(change):
            self._transcript.apply(commit, change)
            commit.then(self._show_conversation)

    def _show_conversation(self) -> None:
        self.activation.tell(TranscriptChanged(self._state.shown_messages))

    def _continued(
        self, turn: Turn, what: Interruption, verdict: Verdict, produced: int
    ) -> Operation:
        """Log how long the interruption took, and record it with the decision."""
        ms = max(0, self.activation.clock.now() - what.since)
        logger.info(
            "%s: recovered turn %s (cause: %s, attempt: %d): the answer continued after %d ms",
            *self._about(what, verdict),
            ms,
        )
        entry, decision = what.entry, verdict.decision
        return decision_rows.continued(
            self.address, entry.id, entry.attempt, decision, verdict.cause, produced, ms, turn.seam
        )

    def _about(self, what: Interruption, verdict: Verdict) -> tuple[str, str, str, int]:
        attempts = 1 if verdict.incident is None else verdict.incident.attempts
        return self.address, what.entry.id, verdict.cause, attempts

    def _log_end(self, what: Interruption, verdict: Verdict) -> None:
        """Log the end of an interrupted turn without another attempt."""
        decision, about = verdict.decision, self._about(what, verdict)
        if decision.action in ("seal", "stop"):
            reason = (verdict.incident and verdict.incident.reason) or decision.why
            text = "%s: gave up turn %s (cause: %s, attempt: %d): %s"
            logger.warning(text, *about, reason)
        else:
            text = "%s: recovered turn %s (cause: %s, attempt: %d): no further attempt, %s"
            logger.info(text, *about, decision.why)

    async def _move_on(self, commit: Commit, turn: Turn, what: Interruption) -> None:
        """Store the partial answer as a message of its own, if configured, and continue in another.

        Not while a call is unsettled: its outcome belongs to the message that contains the call.
        """
        partial, path = what.partial, what.path
        agent = self.parts.agent
        is_wanted = continuation_of(agent.continuation).way == "new_message"
        if agent.continuation_style == "append" and not is_wanted:
            return
        said = cleaned(partial.raw, error=INTERRUPTED)
        if said is None or not all(is_settled(part) for part in partial.calls):
            return
        message = {**said, "id": turn.message_id, "role": "assistant"}
        for chunk in partial.ended():
            turn.stream.append(chunk)
        change = await self._transcript.answering(
            message, turn.under, status="interrupted", turn=turn.request_id
        )
        self._transcript.apply(commit, change)
        commit.then(self._show_conversation)
        next_id = self.activation.ids.new("message")
        turn.entry = self._inbox.move_on(commit, turn.entry, message["id"], next_id)
        turn.message_id, turn.under, turn.begun = next_id, message["id"], None
        turn.builder, turn.resumed = MessageBuilder(), None
        what.path = [*(path if what.begun is None else path[:-1]), message]
        turn.earlier = _last_answers(what.path)

    async def _answer_later(
        self,
        turn: Turn,
        path: Sequence[dict[str, Any]],
        delay: float,
        suspect: Incident | None,
        answer: Answer,
    ) -> None:
        if delay:
            with suppress(TurnAborted):
                await turn.unless_stopped(asyncio.sleep(delay))
        if suspect is None:
            await answer(turn, path)
            return
        async with self.activation.boot_order.alone() as leave:
            if turn.on_continued is not None:
                turn.on_continued = _leaving(leave, turn.on_continued)
            begun = replace(suspect, begun_at=self.activation.clock.now())
            await self.commits.commit([self._incidents.record(turn.request_id, begun)])
            await answer(turn, path)

    async def _before_boot(self, what: Interruption, verdict: Verdict) -> None:
        """Run `before_boot`. If it raises, nothing is dispatched, and recovery is retried later."""
        if verdict.boot.before_boot is None:
            return
        try:
            await call_hook(verdict.boot.before_boot)
        except Exception as error:
            emit, id = self.activation.events.emit, what.entry.id
            emit(events.RecoveryFailed, self.address, id, f"before_boot raised: {described(error)}")
            if verdict.incident is not None:
                record = self._incidents.record(id, verdict.incident)
                await self.commits.commit([record, self._incidents.up()])
            raise NotReady(f"before_boot raised: {described(error)}") from error
