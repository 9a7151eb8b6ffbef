"""Turns and tools as OpenTelemetry spans, by the GenAI conventions, with the real SDK."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from pydantic_ai import ApprovalRequired
from pydantic_ai.models.instrumented import InstrumentationSettings
from traced import Tracing, added, attribute, lasted, outcome

from outlast import Host, Think, TurnConfig, tool
from outlast.chat.types.events import (
    InboxAccepted,
    InboxAcked,
    InboxClaimed,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from outlast.core.events import Events
from outlast.host.events import AgentDestroyed, AgentDiscarded, AgentEvicted
from outlast.observe import trace_events
from outlast.observe.spans import Spans
from outlast.testing import ScriptedModel, Step
from support import forever, hosting

pytestmark = pytest.mark.virtual_time

TURN = "invoke_agent Talker"


@pytest.fixture
def tracing() -> Tracing:
    return Tracing()


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """OpenTelemetry logs what it is used wrongly for, and so do events whose listeners raise."""
    yield
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    wrong = ("opentelemetry", "outlast")
    assert [record.getMessage() for record in records if record.name in wrong] == []
    assert [each for each in records if each.name.startswith("opentelemetry.")] == []


@asynccontextmanager
async def watched(
    tracing: Tracing, *agents: type[Any], url: str, **options: Any
) -> AsyncIterator[Host]:
    """A host whose events become spans, of which none is open when it has stopped."""
    async with hosting(*agents, url=url, **options) as host:
        spans = Spans(tracing.provider.get_tracer("outlast"), host.clock)
        host.events.subscribe("*", spans.hear)
        yield host
    assert len(spans) == 0
    assert (spans._open, spans._asked) == ({}, {})


def talker(tracing: Tracing, model: Any, **members: Any) -> type[Any]:
    """A class of chat agents whose model is traced."""
    settings = InstrumentationSettings(tracer_provider=tracing.provider, include_content=False)
    return type("Talker", (Think,), {"model": model, "telemetry": settings, **members})


def slow(*answers: Any) -> ScriptedModel:
    """A model that takes a second to answer, so that there is something to see."""
    return ScriptedModel(*(Step.stalls(1) + answer for answer in answers), repeat=True)


def linked(span: ReadableSpan) -> list[int]:
    """The spans that it has a link to."""
    return [link.context.span_id for link in span.links]


# --- a turn --------------------------------------------------------------------------------------


async def test_a_turn_is_a_tree_of_requests_and_tools_and_of_what_user_code_makes_in_them(
    tracing: Tracing, sqlite_url: str
) -> None:
    started = asyncio.Event()

    class Members:
        async def before_turn(self, context: Any) -> None:
            with tracing.tracer.start_as_current_span("preparing"):
                await asyncio.sleep(1)

        async def after_tool_call(self, context: Any) -> None:
            with tracing.tracer.start_as_current_span(f"after {context.tool_name}"):
                pass

        @tool(effect="read")
        async def look(self) -> str:
            """Look."""
            with tracing.tracer.start_as_current_span("looking"):
                await started.wait()  # so that the two run side by side
                await asyncio.sleep(2)
            return "there"

        @tool
        async def send(self) -> str:
            """Send."""
            started.set()
            with tracing.tracer.start_as_current_span("sending"):
                await asyncio.sleep(1)
            return "sent"

    calls = Step.call("look", id="c1") + Step.call("send", id="c2")
    members = {name: value for name, value in vars(Members).items() if not name.startswith("__")}
    Talker = talker(tracing, slow(calls, "Done."), **members)
    async with watched(tracing, Talker, url=sqlite_url) as host:
        turn = await host.get(Talker, "a").save_messages("Go")
        assert turn.status == "completed"
    assert tracing.tree(TURN) == [
        TURN,
        "  preparing",
        "  chat scripted",
        "  execute_tool look",
        "    looking",
        "  execute_tool send",
        "    sending",
        "  after send",
        "  after look",
        "  chat scripted",
    ]
    span = tracing.one(TURN)
    assert span.parent is None
    assert (span.kind, span.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
    assert lasted(span) == 5  # preparing, a request, the longer of the tools, another request
    assert span.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "Talker",
        "gen_ai.agent.id": "Talker/a",
        "gen_ai.conversation.id": "Talker/a",
        "outlast.agent": "Talker/a",
        "outlast.chat.request_id": turn.request_id,
        "outlast.chat.trigger": "message",
        "outlast.chat.admission": "save",
        "outlast.chat.continuation": False,
        "outlast.chat.attempt": 1,
        "outlast.chat.status": "completed",
        "outlast.chat.duration_ms": 5000,
        "outlast.outcome": "completed",
    }
    assert added(span) == ["inbox:claimed", "message:response", "inbox:acked"]
    send = tracing.one("execute_tool send")
    assert (send.kind, send.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
    assert (lasted(send), lasted(tracing.one("execute_tool look"))) == (1, 2)
    assert send.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "send",
        "gen_ai.tool.call.id": "c2",
        "gen_ai.tool.type": "function",
        "outlast.agent": "Talker/a",
        "outlast.tool.request_id": turn.request_id,
        "outlast.tool.call_id": "c2",
        "outlast.tool.name": "send",
        "outlast.tool.effect": "once",
        "outlast.tool.outcome": "done",
        "outlast.tool.elapsed_ms": 1000,
        "outlast.outcome": "done",
    }
    assert added(send) == []


async def test_two_turns_one_after_another_are_two_traces(
    tracing: Tracing, sqlite_url: str
) -> None:
    Talker = talker(tracing, slow("Hello."))
    async with watched(tracing, Talker, url=sqlite_url) as host:
        a = host.get(Talker, "a")
        await asyncio.gather(a.save_messages("one"), a.save_messages("two"))
        await a.save_messages("three")
    turns = tracing.named(TURN)
    assert [span.parent for span in turns] == [None] * 3
    assert len({span.context.trace_id for span in turns}) == 3
    for span in turns:
        assert tracing.below(span) == [TURN, "  chat scripted"]


async def test_a_turn_that_somebody_waits_for_is_part_of_the_trace_that_it_was_asked_in(
    tracing: Tracing, sqlite_url: str
) -> None:
    Talker = talker(tracing, slow("Hello."))
    async with watched(tracing, Talker, url=sqlite_url) as host:
        a = host.get(Talker, "a")
        with tracing.tracer.start_as_current_span("request"):
            await a.save_messages("one")
        with tracing.tracer.start_as_current_span("stream"):
            async for _ in a.stream("two"):
                pass
    for name in ("request", "stream"):
        assert f"  {TURN}" in tracing.tree(name)
        assert {"inbox:accepted", "message:request"} <= set(added(tracing.one(name)))


async def test_a_submission_is_a_trace_of_its_own_with_a_link_to_where_it_was_made(
    tracing: Tracing, sqlite_url: str
) -> None:
    Talker = talker(tracing, slow("Hello."))
    async with watched(tracing, Talker, url=sqlite_url) as host:
        with tracing.tracer.start_as_current_span("request"):
            await host.get(Talker, "a").submit_messages("one")
        await host.until_settled()
    span, request = tracing.one(TURN), tracing.one("request")
    assert span.parent is None
    assert linked(span) == [request.context.span_id]
    assert added(request) == ["inbox:accepted", "submission:create", "message:request"]
    assert added(span) == [
        "inbox:claimed",
        "submission:status",
        "message:response",
        "submission:status",
        "inbox:acked",
    ]


async def test_a_submission_that_is_taken_back_before_its_turn_leaves_nothing_behind(
    tracing: Tracing, sqlite_url: str
) -> None:
    Talker = talker(tracing, slow("Hello."))
    async with watched(tracing, Talker, url=sqlite_url) as host:
        a = host.get(Talker, "a")
        with tracing.tracer.start_as_current_span("request"):
            await a.submit_messages("one")
            second = await a.submit_messages("two")
            await a.cancel_submission(second.id)
        await host.until_settled()
    assert len(tracing.named(TURN)) == 1
    assert "inbox:acked" in added(tracing.one("request"))


async def test_a_turn_of_a_second_agent_is_inside_the_tool_that_waits_for_it(
    tracing: Tracing, sqlite_url: str
) -> None:
    class Expert(Think):
        model = slow("Yes.")
        telemetry = False

    hosts: list[Host] = []

    @tool(effect="read")
    async def ask(self: Any) -> str:
        """Ask the expert."""
        answer = await hosts[0].get(Expert, "e").save_messages("Well?")
        return str(answer.message.text)

    Talker = talker(tracing, slow(Step.calls("ask"), "He says yes."), ask=ask)
    async with watched(tracing, Talker, Expert, url=sqlite_url) as host:
        hosts.append(host)
        await host.get(Talker, "a").save_messages("Go")
    assert tracing.tree(TURN) == [
        TURN,
        "  chat scripted",
        "  execute_tool ask",
        "    invoke_agent Expert",
        "    rpc save_messages",
        "  chat scripted",
    ]
    assert attribute(tracing.one("invoke_agent Expert"), "gen_ai.agent.id") == "Expert/e"


async def test_a_sub_agent_is_called_by_its_own_class(tracing: Tracing, sqlite_url: str) -> None:
    class Talker(Think):
        model = slow("Yes.")
        telemetry = False

        async def ask(self) -> None:
            await (await self.sub_agent(Talker, "b/c")).save_messages("Well?")

    async with watched(tracing, Talker, url=sqlite_url) as host:
        await host.get(Talker, "a").ask()
    assert attribute(tracing.one(TURN), "gen_ai.conversation.id") == "Talker/a/Talker/b%2Fc"


async def test_without_telemetry_there_is_no_span_of_the_request(
    tracing: Tracing, sqlite_url: str
) -> None:
    Talker = talker(tracing, slow("Hello."), telemetry=False)
    Traced = talker(tracing, slow("Hello."))
    Traced.__name__ = "Traced"

    async def silently(self: Any, context: Any) -> TurnConfig:
        return TurnConfig(telemetry=False)

    async with watched(tracing, Talker, Traced, url=sqlite_url) as host:
        await host.get(Talker, "a").save_messages("Hi")
        assert tracing.tree(TURN) == [TURN]
        await host.get(Traced, "a").save_messages("Hi")
        assert tracing.tree("invoke_agent Traced") == ["invoke_agent Traced", "  chat scripted"]
        Traced.before_turn = silently
        await host.get(Traced, "b").save_messages("Hi")
    assert tracing.names.count("chat scripted") == 1


# --- what goes wrong -----------------------------------------------------------------------------


async def test_a_tool_that_fails_is_an_error_and_its_turn_is_none(
    tracing: Tracing, sqlite_url: str
) -> None:
    @tool(effect="read")
    async def look(self: Any) -> str:
        """Look."""
        raise LookupError("nothing: there")

    Talker = talker(tracing, slow(Step.calls("look"), "Well."), look=look)
    async with watched(tracing, Talker, url=sqlite_url) as host:
        await host.get(Talker, "a").save_messages("Go")
    span = tracing.one("execute_tool look")
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "LookupError: nothing: there"
    assert (outcome(span), attribute(span, "error.type")) == ("failed", "LookupError")
    (exception,) = span.events
    assert exception.name == "exception"
    assert exception.attributes == {
        "exception.type": "LookupError",
        "exception.message": "nothing: there",
    }
    assert tracing.one(TURN).status.status_code is StatusCode.UNSET


async def test_a_tool_whose_outcome_is_unknown_is_an_error(
    tracing: Tracing, sqlite_url: str
) -> None:
    @tool(timeout=2)
    async def send(self: Any) -> str:
        """Send."""
        await forever()
        return ""

    Talker = talker(tracing, slow(Step.calls("send"), "Well."), send=send)
    async with watched(tracing, Talker, url=sqlite_url) as host:
        await host.get(Talker, "a").save_messages("Go")
    span = tracing.one("execute_tool send")
    assert (span.status.status_code, outcome(span)) == (StatusCode.ERROR, "unknown")
    assert attribute(span, "error.type") == "unknown"
    assert lasted(span) == 2
    assert tracing.one(TURN).status.status_code is StatusCode.UNSET


async def test_a_tool_that_has_to_be_approved_is_a_span_when_it_runs(
    tracing: Tracing, sqlite_url: str
) -> None:
    @tool(needs_approval=True)
    async def pay(self: Any) -> str:
        """Pay."""
        return "paid"

    Talker = talker(tracing, slow(Step.call("pay", id="c1"), "Paid."), pay=pay)
    async with watched(tracing, Talker, url=sqlite_url) as host:
        a = host.get(Talker, "a")
        await a.save_messages("Go")
        assert tracing.tree(TURN) == [TURN, "  chat scripted"]
        with tracing.tracer.start_as_current_span("click"):
            await a.add_tool_approval("c1", True)
        await host.until_settled()
    _, second = tracing.named(TURN)
    assert tracing.below(second) == [TURN, "  execute_tool pay", "  chat scripted"]
    assert second.parent is None, "nobody waits for it"
    assert linked(second) == [tracing.one("click").context.span_id]


async def test_a_tool_that_asks_for_an_approval_itself_has_not_failed(
    tracing: Tracing, sqlite_url: str
) -> None:
    @tool
    async def pay(self: Any) -> str:
        """Pay."""
        raise ApprovalRequired

    Talker = talker(tracing, slow(Step.calls("pay"), "Paid."), pay=pay)
    async with watched(tracing, Talker, url=sqlite_url) as host:
        await host.get(Talker, "a").save_messages("Go")
    span = tracing.one("execute_tool pay")
    assert (span.status.status_code, outcome(span)) == (StatusCode.UNSET, "open")


async def test_a_turn_that_fails_is_an_error_with_all_that_is_told_of_it(
    tracing: Tracing, sqlite_url: str
) -> None:
    Talker = talker(tracing, slow(Step.fails("quota")), max_retries=0)
    async with watched(tracing, Talker, url=sqlite_url) as host:
        turn = await host.get(Talker, "a").save_messages("Go")
        assert turn.status == "error"
    span = tracing.one(TURN)
    assert (span.status.status_code, outcome(span)) == (StatusCode.ERROR, "error")
    assert turn.error == "The model is not available at the moment."
    assert span.status.description.startswith("ModelFailed: "), "operators see the original"
    assert attribute(span, "error.type") == "ModelFailed"
    assert added(span) == [
        "inbox:claimed",
        "chat:request:failed",
        "message:error",
        "exception",
        "inbox:acked",
    ]
    assert tracing.tree(TURN) == [TURN, "  chat scripted"]
    assert tracing.one("chat scripted").status.status_code is StatusCode.ERROR


async def test_a_turn_that_is_cancelled_is_no_error(tracing: Tracing, sqlite_url: str) -> None:
    Talker = talker(tracing, ScriptedModel(Step.text("Well") + Step.stalls()))
    async with watched(tracing, Talker, url=sqlite_url) as host:
        a = host.get(Talker, "a")
        first = await a.submit_messages("Go")
        await asyncio.sleep(3)
        with tracing.tracer.start_as_current_span("click"):
            await a.cancel_submission(first.id)
        await host.until_settled()
    span = tracing.one(TURN)
    assert (lasted(span), outcome(span)) == (3, "aborted")
    assert span.status.status_code is StatusCode.UNSET
    assert "cancel:recorded" in added(span), "it is told to the turn, and not to whoever clicked"
    assert "message:cancel" in added(span)
    assert tracing.tree(TURN) == [TURN, "  chat scripted"]


async def test_a_turn_that_is_cleared_while_a_tool_runs_ends_and_so_does_the_tool(
    tracing: Tracing, sqlite_url: str
) -> None:
    @tool(effect="read")
    async def look(self: Any) -> str:
        """Look."""
        await forever()
        return ""

    model = ScriptedModel(Step.calls("look"), "Well.", by="request")
    Talker = talker(tracing, model, look=look)
    async with watched(tracing, Talker, url=sqlite_url) as host:
        a = host.get(Talker, "a")
        await a.submit_messages("Go")
        await asyncio.sleep(3)
        await a.clear_messages()
        await host.until_settled()
        await a.save_messages("Hi")
    first, second = tracing.named(TURN)
    assert (outcome(first), outcome(second)) == ("aborted", "completed")
    assert second.parent is None
    look_span = tracing.one("execute_tool look")
    assert outcome(look_span) == "failed"
    assert (lasted(first), lasted(look_span)) == (3, 3)


# --- dying ---------------------------------------------------------------------------------------


async def test_a_turn_that_a_host_leaves_ends_as_interrupted_and_the_next_one_points_at_it(
    tracing: Tracing, sqlite_url: str
) -> None:
    model = ScriptedModel(Step.text("Well") + Step.stalls(), "Well.", by="request", repeat=True)
    Talker = talker(tracing, model)
    async with watched(tracing, Talker, url=sqlite_url, shutdown_timeout=0) as host:
        await host.get(Talker, "a").submit_messages("one")
        await host.get(Talker, "a").submit_messages("two")
        await asyncio.sleep(3)
    first = tracing.one(TURN)
    assert (lasted(first), outcome(first)) == (3, "interrupted")
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == attribute(first, "error.type") == "interrupted"

    async with watched(tracing, Talker, url=sqlite_url, life="2") as host:
        await host.until_settled()
    _, taken_up, after = tracing.named(TURN)
    assert linked(taken_up) == [first.context.span_id]
    assert taken_up.links[0].context.trace_id == first.context.trace_id
    assert taken_up.links[0].context.is_remote
    assert taken_up.parent is None
    assert outcome(taken_up) == "completed", "it was gone on with"
    assert (after.parent, linked(after), outcome(after)) == (None, [], "completed")


async def test_a_tool_that_a_host_leaves_ends_as_interrupted(
    tracing: Tracing, sqlite_url: str
) -> None:
    @tool
    async def send(self: Any) -> str:
        """Send."""
        await forever()
        return ""

    Talker = talker(tracing, slow(Step.calls("send"), "Well."), send=send)
    async with watched(tracing, Talker, url=sqlite_url, shutdown_timeout=0) as host:
        await host.get(Talker, "a").submit_messages("Go")
        await asyncio.sleep(3)
    span = tracing.one("execute_tool send")
    assert (outcome(span), span.status.status_code) == ("interrupted", StatusCode.ERROR)
    assert tracing.tree(TURN)[0:3] == [TURN, "  chat scripted", "  execute_tool send"]


async def test_a_turn_whose_trace_nobody_kept_is_taken_up_without_a_link(
    tracing: Tracing, sqlite_url: str
) -> None:
    model = ScriptedModel(Step.text("Well") + Step.stalls(), "then.", by="request")
    Talker = talker(tracing, model, telemetry=False)
    async with hosting(Talker, url=sqlite_url, shutdown_timeout=0) as host:
        await host.get(Talker, "a").submit_messages("one")
        await asyncio.sleep(3)
    async with watched(tracing, Talker, url=sqlite_url, life="2") as host:
        await host.until_settled()
    assert linked(tracing.one(TURN)) == []


# --- one event at a time -------------------------------------------------------------------------


def begun(events: Events, id: str, agent: str = "A/x", parent: str | None = None) -> None:
    events.emit(InboxClaimed, agent, id, "message")
    events.emit(TurnStarted, agent, id, "message", "save", False, 1, parent)


def ended(events: Events, id: str, agent: str = "A/x") -> None:
    events.emit(TurnFinished, agent, id, "completed", 0)
    events.emit(InboxAcked, agent, id, "message", "completed")


async def test_a_turn_ends_with_its_task_if_its_end_is_not_told(tracing: Tracing) -> None:
    events = Events()
    spans = Spans(tracing.tracer, events.clock)
    events.subscribe("*", spans.hear)

    async def turn() -> None:
        begun(events, "r1")
        events.emit(ToolStarted, "A/x", "r1", "c1", "look", "read")
        assert len(spans) == 2

    await asyncio.create_task(turn())
    await asyncio.sleep(0)
    assert len(spans) == 0
    assert {span.name: outcome(span) for span in tracing.spans} == {
        "invoke_agent A": "interrupted",
        "execute_tool look": "interrupted",
    }


async def test_a_task_that_sees_to_several_turns_is_inside_none_of_them_afterwards(
    tracing: Tracing,
) -> None:
    events = Events()
    trace_events(events, tracing.provider)

    async def turns() -> None:
        for id in ("r1", "r2"):
            begun(events, id)
            ended(events, id)
        with tracing.tracer.start_as_current_span("after"):
            pass

    await asyncio.create_task(turns())
    assert [span.parent for span in tracing.spans] == [None] * 3
    assert tracing.names == ["invoke_agent A", "invoke_agent A", "after"]


async def test_a_turn_is_no_child_of_what_happens_to_be_current_in_its_task(
    tracing: Tracing,
) -> None:
    events = Events()
    trace_events(events, tracing.provider)

    async def turn() -> None:
        begun(events, "r1")
        ended(events, "r1")

    with tracing.tracer.start_as_current_span("something else"):
        await asyncio.create_task(turn())
    assert tracing.one("invoke_agent A").parent is None


@pytest.mark.parametrize("parent", ["", "rubbish", "00-0-0-00", f"00-{'0' * 32}-{'0' * 16}-01"])
async def test_a_trace_that_cannot_be_read_is_no_link(tracing: Tracing, parent: str) -> None:
    events = Events()
    trace_events(events, tracing.provider)

    async def turn() -> None:
        begun(events, "r1", parent=parent)
        ended(events, "r1")

    await asyncio.create_task(turn())
    assert linked(tracing.one("invoke_agent A")) == []


async def test_an_end_that_nobody_saw_the_beginning_of_is_told_all_the_same(
    tracing: Tracing,
) -> None:
    events = Events()
    trace_events(events, tracing.provider)
    ended(events, "r1")
    events.emit(ToolFinished, "A/x", "r1", "c1", "look", "read", "unknown", 0, "not known")
    assert tracing.names == ["chat:turn:finish", "inbox:acked", "tool:finish"]


@pytest.mark.parametrize(
    "leaving",
    [AgentEvicted(9, "A/x"), AgentDiscarded(9, "A/x", reason="no"), AgentDestroyed(9, "A/x")],
)
async def test_of_an_agent_that_leaves_nothing_is_kept(tracing: Tracing, leaving: Any) -> None:
    events = Events()
    spans = Spans(tracing.tracer, events.clock)
    events.subscribe("*", spans.hear)
    never = asyncio.Event()

    async def turn(agent: str) -> None:
        with tracing.tracer.start_as_current_span("request"):
            events.emit(InboxAccepted, agent, "r2", "message", "save")
        begun(events, "r1", agent)
        events.emit(ToolStarted, agent, "r1", "c1", "look", "read")
        await never.wait()

    tasks = [asyncio.create_task(turn(agent)) for agent in ("A/x", "A/y")]
    await asyncio.sleep(0)
    with tracing.tracer.start_as_current_span("request"):
        for agent in ("A/x/B/z", "A/z"):  # of which no turn is under way
            events.emit(InboxAccepted, agent, "r1", "message", "save")
    assert (len(spans), len(spans._asked)) == (4, 4)
    spans.hear(leaving)
    below = 0 if isinstance(leaving, AgentDestroyed) else 1
    assert (len(spans), len(spans._asked)) == (2, 2 + below)
    spans.end_all(10)
    assert (len(spans), len(spans._asked)) == (0, 0)
    never.set()
    await asyncio.gather(*tasks)


async def test_the_logger_of_opentelemetry_would_be_heard(caplog: pytest.LogCaptureFixture) -> None:
    """The fixture that looks at it is worth something."""
    logging.getLogger("opentelemetry.context").error("Failed to detach context")
    assert caplog.records
    caplog.clear()
