"""The events of a chat agent: its turns, its messages, its tools and its submissions."""

from __future__ import annotations

from typing import Any

from outlast.chat.message.results import SubmissionStatus, TurnStatus
from outlast.chat.types.contexts import ChatErrorStage
from outlast.chat.types.model_ask import ModelAsk
from outlast.core.events import Event

# --- turns ---------------------------------------------------------------------------------------


class ChatEvent(Event):
    """What an event of a turn tells."""

    channel = "chat"
    request_id: str


class TurnStarted(ChatEvent):
    """It was claimed, and the loop is about to begin. `parent` is the trace that it goes on with."""

    name = "chat:turn:start"
    trigger: str  # message, regenerate or continue
    admission: str  # through which door it came
    continuation: bool
    attempt: int
    parent: str | None = None


class TurnFinished(ChatEvent):
    """It has ended, and that is durable."""

    name = "chat:turn:finish"
    status: TurnStatus
    duration_ms: int
    error: str | None = None


class TurnInterrupted(ChatEvent):
    """Its agent leaves memory while it runs: the next activation takes it up."""

    name = "chat:turn:interrupted"
    severity = "warning"
    reason: str


class UpgradeRequested(Event):
    """An agent wants to be gone on with by a newer version of its code: the process is replaced."""

    channel = "chat"
    name = "chat:upgrade:requested"
    severity = "warning"


class ChatRequestFailed(ChatEvent):
    """A turn failed, or a client's request could not be read or stored; `on_chat_error` is asked next."""

    name = "chat:request:failed"
    severity = "error"
    stage: ChatErrorStage
    messages_persisted: bool
    error: str


class ModelAsked(ChatEvent):
    """A request is about to be sent to the model; once, however often it is tried."""

    name = "model:asked"
    channel = "model"  # of its own: it carries a whole conversation
    step: int
    model: str
    request: ModelAsk


class StreamStalled(ChatEvent):
    """The model sent nothing for longer than `chat_stream_stall_timeout`."""

    name = "chat:stream:stalled"
    severity = "warning"
    timeout_ms: int


class TranscriptRepaired(ChatEvent):
    """Calls without an outcome were closed before the model was asked."""

    name = "chat:transcript:repaired"
    channel = "transcript"
    severity = "warning"
    tool_call_ids: tuple[str, ...]


# --- recovery ------------------------------------------------------------------------------------


class IncidentEvent(ChatEvent):
    """About a turn that was interrupted."""

    @property
    def incident_id(self) -> str:
        """The same as `request_id`: one turn is one incident, however often it is interrupted."""
        return self.request_id

    @property
    def payload(self) -> dict[str, Any]:
        return {"incident_id": self.incident_id, **super().payload}


class RecoveryEvent(IncidentEvent):
    """What is counted of an interrupted turn."""

    attempt: int  # in a row without progress
    max_attempts: int
    recovery_kind: str  # retry or continue


class RecoveryDetected(RecoveryEvent):
    """A turn was interrupted for the first time."""

    name = "chat:recovery:detected"
    severity = "warning"


class RecoveryAttempt(RecoveryEvent):
    """It is looked at once more."""

    name = "chat:recovery:attempt"
    severity = "warning"


class RecoveryGoesOn(IncidentEvent):
    """It was interrupted very often, and makes progress each time: nobody but its user can end that."""

    name = "chat:recovery:goes_on"
    severity = "warning"
    attempts: int  # all of them
    work: int  # chunks since the first interruption


class RecoveryExhausted(RecoveryEvent):
    """It is given up."""

    name = "chat:recovery:exhausted"
    severity = "error"
    reason: str
    host_deaths: int  # of the process, in a row, while the turn ran and made no progress


class RecoveryDecided(IncidentEvent):
    """What becomes of it; `row` is the one of the decision table that fits."""

    name = "chat:recovery:decision"
    row: int
    cause: str
    action: str
    why: str


class RecoveryScheduled(IncidentEvent):
    """It goes on; that is durable."""

    name = "chat:recovery:scheduled"
    recovery_kind: str
    delay_ms: int = 0


class RecoveryCompleted(IncidentEvent):
    """It has come to its end after all."""

    name = "chat:recovery:completed"


class RecoverySkipped(IncidentEvent):
    """There was nothing to go on with, or somebody did not want it."""

    name = "chat:recovery:skipped"
    reason: str


class RecoveryFailed(IncidentEvent):
    """A hook raised, or the attempt has failed for good."""

    name = "chat:recovery:failed"
    severity = "error"
    reason: str


class ContextCompacted(ChatEvent):
    """The conversation was too long for the model, or nearly so, and a summary was made of its beginning."""

    name = "chat:context:compacted"
    reason: str  # reactive or proactive
    shortened: bool
    attempt: int


class BootDegraded(Event):
    """The agent died several times while it was starting: it starts without taking up its turns."""

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
    """Something that is stored cannot be read, and was left out."""

    name = "chat:stored:damaged"
    channel = "chat"
    severity = "error"
    what: str
    error: str


# --- the inbox and its messages ------------------------------------------------------------------


class InboxEvent(Event):
    """What happens to everything that the agent is asked."""

    channel = "inbox"
    request_id: str
    kind: str


class InboxAccepted(InboxEvent):
    """It is durable."""

    name = "inbox:accepted"
    origin: str


class InboxClaimed(InboxEvent):
    """Its turn begins; its messages are part of the conversation."""

    name = "inbox:claimed"


class InboxAcked(InboxEvent):
    """It has ended."""

    name = "inbox:acked"
    status: TurnStatus


class CancelRecorded(Event):
    """Somebody wants a turn to stop, and that is durable."""

    name = "cancel:recorded"
    channel = "inbox"
    request_id: str
    reason: str


class MessageRequest(Event):
    """A message of a user was accepted."""

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
    """A turn was cancelled by its user."""

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
    """What an event of a call tells."""

    channel = "message"
    request_id: str
    tool_call_id: str
    tool_name: str


class ToolStarted(ToolEvent):
    """That it begins is durable."""

    name = "tool:start"
    effect: str


class ToolFinished(ToolEvent):
    """`outcome` is done, failed, unknown or open."""

    name = "tool:finish"
    effect: str
    outcome: str
    elapsed_ms: int
    error: str | None = None


class ToolAnswered(ToolEvent):
    """A client has sent the result of a call."""

    name = "tool:result"


class ToolApproval(ToolEvent):
    """A user has allowed a call, or has not."""

    name = "tool:approval"
    approved: bool


class LedgerEvent(Event):
    """What became of a call with a key that was used before."""

    channel = "message"
    tool_name: str
    key: str


class LedgerReplayed(LedgerEvent):
    """The first one's result was given."""

    name = "action:ledger:replayed"


class LedgerConflict(LedgerEvent):
    """Its input differs from the first one's; it was refused."""

    name = "action:ledger:conflict"
    severity = "warning"


class LedgerPending(LedgerEvent):
    """The first one was interrupted, and nobody knows whether it has happened."""

    name = "action:ledger:pending"
    severity = "warning"


class LedgerReclaimed(LedgerEvent):
    """The first one did not come to an end, and it is safe to make it again."""

    name = "action:ledger:reclaimed"


# --- submissions ---------------------------------------------------------------------------------


class SubmissionEvent(Event):
    """What an event of a submission tells."""

    channel = "message"
    submission_id: str


class SubmissionCreated(SubmissionEvent):
    """It is durable."""

    name = "submission:create"
    idempotency_key: str | None


class SubmissionChanged(SubmissionEvent):
    """It is running, or has ended."""

    name = "submission:status"
    status: SubmissionStatus


class SubmissionFailed(SubmissionEvent):
    """It has ended with an error."""

    name = "submission:error"
    severity = "error"
    error: str
