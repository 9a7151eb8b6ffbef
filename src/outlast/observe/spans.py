"""Derives spans from events.

| span | from | to |
| --- | --- | --- |
| `fiber <name>` | `fiber:run:started` | `completed`, `failed`, `aborted` or `interrupted` |
| `recover <name>` | `fiber:recovery:detected` | `handled` or `failed` |
| `schedule <callback>` | `schedule:execute`, the first attempt | `schedule:complete` or `schedule:error` |
| `invoke_agent <class>` | `chat:turn:start` | `chat:turn:finish` |
| `execute_tool <name>` | `tool:start` | `tool:finish` |
| `rpc <method>` | the call | its end |

Events in between become events of that span; other events are added to the surrounding span, or become a span
without duration if there is none. The code of a fiber, a callback, a turn or a tool runs inside its span,
so spans that it creates are its children.

The span of a turn also contains the events right before its start and right after its finish: it is open from
`inbox:claimed` to `inbox:acked`. A turn begins a trace, unless a caller waits for it: then it is a child of
the caller's span. Without a waiting caller (it was submitted, or continues by itself), it has a link to the
span in which it was requested; an interrupted turn has a link to its first attempt.

Work that does not end by itself (its process is dying, or it lost its agent) ends as `interrupted` when the
agent leaves memory. A turn and its tools end with the task of the turn at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer

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
from outlast.chat.types.events import (
    InboxAccepted,
    InboxAcked,
    InboxClaimed,
    ModelAsked,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from outlast.core.clock import Clock, SystemClock
from outlast.core.events import Event
from outlast.host.events import AgentDestroyed, AgentDiscarded, AgentEvicted, RpcEvent
from outlast.observe import genai
from outlast.observe.attributes import Attributes, attributes

Work = tuple[str, ...]  # its kind, and its ids: ("fiber", "fiber_1")
WAITED_FOR = {"save", "chat", "continue"}  # the origins whose callers wait for the turn


class Spans:
    """The open spans of one host, by agent and work."""

    def __init__(self, tracer: Tracer, clock: Clock | None = None) -> None:
        self._tracer = tracer
        self._clock = clock or SystemClock()
        self._open: dict[str | None, dict[Work, Span]] = {}
        # Where each turn that has not started was requested, and whether its caller waits.
        self._asked: dict[str | None, dict[str, tuple[Span, bool]]] = {}

    def __len__(self) -> int:
        return sum(len(spans) for spans in self._open.values())

    def hear(self, event: Event) -> None:
        """Begin, end or extend a span."""
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
                if (
                    self._find(event, ("fiber", id)) is not None
                ):  # otherwise it never began, or has ended
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
            case InboxAccepted(request_id=id, origin=door):
                self._remember_asker(event, id, door in WAITED_FOR)
                self._add(event, None)
            case InboxClaimed(request_id=id):
                self._enter(self._begin_turn(event, id))
                self._add_to_turn(event)
            case TurnStarted(request_id=id, parent=parent):
                self._record_start(event, id, parent)
            case TurnFinished(request_id=id):
                self._record_end(event, self._find(event, ("turn", id)))
            case InboxAcked(request_id=id):
                self._add_to_turn(event)
                self._end_turn(event, id)
            case ModelAsked():
                pass  # Pydantic AI makes a span for each request to a model
            case ToolStarted(request_id=turn, tool_call_id=id):
                name, given = genai.of_tool(event)
                self._enter(self._begin(event, ("tool", turn, id), name, given))
            case ToolFinished(request_id=turn, tool_call_id=id):
                self._end_tool(event, ("tool", turn, id))
            case AgentEvicted(agent=agent) | AgentDiscarded(agent=agent):
                self._interrupt_agent(agent, event.at)
                self._add(event, None)
            case AgentDestroyed(agent=agent) | SubAgentAborted(child=agent):
                for each in {*self._open, *self._asked}:  # and all below it
                    if f"{each}/".startswith(f"{agent}/"):
                        self._interrupt_agent(each, event.at)
                self._add(event, None)
            case _:
                self._add_to_turn(event)

    def end_all(self, at: int) -> None:
        """End all spans as interrupted: no more events follow."""
        for agent in {*self._open, *self._asked}:
            self._interrupt_agent(agent, at)

    def _interrupt_agent(self, agent: str | None, at: int) -> None:
        for span in self._open.pop(agent, {}).values():
            _interrupt(span, at)
        self._asked.pop(agent, None)

    def _find(self, event: Event, work: Work) -> Span | None:
        return self._open.get(event.agent, {}).get(work)

    def _begin(
        self,
        event: Event,
        work: Work,
        name: str,
        given: Attributes | None = None,
        around: context.Context | None = None,
        links: Sequence[Link] = (),
    ) -> Span:
        """`given`: its attributes, if not the event's.

        `around`: its parent context, if not the current one.
        """
        spans = self._open.setdefault(event.agent, {})
        if work in spans:  # it has no end event
            _interrupt(spans[work], event.at)
        span = self._tracer.start_span(
            name,
            context=around,
            attributes=attributes(event) if given is None else given,
            links=links,
            start_time=_nanoseconds(event.at),
        )
        spans[work] = span
        return span

    def _forget(self, agent: str | None, work: Work) -> None:
        spans = self._open[agent]
        del spans[work]
        if not spans:
            del self._open[agent]

    def _enter(self, span: Span) -> None:
        """Make it the current span of the running task, which was created for this work and ends with it."""
        context.attach(trace.set_span_in_context(span))

    def _end(self, event: Event, work: Work, outcome: str) -> None:
        span = self._find(event, work)
        if span is None:
            self._add(event, None)
            return
        self._forget(event.agent, work)
        span.set_attributes({**attributes(event), "outlast.outcome": outcome})
        if outcome == "interrupted":
            _mark_interrupted(span)
        _record_failure(span, event)
        span.end(_nanoseconds(event.at))

    # --- turns and tools -------------------------------------------------------------------------

    def _remember_asker(self, event: Event, request: str, is_waited_for: bool) -> None:
        """Remember the current span: the turn starts later, in a task of its own."""
        span = trace.get_current_span()
        if span.get_span_context().is_valid:
            self._asked.setdefault(event.agent, {})[request] = (span, is_waited_for)

    def _pop_asker(self, event: Event, request: str) -> tuple[Span | None, bool]:
        """Return the span that `_remember_asker` recorded for this request, and forget it."""
        asked = self._asked.get(event.agent, {})
        found = asked.pop(request, (None, False))
        if not asked:
            self._asked.pop(event.agent, None)
        return found

    def _begin_turn(self, event: Event, request: str) -> Span:
        asked, is_waited_for = self._pop_asker(event, request)
        name, given = genai.of_turn(str(event.agent))
        around = context.Context()
        links = []
        if asked is not None and is_waited_for:
            around = trace.set_span_in_context(asked, around)
        elif asked is not None:
            links = [Link(asked.get_span_context())]
        span = self._begin(event, ("turn", request), name, given, around, links)
        task = asyncio.current_task()
        if task is not None:
            task.add_done_callback(lambda _: self._on_task_done(event.agent, request, span))
        return span

    def _on_task_done(self, agent: str | None, request: str, turn: Span) -> None:
        """Interrupt the open spans of the turn: its host left it, or its end could not be stored."""
        for work, span in list(self._open.get(agent, {}).items()):
            if span is turn or work[:2] == ("tool", request):
                self._forget(agent, work)
                _interrupt(span, self._clock.now())

    def _record_start(self, event: TurnStarted, request: str, parent: str | None) -> None:
        span = self._find(event, ("turn", request))
        if span is None:
            self._add(event, None)
            return
        span.set_attributes(attributes(event))
        link = None if parent is None else genai.link_to(parent)
        if link is not None:
            span.add_link(link.context)

    def _record_end(self, event: TurnFinished, span: Span | None) -> None:
        if span is None:
            self._add(event, None)
            return
        span.set_attributes({**attributes(event), "outlast.outcome": event.status})
        if event.status == "error":
            _record(span, event, event.error or "", event.status)
        elif event.status == "interrupted":
            _mark_interrupted(span)

    def _end_turn(self, event: InboxAcked, request: str) -> None:
        """End the span. This event follows the finish, after everything that results from it."""
        self._pop_asker(event, request)
        span = self._find(event, ("turn", request))
        if span is None:
            return
        self._forget(event.agent, ("turn", request))
        span.end(_nanoseconds(event.at))
        if trace.get_current_span() is span:
            context.attach(context.Context())  # the task may continue with the next turn

    def _end_tool(self, event: ToolFinished, work: Work) -> None:
        span = self._find(event, work)
        if span is None:
            self._add_to_turn(event)
            return
        if event.outcome in ("failed", "unknown"):
            _record(span, event, event.error or "", event.outcome)
        self._end(event, work, event.outcome)

    def _add_to_turn(self, event: Event) -> None:
        """Add the event to the span of its turn if that is open, else as any other event."""
        request = event.payload.get("request_id") or event.payload.get("submission_id")
        turn = None if request is None else self._find(event, ("turn", request))
        self._add(event, turn)

    # --- events ----------------------------------------------------------------------------------

    def _add(self, event: Event, span: Span | None) -> None:
        """Add the event to the span of its work, or to the current one."""
        span = span or trace.get_current_span()
        if span.is_recording():
            span.add_event(event.name, attributes(event), _nanoseconds(event.at))
        else:
            self._whole(event, event.name, event.at)

    def _whole(self, event: Event, name: str, began_at: int) -> None:
        span = self._tracer.start_span(
            name, attributes=attributes(event), start_time=_nanoseconds(began_at)
        )
        _record_failure(span, event)
        span.end(_nanoseconds(event.at))


def _interrupt(span: Span, at: int) -> None:
    _mark_interrupted(span)
    span.end(_nanoseconds(at))


def _mark_interrupted(span: Span) -> None:
    span.set_attributes({"outlast.outcome": "interrupted", "error.type": "interrupted"})
    span.set_status(Status(StatusCode.ERROR, "interrupted"))


def _record_failure(span: Span, event: Event) -> None:
    """Record the error of an event, if it is one."""
    if event.severity == "error":
        _record(span, event, str(event.payload.get("error", event.name)), "_OTHER")


def _record(span: Span, event: Event, error: str, otherwise: str) -> None:
    """Record an error as an OpenTelemetry exception; `otherwise`: its type, if it names none."""
    kind, message = named_error(error)
    exception = {"exception.message": message}
    if kind is not None:
        exception["exception.type"] = kind
    span.set_attribute("error.type", kind or otherwise)
    span.add_event("exception", exception, _nanoseconds(event.at))
    span.set_status(Status(StatusCode.ERROR, error))


def named_error(error: str) -> tuple[str | None, str]:
    """Return class and message of an error in an event; None if it names no class.

    ```python
    from outlast.observe.spans import named_error

    assert named_error("ValueError: no") == ("ValueError", "no")
    assert named_error("The arguments do not fit: …") == (None, "The arguments do not fit: …")
    ```
    """
    kind, colon, message = error.partition(": ")
    return (kind, message) if colon and kind.isidentifier() else (None, error)


def _nanoseconds(milliseconds: int) -> int:
    return milliseconds * 1_000_000
