"""The events of a chat agent: its turns, its messages, its tools and its submissions."""

from __future__ import annotations

from typing import Any

from outlast.chat.message.results import SubmissionStatus, TurnStatus
from outlast.chat.types.contexts import ChatErrorStage
from outlast.chat.types.model_ask import ModelAsk
from outlast.core.events import Event

# --- turns ---------------------------------------------------------------------------------------


class ChatEvent(Event):
    """Fields of every event of a turn."""

    channel = "chat"
    request_id: str


class TurnStarted(ChatEvent):
    """The turn was claimed, and its loop is about to begin. `parent` is the trace that it continues."""

    name = "chat:turn:start"
    trigger: str  # message, regenerate or continue
    admission: str  # the origin of the request
    continuation: bool
    attempt: int
    parent: str | None = None


class TurnFinished(ChatEvent):
    """The turn has ended, and that is durable."""

    name = "chat:turn:finish"
    status: TurnStatus
    duration_ms: int
    error: str | None = None


class TurnInterrupted(ChatEvent):
    """The agent leaves memory during the turn, and the next activation resumes it."""

    name = "chat:turn:interrupted"
    severity = "warning"
    reason: str


class UpgradeRequested(Event):
    """An agent wants newer code to continue its turn: the process is replaced."""

    channel = "chat"
    name = "chat:upgrade:requested"
    severity = "warning"


class ChatRequestFailed(ChatEvent):
    """A turn failed, or a client's request could not be read or stored; `on_chat_error` is called next."""

    name = "chat:request:failed"
    severity = "error"
    stage: ChatErrorStage
    messages_persisted: bool
    error: str


class ModelAsked(ChatEvent):
    """A request is about to be sent to the model. Emitted once, even if it is retried."""

    name = "model:asked"
    channel = "model"  # a separate channel, because it carries a whole conversation
    step: int
    model: str
    request: ModelAsk


class StreamStalled(ChatEvent):
    """The model sent nothing for longer than `chat_stream_stall_timeout`."""

    name = "chat:stream:stalled"
    severity = "warning"
    timeout_ms: int


class TranscriptRepaired(ChatEvent):
    """Calls without an outcome were closed before a request to the model."""

    name = "chat:transcript:repaired"
    channel = "transcript"
    severity = "warning"
    tool_call_ids: tuple[str, ...]


# --- recovery ------------------------------------------------------------------------------------


class IncidentEvent(ChatEvent):
    """An event of an interrupted turn."""

    @property
    def incident_id(self) -> str:
        """The same as `request_id`: one turn is one incident, however often it is interrupted."""
        return self.request_id

    @property
    def payload(self) -> dict[str, Any]:
        return {"incident_id": self.incident_id, **super().payload}


class RecoveryEvent(IncidentEvent):
    """Fields of events with the counts of an interrupted turn."""

    attempt: int  # in a row without progress
    max_attempts: int
    recovery_kind: str  # retry or continue


class RecoveryDetected(RecoveryEvent):
    """A turn was interrupted for the first time."""

    name = "chat:recovery:detected"
    severity = "warning"


class RecoveryAttempt(RecoveryEvent):
    """An interrupted turn was interrupted again."""

    name = "chat:recovery:attempt"
    severity = "warning"


class RecoveryGoesOn(IncidentEvent):
    """A turn was interrupted very often, but makes progress each time: only its user can stop it."""

    name = "chat:recovery:goes_on"
    severity = "warning"
    attempts: int  # in total
    work: int  # chunks since the first interruption


class RecoveryExhausted(RecoveryEvent):
    """Recovery of the turn was given up."""

    name = "chat:recovery:exhausted"
    severity = "error"
    reason: str
    host_deaths: int  # of the process, in a row, while the turn ran and made no progress


class RecoveryDecided(IncidentEvent):
    """The decision about an interrupted turn; `row` is the matching row of the decision table."""

    name = "chat:recovery:decision"
    row: int
    cause: str
    action: str
    why: str


class RecoveryScheduled(IncidentEvent):
    """The turn will continue, and that is durable."""

    name = "chat:recovery:scheduled"
    recovery_kind: str
    delay_ms: int = 0


class RecoveryCompleted(IncidentEvent):
    """The turn reached its end after an interruption."""

    name = "chat:recovery:completed"


class RecoverySkipped(IncidentEvent):
    """There was nothing to continue, or a hook declined."""

    name = "chat:recovery:skipped"
    reason: str


class RecoveryFailed(IncidentEvent):
    """A hook raised, or the attempt failed for good."""

    name = "chat:recovery:failed"
    severity = "error"
    reason: str


class ContextCompacted(ChatEvent):
    """The conversation was too long for the model, or nearly so, and its beginning was summarised."""

    name = "chat:context:compacted"
    reason: str  # reactive or proactive
    shortened: bool
    attempt: int


class BootDegraded(Event):
    """The process crashed several times during the agent's start: it starts without resuming its turns."""

    name = "chat:onstart:degraded"
    channel = "chat"
    severity = "error"
    step: str
    error: str


class HydrationWindowed(Event):
    """Only the last part of the conversation fits into memory."""

    name = "chat:hydration:windowed"
    channel = "chat"
    hydrated_messages: int
    budget_bytes: int


class StoredDamaged(Event):
    """A stored row cannot be read, and is ignored."""

    name = "chat:stored:damaged"
    channel = "chat"
    severity = "error"
    what: str
    error: str


# --- the inbox and its messages ------------------------------------------------------------------


class InboxEvent(Event):
    """Fields of every event of an inbox entry."""

    channel = "inbox"
    request_id: str
    kind: str


class InboxAccepted(InboxEvent):
    """The entry is durable."""

    name = "inbox:accepted"
    origin: str


class InboxClaimed(InboxEvent):
    """The entry's turn begins, and its messages are part of the conversation."""

    name = "inbox:claimed"


class InboxAcked(InboxEvent):
    """The entry has ended."""

    name = "inbox:acked"
    status: TurnStatus


class CancelRecorded(Event):
    """A request to stop a turn is durable."""

    name = "cancel:recorded"
    channel = "inbox"
    request_id: str
    reason: str


class MessageRequest(Event):
    """A user's message was accepted."""

    name = "message:request"
    channel = "message"
    request_id: str


class MessageResponse(Event):
    """An answer is stored."""

    name = "message:response"
    channel = "message"
    request_id: str
    message_id: str


class MessagesCleared(Event):
    """The conversation was deleted."""

    name = "message:clear"
    channel = "message"


class MessageCancelled(Event):
    """The user cancelled a turn."""

    name = "message:cancel"
    channel = "message"
    request_id: str


class MessageFailed(Event):
    """A turn ended with an error."""

    name = "message:error"
    channel = "message"
    severity = "error"
    request_id: str
    error: str


# --- tools ---------------------------------------------------------------------------------------


class ToolEvent(Event):
    """Fields of every event of a tool call."""

    channel = "message"
    request_id: str
    tool_call_id: str
    tool_name: str


class ToolStarted(ToolEvent):
    """The start of the call is durable."""

    name = "tool:start"
    effect: str


class ToolFinished(ToolEvent):
    """The call ended; `outcome` is done, failed, unknown or open."""

    name = "tool:finish"
    effect: str
    outcome: str
    elapsed_ms: int
    error: str | None = None


class ToolAnswered(ToolEvent):
    """A client sent the result of a call."""

    name = "tool:result"


class ToolApproval(ToolEvent):
    """A user approved or denied a call."""

    name = "tool:approval"
    approved: bool


class LedgerEvent(Event):
    """Fields of events about a call whose idempotency key was used before."""

    channel = "message"
    tool_name: str
    key: str


class LedgerReplayed(LedgerEvent):
    """The call received the result of the first one."""

    name = "action:ledger:replayed"


class LedgerConflict(LedgerEvent):
    """The call was refused, because its input differs from the first one's."""

    name = "action:ledger:conflict"
    severity = "warning"


class LedgerPending(LedgerEvent):
    """The first call was interrupted, and its outcome is unknown."""

    name = "action:ledger:pending"
    severity = "warning"


class LedgerReclaimed(LedgerEvent):
    """The first call did not end, and is safe to repeat."""

    name = "action:ledger:reclaimed"


# --- submissions ---------------------------------------------------------------------------------


class SubmissionEvent(Event):
    """Fields of every submission event."""

    channel = "message"
    submission_id: str


class SubmissionCreated(SubmissionEvent):
    """The submission is durable."""

    name = "submission:create"
    idempotency_key: str | None


class SubmissionChanged(SubmissionEvent):
    """The submission is running, or has ended."""

    name = "submission:status"
    status: SubmissionStatus


class SubmissionFailed(SubmissionEvent):
    """The submission ended with an error."""

    name = "submission:error"
    severity = "error"
    error: str
