"""Answering: a turn in the hands of the model, what is done when that fails, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from outlast.chat import events
from outlast.chat.chunks import Encoder
from outlast.chat.failures import judged
from outlast.chat.history import HistoryCache
from outlast.chat.hooks import ChatErrorContext, is_overridden, told
from outlast.chat.inbox import Inbox
from outlast.chat.inbox_rows import Outcome
from outlast.chat.interactions import Interactions
from outlast.chat.keyed import KeyedCalls
from outlast.chat.ledger import Ledger
from outlast.chat.loop import answer
from outlast.chat.model_errors import (
    ModelFailed,
    ModelStalled,
    default_context_overflow_classifier,
    is_passing,
)
from outlast.chat.overflow import FIXED_PART, Compactions
from outlast.chat.partial import folded
from outlast.chat.preparing import Surroundings
from outlast.chat.recovery import Cause, recovery_of
from outlast.chat.reducer import MessageBuilder, is_empty
from outlast.chat.session import Session
from outlast.chat.taking_up import Interruptible
from outlast.chat.turn import Executor, Turn, TurnAborted
from outlast.core.clock import seconds
from outlast.host.activation import Activation

logger = logging.getLogger("outlast.chat")


class Chatting(Interruptible, Protocol):
    """What the turns ask of the agent."""

    def on_chunk(self, context: Any) -> Any: ...


class AnsweringTurns:
    """For one agent."""

    def __init__(
        self,
        agent: Chatting,
        activation: Activation,
        inbox: Inbox,
        interactions: Interactions,
        ledger: Ledger,
        compactions: Compactions,
        broken_off: dict[str, tuple[Cause, int]],
    ) -> None:
        self._object = agent
        self._agent = activation.address.text
        self._activation = activation
        self._inbox = inbox
        self._interactions = interactions
        self._ledger = ledger
        self._keyed = KeyedCalls(activation, ledger)
        self._history = HistoryCache()
        self.broken_off = broken_off  # requests whose models were lost
        self.compactions = compactions
        self.session = Session()
        self.executors: dict[str, tuple[Sequence[Any], Executor]] = {}  # tools and all, by request

    async def answer(self, turn: Turn, path: Sequence[dict[str, Any]]) -> None:
        """Ask the model, and once more with less if that was too much for it."""
        around = self._around(turn)
        wanted = self._object.context_overflow
        retries = wanted.max_retries if wanted.reactive else 0
        for attempt in range(1, retries + 2):
            try:
                await answer(self._object, turn, list(path), around)
                return
            except Exception as failure:
                if attempt > retries or not await self._is_overflow(turn, failure):
                    raise
                work = self.compactions.compact(path, "reactive", turn.request_id, attempt)
                if not await turn.unless_stopped(work):
                    if not self.compactions.can_shorten(path):
                        raise ModelFailed(FIXED_PART, kind="context_overflow") from failure
                    raise
                await self._begin_anew(turn)

    async def _is_overflow(self, turn: Turn, failure: Exception) -> bool:
        if turn.abort.is_set:
            return False
        context = ChatErrorContext(turn.request_id, turn.stage)
        try:
            kind = await told(self._object.classify_chat_error, failure, context)
        except Exception:
            logger.exception("%s: classify_chat_error raised", self._agent)
            return False
        if kind is None and not is_overridden(self._object.classify_chat_error):
            kind = default_context_overflow_classifier(failure)
        return bool(kind == "context_overflow") and not turn.abort.is_set

    async def _begin_anew(self, turn: Turn) -> None:
        """What was said is thrown away, unless a tool has done something: then it goes on from there."""
        await turn.stream.stored()
        partial = folded(turn.stream.chunks, turn.begun)
        turn.resumed = None
        turn.builder = MessageBuilder(turn.begun)
        for chunk in partial.seam() if partial.has_settled_work else partial.discarded():
            turn.stream.append(chunk)
        if partial.has_settled_work:
            turn.builder, turn.resumed = partial.builder, partial
        turn.stage = "turn"

    def _around(self, turn: Turn) -> Surroundings:
        given = self.executors.pop(turn.request_id, None)
        tools: Sequence[Any] = self._interactions.tools_for(turn.options)
        if given is not None:
            tools, turn.executor = given
        return Surroundings(
            self._activation,
            self._ledger,
            self._keyed,
            self.session,
            tools,
            self._history,
            self.compactions,
        )

    def aborted(self, turn: Turn) -> tuple[Outcome, str | None]:
        turn.emit(Encoder().abort(turn.abort.reason))
        return "aborted", turn.abort.reason

    async def failed(self, turn: Turn, failure: Exception) -> tuple[Outcome, str | None]:
        """What is stored of an error. What was said is durable by then; a stop goes before it."""
        for chunk in turn.loose_ends():
            turn.emit(chunk)
        await turn.stream.stored()
        judging = judged(self._object, turn, failure, self._activation.events)
        try:
            error, shown = await turn.unless_stopped(judging)
        except TurnAborted:
            return self.aborted(turn)
        if turn.abort.is_set:
            return self.aborted(turn)
        turn.emit(Encoder().error(shown))
        return "error", error

    async def breaks_off(self, turn: Turn, failure: Exception) -> bool:
        """Whether a failure is the model's, in the middle of its answer: the turn is taken up then."""
        config = recovery_of(self._object.chat_recovery)
        is_stalled = isinstance(failure, ModelStalled)
        if config is None or not is_passing(failure) or turn.abort.is_set:
            return False
        if not is_stalled and is_empty(turn.builder.message()):
            return False  # it was tried again already, as often as it may be
        await turn.stream.stored()
        emit = self._activation.events.emit
        if is_stalled:
            patience = int(seconds(turn.patience or 0) * 1000)
            emit(events.StreamStalled, self._agent, turn.request_id, timeout_ms=patience)
        logger.warning("%s: the turn %s is interrupted: %s", self._agent, turn.request_id, failure)
        emit(events.TurnInterrupted, self._agent, turn.request_id, str(failure))
        self.broken_off[turn.request_id] = ("stalled", self._inbox.last_seq)
        turn.stream.interrupt()
        return True
