"""Everything that `get_tools()` may return, and what the model is told of it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conversation import answering, reasons, talker, until_running
from pydantic_ai import RunContext, Tool
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset, WrapperToolset
from tool_calls import call_parts, check_requests, outcomes

from outlast import StepConfig, Think, TurnConfig, tool
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
LOCATE = ToolDefinition(name="locate", parameters_json_schema=SCHEMA, description="Where.")


def plain(n: int) -> int:
    """Count on."""
    return n + 1


async def later(n: int) -> int:
    """Count further."""
    return n + 2


def toolset(**options: Any) -> FunctionToolset[Any]:
    return FunctionToolset([plain, later], **options)


def prepared(context: RunContext[Any], definitions: list[ToolDefinition]) -> list[ToolDefinition]:
    return [replace(each, description="Prepared.") for each in definitions]


class Counting:
    """Something else that has methods."""

    def __init__(self, step: int) -> None:
        self.step = step

    async def count(self, n: int) -> int:
        return n + self.step


# What get_tools returns, and what its tools make of 1.
SHAPES: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "functions": (lambda: [plain, later], {"plain": 2, "later": 3}),
    "one function": (lambda: plain, {"plain": 2}),
    "bound methods": (lambda: [Counting(5).count], {"count": 6}),
    "a dict": (lambda: {"a": plain, "b": Counting(7).count}, {"a": 2, "b": 8}),
    "a dict of others": (
        lambda: {"x": Tool(plain), "y": [later], "z": None},
        {"plain": 2, "later": 3},
    ),
    "a tool": (lambda: [Tool(plain, name="renamed")], {"renamed": 2}),
    "a toolset": (toolset, {"plain": 2, "later": 3}),
    "toolsets": (
        lambda: [FunctionToolset([plain]), FunctionToolset([later])],
        {"plain": 2, "later": 3},
    ),
    "prefixed": (lambda: toolset().prefixed("my"), {"my_plain": 2, "my_later": 3}),
    "filtered": (
        lambda: toolset().filtered(lambda _, definition: definition.name == "later"),
        {"later": 3},
    ),
    "prepared": (lambda: toolset().prepared(prepared), {"plain": 2, "later": 3}),
    "renamed": (lambda: toolset().renamed({"one": "plain"}), {"one": 2, "later": 3}),
    "dynamic": (lambda: DynamicToolset(lambda _: toolset()), {"plain": 2, "later": 3}),
    "dynamic, once a turn": (
        lambda: [DynamicToolset(lambda _: toolset(), per_run_step=False), Counting(5).count],
        {"plain": 2, "later": 3, "count": 6},
    ),
    "nested lists": (
        lambda: [[plain], ((), (None, [later])), iter([Counting(5).count])],
        {"plain": 2, "later": 3, "count": 6},
    ),
    "nothing": (lambda: None, {}),
    "empty": (lambda: [None, [], {}, FunctionToolset([])], {}),
}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_get_tools_returns_is_offered_and_called(
    sqlite_world: World, shape: str, is_async: bool
) -> None:
    make, expected = SHAPES[shape]
    calls = [Step.call(name, {"n": 1}) for name in expected]
    model = ScriptedModel(functools.reduce(lambda a, b: a + b, calls, Step.text("So.")), "Done.")

    async def get_tools_later(self: Any) -> Any:
        await asyncio.sleep(1)
        return make()

    Agent = talker(model, get_tools=get_tools_later if is_async else lambda _: make())
    host = await sqlite_world.host(Agent)
    for prompt in ("u1", "u2"):  # what a turn has used, the next one can use
        turn = await host.get(Agent, "a").save_messages(prompt)
        assert (turn.status, turn.error) == ("completed", None)
        names = {part["type"][5:]: part.get("output") for part in call_parts(turn.message)}
        assert names == expected
    await sqlite_world.stop()
    for request in model.requests:
        assert sorted(request.tools) == sorted(expected)
        for definition in request.parameters.function_tools:
            assert definition.parameters_json_schema["properties"] == {"n": {"type": "integer"}}
        listed = ", ".join(sorted(expected))
        words = f"no others: {listed}." if expected else "no tools in this turn"
        assert words in (request.instructions or ""), "what the prompt says is true"
    check_requests(model)


@pytest.mark.parametrize(
    "tools",
    [
        [{"name": "locate", "description": "Where.", "inputSchema": SCHEMA}],
        [{"name": "locate", "description": "Where.", "parameters": SCHEMA}],
        {"locate": {"description": "Where.", "inputSchema": SCHEMA}},
        [[LOCATE], plain],
        LOCATE,
    ],
    ids=["schema", "with parameters", "by name", "definition in a list", "definition"],
)
async def test_a_schema_is_a_tool_of_the_client(sqlite_world: World, tools: Any) -> None:
    model = ScriptedModel(Step.call("locate", {"n": 1}, id="c1"), "Here.")
    Agent = talker(model, get_tools=lambda _: tools)
    host = await sqlite_world.host(Agent)
    a = host.get(Agent, "a")
    turn = await a.save_messages("u1")
    assert (turn.status, outcomes(turn.message)) == ("completed", ["open"])
    (definition, *_) = model.requests[0].parameters.function_tools
    assert (definition.kind, definition.description) == ("external", "Where.")
    assert definition.parameters_json_schema == SCHEMA
    assert await a.has_pending_interaction()
    assert await a.add_tool_output("c1", {"lat": 1})
    await host.until_settled()
    assert (await a.get_messages())[-1].text == "Here."
    await sqlite_world.stop()
    check_requests(model)


NONSENSE: dict[str, Any] = {
    "a number": 5,
    "a text": "plain",
    "bytes": b"plain",
    "in a list": [5],
    "in a dict": {"x": 5},
    "deep inside": [[plain, ["later"]]],
    "an object": object(),
    "a partial function": [functools.partial(later, n=1)],
    "one with a name": {"x": functools.partial(later, n=1)},
    "a class": [Counting],
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_nonsense_is_an_error_that_says_what_a_tool_is(
    sqlite_world: World, what: str
) -> None:
    Agent = talker(model := answering("Hello"), get_tools=lambda _: NONSENSE[what])
    host = await sqlite_world.host(Agent)
    turn = await host.get(Agent, "a").save_messages("u1")
    assert turn.status == "error"
    (reason,) = await reasons(host)
    assert "TypeError: a tool must be a function, a pydantic_ai.Tool, a toolset" in reason
    Agent.get_tools = lambda _: None
    assert (await host.get(Agent, "a").save_messages("u2")).status == "completed"
    await sqlite_world.stop()
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    "others",
    [
        [plain, plain],
        {"plain": later, "x": [plain]},
        [plain, Tool(plain)],
        [plain, toolset()],
        [toolset(), toolset()],
        [toolset().prefixed("a"), Tool(later, name="a_plain")],
        [plain, {"plain": {"description": "Of the client.", "inputSchema": SCHEMA}}],
        "method",
    ],
    ids=lambda others: type(others).__name__,
)
async def test_two_tools_of_one_name_are_an_error_that_names_it(
    sqlite_world: World, others: Any
) -> None:
    class Agent(Think):
        model = answering("Hello")

        def get_tools(self) -> Any:
            return {"method": later} if others == "method" else others

        @tool
        async def method(self) -> None: ...

    host = await sqlite_world.host(Agent)
    turn = await host.get(Agent, "a").save_messages("u1")
    (reason,) = await reasons(host)
    await sqlite_world.stop()
    assert turn.status == "error"
    assert "'method'" in reason or "plain'" in reason
    assert "name" in reason


# --- what toolsets bring along -------------------------------------------------------------------


def advised(advice: str) -> FunctionToolset[Any]:
    return toolset(instructions=advice)


@pytest.mark.parametrize(
    "make",
    [
        advised,
        lambda advice: advised(advice).prefixed("my"),
        lambda advice: [plain, advised(advice).prefixed("my")],
        lambda advice: DynamicToolset(lambda _: advised(advice)),
        lambda advice: DynamicToolset(lambda _: advised(advice), per_run_step=False),
    ],
    ids=["alone", "prefixed", "combined", "dynamic", "dynamic, once a turn"],
)
@pytest.mark.parametrize("through", ["get_tools", "before_turn"])
async def test_what_a_toolset_says_about_its_use_is_in_the_prompt(
    sqlite_world: World, make: Any, through: str
) -> None:
    advice = "Count with care."
    given = {
        "get_tools": lambda _: make(advice),
        "before_turn": lambda *_: TurnConfig(tools=make(advice)),
    }
    Agent = talker(model := answering("Hello"), **{through: given[through]})
    Agent.system_prompt = "You count."
    host = await sqlite_world.host(Agent)
    assert (await host.get(Agent, "a").save_messages("u1")).error is None
    await sqlite_world.stop()
    prompt = model.requests[0].instructions
    assert prompt is not None
    assert prompt.startswith(f"You count.\n\n{advice}\n\n")
    assert prompt.count(advice) == 1


class Doors(WrapperToolset[Any]):
    """Notes when it is entered and left."""

    log: list[str] = []

    async def __aenter__(self) -> Any:
        self.log.append("in")
        return await super().__aenter__()

    async def __aexit__(self, *arguments: Any) -> Any:
        self.log.append("out")
        return await super().__aexit__(*arguments)


@pytest.mark.parametrize("end", ["completed", "error", "aborted", "bad hook", "bad tools"])
@pytest.mark.parametrize("kind", ["plain", "dynamic", "per step", "more in before_turn"])
async def test_a_toolset_is_entered_and_left_whatever_happens(
    sqlite_world: World, kind: str, end: str
) -> None:
    Doors.log.clear()
    made: dict[str, Callable[[], Any]] = {
        "plain": lambda: Doors(toolset()),
        "dynamic": lambda: DynamicToolset(lambda _: Doors(toolset()), per_run_step=False),
        "per step": lambda: [DynamicToolset(lambda _: Doors(toolset())), Counting(1).count],
        "more in before_turn": lambda: [Doors(toolset())],
    }
    last = {"completed": "Done.", "error": Step.fails("rejected"), "aborted": Step.stalls()}

    def before_turn(self: Any, context: Any) -> Any:
        assert Doors.log.count("in") - Doors.log.count("out") == 1
        if end == "bad hook":
            raise ValueError("no")
        if end == "bad tools":
            return TurnConfig(tools=[5])
        return TurnConfig(tools=[Counting(2).count]) if kind == "more in before_turn" else None

    model = ScriptedModel(Step.call("plain", {"n": 1}), last.get(end, "Done."))
    Agent = talker(model, get_tools=lambda _: made[kind](), before_turn=before_turn)
    host = await sqlite_world.host(Agent)
    a = host.get(Agent, "a")
    asked = asyncio.create_task(a.save_messages("u1"))
    if end == "aborted":
        running = await until_running(host, Agent)
        await asyncio.sleep(1)
        await a.cancel_chat(running.request_id)
    assert (await asked).status == ("error" if end.startswith("bad") else end)
    await sqlite_world.stop()
    assert Doors.log[:1] == ["in"]
    assert Doors.log == ["in", "out"] * (len(Doors.log) // 2), "never twice at a time"


@pytest.mark.parametrize("kind", ["tool", "toolset", "prefixed", "combined"])
async def test_what_a_function_was_marked_with_counts_in_every_toolset(
    sqlite_world: World, kind: str
) -> None:
    ran: list[int] = []

    @tool(effect="read", needs_approval=True)
    async def pay(n: int) -> str:
        ran.append(n)
        return "paid"

    given: dict[str, Any] = {
        "tool": Tool(pay),
        "toolset": FunctionToolset([pay]),
        "prefixed": FunctionToolset([pay]).prefixed("my"),
        "combined": [plain, FunctionToolset([pay]).prefixed("my")],
    }
    name = "pay" if kind in ("tool", "toolset") else "my_pay"
    model = ScriptedModel(Step.call(name, {"n": 1}, id="c1"), "Done.")
    Agent = talker(model, get_tools=lambda _: given[kind])
    host = await sqlite_world.host(Agent)
    a = host.get(Agent, "a")
    turn = await a.save_messages("u1")
    assert (ran, outcomes(turn.message)) == ([], ["open"])
    assert await a.add_tool_approval("c1", True)
    await host.until_settled()
    assert ran == [1]


# --- what it costs -------------------------------------------------------------------------------


async def test_the_schema_of_a_tool_is_made_once(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pydantic_ai.tools

    made: list[str] = []
    make = pydantic_ai.tools._function_schema.function_schema

    def counted(function: Any, *arguments: Any, **options: Any) -> Any:
        made.append(function.__name__)
        return make(function, *arguments, **options)

    monkeypatch.setattr(pydantic_ai.tools._function_schema, "function_schema", counted)

    def fresh(n: int) -> int:
        return n

    class Agent(Think):
        model = ScriptedModel(Step.calls("method", n=1), Step.calls("fresh", n=1), "Done.")

        def get_tools(self) -> Any:
            return [fresh, {"again": fresh}, self.helper]

        async def before_step(self, context: Any) -> StepConfig:
            return StepConfig(active_tools=["method", "fresh"])

        @tool
        async def method(self, n: int) -> str:
            return self.name

        async def helper(self) -> None: ...

    host = await sqlite_world.host(Agent)
    for name in ("a", "b", "a"):
        turn = await host.get(Agent, name).save_messages("u1")
        assert [part["output"] for part in call_parts(turn.message)] == [name, 1]
    await sqlite_world.stop()
    assert sorted(made) == ["fresh", "helper", "method"]
