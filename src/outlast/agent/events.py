"""The events of an agent: its fibers, its schedules, its state and its sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from outlast.core.events import Event

if TYPE_CHECKING:
    from outlast.agent.schedules.timetable import ScheduleKind

# --- fibers --------------------------------------------------------------------------------------


class FiberEvent(Event):
    """Fields of every fiber event."""

    channel = "fiber"
    fiber_id: str
    fiber_name: str
    managed: bool


class FiberRunStarted(FiberEvent):
    """The row is durable and the function is about to be called. One of the next four events follows."""

    name = "fiber:run:started"


class FiberRunCompleted(FiberEvent):
    """The function returned, and that is durable."""

    name = "fiber:run:completed"
    elapsed_ms: int


class FiberRunFailed(FiberEvent):
    """The function raised, and that is durable."""

    name = "fiber:run:failed"
    severity = "error"
    error: str


class FiberRunAborted(FiberEvent):
    """The user cancelled the fiber, and that is durable."""

    name = "fiber:run:aborted"


class FiberRunInterrupted(FiberEvent):
    """This activation `left` the fiber to a later one, or found it `orphaned` by an earlier one."""

    name = "fiber:run:interrupted"
    severity = "warning"
    recovery_reason: Literal["left", "orphaned"]


class FiberRecoveryDetected(FiberEvent):
    """Recovery found the row of a fiber that is not running."""

    name = "fiber:recovery:detected"


class FiberRecoveryAttempt(FiberEvent):
    """The recovery hook is about to be called."""

    name = "fiber:recovery:attempt"


class FiberRecoveryHandled(FiberEvent):
    """The fiber was resumed, replaced or settled, and that is durable."""

    name = "fiber:recovery:handled"
    status: Literal["managed", "user"]


class FiberRecoverySkipped(FiberEvent):
    """The fiber was dropped (`max_…_exceeded`), or left to a later scan (`scan_deadline_exceeded`)."""

    name = "fiber:recovery:skipped"
    severity = "warning"
    reason: Literal["max_age_exceeded", "max_attempts_exceeded", "scan_deadline_exceeded"]


class FiberRecoveryFailed(FiberEvent):
    """The recovery hook raised."""

    name = "fiber:recovery:failed"
    severity = "error"
    error: str
    reason: Literal["hook_raised"]


# --- schedules -----------------------------------------------------------------------------------


class ScheduleEvent(Event):
    """Fields of every schedule event."""

    channel = "schedule"
    schedule_id: str
    callback: str
    kind: ScheduleKind


class ScheduleCreated(ScheduleEvent):
    """The schedule is durable."""

    name = "schedule:create"


class ScheduleCancelled(ScheduleEvent):
    """The schedule was deleted before its time; a running callback continues."""

    name = "schedule:cancel"


class ScheduleStarted(ScheduleEvent):
    """The callback is about to be called; `attempt` is 1 the first time."""

    name = "schedule:execute"
    attempt: int


class ScheduleRetried(ScheduleEvent):
    """An attempt raised, and another follows."""

    name = "schedule:retry"
    severity = "warning"
    attempt: int
    error: str


class ScheduleCompleted(ScheduleEvent):
    """The callback returned; `elapsed_ms` counts from the first attempt."""

    name = "schedule:complete"
    elapsed_ms: int


class ScheduleFailed(ScheduleEvent):
    """The last attempt raised, or the callback could not be called at all (0 attempts)."""

    name = "schedule:error"
    severity = "error"
    error: str
    attempts: int


class ScheduleDuplicates(Event):
    """Many one-shot schedules of one callback are due at once, which is probably a mistake."""

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
    """The sub-agent was created, and that is durable."""

    name = "sub_agent:created"


class SubAgentDeleted(SubAgentEvent):
    """The sub-agent and all its rows were deleted."""

    name = "sub_agent:deleted"


class SubAgentAborted(SubAgentEvent):
    """The sub-agent was stopped; its rows are kept."""

    name = "sub_agent:aborted"


# --- batteries -----------------------------------------------------------------------------------


class BatteryFailed(Event):
    """A battery raised where that must not fail the agent. Its contribution is skipped."""

    name = "battery:failed"
    channel = "battery"
    severity = "error"
    battery: str
    error: str
