"""The events of an agent: its fibers, its schedules, its state and its sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from outlast.core.events import Event

if TYPE_CHECKING:
    from outlast.agent.schedules.timetable import ScheduleKind

# --- fibers --------------------------------------------------------------------------------------


class FiberEvent(Event):
    """What every event of a fiber tells."""

    channel = "fiber"
    fiber_id: str
    fiber_name: str
    managed: bool


class FiberRunStarted(FiberEvent):
    """Its row is durable and its function is about to be called. One of the next four follows."""

    name = "fiber:run:started"


class FiberRunCompleted(FiberEvent):
    """Its function has returned, and that is durable."""

    name = "fiber:run:completed"
    elapsed_ms: int


class FiberRunFailed(FiberEvent):
    """Its function has raised, and that is durable."""

    name = "fiber:run:failed"
    severity = "error"
    error: str


class FiberRunAborted(FiberEvent):
    """It was cancelled by its user, and that is durable."""

    name = "fiber:run:aborted"


class FiberRunInterrupted(FiberEvent):
    """It was `left` by this activation for a later one, or found `orphaned` by an earlier one."""

    name = "fiber:run:interrupted"
    severity = "warning"
    recovery_reason: Literal["left", "orphaned"]


class FiberRecoveryDetected(FiberEvent):
    """A row that nobody runs was found."""

    name = "fiber:recovery:detected"


class FiberRecoveryAttempt(FiberEvent):
    """It is about to be handed to the recovery hook."""

    name = "fiber:recovery:attempt"


class FiberRecoveryHandled(FiberEvent):
    """It was resumed, replaced or settled, and that is durable."""

    name = "fiber:recovery:handled"
    status: Literal["managed", "user"]


class FiberRecoverySkipped(FiberEvent):
    """It was dropped (`max_age_exceeded`, `max_attempts_exceeded`), or put off (`scan_deadline_exceeded`)."""

    name = "fiber:recovery:skipped"
    severity = "warning"
    reason: Literal["max_age_exceeded", "max_attempts_exceeded", "scan_deadline_exceeded"]


class FiberRecoveryFailed(FiberEvent):
    """The recovery hook has raised."""

    name = "fiber:recovery:failed"
    severity = "error"
    error: str
    reason: Literal["hook_raised"]


# --- schedules -----------------------------------------------------------------------------------


class ScheduleEvent(Event):
    """What an event of a schedule tells."""

    channel = "schedule"
    schedule_id: str
    callback: str
    kind: ScheduleKind


class ScheduleCreated(ScheduleEvent):
    """It is durable."""

    name = "schedule:create"


class ScheduleCancelled(ScheduleEvent):
    """It was removed before its time; an execution under way goes on."""

    name = "schedule:cancel"


class ScheduleStarted(ScheduleEvent):
    """Its callback is about to be called, for the first time (1) or again."""

    name = "schedule:execute"
    attempt: int


class ScheduleRetried(ScheduleEvent):
    """An attempt has raised, and another one follows."""

    name = "schedule:retry"
    severity = "warning"
    attempt: int
    error: str


class ScheduleCompleted(ScheduleEvent):
    """Its callback has returned; `elapsed_ms` counts from the first attempt."""

    name = "schedule:complete"
    elapsed_ms: int


class ScheduleFailed(ScheduleEvent):
    """Its last attempt has raised, or it could not be called at all (0 attempts)."""

    name = "schedule:error"
    severity = "error"
    error: str
    attempts: int


class ScheduleDuplicates(Event):
    """So many one-shots of one callback are due at once that it looks like a mistake."""

    name = "schedule:duplicate_warning"
    channel = "schedule"
    severity = "warning"
    callback: str
    count: int


# --- state and sub-agents ------------------------------------------------------------------------


class StateUpdated(Event):
    """A new state is durable."""

    name = "state:update"
    channel = "state"


class SubAgentEvent(Event):
    """`agent` is the parent; `child` is the address of its sub-agent."""

    channel = "sub_agent"
    child: str


class SubAgentCreated(SubAgentEvent):
    """It exists from now on, and that is durable."""

    name = "sub_agent:created"


class SubAgentDeleted(SubAgentEvent):
    """It and everything that it had stored are gone."""

    name = "sub_agent:deleted"


class SubAgentAborted(SubAgentEvent):
    """Its work was stopped; what it had stored is kept."""

    name = "sub_agent:aborted"


# --- batteries -----------------------------------------------------------------------------------


class BatteryFailed(Event):
    """A battery raised an exception where that must not fail the agent; it contributes nothing there."""

    name = "battery:failed"
    channel = "battery"
    severity = "error"
    battery: str
    error: str
