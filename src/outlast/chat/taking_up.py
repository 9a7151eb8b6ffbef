"""Taking up a turn that was interrupted: what was decided about it is made durable, and done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

from outlast.agent.unit import Commits
from outlast.chat import events, traces
from outlast.chat.boots import Boots
from outlast.chat.budget import Incident
from outlast.chat.chunks import Encoder
from outlast.chat.failures import Judging, judged
from outlast.chat.hooks import told
from outlast.chat.inbox import Inbox, Request
from outlast.chat.inbox_rows import EntryRow, Outcome
from outlast.chat.incidents import Incidents
from outlast.chat.interactions import Interactions
from outlast.chat.interrupted import close_calls
from outlast.chat.ledger import Ledger
from outlast.chat.notices import TranscriptChanged
from outlast.chat.partial import folded
from outlast.chat.preparing import Answering
from outlast.chat.recovering import Interruption, Recoverable, Recovering, Verdict
from outlast.chat.recovery import Cause, ContinuationStyle, recovery_of
from outlast.chat.reducer import MessageBuilder, cleaned
from outlast.chat.repair import without_waiting
from outlast.chat.telling import tell_start
from outlast.chat.tool_parts import is_settled
from outlast.chat.transcript import Change, Transcript
from outlast.chat.turn import Turn, TurnAborted
from outlast.core import json
from outlast.core.errors import CommitRefused, OutlastError
from outlast.core.text import described
from outlast.host.activation import Activation

if TYPE_CHECKING:
    from outlast.chat.turns import Turns

INTERRUPTED = "The answer was interrupted."
ENDED = "The turn ended before this call was answered."
WENT_ON = "The user went on before the answer was complete."

SLOW_DOWN = 1.0  # seconds before the second attempt in a row without progress; then twice that, ...
SLOWEST = 30.0
AFTER_OOM = 3.0


class TurnInterrupted(OutlastError):
    """A turn was interrupted, and `chat_recovery` is off."""


class NotReady(OutlastError):
    """A turn cannot be taken up yet."""


class Interruptible(Answering, Judging, Recoverable, Protocol):
    """What is asked of an agent whose turn was interrupted."""

    chat_recovery: Any
    continuation_style: ContinuationStyle


def delay_of(verdict: Verdict, lives: int) -> float:
    """Seconds before the next attempt: none, unless the model has failed often, or memory is short."""
    if verdict.decision.shrinks:
        return AFTER_OOM
    return 0.0 if lives < 2 else min(SLOWEST, SLOW_DOWN * 2.0 ** (lives - 2))


def _last_answers(path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was said since the user has spoken."""
    answers = takewhile(lambda message: message.get("role") == "assistant", reversed(path))
    return list(answers)


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
        if config is None:
            await self._given_up(what)
            return
        verdict = await self._recovering.judged(what, config)
        now = self._inbox.current(entry)
        if now is None:  # cleared while the hooks were thinking: nothing of it is left to end
            await self.boots.forget()
            return
        what.entry = now
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
        if cause is not None:
            self.lives[entry.id] = self.lives.get(entry.id, 0) + 1
        lives = self.lives.get(entry.id, 0)
        return Interruption(entry, begun, partial, path, cause, lives, boundary)

    async def _try_again(self, what: Interruption, verdict: Verdict) -> None:
        """One more attempt. That it is made is durable before it is."""
        entry, decision, stream = what.entry, verdict.decision, self._turns.streams.of(what.entry)
        await self._before_boot(what, verdict)
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
        if decision.action in ("continue", "park"):
            seam = what.partial.seam()
            for chunk in (*seam, *verdict.chunks):
                stream.append(chunk)
            what.partial.take(verdict.chunks)
            builder = what.partial.builder
            await close_calls(
                self._object, entry, builder, stream, self._ledger, self._activation, once=True
            )
            turn.builder, turn.resumed = builder, what.partial
            turn.held = None if verdict.row is None else verdict.row.held
        else:
            for chunk in what.partial.discarded():
                stream.append(chunk)
        if verdict.boot.chain is not None:
            turn.chain = verdict.boot.chain
        operations = [operation, self._incidents.up(), *what.record]
        if verdict.incident is not None and decision.action != "park":
            operations.append(self._incidents.record(entry.id, verdict.incident))
        self._turns.noted.add(entry.id)  # also a mere note goes when the turn has ended
        async with self._transcript.changing:
            moving = decision.action == "continue" and not turn.held
            change = await self._moved_on(turn, what) if moving else None
            stream.attach(*operations, *(() if change is None else change.operations))
            await stream.stored()
            if change is not None:
                self._transcript.applied(change)
        now = self._inbox.current(entry)
        if now is None:
            raise CommitRefused("it was ended while it was being taken up")
        turn.entry = replace(turn.entry, cancelled=now.cancelled)
        self._inbox.claimed(turn.entry)
        if change is not None:
            self._activation.tell(TranscriptChanged(self._turns.shown))
        if now.cancelled is not None:
            turn.abort.set(now.cancelled)
        self.boots.came_up()
        self._turns.running = self._turns.live = turn
        parent = await traces.parent_of(self._activation, entry.id)
        tell_start(self._activation, turn.entry, parent)
        if decision.action != "park":
            self._turns.set_recovering(entry.id)
            emit = self._activation.events.emit
            emit(events.RecoveryScheduled, self._agent, entry.id, recovery_kind=verdict.kind)
        await self._dispatched(what, verdict)
        delay = delay_of(verdict, what.lives)
        await self._activation.spawn(self._answer_later(turn, what.path, delay), "turn")

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

    async def _answer_later(self, turn: Turn, path: Sequence[dict[str, Any]], delay: float) -> None:
        if delay:
            with suppress(TurnAborted):
                await turn.unless_stopped(asyncio.sleep(delay))
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

    async def _dispatched(self, what: Interruption, verdict: Verdict) -> None:
        """What waits behind the turn, as `on_recovery_boot` wants it."""
        wanted = verdict.boot.recovered_turns
        if wanted is None:
            return
        ids = {message["id"] for message in wanted}
        for other in self._inbox.open:
            if other.state != "accepted" or other.messages is None:
                continue
            found = {message["id"] for message in json.decode(other.messages)}
            if found & ids:
                ids -= found
            elif other.seq > what.entry.seq:
                await self._turns.end(other, "skipped", error="on_recovery_boot left it out")
        known = {message["id"] for message in what.path}
        for message in wanted:
            if message["id"] in ids - known:
                key = f"recovery:{what.entry.id}:{message['id']}"
                await self._inbox.accept(Request("message", "recovery", [message], key=key))

    async def _end_interrupted(
        self,
        what: Interruption,
        outcome: Outcome,
        error: str | None,
        verdict: Verdict | None = None,
    ) -> None:
        """What it has said is kept, and it is over."""
        entry, partial, stream = what.entry, what.partial, self._turns.streams.of(what.entry)
        parent = await traces.parent_of(self._activation, entry.id)
        tell_start(self._activation, entry, parent)
        stream.open_for(entry.attempt, self._activation.submit)
        stream.hold()
        encoder, builder = Encoder(), partial.builder
        if outcome == "completed":
            stream.append(encoder.finish("stop"))
            message = cleaned(partial.raw)  # None: it was whole, and empty
        else:
            await close_calls(self._object, entry, builder, stream, self._ledger, self._activation)
            entry = self._inbox.current(entry) or entry  # cancelled in the meantime?
            if outcome == "interrupted" and entry.cancelled is not None:
                outcome, error = "aborted", entry.cancelled
            for chunk in () if verdict is None else verdict.chunks:
                builder.apply(chunk)
            said = without_waiting(builder.message(), (), ENDED)
            message = cleaned(said, error=INTERRUPTED)  # half a call is not kept
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
            await self._turns.store_end(
                entry, stream, message, entry.target, outcome, error, more=more
            )
        self.boots.came_up()
        if verdict is not None and verdict.decision.action != "seal":
            emit = self._activation.events.emit
            emit(events.RecoverySkipped, self._agent, entry.id, verdict.decision.why)

    async def _given_up(self, what: Interruption) -> None:
        """Without recovery, an interruption is an error like others."""
        entry = what.entry
        if entry.cancelled is not None:
            await self._end_interrupted(what, "aborted", entry.cancelled)
            return
        stream = self._turns.streams.of(entry)
        turn = Turn(self._agent, entry, stream, message_id=entry.message_id or "", under=None)
        failure = TurnInterrupted(INTERRUPTED)
        _, shown = await judged(self._object, turn, failure, self._activation.events)
        await self._end_interrupted(what, "interrupted", shown)
