"""The end of an interrupted turn without another attempt: its partial answer is kept."""

from __future__ import annotations

from functools import partial
from typing import Any

from outlast.agent.part import Parts
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import EntryRow, Outcome
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.reducer import cleaned
from outlast.chat.message.repair import without_waiting
from outlast.chat.recovery.budget import Incident
from outlast.chat.recovery.chain import Chain
from outlast.chat.recovery.incidents import Incidents
from outlast.chat.recovery.judge import Interruption, Verdict
from outlast.chat.recovery.open_calls import close_calls, settle_by_chain
from outlast.chat.recovery.recovered_turns import recovered_turns
from outlast.chat.run.runner import UNANSWERED_CALL
from outlast.chat.stream.stream import Stream
from outlast.chat.stream.streams import Streams
from outlast.chat.transcript.transcript import Change, Transcript
from outlast.chat.turn.failure import reported
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.part_repair import PartRepair
from outlast.chat.turn.settle import Settler, storable
from outlast.chat.turn.telemetry import tell_start
from outlast.chat.turn.traces import Traces
from outlast.chat.types import events
from outlast.chat.types.contexts import ChatErrorContext, ChatErrorStage
from outlast.core.errors import OutlastError

INTERRUPTED = "The answer was interrupted."
NOT_STORED = "The answer could not be stored."
WENT_ON = "The user continued before the answer was complete."


class TurnInterrupted(OutlastError):
    """A turn was interrupted, and `chat_recovery` is off."""

    is_for_users = True


class AnswerNotStored(OutlastError):
    """The database rejects what a turn writes, so every further attempt would fail, too."""

    is_for_users = True


def is_discarded(what: Interruption, verdict: Verdict | None) -> bool:
    """Return whether a hook discarded the partial answer. The work of tools is kept in any case."""
    if verdict is None or what.has_called or what.partial.has_settled_work:
        return False
    is_left_out = verdict.chain is not None and verdict.chain.answer is None
    return is_left_out or (verdict.decision.action == "handled" and not verdict.decision.keeps)


class InterruptedEnds(ChatPart):
    """Ends the interrupted turns of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._streams = parts[Streams]
        self._settler = parts[Settler]
        self._incidents = parts[Incidents]

    async def end(
        self,
        what: Interruption,
        outcome: Outcome,
        error: str | None,
        verdict: Verdict | None = None,
        detail: str | None = None,
    ) -> None:
        """End the turn. The partial answer is kept, unless a hook discarded it."""
        entry, partial, stream = what.entry, what.partial, self._streams.of(what.entry)
        parent = await self.parts[Traces].parent_of(entry.id)
        tell_start(self.parts, entry, parent)
        stream.open_for(entry.attempt, self.activation.submit)
        stream.hold()
        encoder, builder = Encoder(), partial.builder
        if outcome == "completed":
            stream.append(encoder.finish("stop"))
            message = cleaned(partial.raw)  # None if the complete answer is empty
        elif is_discarded(what, verdict):
            for chunk in (*partial.discarded(), *(() if verdict is None else verdict.chunks)):
                stream.append(chunk)
            stream.append(encoder.abort(error))
            message = None
        else:
            if verdict is not None:
                await settle_by_chain(self.parts, what, verdict)
            before = builder.message()
            await close_calls(self.parts, entry, builder, stream)
            entry = self._inbox.current(entry) or entry  # cancelled in the meantime?
            if outcome == "interrupted" and entry.cancelled is not None:
                outcome, error = "aborted", entry.cancelled
            for chunk in () if verdict is None else verdict.chunks:
                builder.apply(chunk)
            said = without_waiting(builder.message(), (), UNANSWERED_CALL)
            message = cleaned(said, error=INTERRUPTED)  # drops incomplete calls
            if message is not None:
                message = self.parts[PartRepair].marking(before, message, what.begun)
            for chunk in (*partial.seam(), *(() if verdict is None else verdict.chunks)):
                stream.append(chunk)
            is_error = outcome in ("error", "interrupted")
            stream.append(encoder.error(error or "") if is_error else encoder.abort(error))
        if message is not None:
            id = entry.message_id or self.activation.ids.new("message")
            message = storable({**message, "id": id, "role": "assistant"})
        await self._settle(what, entry, stream, message, outcome, error, detail, verdict)
        if verdict is not None and verdict.decision.action != "seal":
            emit = self.activation.events.emit
            emit(events.RecoverySkipped, self.address, entry.id, verdict.decision.why)

    async def _settle(
        self,
        what: Interruption,
        entry: EntryRow,
        stream: Stream,
        message: dict[str, Any] | None,
        outcome: Outcome,
        error: str | None,
        detail: str | None,
        verdict: Verdict | None,
    ) -> None:
        """Store the end of an interrupted turn, in one commit with the decision."""
        chain = None if verdict is None else verdict.chain
        is_sealed = verdict is not None and verdict.decision.action == "seal"
        async with self._transcript.changing:
            recovered = await recovered_turns(self._inbox, what, verdict)
            change = None
            if chain is not None:
                change = await self._chained_end(what, chain, message)
            elif message is not None:
                change = await self._settler.answer_change(message, entry, entry.target, outcome)
            await stream.drained()
            commit = self.commits.new()
            commit.write(*what.record)
            if verdict is not None and is_sealed:
                incident = verdict.incident or Incident()
                commit.write(self._incidents.record(entry.id, incident, "exhausted"))
            self._settler.end(
                commit,
                entry,
                outcome,
                error=error,
                detail=detail,
                stream=stream,
                message=message,
                change=change,
                is_sealed=is_sealed,
            )
            recovered.write(commit, self._inbox, self._settler)
            await commit.stored()

    async def _chained_end(
        self, what: Interruption, chain: Chain, message: dict[str, Any] | None
    ) -> Change:
        """Return the change to the conversation of `on_recovery_boot`, with the partial answer."""
        later = self._transcript.path[len(what.path) :]
        if message is not None and chain.answer is not None:
            return await self._transcript.chaining(
                [*chain.before, message, *later], message["id"], what.entry.id
            )
        change = await self._transcript.chaining([*chain.before, *later])
        if message is not None:  # a tool has run: the answer stays in the tree
            self._transcript.put_aside(change, message, what.entry.target, what.entry.id)
        return change

    async def without_recovery(self, what: Interruption) -> None:
        """End an interrupted turn with an error, because recovery is off."""
        entry = what.entry
        if entry.cancelled is not None:
            await self.end(what, "aborted", entry.cancelled)
            return
        await self.failed(what, TurnInterrupted(INTERRUPTED), "interrupted", "recovery")

    async def failed(
        self, what: Interruption, failure: Exception, status: Outcome, stage: ChatErrorStage
    ) -> None:
        """End the turn with an error, after `on_chat_error`."""
        self._transcript.failing_answer = partial(self._partial_message, what), what.entry.target
        try:
            found = await reported(self.parts, failure, ChatErrorContext(what.entry.id, stage))
        finally:
            self._transcript.failing_answer = None
        await self.end(what, status, found.shown, detail=found.detail)

    @staticmethod
    def _partial_message(what: Interruption) -> dict[str, Any] | None:
        """Return the partial answer as `on_chat_error` sees it."""
        said = without_waiting(what.partial.builder.message(), (), UNANSWERED_CALL)
        message, id = cleaned(said, error=INTERRUPTED), what.entry.message_id
        return None if message is None or id is None else {**message, "id": id, "role": "assistant"}
