"""Which spans follow from events.

| span | from | to |
| --- | --- | --- |
| `fiber <name>` | `fiber:run:started` | `completed`, `failed`, `aborted` or `interrupted` |
| `recover <name>` | `fiber:recovery:detected` | `handled` or `failed` |
| `schedule <callback>` | `schedule:execute`, the first attempt | `schedule:complete` or `schedule:error` |
| `rpc <method>` | the call | its end |

What happens in between is an event of that span; everything else is an event of the span around it, or a
span of its own without length if there is none. The code of a fiber or of a callback runs inside its span:
spans that it makes are children of it.

What does not end by itself (its process is dying, or it has lost its agent) ends when the agent leaves
memory, as `interrupted`.
"""

from __future__ import annotations

from opentelemetry import context, trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from outlast.agent.events import (
    FiberEvent,
    FiberRecoveryDetected,
    FiberRecoveryFailed,
    FiberRecoveryHandled,
    FiberRunAborted,
    FiberRunCompleted,
    FiberRunFailed,
    FiberRunInterrupted,
    FiberRunStarted,
    ScheduleCompleted,
    ScheduleFailed,
    ScheduleRetried,
    ScheduleStarted,
    SubAgentAborted,
)
from outlast.core.events import Event
from outlast.host.events import AgentDestroyed, AgentDiscarded, AgentEvicted, RpcEvent
from outlast.observe.attributes import attributes

Work = tuple[str, str]  # what it is, and its id: ("fiber", "fiber_1")


class Spans:
    """The spans of one host: those that are open, by agent and work."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[str | None, dict[Work, Span]] = {}

    def __len__(self) -> int:
        return sum(len(spans) for spans in self._open.values())

    def hear(self, event: Event) -> None:
        """Begin, end or add to a span."""
        match event:
            case FiberRunStarted(fiber_id=id, fiber_name=name):
                self._enter(self._begin(event, ("fiber", id), f"fiber {name}"))
            case FiberRunCompleted(fiber_id=id):
                self._end(event, ("fiber", id), "completed")
            case FiberRunFailed(fiber_id=id):
                self._end(event, ("fiber", id), "failed")
            case FiberRunAborted(fiber_id=id):
                self._end(event, ("fiber", id), "aborted")
            case FiberRunInterrupted(fiber_id=id, recovery_reason="left"):
                if self._find(event, ("fiber", id)) is not None:  # else it never began, or is over
                    self._end(event, ("fiber", id), "interrupted")
            case FiberRecoveryDetected(fiber_id=id, fiber_name=name):
                self._begin(event, ("recovery", id), f"recover {name}")
            case FiberRecoveryHandled(fiber_id=id):
                self._end(event, ("recovery", id), "handled")
            case FiberRecoveryFailed(fiber_id=id):
                self._end(event, ("recovery", id), "failed")
            case FiberEvent(fiber_id=id):
                self._add(event, self._find(event, ("recovery", id)))
            case ScheduleStarted(schedule_id=id, callback=callback, attempt=1):
                self._enter(self._begin(event, ("schedule", id), f"schedule {callback}"))
            case ScheduleStarted(schedule_id=id) | ScheduleRetried(schedule_id=id):
                self._add(event, self._find(event, ("schedule", id)))
            case ScheduleCompleted(schedule_id=id):
                self._end(event, ("schedule", id), "completed")
            case ScheduleFailed(schedule_id=id):
                self._end(event, ("schedule", id), "failed")
            case RpcEvent(method=method, elapsed_ms=elapsed):
                self._whole(event, f"rpc {method}", event.at - elapsed)
            case AgentEvicted(agent=agent) | AgentDiscarded(agent=agent):
                self._interrupt_agent(agent, event.at)
                self._add(event, None)
            case AgentDestroyed(agent=agent) | SubAgentAborted(child=agent):
                for each in list(self._open):  # and all below it
                    if f"{each}/".startswith(f"{agent}/"):
                        self._interrupt_agent(each, event.at)
                self._add(event, None)
            case _:
                self._add(event, None)

    def end_all(self, at: int) -> None:
        """Nothing more will be heard."""
        for agent in list(self._open):
            self._interrupt_agent(agent, at)

    def _interrupt_agent(self, agent: str | None, at: int) -> None:
        for span in self._open.pop(agent, {}).values():
            _interrupt(span, at)

    def _find(self, event: Event, work: Work) -> Span | None:
        return self._open.get(event.agent, {}).get(work)

    def _begin(self, event: Event, work: Work, name: str) -> Span:
        spans = self._open.setdefault(event.agent, {})
        if work in spans:  # its end was not told
            _interrupt(spans[work], event.at)
        span = self._tracer.start_span(
            name, attributes=attributes(event), start_time=_nanoseconds(event.at)
        )
        spans[work] = span
        return span

    def _enter(self, span: Span) -> None:
        """Make it the current span of the running task, which was made for this work and ends with it."""
        context.attach(trace.set_span_in_context(span))

    def _end(self, event: Event, work: Work, outcome: str) -> None:
        span = self._find(event, work)
        if span is None:
            self._add(event, None)
            return
        spans = self._open[event.agent]
        del spans[work]
        if not spans:
            del self._open[event.agent]
        span.set_attributes({**attributes(event), "outlast.outcome": outcome})
        if outcome == "interrupted":
            span.set_status(Status(StatusCode.ERROR, "interrupted"))
        _tell_failure(span, event)
        span.end(_nanoseconds(event.at))

    def _add(self, event: Event, span: Span | None) -> None:
        """To the span of the work that it belongs to, or to the current one."""
        span = span or trace.get_current_span()
        if span.is_recording():
            span.add_event(event.name, attributes(event), _nanoseconds(event.at))
        else:
            self._whole(event, event.name, event.at)

    def _whole(self, event: Event, name: str, began_at: int) -> None:
        span = self._tracer.start_span(
            name, attributes=attributes(event), start_time=_nanoseconds(began_at)
        )
        _tell_failure(span, event)
        span.end(_nanoseconds(event.at))


def _interrupt(span: Span, at: int) -> None:
    span.set_attribute("outlast.outcome", "interrupted")
    span.set_status(Status(StatusCode.ERROR, "interrupted"))
    span.end(_nanoseconds(at))


def _tell_failure(span: Span, event: Event) -> None:
    """The error that the event tells of, as OpenTelemetry writes exceptions."""
    if event.severity != "error":
        return
    error = str(event.payload.get("error", event.name))
    kind, _, message = error.partition(": ")
    if kind.isidentifier():  # "ValueError: no"
        exception = {"exception.type": kind, "exception.message": message}
    else:
        exception = {"exception.message": error}
    span.add_event("exception", exception, _nanoseconds(event.at))
    span.set_status(Status(StatusCode.ERROR, error))


def _nanoseconds(milliseconds: int) -> int:
    return milliseconds * 1_000_000
