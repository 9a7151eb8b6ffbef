"""Taking up a turn that was interrupted: what was decided about it is made durable, and done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

from outlast.agent.commit import Commits
from outlast.chat.answer.prepare import Answering
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import EntryRow, Outcome
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.partial import folded
from outlast.chat.message.reducer import MessageBuilder, cleaned
from outlast.chat.message.repair import without_waiting
from outlast.chat.message.results import TurnEnd
from outlast.chat.message.tool_part import is_settled
from outlast.chat.recovery import sql as decision_rows
from outlast.chat.recovery.boot import Boots
from outlast.chat.recovery.budget import Incident
from outlast.chat.recovery.chain import LEFT_OUT, Chain, becoming, settled_calls
from outlast.chat.recovery.incidents import Incidents
from outlast.chat.recovery.judge import Interruption, Recoverable, Recovering, Verdict
from outlast.chat.recovery.open_calls import close_calls
from outlast.chat.recovery.recovered_turns import RecoveredTurns, recovered_turns
from outlast.chat.tools.ledger import CallState, Ledger
from outlast.chat.tools.pending import Interactions
from outlast.chat.transcript.transcript import Change, Transcript
from outlast.chat.turn import traces
from outlast.chat.turn.failure import Judging
from outlast.chat.turn.part_repair import PartRepair, with_replaced
from outlast.chat.turn.telemetry import tell_start
from outlast.chat.turn.turn import Turn, TurnAborted
from outlast.chat.types import events
from outlast.chat.types.contexts import ChatErrorStage, told
from outlast.chat.types.notices import TranscriptChanged
from outlast.chat.types.recovery import Cause, ContinuationStyle, recovery_of
from outlast.core.errors import CommitRefused, OutlastError
from outlast.core.text import described
from outlast.host.life.activation import Activation
from outlast.host.wakeups.boot_order import delay_before
from outlast.store.operations import Operation

if TYPE_CHECKING:
    from outlast.chat.run.runner import Turns

logger = logging.getLogger("outlast.chat")

INTERRUPTED = "The answer was interrupted."
NOT_STORED = "The answer could not be stored."
ENDED = "The turn ended before this call was answered."
WENT_ON = "The user went on before the answer was complete."

ENDS = (
    "finalise",
    "abort",
    "skip",
    "seal",
    "stop",
    "handled",
    "splice",
)  # actions without another attempt

SLOW_DOWN = 1.0  # seconds before the second attempt in a row without progress; then twice that, ...
SLOWEST = 30.0
AFTER_OOM = 3.0


class TurnInterrupted(OutlastError):
    """A turn was interrupted, and `chat_recovery` is off."""

    is_for_users = True


class AnswerNotStored(OutlastError):
    """The database does not accept what a turn was to write: no other attempt would end otherwise."""

    is_for_users = True


class NotReady(OutlastError):
    """A turn cannot be taken up yet."""


class Interruptible(Answering, Judging, Recoverable, Protocol):
    """What is asked of an agent whose turn was interrupted."""

    chat_recovery: Any
    continuation_style: ContinuationStyle


def delay_of(verdict: Verdict, lives: int, now: int) -> float:
    """Seconds before the next attempt: none, unless the model has failed often, or memory is short.

    A turn that may have killed its process waits for its neighbours, which go on at once.
    """
    incident, least = verdict.incident, AFTER_OOM if verdict.decision.shrinks else 0.0
    if incident is not None and incident.is_suspect:
        return max(least, delay_before(incident.host_deaths, now - incident.begun_at))
    if least:
        return least
    return 0.0 if lives < 2 else min(SLOWEST, SLOW_DOWN * 2.0 ** (lives - 2))


def is_of_a_turn(operations: Sequence[str]) -> bool:
    """Whether a commit was one of a turn that runs, and not of a request that was about to be accepted."""
    return not {"streams append", "calls begin", "calls end", "inbox end"}.isdisjoint(operations)


def is_discarded(what: Interruption, verdict: Verdict | None) -> bool:
    """Whether a hook does not want what was said. What tools have done is kept all the same."""
    if verdict is None or what.has_called or what.partial.has_settled_work:
        return False
    is_left_out = verdict.chain is not None and verdict.chain.answer is None
    return is_left_out or (verdict.decision.action == "handled" and not verdict.decision.keeps)


def _last_answers(path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was said since the user has spoken."""
    answers = takewhile(lambda message: message.get("role") == "assistant", reversed(path))
    return list(answers)


def _leaving(
    leave: Callable[[], None], continued: Callable[[], Operation]
) -> Callable[[], Operation]:
    """A suspect whose answer continues is not what kills the process: others may begin."""

    def on_continued() -> Operation:
        leave()
        return continued()

    return on_continued


class TakingUp:
    """For the turns of one agent."""

    def __init__(
        self,
        turns: Turns,
        agent: Interruptible,
        activation: Activation,
        commits: Commits,
        inbox: Inbox,
        transcript: Transcript,
        interactions: Interactions,
        ledger: Ledger,
        incidents: Incidents,
    ) -> None:
        self._turns = turns
        self._object = agent
        self._agent = activation.address.text
        self._activation = activation
        self._commits = commits
        self._inbox = inbox
        self._transcript = transcript
        self._ledger = ledger
        self._incidents = incidents
        self._repair = PartRepair(agent, activation.address.text)
        self.boots = boots = Boots(activation, commits, incidents)
        self._recovering = Recovering(
            agent, activation, inbox, transcript, interactions, ledger, incidents, boots
        )
        self.broken_off: dict[str, tuple[Cause, int]] = {}  # here, by request: why, and since when
        self.lives: dict[str, int] = {}  # how often a request has broken off here

    async def take_up(self, entry: EntryRow) -> None:
        """Somebody has worked on this turn and does so no more: find out what becomes of it, and do it."""
        what = await self._interruption(entry)
        try:
            await self._take_up(what)
        except CommitRefused:
            raise
        except OutlastError:
            if what.live is not None:  # the next look at it finds what this one has found
                self.broken_off[entry.id] = what.live, what.boundary
                self.lives[entry.id] -= 1
            raise

    async def _take_up(self, what: Interruption) -> None:
        entry, config = what.entry, recovery_of(self._object.chat_recovery)
        refused, self._activation.unstorable = self._activation.unstorable, None
        if refused is not None and is_of_a_turn(refused.unstorable) and entry.cancelled is None:
            logger.error("%s: the turn %s is given up: %s", self._agent, entry.id, refused)
            await self._failed(what, AnswerNotStored(NOT_STORED), "error", "persist")
            return
        if config is None:
            await self._given_up(what)
            return
        verdict = await self._recovering.judged(what, config)
        now = self._inbox.current(entry)
        if now is None:  # cleared while the hooks were thinking: nothing of it is left to end
            await self.boots.forget()
            return
        what.entry = now
        is_left_out = verdict.chain is not None and verdict.chain.answer is None
        if is_left_out and verdict.decision.action in ("continue", "retry", "restart", "splice"):
            self._log_end(what, verdict)
            await self._before_boot(what, verdict)
            await self._end_interrupted(what, "skipped", LEFT_OUT, verdict)
            return
        if verdict.decision.action in ENDS:
            self._log_end(what, verdict)
        match verdict.decision.action:
            case "finalise":
                await self._end_interrupted(what, "completed", None)
            case "abort" | "skip":
                await self._end_interrupted(what, "aborted", what.entry.cancelled)
            case "seal":
                await self._recovering.exhausted(what, verdict, config)
                await self._end_interrupted(what, "error", config.terminal_message, verdict)
            case "stop":
                await self._end_interrupted(what, "interrupted", INTERRUPTED, verdict)
            case "handled":
                await self._end_interrupted(what, "skipped", verdict.decision.why, verdict)
            case "splice":
                await self._end_interrupted(what, "skipped", WENT_ON, verdict)
            case _:
                await self._try_again(what, verdict)

    async def _interruption(self, entry: EntryRow) -> Interruption:
        stream = self._turns.streams.of(entry)
        cause, boundary = self.broken_off.pop(entry.id, (None, self._inbox.loaded_seq))
        if cause is None:
            stream.chunks = await self._turns.streams.chunks(entry.id)
        begun = None
        if entry.kind == "continue" and entry.message_id is not None:
            begun = await self._transcript.get(entry.message_id)
        path = self._transcript.path
        under = [message["id"] for message in path]
        if begun is None and entry.target in under:
            path = path[: under.index(entry.target) + 1]
        partial = folded(stream.chunks, begun)
        if begun is None:
            partial.move_on_to(entry.message_id)
        if cause is not None:
            self.lives[entry.id] = self.lives.get(entry.id, 0) + 1
        lives = self.lives.get(entry.id, 0)
        since = self._activation.clock.now()
        died_at = self._activation.died_at
        if cause is None and not self._activation.is_continued and died_at is not None:
            since = min(since, died_at)
        return Interruption(entry, begun, partial, path, cause, lives, boundary, since)

    async def _try_again(self, what: Interruption, verdict: Verdict) -> None:
        """One more attempt. That it is made is durable before it is."""
        entry, decision, stream = what.entry, verdict.decision, self._turns.streams.of(what.entry)
        await self._before_boot(what, verdict)
        produced = what.partial.produced
        running, operation = self._inbox.resume(entry)
        stream.open_for(running.attempt, self._activation.submit)
        message_id = entry.message_id or self._activation.ids.new("message")
        turn = Turn(
            self._agent,
            running,
            stream,
            message_id=message_id,
            under=entry.target,
            begun=what.begun,
        )
        turn.is_recovered = decision.action != "park"
        if decision.action in ("continue", "park"):
            await self._settle_by_chain(what, verdict)
            seam = what.partial.seam()
            for chunk in (*seam, *verdict.chunks):
                stream.append(chunk)
            what.partial.take(verdict.chunks)
            turn.repaired = await self._close_calls_of(what)
            turn.builder, turn.resumed = what.partial.builder, what.partial
            turn.held = None if verdict.row is None else verdict.row.held
        else:
            for chunk in what.partial.discarded():
                stream.append(chunk)
            if produced and what.begun is None:  # in messages before this one, which has not begun
                turn.earlier = _last_answers(what.path)
        operations = [operation, self._incidents.up(), *what.record]
        now = self._activation.clock.now()
        incident, delay = verdict.incident, delay_of(verdict, what.lives, now)
        is_suspect = incident is not None and incident.is_suspect
        if incident is not None and decision.action != "park":
            begun = replace(incident, begun_at=now)
            waiting = replace(incident, begun=0) if is_suspect else begun
            operations.append(self._incidents.record(entry.id, waiting))
        if decision.action != "park":
            turn.on_continued = lambda: self._continued(what, verdict, produced)
        self._turns.noted.add(entry.id)  # also a mere note goes when the turn has ended
        async with self._transcript.changing:
            recovered = await recovered_turns(self._inbox, what, verdict)
            operations += recovered.operations
            change = None
            if verdict.chain is not None:
                change = await self._chained(turn, what, verdict.chain)
            elif decision.action == "continue" and not turn.held:
                change = await self._moved_on(turn, what)
            stream.attach(*operations, *(() if change is None else change.operations))
            await stream.stored()
            if change is not None:
                self._transcript.applied(change)
        current = self._inbox.current(entry)
        if current is None:
            raise CommitRefused("it was ended while it was being taken up")
        turn.entry = replace(turn.entry, cancelled=current.cancelled)
        self._inbox.claimed(turn.entry)
        if change is not None:
            self._activation.tell(TranscriptChanged(self._turns.shown))
        if current.cancelled is not None:
            turn.abort.set(current.cancelled)
        self.boots.came_up()
        self._turns.running = self._turns.live = turn
        parent = await traces.parent_of(self._activation, entry.id)
        tell_start(self._activation, turn.entry, parent)
        if decision.action != "park":
            self._turns.set_recovering(entry.id)
            emit = self._activation.events.emit
            emit(events.RecoveryScheduled, self._agent, entry.id, recovery_kind=verdict.kind)
        self._dispatched(recovered)
        suspect = incident if is_suspect and decision.action != "park" else None
        work = self._answer_later(turn, what.path, delay, suspect)
        await self._activation.spawn(work, "turn")

    async def _close_calls_of(self, what: Interruption) -> tuple[str, ...]:
        """Before the answer continues, give calls that may not be made again an outcome, or what the agent
        makes of them. Returns those that it has changed.
        """
        partial, stream = what.partial, self._turns.streams.of(what.entry)
        agent, activation = self._object, self._activation
        replaced = await close_calls(
            agent,
            what.entry,
            partial.builder,
            stream,
            self._ledger,
            activation,
            once=True,
            repair=self._repair,
        )
        chunks: list[str] = []
        for part in self._repair.unasked(
            partial.raw, what.begun
        ):  # it died before it could show them
            id, text = part["toolCallId"], part.get("errorText", "")
            made = await self._repair.made_of(part)
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

    async def _settle_by_chain(self, what: Interruption, verdict: Verdict) -> None:
        """The answer becomes what `on_recovery_boot` has made of it. Calls that it settles never run."""
        answer = None if verdict.chain is None else verdict.chain.answer
        if answer is None:
            return
        entry, stream = what.entry, self._turns.streams.of(what.entry)
        begun = {row.id for row in await self._ledger.of_turn(entry.id) if row.state == "begun"}
        for part in settled_calls(what.partial, answer):
            if part["toolCallId"] in begun:
                state: CallState = "done" if part["state"] == "output-available" else "failed"
                stream.attach(self._ledger.end(entry.id, part["toolCallId"], state))
        chunks = becoming(what.partial, answer)
        for chunk in chunks:
            stream.append(chunk)
        what.partial.take(chunks)

    async def _chained(self, turn: Turn, what: Interruption, chain: Chain) -> Change | None:
        """The conversation before the answer becomes what `on_recovery_boot` wants. Under the lock."""
        if what.begun is not None:  # the answer is stored, and stays where it is
            return None
        later = self._transcript.path[len(what.path) :]
        change = await self._transcript.chaining([*chain.before, *later])
        what.path = change.path[: len(chain.before)]
        under = what.path[-1]["id"] if what.path else None
        if under != turn.under:
            turn.entry, operation = self._inbox.move_on(turn.entry, under, turn.message_id)
            change.operations.append(operation)
            turn.under = under
        return change if change.operations else None

    def _continued(self, what: Interruption, verdict: Verdict, produced: int) -> Operation:
        """The answer continues: log how long that took, and note it with the decision."""
        ms = max(0, self._activation.clock.now() - what.since)
        logger.info(
            "%s: recovered turn %s (cause: %s, attempt: %d): the answer continued after %d ms",
            *self._about(what, verdict),
            ms,
        )
        entry, decision = what.entry, verdict.decision
        return decision_rows.continued(
            self._agent, entry.id, entry.attempt, decision, verdict.cause, produced, ms
        )

    def _about(self, what: Interruption, verdict: Verdict) -> tuple[str, str, str, int]:
        attempts = 1 if verdict.incident is None else verdict.incident.attempts
        return self._agent, what.entry.id, verdict.cause, attempts

    def _log_end(self, what: Interruption, verdict: Verdict) -> None:
        """An interrupted turn ends without another attempt."""
        decision, about = verdict.decision, self._about(what, verdict)
        if decision.action in ("seal", "stop"):
            reason = (verdict.incident and verdict.incident.reason) or decision.why
            text = "%s: gave up turn %s (cause: %s, attempt: %d): %s"
            logger.warning(text, *about, reason)
        else:
            text = "%s: recovered turn %s (cause: %s, attempt: %d): no further attempt, %s"
            logger.info(text, *about, decision.why)

    async def _moved_on(self, turn: Turn, what: Interruption) -> Change | None:
        """What was said becomes a message of its own, if that is wanted, and another one goes on.

        Not while a call of it may still be made: that belongs to the message that holds it.
        """
        partial, path = what.partial, what.path
        if self._object.continuation_style == "append":
            return None
        said = cleaned(partial.raw, error=INTERRUPTED)
        if said is None or not all(is_settled(part) for part in partial.calls):
            return None
        message = {**said, "id": turn.message_id, "role": "assistant"}
        for chunk in partial.ended():
            turn.stream.append(chunk)
        change = await self._transcript.answering(
            message, turn.under, status="interrupted", turn=turn.request_id
        )
        next_id = self._activation.ids.new("message")
        turn.entry, operation = self._inbox.move_on(turn.entry, message["id"], next_id)
        change.operations.append(operation)
        turn.message_id, turn.under, turn.begun = next_id, message["id"], None
        turn.builder, turn.resumed = MessageBuilder(), None
        what.path = [*(path if what.begun is None else path[:-1]), message]
        turn.earlier = _last_answers(what.path)
        return change

    async def _answer_later(
        self,
        turn: Turn,
        path: Sequence[dict[str, Any]],
        delay: float,
        suspect: Incident | None,
    ) -> None:
        if delay:
            with suppress(TurnAborted):
                await turn.unless_stopped(asyncio.sleep(delay))
        if suspect is None:
            await self._turns.answer(turn, path)
            return
        async with self._activation.boot_order.alone() as leave:
            if turn.on_continued is not None:
                turn.on_continued = _leaving(leave, turn.on_continued)
            begun = replace(suspect, begun_at=self._activation.clock.now())
            await self._commits.commit([self._incidents.record(turn.request_id, begun)])
            await self._turns.answer(turn, path)

    async def _before_boot(self, what: Interruption, verdict: Verdict) -> None:
        """What the agent wants to be done first. If it raises, nothing is dispatched."""
        if verdict.boot.before_boot is None:
            return
        try:
            await told(verdict.boot.before_boot)
        except Exception as error:
            emit, id = self._activation.events.emit, what.entry.id
            emit(events.RecoveryFailed, self._agent, id, f"before_boot raised: {described(error)}")
            if verdict.incident is not None:
                record = self._incidents.record(id, verdict.incident)
                await self._commits.commit([record, self._incidents.up()])
            raise NotReady(f"before_boot raised: {described(error)}") from error

    def _dispatched(self, recovered: RecoveredTurns) -> None:
        """What waits behind the turn is as `on_recovery_boot` wants it, durably."""
        for ended in recovered.left_out:
            self._turns.tell(ended, TurnEnd("skipped", None, ended.error))
        for entry in recovered.added:
            self._inbox.accepted(entry)

    async def _end_interrupted(
        self,
        what: Interruption,
        outcome: Outcome,
        error: str | None,
        verdict: Verdict | None = None,
        detail: str | None = None,
    ) -> None:
        """It is over. What it has said is kept, unless a hook does not want it."""
        entry, partial, stream = what.entry, what.partial, self._turns.streams.of(what.entry)
        chain = None if verdict is None else verdict.chain
        parent = await traces.parent_of(self._activation, entry.id)
        tell_start(self._activation, entry, parent)
        stream.open_for(entry.attempt, self._activation.submit)
        stream.hold()
        encoder, builder = Encoder(), partial.builder
        if outcome == "completed":
            stream.append(encoder.finish("stop"))
            message = cleaned(partial.raw)  # None: it was whole, and empty
        elif is_discarded(what, verdict):
            for chunk in (*partial.discarded(), *(() if verdict is None else verdict.chunks)):
                stream.append(chunk)
            stream.append(encoder.abort(error))
            message = None
        else:
            if verdict is not None:
                await self._settle_by_chain(what, verdict)
            before = builder.message()
            await close_calls(self._object, entry, builder, stream, self._ledger, self._activation)
            entry = self._inbox.current(entry) or entry  # cancelled in the meantime?
            if outcome == "interrupted" and entry.cancelled is not None:
                outcome, error = "aborted", entry.cancelled
            for chunk in () if verdict is None else verdict.chunks:
                builder.apply(chunk)
            said = without_waiting(builder.message(), (), ENDED)
            message = cleaned(said, error=INTERRUPTED)  # half a call is not kept
            if message is not None:
                message = self._repair.marking(before, message, what.begun)
            for chunk in (*partial.seam(), *(() if verdict is None else verdict.chunks)):
                stream.append(chunk)
            is_error = outcome in ("error", "interrupted")
            stream.append(encoder.error(error or "") if is_error else encoder.abort(error))
        if message is not None:
            id = entry.message_id or self._activation.ids.new("message")
            message = {**message, "id": id, "role": "assistant"}
        more = [self._incidents.up(), *what.record]
        if verdict is not None and verdict.decision.action == "seal":
            incident = verdict.incident or Incident()
            more.append(self._incidents.record(entry.id, incident, "exhausted"))
        else:
            more.append(self._incidents.close(entry.id))
        self._turns.noted.discard(entry.id)
        async with self._transcript.changing:
            recovered = await recovered_turns(self._inbox, what, verdict)
            more += recovered.operations
            change = None if chain is None else await self._chained_end(what, chain, message)
            await self._turns.store_end(
                entry,
                stream,
                message,
                entry.target,
                outcome,
                error,
                detail=detail,
                more=more,
                change=change,
            )
        self._dispatched(recovered)
        self.boots.came_up()
        if verdict is not None and verdict.decision.action != "seal":
            emit = self._activation.events.emit
            emit(events.RecoverySkipped, self._agent, entry.id, verdict.decision.why)

    async def _chained_end(
        self, what: Interruption, chain: Chain, message: dict[str, Any] | None
    ) -> Change:
        """The conversation as `on_recovery_boot` wants it, with what is kept of the answer."""
        later = self._transcript.path[len(what.path) :]
        if message is not None and chain.answer is not None:
            return await self._transcript.chaining(
                [*chain.before, message, *later], message["id"], what.entry.id
            )
        change = await self._transcript.chaining([*chain.before, *later])
        if message is not None:  # a tool has done something: it stays in the tree
            self._transcript.put_aside(change, message, what.entry.target, what.entry.id)
        return change

    async def _given_up(self, what: Interruption) -> None:
        """Without recovery, an interruption is an error like others."""
        entry = what.entry
        if entry.cancelled is not None:
            await self._end_interrupted(what, "aborted", entry.cancelled)
            return
        await self._failed(what, TurnInterrupted(INTERRUPTED), "interrupted", "recovery")

    async def _failed(
        self, what: Interruption, failure: Exception, status: Outcome, stage: ChatErrorStage
    ) -> None:
        """It ends here, and the agent is told."""
        self._transcript.coming = partial(self._said, what), what.entry.target
        try:
            found = await self._turns.report(failure, what.entry.id, stage, messages_persisted=True)
        finally:
            self._transcript.coming = None
        await self._end_interrupted(what, status, found.shown, detail=found.detail)

    @staticmethod
    def _said(what: Interruption) -> dict[str, Any] | None:
        """What the attempts so far have said, as `on_chat_error` sees it."""
        said = without_waiting(what.partial.builder.message(), (), ENDED)
        message, id = cleaned(said, error=INTERRUPTED), what.entry.message_id
        return None if message is None or id is None else {**message, "id": id, "role": "assistant"}
