"""Events as OpenTelemetry spans, with the real SDK."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from opentelemetry.trace import StatusCode
from traced import SECOND, Tracing, added, lasted, outcome

from outlast import Agent, FiberContext, FiberRecoveryContext, OwnershipLost, Retry
from outlast.agent.agent import parts_of
from outlast.agent.events import (
    FiberRecoveryDetected,
    FiberRunStarted,
    ScheduleFailed,
    ScheduleStarted,
    StateUpdated,
    SubAgentAborted,
)
from outlast.agent.fibers.fibers import Fibers
from outlast.core.events import Events
from outlast.host.events import (
    AgentActivated,
    AgentDestroyed,
    AgentDiscarded,
    AgentEvicted,
    Rpc,
    RpcFailed,
)
from outlast.observe import trace_events
from outlast.observe.spans import Spans
from outlast.testing.virtual import START
from support import forever, hosting, raw

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def tracing() -> Tracing:
    return Tracing()


class Worker(Agent):
    behave: ClassVar[Callable[..., Any]]
    callback: ClassVar[Callable[..., Any]]

    async def work(self) -> None:
        await self.run_fiber("work", self.step)

    async def begin(self) -> str:
        return self.run_fiber("work", self.step).id

    async def manage(self) -> None:
        await self.start_fiber("work", self.step, id="m")

    async def put(self) -> None:
        await self.storage.put("key", 1)

    async def step(self, fiber: FiberContext) -> None:
        await type(self).behave(self)

    async def tick(self, payload: Any) -> None:
        await type(self).callback(self)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.step)


def behaving(behave: Callable[..., Any], callback: Callable[..., Any] = forever) -> type[Worker]:
    Worker.behave, Worker.callback = staticmethod(behave), staticmethod(callback)
    return Worker


async def five_seconds(agent: Agent) -> None:
    await asyncio.sleep(5)


async def test_a_fiber_that_completes_is_a_span_from_its_start_to_its_end(
    tracing: Tracing, sqlite_url: str
) -> None:
    async with hosting(behaving(five_seconds), url=sqlite_url) as host:
        trace_events(host.events, tracing.provider)
        await asyncio.sleep(10)
        await host.get(Worker, "w").work()
    span = tracing.one("fiber work")
    assert span.start_time == START * 1_000_000 + 10 * SECOND
    assert lasted(span) == 5
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes == {
        "outlast.agent": "Worker/w",
        "outlast.fiber.id": "fiber_1_2",
        "outlast.fiber.name": "work",
        "outlast.fiber.managed": False,
        "outlast.fiber.elapsed_ms": 5000,
        "outlast.outcome": "completed",
    }
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "outlast"


async def test_a_fiber_that_fails_is_a_span_with_its_error(
    tracing: Tracing, sqlite_url: str
) -> None:
    async def fail(agent: Agent) -> None:
        await asyncio.sleep(1)
        raise ValueError("no: never")

    async with hosting(behaving(fail), url=sqlite_url) as host:
        trace_events(host.events, tracing.provider)
        with pytest.raises(ValueError, match="never"):
            await host.get(Worker, "w").work()
    span = tracing.one("fiber work")
    assert (lasted(span), outcome(span)) == (1, "failed")
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "ValueError: no: never"
    (exception,) = span.events
    assert exception.name == "exception"
    assert exception.attributes == {
        "exception.type": "ValueError",
        "exception.message": "no: never",
    }
    assert exception.timestamp == span.end_time


@pytest.mark.parametrize("start", [Worker.begin, Worker.manage])
async def test_a_fiber_that_is_cancelled_is_a_span_that_was_aborted_which_is_no_error(
    tracing: Tracing, sqlite_url: str, start: Callable[..., Any]
) -> None:
    class Cancelling(Worker):
        async def stop(self) -> None:
            await self.cancel_fiber("m")
            for fiber in list(parts_of(self)[Fibers].running.values()):
                fiber.cancel()

    behaving(forever)
    async with hosting(Cancelling, url=sqlite_url) as host:
        trace_events(host.events, tracing.provider)
        agent = host.get(Cancelling, "w")
        await getattr(agent, start.__name__)()
        await asyncio.sleep(3)
        await agent.stop()
        await host.until_settled()
    span = tracing.one("fiber work")
    assert (lasted(span), outcome(span)) == (3, "aborted")
    assert span.status.status_code is StatusCode.UNSET


async def test_a_fiber_that_is_interrupted_and_recovered_is_two_runs_and_a_recovery(
    tracing: Tracing, sqlite_url: str
) -> None:
    async with hosting(behaving(forever), url=sqlite_url) as host:
        trace_events(host.events, tracing.provider)
        id = await host.get(Worker, "w").begin()
        await asyncio.sleep(2)
        await host.stop(0)
    first = tracing.one("fiber work")
    assert (lasted(first), outcome(first)) == (2, "interrupted")
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == "interrupted"

    async with hosting(behaving(five_seconds), url=sqlite_url, life="2") as host:
        trace_events(host.events, tracing.provider)
        await host.until_settled()
    _, second = tracing.named("fiber work")
    assert (lasted(second), outcome(second)) == (5, "completed")
    recovery = tracing.one("recover work")
    assert (outcome(recovery), recovery.status.status_code) == ("handled", StatusCode.UNSET)
    assert added(recovery) == ["fiber:run:interrupted", "fiber:recovery:attempt"]
    for span in (first, second, recovery):
        assert span.attributes is not None
        assert span.attributes["outlast.fiber.id"] == id


async def test_a_recovery_whose_hook_raises_is_a_span_with_its_error(
    tracing: Tracing, sqlite_url: str
) -> None:
    async with hosting(behaving(forever), url=sqlite_url) as host:
        await host.get(Worker, "w").begin()
        await host.stop(0)

    class Broken(Worker):
        async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
            raise OSError("no network")

    Broken.__name__ = "Worker"
    async with hosting(Broken, url=sqlite_url, life="2") as host:
        trace_events(host.events, tracing.provider)
        await host.until_settled()
    recovery = tracing.one("recover work")
    assert outcome(recovery) == "failed"
    assert recovery.status.description == "OSError: no network"
    assert added(recovery)[-1] == "exception"
    assert tracing.named("fiber work") == []


async def test_spans_made_in_a_fiber_are_its_children_and_it_is_a_child_of_whoever_started_it(
    tracing: Tracing, sqlite_url: str
) -> None:
    async def behave(agent: Agent) -> None:
        with tracing.tracer.start_as_current_span("model call"):
            await agent.set_state({"n": 1})

    async with hosting(behaving(behave), url=sqlite_url) as host:
        trace_events(host.events, tracing.provider)
        with tracing.tracer.start_as_current_span("request"):
            await host.get(Worker, "w").work()
        with tracing.tracer.start_as_current_span("another"):
            pass
    request, fiber = tracing.one("request"), tracing.one("fiber work")
    call, another = tracing.one("model call"), tracing.one("another")
    assert fiber.parent is not None
    assert fiber.parent.span_id == request.context.span_id
    assert call.parent is not None
    assert call.parent.span_id == fiber.context.span_id
    assert added(call) == ["state:update"], "it happened inside that span"
    assert another.parent is None, "the fiber's span is nobody else's"


async def test_a_schedule_with_a_retry_is_one_span_and_its_attempts_are_events_of_it(
    tracing: Tracing, sqlite_url: str
) -> None:
    attempts = []

    async def second_time_lucky(agent: Agent) -> None:
        attempts.append(None)
        await asyncio.sleep(1)
        if len(attempts) == 1:
            raise ValueError("no")
        with tracing.tracer.start_as_current_span("inside"):
            pass

    async with hosting(behaving(forever, second_time_lucky), url=sqlite_url) as host:
        trace_events(host.events, tracing.provider)
        retry = Retry(max_attempts=3, base_delay=1, max_delay=1)
        await host.get(Worker, "w").schedule(10, "tick", retry=retry)
        await asyncio.sleep(60)
    span = tracing.one("schedule tick")
    assert span.start_time == START * 1_000_000 + 10 * SECOND
    assert 2 <= lasted(span) <= 3
    assert (outcome(span), span.status.status_code) == ("completed", StatusCode.UNSET)
    assert added(span) == ["schedule:retry", "schedule:execute"]
    (retried, again) = span.events
    assert retried.attributes is not None
    assert retried.attributes["outlast.schedule.error"] == "ValueError: no"
    assert again.attributes is not None
    assert again.attributes["outlast.schedule.attempt"] == 2
    assert span.attributes is not None
    assert span.attributes["outlast.schedule.kind"] == "delayed"
    inside = tracing.one("inside")
    assert inside.parent is not None
    assert inside.parent.span_id == span.context.span_id


async def test_a_schedule_that_fails_is_a_span_with_its_error(
    tracing: Tracing, sqlite_url: str
) -> None:
    async def fail(agent: Agent) -> None:
        raise ValueError("no")

    async with hosting(behaving(forever, fail), url=sqlite_url) as host:
        trace_events(host.events, tracing.provider)
        await host.get(Worker, "w").schedule(10, "tick", retry=Retry(max_attempts=2))
        await asyncio.sleep(60)
    span = tracing.one("schedule tick")
    assert (outcome(span), span.status.description) == ("failed", "ValueError: no")
    assert added(span) == ["schedule:retry", "schedule:execute", "exception"]


async def test_each_execution_of_a_schedule_is_a_span_of_its_own(
    tracing: Tracing, sqlite_url: str
) -> None:
    async with hosting(behaving(forever, five_seconds), url=sqlite_url) as host:
        trace_events(host.events, tracing.provider)
        await host.get(Worker, "w").schedule_every(10, "tick")
        await asyncio.sleep(50)
    spans = tracing.named("schedule tick")
    assert [outcome(span) for span in spans] == ["completed"] * 3
    assert len({span.context.trace_id for span in spans}) == 3


async def test_what_an_agent_leaves_undone_when_it_is_discarded_ends_as_interrupted(
    tracing: Tracing, sqlite_url: str
) -> None:
    async with hosting(behaving(forever, forever), url=sqlite_url) as host:
        trace_events(host.events, tracing.provider)
        agent = host.get(Worker, "w")
        await agent.schedule(1, "tick")
        await agent.begin()
        await asyncio.sleep(5)
        with closing(raw(sqlite_url)) as db:
            db.execute("UPDATE agents SET epoch = epoch + 1, owner = 'thief'")
        with pytest.raises(OwnershipLost):
            await agent.put()
        await asyncio.sleep(1)
        assert tracing.names.count("fence:lost") == tracing.names.count("lifecycle:discarded") == 1
        for span, seconds in (("fiber work", 5), ("schedule tick", 4)):
            assert lasted(tracing.one(span)) == seconds
            assert outcome(tracing.one(span)) == "interrupted"
        assert "fiber:run:interrupted" not in tracing.names, "that has been told"


async def test_ending_the_bridge_ends_what_is_open_and_nothing_is_traced_after(
    tracing: Tracing, sqlite_url: str
) -> None:
    async with hosting(behaving(forever), url=sqlite_url) as host:
        end = trace_events(host.events, tracing.provider)
        await host.get(Worker, "w").begin()
        await asyncio.sleep(4)
        assert tracing.named("fiber work") == []
        end()
        span = tracing.one("fiber work")
        assert (lasted(span), outcome(span)) == (4, "interrupted")
        before = len(tracing.spans)
        end()
        await host.get(Worker, "other").begin()
        await host.stop(0)
    assert len(tracing.spans) == before


async def test_an_event_outside_of_any_span_is_a_span_without_length(tracing: Tracing) -> None:
    events = Events()
    trace_events(events, tracing.provider)
    events.emit(AgentActivated, "A/x")
    events.emit(ScheduleFailed, "A/x", "s", "tick", "cron", error="A has no method", attempts=0)
    activated, failed = tracing.one("lifecycle:activated"), tracing.one("schedule:error")
    assert (lasted(activated), lasted(failed)) == (0, 0)
    assert activated.attributes == {"outlast.agent": "A/x"}
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.events[0].attributes == {"exception.message": "A has no method"}


async def test_an_event_inside_of_a_span_is_an_event_of_it(tracing: Tracing) -> None:
    events = Events()
    trace_events(events, tracing.provider)
    with tracing.tracer.start_as_current_span("request"):
        events.emit(StateUpdated, "A/x")
    (update,) = tracing.one("request").events
    assert (update.name, update.attributes) == ("state:update", {"outlast.agent": "A/x"})
    assert tracing.names == ["request"]


async def test_a_call_is_a_span_as_long_as_the_call(tracing: Tracing) -> None:
    events = Events()
    trace_events(events, tracing.provider)
    events.emit(Rpc, "A/x", method="greet", elapsed_ms=1500)
    events.emit(RpcFailed, "A/x", method="leave", elapsed_ms=250, error="KeyError: 'x'")
    greeted, left = tracing.one("rpc greet"), tracing.one("rpc leave")
    assert (lasted(greeted), greeted.status.status_code) == (1.5, StatusCode.UNSET)
    assert (lasted(left), left.status.status_code) == (0.25, StatusCode.ERROR)


def begin_everything(spans: Spans, agent: str) -> None:
    """In a context of its own, since a fiber's span becomes the current one of its task."""
    for event in (
        FiberRunStarted(0, agent, "f1", "work", False),
        FiberRecoveryDetected(0, agent, "f2", "work", False),
        ScheduleStarted(0, agent, "s1", "tick", "cron", attempt=1),
    ):
        contextvars.copy_context().run(spans.hear, event)


@pytest.mark.parametrize(
    ("leaving", "left"),
    [
        (AgentEvicted(9, "A/x"), 6),
        (AgentDiscarded(9, "A/x", reason="no"), 6),
        (AgentDestroyed(9, "A/x"), 3),  # with all that is below it
        (SubAgentAborted(9, "A/x", child="A/x/B/y"), 6),
        (AgentEvicted(9, "A/x/B/y"), 6),
        (AgentEvicted(9, "A/xy"), 6),
    ],
)
async def test_no_span_of_an_agent_stays_open_when_it_has_left(
    tracing: Tracing, leaving: Any, left: int
) -> None:
    spans = Spans(tracing.tracer)
    for agent in ("A/x", "A/x/B/y", "A/xy"):
        begin_everything(spans, agent)
    assert len(spans) == 9
    spans.hear(leaving)
    assert len(spans) == left
    ended = [span for span in tracing.spans if span.name != leaving.name]
    assert len(ended) == 9 - left
    assert {outcome(span) for span in ended} <= {"interrupted"}


async def test_work_that_begins_again_without_having_ended_is_two_spans(tracing: Tracing) -> None:
    spans = Spans(tracing.tracer)
    begin_everything(spans, "A/x")
    begin_everything(spans, "A/x")
    assert len(spans) == 3
    assert [outcome(span) for span in tracing.spans] == ["interrupted"] * 3


async def test_nothing_is_kept_of_work_that_has_ended(tracing: Tracing, sqlite_url: str) -> None:
    async def quickly(agent: Agent) -> None: ...

    spans = Spans(tracing.tracer)
    async with hosting(behaving(quickly, quickly), url=sqlite_url) as host:
        host.events.subscribe("*", spans.hear)
        for number in range(20):
            agent = host.get(Worker, str(number))
            await agent.work()
            await agent.schedule(1, "tick")
        await asyncio.sleep(10)
    assert len(tracing.named("fiber work")) == len(tracing.named("schedule tick")) == 20
    assert len(spans) == 0
    assert spans._open == {}


def test_without_opentelemetry_it_says_what_to_install(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from outlast.core.events import Events
from outlast.observe import log_events, trace_events
log_events(Events())
try:
    trace_events(Events())
except ImportError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "pip install 'outlast[otel]'" in result.stdout
