"""Answering: a turn in the hands of the model, what is done when that fails, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from outlast.chat.answer.loop import answer
from outlast.chat.answer.prepare import Surroundings
from outlast.chat.context.compaction import FIXED_PART, Compactions
from outlast.chat.context.history import HistoryCache
from outlast.chat.context.session import Session
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import Outcome
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.partial import folded
from outlast.chat.message.reducer import MessageBuilder, is_empty
from outlast.chat.model.errors import (
    ModelFailed,
    ModelStalled,
    default_context_overflow_classifier,
    is_passing,
)
from outlast.chat.model.refused_tools import blamed, may_be_refused
from outlast.chat.recovery.resume import Interruptible
from outlast.chat.recovery.upgrade import PutBack
from outlast.chat.tools.idempotency import KeyedCalls
from outlast.chat.tools.ledger import Ledger
from outlast.chat.tools.pending import Interactions
from outlast.chat.turn.failure import Failure, reported
from outlast.chat.turn.turn import Executor, Turn, TurnAborted
from outlast.chat.types import events
from outlast.chat.types.contexts import (
    ChatErrorClassification,
    ChatErrorContext,
    is_overridden,
    told,
)
from outlast.chat.types.recovery import Cause, recovery_of
from outlast.core.clock import seconds
from outlast.host.life.activation import Activation

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
        """Ask the model; once more with less if that was too much, or without tools that it refuses."""
        around = self._around(turn)
        wanted, compacted = self._object.context_overflow, 0
        while True:
            try:
                await answer(self._object, turn, list(path), around)
                return
            except (TurnAborted, PutBack):
                raise
            except Exception as failure:
                if wanted.reactive:
                    turn.classification = await self._classified(turn, failure)
                if turn.abort.is_set:
                    raise
                if turn.classification == "context_overflow":
                    compacted += 1
                    if compacted > wanted.max_retries:
                        raise
                    await self._shorten(turn, path, compacted, failure)
                elif not self._leaves_out_tools(turn, around, failure):
                    raise
                await self._begin_anew(turn)

    async def _shorten(
        self, turn: Turn, path: Sequence[dict[str, Any]], attempt: int, failure: Exception
    ) -> None:
        """Compact the conversation; raises the failure if that is of no use."""
        work = self.compactions.compact(path, "reactive", turn.request_id, attempt)
        if not await turn.unless_stopped(work):
            if not self.compactions.can_shorten(path):
                raise ModelFailed(FIXED_PART, kind="context_overflow") from failure
            raise failure

    def _leaves_out_tools(self, turn: Turn, around: Surroundings, failure: Exception) -> bool:
        """Whether there are tools of the client to leave out, which the provider may have refused.

        First those that seem to be to blame, then all: so there are two more tries at most.
        """
        if not turn.offered or turn.has_answer or not may_be_refused(failure):
            return False
        tools = {str(each["name"]): each for each in around.client_tools}
        names = [name for name in turn.offered if name in tools]
        if not names:
            return False
        known = self._interactions.remembered
        proven = [name for name in names if tools[name] in known]
        text = str(failure.__cause__ or failure)
        out = names if turn.left_out else blamed(text, turn.offered, names, proven)
        turn.left_out |= frozenset(out)
        around.client_tools = [each for name, each in tools.items() if name not in out]
        logger.warning(
            "%s: the model refused a request with tools of the client; turn %s goes on without %s: %s",
            self._agent,
            turn.request_id,
            ", ".join(sorted(turn.left_out)),
            failure,
        )
        return True

    async def _classified(self, turn: Turn, failure: Exception) -> ChatErrorClassification | None:
        """Ask `classify_chat_error`, once for each error. Only an overflow is acted on, and passed on."""
        if turn.abort.is_set or self._activation.ended is not None:
            return None
        hook = self._object.classify_chat_error
        if not is_overridden(hook):
            return default_context_overflow_classifier(failure)
        context = ChatErrorContext(turn.request_id, turn.stage)
        try:
            kind = await turn.unless_stopped(told(hook, failure, context))
        except TurnAborted:
            raise
        except Exception:
            logger.exception("%s: classify_chat_error raised", self._agent)
            return None
        return "context_overflow" if kind == "context_overflow" else None

    async def _begin_anew(self, turn: Turn) -> None:
        """What was said is thrown away, unless a tool has done something: then it goes on from there."""
        await turn.stream.stored()
        partial = folded(turn.stream.chunks, turn.begun)
        for chunk in partial.seam() if partial.has_settled_work else partial.discarded():
            turn.stream.append(chunk)
        if partial.has_settled_work:
            turn.begin_anew(partial.builder, partial)
        else:
            turn.begin_anew(MessageBuilder(turn.begun), None)

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

    async def failed(self, turn: Turn, failure: Exception) -> Failure | None:
        """Report an error, once the chunks of the partial answer are durable. None: the turn was stopped."""
        for chunk in turn.loose_ends():
            turn.emit(chunk)
        await turn.stream.stored()
        emitter = self._activation.events
        if isinstance(failure, ModelStalled):
            patience = int(seconds(turn.patience or 0) * 1000)
            emitter.emit(events.StreamStalled, turn.agent, turn.request_id, timeout_ms=patience)
        context = ChatErrorContext(turn.request_id, turn.stage, classification=turn.classification)
        work = reported(self._object, self._agent, failure, context, emitter)
        try:
            found = await turn.unless_stopped(work)
        except TurnAborted:
            return None
        if turn.abort.is_set:
            return None
        turn.emit(Encoder().error(found.shown))
        return found

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
