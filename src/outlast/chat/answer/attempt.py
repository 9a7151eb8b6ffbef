"""The attempts of a turn: asking the model, retrying, and reporting failures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.answer.loop import answer
from outlast.chat.answer.overflow import fixed_part_error, reported_excess, shorten
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
from outlast.chat.turn.failure import Failure, reported
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.pending import PendingCalls
from outlast.chat.turn.settlement import Settlement
from outlast.chat.turn.state import TurnState
from outlast.chat.turn.turn import Executor, PutBack, Turn, TurnAborted
from outlast.chat.types import events
from outlast.chat.types.contexts import ChatErrorClassification, ChatErrorContext
from outlast.chat.types.recovery import recovery_of
from outlast.core.clock import seconds
from outlast.core.hooks import call_hook, is_overridden

logger = logging.getLogger("outlast.chat")


class Attempts(ChatPart):
    """Answers the turns of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._state = parts[TurnState]
        self._pending = parts[PendingCalls]
        self.executors: dict[str, tuple[Sequence[Any], Executor]] = {}  # by request

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        if self.executors:
            commit.then(lambda: self._forget(settlement.entry.id))

    def _forget(self, id: str) -> None:
        self.executors.pop(id, None)

    async def answer(self, turn: Turn, path: Sequence[dict[str, Any]]) -> None:
        """Answer a turn. Retries with a compacted conversation, or without tools that are refused."""
        tools = self._client_tools(turn)
        wanted, compacted = self.parts.agent.context_overflow, 0
        while True:
            try:
                await answer(self.parts, turn, list(path), tools)
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
                else:
                    left = self._without_refused(turn, tools, failure)
                    if left is None:
                        raise
                    tools = left
                await self._restart(turn)

    async def _shorten(
        self, turn: Turn, path: Sequence[dict[str, Any]], attempt: int, failure: Exception
    ) -> None:
        """Shorten the conversation. Raises the failure if that is of no use, with what is too long."""
        work = shorten(self.parts, turn, turn.request_path or path, "reactive", attempt)
        if not await turn.unless_stopped(work):
            excess = reported_excess(str(failure.__cause__ or failure))
            text = fixed_part_error(turn.request_sizes, excess)
            if text is None:
                raise failure
            raise ModelFailed(text, kind="context_overflow") from failure

    def _without_refused(
        self, turn: Turn, tools: Sequence[Any], failure: Exception
    ) -> Sequence[Any] | None:
        """Return the client's tools without those that the provider may have refused, or None to give up.

        The first retry omits the suspicious ones, the second one all: there are two retries at most.
        """
        if not turn.offered or turn.has_answer or not may_be_refused(failure):
            return None
        by_name = {str(each["name"]): each for each in tools}
        names = [name for name in turn.offered if name in by_name]
        if not names:
            return None
        known = self._pending.remembered
        proven = [name for name in names if by_name[name] in known]
        text = str(failure.__cause__ or failure)
        out = names if turn.left_out else blamed(text, turn.offered, names, proven)
        turn.left_out |= frozenset(out)
        logger.warning(
            "%s: the model refused the client's tools; turn %s continues without %s: %s",
            self.address,
            turn.request_id,
            ", ".join(sorted(turn.left_out)),
            failure,
        )
        return [each for name, each in by_name.items() if name not in out]

    async def _classified(self, turn: Turn, failure: Exception) -> ChatErrorClassification | None:
        """Call `classify_chat_error`, once per error, and return its result if it is an overflow."""
        if turn.abort.is_set or self.activation.ended is not None:
            return None
        hook = self.parts.agent.classify_chat_error
        if not is_overridden(hook):
            return default_context_overflow_classifier(failure)
        context = ChatErrorContext(turn.request_id, turn.stage)
        try:
            kind = await turn.unless_stopped(call_hook(hook, failure, context))
        except TurnAborted:
            raise
        except Exception:
            logger.exception("%s: classify_chat_error raised", self.address)
            return None
        return "context_overflow" if kind == "context_overflow" else None

    async def _restart(self, turn: Turn) -> None:
        """Discard the partial answer, or continue it if it contains results of tools."""
        await turn.stream.stored()
        partial = folded(turn.stream.chunks, turn.begun)
        for chunk in partial.seam() if partial.has_settled_work else partial.discarded():
            turn.stream.append(chunk)
        if partial.has_settled_work:
            turn.begin_anew(partial.builder, partial)
        else:
            turn.begin_anew(MessageBuilder(turn.begun), None)

    def _client_tools(self, turn: Turn) -> Sequence[Any]:
        given = self.executors.pop(turn.request_id, None)
        if given is None:
            return self._pending.tools_for(turn.options)
        tools, turn.executor = given
        return tools

    def aborted(self, turn: Turn) -> tuple[Outcome, str | None]:
        turn.emit(Encoder().abort(turn.abort.reason))
        return "aborted", turn.abort.reason

    async def failed(self, turn: Turn, failure: Exception) -> Failure | None:
        """Report an error, once the partial answer is durable. Returns None if the turn was stopped."""
        for chunk in turn.loose_ends():
            turn.emit(chunk)
        await turn.stream.stored()
        emitter = self.activation.events
        if isinstance(failure, ModelStalled):
            patience = int(seconds(turn.patience or 0) * 1000)
            emitter.emit(events.StreamStalled, turn.agent, turn.request_id, timeout_ms=patience)
        context = ChatErrorContext(turn.request_id, turn.stage, classification=turn.classification)
        work = reported(self.parts, failure, context)
        try:
            found = await turn.unless_stopped(work)
        except TurnAborted:
            return None
        if turn.abort.is_set:
            return None
        turn.emit(Encoder().error(found.shown))
        return found

    async def breaks_off(self, turn: Turn, failure: Exception) -> bool:
        """Return whether the model failed in the middle of its answer, so that recovery resumes the turn."""
        config = recovery_of(self.parts.agent.chat_recovery)
        is_stalled = isinstance(failure, ModelStalled)
        if config is None or not is_passing(failure) or turn.abort.is_set:
            return False
        if not is_stalled and is_empty(turn.builder.message()):
            return False  # it was already retried as often as allowed
        await turn.stream.stored()
        emit = self.activation.events.emit
        if is_stalled:
            patience = int(seconds(turn.patience or 0) * 1000)
            emit(events.StreamStalled, self.address, turn.request_id, timeout_ms=patience)
        logger.warning("%s: turn %s was interrupted: %s", self.address, turn.request_id, failure)
        emit(events.TurnInterrupted, self.address, turn.request_id, str(failure))
        self._state.broken_off[turn.request_id] = ("stalled", self._inbox.last_seq)
        turn.stream.interrupt()
        return True
