"""Tools that run to their end: what the model is told of them, and what is stored."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    inbox,
    leftovers,
    reasons,
    rows,
    talker,
    until_running,
)
from pydantic import BaseModel
from pydantic_ai import ModelRetry, RunContext, Tool, ToolReturn
from pydantic_ai.messages import ModelRequest, ModelResponse, RetryPromptPart, ToolReturnPart
from pydantic_ai.toolsets import FunctionToolset

from outlast import Think, ToolError, tool
from outlast.agent.agent import parts_of
from outlast.chat.turn.state import TurnState
from outlast.core import json
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time


def call_parts(message: Any) -> list[dict[str, Any]]:
    return [part for part in message.parts if part["type"].startswith("tool-")]


def returns(model: Any, request: int = -1) -> list[ToolReturnPart]:
    """What a model was told of its calls."""
    return [
        part
        for each in model.requests[request].messages
        if isinstance(each, ModelRequest)
        for part in each.parts
        if isinstance(part, ToolReturnPart | RetryPromptPart)
    ]


def check_pairs(model: Any) -> None:
    """Every call in every request has exactly one result, and no request ends with an answer."""
    for request in model.requests:
        assert isinstance(request.messages[-1], ModelRequest)
        called = [
            call.tool_call_id
            for each in request.messages
            if isinstance(each, ModelResponse)
            for call in each.tool_calls
        ]
        returned = [
            part.tool_call_id
            for each in request.messages
            if isinstance(each, ModelRequest)
            for part in each.parts
            if isinstance(part, ToolReturnPart)
        ]
        assert sorted(called) == sorted(returned)


class Point(BaseModel):
    x: int
    y: int = 2


@dataclasses.dataclass
class Pair:
    left: str
    right: str


OUTPUTS: dict[str, tuple[Any, Any]] = {
    "text": ("sunny", "sunny"),
    "nothing": (None, None),
    "an object": ({"t": [1, 2.5, None, True]}, {"t": [1, 2.5, None, True]}),
    "a model": (Point(x=1), {"x": 1, "y": 2}),
    "a dataclass": (Pair("l", "r"), {"left": "l", "right": "r"}),
    "a list of models": ([Point(x=1)], [{"x": 1, "y": 2}]),
    "a tuple": ((1, 2), [1, 2]),
    "a date": (datetime.date(2031, 1, 2), "2031-01-02"),
    "a decimal": (decimal.Decimal("1.5"), "1.5"),
    "number keys": ({1: "a"}, {"1": "a"}),
    "half a pair": ("\ud83d!", "\ufffd!"),
    "NUL": ("a\0b", "a\0b"),
    "not a number": ([float("nan"), float("inf")], [None, None]),
    "bytes": (b"\xff\xfe", "__4="),
    "a tool return": (ToolReturn("value", content="for the model"), "value"),
}


@pytest.mark.parametrize("what", OUTPUTS)
async def test_what_a_tool_returns_is_stored_and_told_to_the_model(world: World, what: str) -> None:
    output, expected = OUTPUTS[what]

    def give() -> Any:
        return output

    Talker = talker(model := ScriptedModel.calls("give").then("Done."), get_tools=lambda _: [give])
    host = await world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert (turn.status, turn.message.text) == ("completed", "Done.")
    (part,) = call_parts(turn.message)
    assert (part["state"], part["output"]) == ("output-available", expected)
    live = returns(model)[0].content
    host = await world.next_life()
    found = (await host.get(Talker, "a").get_messages())[1]
    assert call_parts(found)[0]["output"] == expected
    await host.get(Talker, "a").save_messages("u2")
    if what not in ("not a number", "half a pair"):
        assert json.encode(returns(model, 2)[0].content) == json.encode(live)
    await world.stop()
    check_pairs(model)


class Weird:
    def __repr__(self) -> str:
        return "<weird>"


def _deep() -> Any:
    value: Any = "bottom"
    for _ in range(500):
        value = [value]
    return value


def _round() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Failing(Think):
    """Each of its tools goes wrong in a way of its own."""

    @tool
    async def raises(self) -> None:
        raise ValueError("the disk is full")

    @tool
    async def says_why(self) -> None:
        raise ToolError("The disk is full.")

    @tool
    async def raises_strange_text(self) -> None:
        raise ValueError("a\0b \ud83d")

    @tool
    async def asks_again(self) -> None:
        raise ModelRetry("Name a city, please.")

    @tool(timeout=5)
    async def slow(self) -> None:
        await asyncio.sleep(100)

    @tool
    async def needs(self, city: str, days: int) -> str:
        return f"{city} {days}"

    @tool
    async def gives_an_object(self) -> Any:
        return Weird()

    @tool
    async def gives_a_set_of_them(self) -> Any:
        return {"in": [Weird()]}

    @tool
    async def too_deep(self) -> Any:
        return _deep()

    @tool
    async def goes_round(self) -> Any:
        return _round()

    @tool
    async def endless(self) -> Any:
        return 10**5000

    @tool
    async def times_out_by_itself(self) -> Any:
        raise TimeoutError("upstream")

    @tool
    async def stops_iterating(self) -> Any:
        raise StopAsyncIteration

    @tool
    async def fine(self) -> str:
        return "fine"


BAD: dict[str, tuple[Step, str]] = {
    "raises": (Step.calls("raises"), "The tool failed. (error_"),
    "raises strange text": (Step.calls("raises_strange_text"), "The tool failed. (error_"),
    "says why": (Step.calls("says_why"), "The disk is full."),
    "asks again": (Step.calls("asks_again"), "Name a city, please."),
    "slow": (Step.calls("slow"), "took too long"),
    "an unknown tool": (Step.calls("unknown"), "There is no tool 'unknown'"),
    "arguments missing": (Step.calls("needs", city="Rome"), "arguments are invalid"),
    "a wrong argument": (Step.calls("needs", city="Rome", days="many"), "arguments are invalid"),
    "too many arguments": (
        Step.calls("needs", city="Rome", days=1, hours=2),
        "arguments are invalid",
    ),
    "broken JSON": (Step.call("needs", '{"city": "Ro'), "arguments are invalid"),
    "no object": (Step.call("needs", "[1]"), "arguments are invalid"),
    "an object": (Step.calls("gives_an_object"), "cannot be stored"),
    "a set of them": (Step.calls("gives_a_set_of_them"), "cannot be stored"),
    "too deep": (Step.calls("too_deep"), "cannot be stored"),
    "round": (Step.calls("goes_round"), "cannot be stored"),
    "endless": (Step.calls("endless"), "cannot be stored"),
    "times out by itself": (Step.calls("times_out_by_itself"), "The tool failed. (error_"),
    "stops iterating": (Step.calls("stops_iterating"), ""),
}


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("what", BAD)
async def test_whatever_goes_wrong_with_a_tool_the_model_is_told_and_the_turn_goes_on(
    world: World, what: str
) -> None:
    step, words = BAD[what]
    Failing.model = model = ScriptedModel(step + Step.calls("fine"), "I see.")
    host = await world.host(Failing)
    a = host.get(Failing, "a")
    async with asyncio.timeout(60):
        turn = await a.save_messages("u1")
    assert (turn.status, turn.message.text) == ("completed", "I see.")
    bad, fine = call_parts(turn.message)
    assert bad["state"] == "output-error"
    assert any(word in bad["errorText"] for word in words.split("|"))
    assert isinstance(bad["input"], dict)
    assert (fine["state"], fine["output"]) == ("output-available", "fine")
    told = returns(model)
    assert [part.outcome for part in told] == ["failed", "success"]
    assert told[0].content == bad["errorText"]
    host = await world.next_life()
    assert (await host.get(Failing, "a").save_messages("u2")).status == "completed"
    await world.stop()
    check_pairs(model)


async def test_an_error_without_words_does_not_stop_the_queue(world: World) -> None:
    class Wordless(Think):
        model = ScriptedModel.calls("rude").then("Done.")

        @tool
        async def rude(self) -> None:
            raise Rude

    host = await world.host(Wordless)
    a = host.get(Wordless, "a")
    async with asyncio.timeout(60):
        first = await a.save_messages("u1")
    assert first.status in ("completed", "error")
    Wordless.model.answers[:] = ["Fine."]  # type: ignore[union-attr]
    assert (await a.save_messages("u2")).status == "completed"


async def test_the_tools_of_one_step_run_side_by_side(world: World) -> None:
    log: list[str] = []

    class Looking(Think):
        model = ScriptedModel(
            Step.calls("look", at="left", seconds=3)
            + Step.calls("look", at="right", seconds=1)
            + Step.calls("look", at="up", seconds=2),
            "I see.",
        )

        @tool(effect="read")
        async def look(self, at: str, seconds: float) -> str:
            log.append(f"begin {at}")
            await asyncio.sleep(seconds)
            log.append(f"end {at}")
            return f"seen {at}"

    host = await world.host(Looking)
    a = host.get(Looking, "a")
    begun = asyncio.get_running_loop().time()
    chunks = [chunk async for chunk in a.stream("u1")]
    assert asyncio.get_running_loop().time() - begun < 3.5
    assert log[:3] == ["begin left", "begin right", "begin up"]
    outputs = [c["output"] for c in chunks if c["type"] == "tool-output-available"]
    assert outputs == ["seen right", "seen up", "seen left"]
    stored = call_parts((await a.get_messages())[1])
    assert [part["output"] for part in stored] == ["seen left", "seen right", "seen up"]
    await world.stop()
    check_pairs(Looking.model)


@pytest.mark.invariant("E1")
async def test_what_a_tool_did_is_stored_before_the_next_request(world: World) -> None:
    seen: list[int] = []

    class Checking(ScriptedModel):
        def request_stream(self, *arguments: Any, **keywords: Any) -> Any:
            agent = agent_of(Checking.host, Talker)
            turn = parts_of(agent)[TurnState].running
            stored = "".join(turn.stream.chunks)
            seen.append(stored.count("tool-output-available"))
            return super().request_stream(*arguments, **keywords)

        host: Any = None

    async def act(n: int) -> str:
        return "x" * n

    model = Checking(*(Step.calls("act", n=n) for n in range(1, 4)), "Done.")
    Talker = talker(model, get_tools=lambda _: [act])
    Checking.host = await world.host(Talker)
    await Checking.host.get(Talker, "a").save_messages("u1")
    await world.stop()
    assert seen == [0, 1, 2, 3]


async def test_a_slow_tool_is_not_a_stalled_model(world: World) -> None:
    async def slow() -> str:
        await asyncio.sleep(1000)
        return "done"

    Talker = talker(
        ScriptedModel.calls("slow").then("Done."),
        get_tools=lambda _: [slow],
        chat_stream_stall_timeout=5,
    )
    host = await world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert (turn.status, turn.message.text) == ("completed", "Done.")


async def test_tools_come_in_every_shape(world: World) -> None:
    def plain(a: int) -> int:
        """Adds one."""
        return a + 1

    async def with_context(context: RunContext[Any], b: int) -> str:
        return f"{type(context.deps).__name__} {context.tool_name} {b}"

    class Many(Think):
        model = ScriptedModel(
            Step.calls("plain", a=1)
            + Step.calls("with_context", b=2)
            + Step.calls("renamed")
            + Step.calls("in_a_dict", a=4)
            + Step.calls("in_a_set", c="x")
            + Step.calls("method", who="me")
            + Step.calls("sync_method"),
            "Done.",
        )

        def get_tools(self) -> Any:
            extra = FunctionToolset[Any]()

            @extra.tool_plain
            def in_a_set(c: str) -> str:
                return c * 2

            return [
                plain,
                with_context,
                Tool(lambda: "r", name="renamed"),
                {"in_a_dict": plain},
                extra,
                None,
            ]

        @tool(effect="read", description="Says who.")
        async def method(self, who: str) -> str:
            return f"{who} at {self.name}"

        @tool
        def sync_method(self) -> str:
            return self.name

    host = await world.host(Many)
    turn = await host.get(Many, "a").save_messages("u1")
    outputs = {part["type"][5:]: part.get("output") for part in call_parts(turn.message)}
    assert outputs == {
        "plain": 2,
        "with_context": "Many with_context 2",
        "renamed": "r",
        "in_a_dict": 5,
        "in_a_set": "xx",
        "method": "me at a",
        "sync_method": "a",
    }
    offered: Any = Many.model
    described = {t.name: t.description for t in offered.requests[0].parameters.function_tools}
    assert described["method"] == "Says who."
    assert described["plain"] == "Adds one."


@pytest.mark.parametrize("tools", [5, "text", [5], {"x": 5}, object()])
async def test_what_is_no_tool_is_an_error_of_the_turn(sqlite_world: World, tools: Any) -> None:
    Talker = talker(answering("Hello"), get_tools=lambda _: tools)
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.status == "error"
    assert "a tool must be a function" in (await reasons(host))[0]


async def test_two_tools_of_one_name_are_an_error_that_names_them(sqlite_world: World) -> None:
    def twice() -> None: ...

    Talker = talker(answering("Hello"), get_tools=lambda _: [twice, twice])
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.status == "error"
    assert "twice" in (await reasons(host))[0]


@pytest.mark.parametrize("bad", [{"effect": "maybe"}, {"effect": None}])
async def test_an_effect_that_does_not_exist_is_refused(sqlite_url: str, bad: Any) -> None:
    with pytest.raises(ValueError, match="read, idempotent, once"):
        tool(**bad)
    with pytest.raises(TypeError, match="must mark a function"):
        tool()(5)


async def test_calls_and_texts_of_many_steps_are_one_message_in_order(world: World) -> None:
    async def step(n: int) -> int:
        return n

    model = ScriptedModel(
        *(Step.reasoning(f"Hm {n}.") + f"Step {n}. " + Step.calls("step", n=n) for n in range(4)),
        "All done.",
    )
    Talker = talker(model, get_tools=lambda _: [step])
    host = await world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    kinds = [part["type"] for part in turn.message.parts]
    assert kinds == [
        *["step-start", "reasoning", "text", "tool-step"] * 4,
        "step-start",
        "text",
    ]
    assert len(await rows(host, "messages")) == 2
    agent = agent_of(host, Talker)
    assert leftovers(agent) == {}
    host = await world.next_life()
    assert (await host.get(Talker, "a").get_messages())[1] == turn.message
    model.answers[:] = ["Again."]
    await host.get(Talker, "a").save_messages("u2")
    await world.stop()
    check_pairs(model)
    replayed = model.requests[-1].messages[:-1]
    assert [type(each) for each in replayed] == [ModelRequest, ModelResponse] * 5


async def test_a_tool_that_is_left_behind_by_a_stopping_host_ends_as_an_error(
    world: World,
) -> None:
    async def hang() -> None:
        await asyncio.sleep(1000)

    Talker = talker(
        model := ScriptedModel(Step.text("Let me see. ") + Step.calls("hang"), "Done."),
        get_tools=lambda _: [hang],
    )
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").submit_messages("u1")
    await until_running(host, Talker)
    await asyncio.sleep(1)
    await world.stop()
    model.answers[:] = ["Fine."]
    host = await world.next_life()
    await host.until_settled()
    a = host.get(Talker, "a")
    (part,) = call_parts((await a.get_messages())[1])
    assert part["state"] == "output-error"
    assert await inbox(host) == [("ended", "interrupted")]
    assert (await a.save_messages("u2")).status == "completed"
    await world.stop()
    check_pairs(model)
