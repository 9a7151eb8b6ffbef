"""Where the tools of a turn come from, and which of two with the same name the model is offered."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from conversation import answering, reasons
from interacting import calls, returned, states
from pydantic_ai import Tool
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset
from tool_calls import call_parts, check_requests, ledger

from outlast import BareThink as Think
from outlast import ToolCall, TurnConfig, tool
from outlast.agent.battery import Battery
from outlast.agent.events import BatteryFailed
from outlast.agent.part import Parts
from outlast.chat.answer.call import CLIENT_GONE, WAITS_AGAIN
from outlast.chat.tools.contribution import ORDER, Contribution, Source, merged
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.turn import Turn
from outlast.testing import Step
from support import World, forever, listen

pytestmark = pytest.mark.virtual_time

SCHEMA = {"type": "object", "properties": {}}
OF_PARTS: tuple[Source, ...] = ("workspace", "extensions", "session", "skills", "mcp")


def named(says: str, **about: Any) -> Any:
    """A tool called `same` that says where it comes from."""

    async def same() -> str:
        return says

    return tool(**about)(same) if about else same


def battery(name: str, source: Source, *tools: Any) -> type[Any]:
    """A battery that adds tools to each turn."""

    class Adding(ChatPart):
        def __init__(self, parts: Parts) -> None:
            super().__init__(parts)

        async def contribute(self, turn: Turn) -> Contribution:
            return Contribution(source=source, tools=tools)

    part = type(f"Adding{name}", (Adding,), {})
    return type(f"Has{name}", (Think,), {"battery": Battery(name=name, part=part)})


def agent_with(model: Any, given: dict[str, Any], **members: Any) -> type[Any]:
    """An agent whose sources have these tools; those of the client come with each request."""
    bases = [battery(source, source, given[source]) for source in OF_PARTS if source in given]
    if "agent" in given:
        members["get_tools"] = lambda _: given["agent"]
    if "turn" in given:
        members["before_turn"] = lambda *_: TurnConfig(tools=given["turn"])
    return type("Talker", (*bases, Think), {"model": model, **members})


SAME = {"name": "same", "description": "of the client", "inputSchema": SCHEMA}


# --- the order -----------------------------------------------------------------------------------


def test_contributions_are_put_in_the_order_of_their_sources() -> None:
    given = [
        Contribution(source="client", tools=["c"]),
        None,
        Contribution(source="extensions", tools=["e1"], sections=["E1"], capabilities=["can e1"]),
        Contribution(source="workspace", tools=["w"], sections=["W", ""]),
        Contribution(tools=["e2"], sections=["E2"], capabilities=["", "can e2"]),
        Contribution(source="agent"),
    ]
    found = merged(given)
    assert found.tools == (("workspace", ("w",)), ("extensions", ("e1", "e2")), ("client", ("c",)))
    assert (found.sections, found.capabilities) == (("W", "E1", "E2"), ("can e1", "can e2"))


@pytest.mark.parametrize(("earlier", "later"), [*itertools.combinations((*ORDER, "turn"), 2)])
async def test_a_later_source_replaces_a_tool_of_the_same_name(
    sqlite_world: World, earlier: str, later: str
) -> None:
    """Workspace, agent, extensions, session, skills, MCP, client, and then what `before_turn` adds."""
    model = answering(Step.call("same", {}, id="c1"), "Done.")
    given = {source: named(source) for source in (later, earlier) if source != "client"}
    client = [SAME] if "client" in (earlier, later) else None
    Talker = agent_with(model, given)
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1", client_tools=client)
    [part] = call_parts(turn.message)
    if later == "client":
        assert part["state"] == "input-available"
        assert await ledger(host) == []
    else:
        assert part["output"] == later
    await sqlite_world.stop()
    assert model.requests[0].tools == ["same"], "it is offered once"


KINDS: dict[str, Callable[[Any], Any]] = {
    "function": lambda function: function,
    "dict": lambda function: {"same": function},
    "tool": lambda function: Tool(function),
    "toolset": lambda function: FunctionToolset([function]),
    "renamed": lambda function: (
        FunctionToolset([function]).prefixed("x").renamed({"same": "x_same"})
    ),
    "dynamic": lambda function: DynamicToolset(lambda _: FunctionToolset([function])),
}


@pytest.mark.parametrize(("earlier", "later"), [*itertools.product(KINDS, KINDS)])
async def test_however_a_tool_is_handed_in(sqlite_world: World, earlier: str, later: str) -> None:
    """The names of some toolsets are known only once they are asked for them."""
    model = answering(Step.call("same", {}), Step.call("other", {}), "Done.")

    async def other() -> str:
        return "of the workspace"

    given = {
        "workspace": [KINDS[earlier](named("workspace")), other],
        "extensions": KINDS[later](named("extensions")),
    }
    Talker = agent_with(model, given)
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    outputs = [part.get("output") for part in call_parts(turn.message)]
    await sqlite_world.stop()
    assert outputs == ["extensions", "of the workspace"], "what is not replaced stays"


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_known_of_a_tool_is_that_of_the_one_that_wins(
    sqlite_world: World, kind: str
) -> None:
    """An approval that the replaced tool needs, and its effect, say nothing about the other one."""
    free = named("agent", effect="read")
    strict = named("extensions", effect="idempotent", needs_approval=True)
    model = answering(Step.call("same", {}, id="c1"), "Done.")
    Talker = agent_with(model, {"agent": KINDS[kind](free), "extensions": KINDS[kind](strict)})
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    assert await states(host.get(Talker, "a")) == {"c1": "approval-requested"}
    assert await ledger(host) == []
    await sqlite_world.stop()

    model = answering(Step.call("same", {}, id="c1"), "Done.")
    Talker = agent_with(model, {"agent": KINDS[kind](strict), "session": KINDS[kind](free)})
    host = await sqlite_world.next_life(Talker)
    turn = await host.get(Talker, "b").save_messages("u1")
    assert [part["output"] for part in call_parts(turn.message)] == ["agent"]
    assert await ledger(host, "name, effect, state") == [("same", "read", "done")]


@pytest.mark.parametrize(
    ("bases", "get_tools"),
    [
        ([battery("one", "extensions", named("1")), battery("two", "extensions", named("2"))], []),
        ([battery("one", "mcp", named("1"), FunctionToolset([named("2")]))], []),
        ([], [named("1"), FunctionToolset([named("2")])]),
        ([], [named("1"), SAME]),
    ],
    ids=["two batteries", "one battery", "get_tools", "a function and a schema"],
)
async def test_two_tools_of_one_name_in_one_source_are_an_error(
    sqlite_world: World, bases: list[Any], get_tools: list[Any]
) -> None:
    members = {"model": answering("Hello"), "get_tools": lambda _: get_tools}
    Talker = type("Talker", (*bases, Think), members)
    host = await sqlite_world.host(Talker)
    assert (await host.get(Talker, "a").save_messages("u1")).status == "error"
    [reason] = await reasons(host)
    await sqlite_world.stop()
    assert reason is not None
    assert "'same'" in reason
    assert "name" in reason


async def test_a_clash_is_logged_once_for_each_agent_and_pair(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    given = {source: named(source) for source in ("agent", "skills")}
    Talker = agent_with(answering(Step.call("same", {}), "Done."), given)
    host = await sqlite_world.host(Talker)
    for name in ("a", "a", "b"):
        await host.get(Talker, name).save_messages("u")
    await host.get(Talker, "a").save_messages("u", client_tools=[SAME])
    await host.get(Talker, "a").save_messages("u")
    await sqlite_world.stop()
    assert [record.getMessage() for record in caplog.records if "replaces" in record.message] == [
        "Talker/a: tool 'same' of source 'skills' replaces that of source 'agent'",
        "Talker/b: tool 'same' of source 'skills' replaces that of source 'agent'",
        "Talker/a: tool 'same' of source 'client' replaces that of source 'skills'",
    ]


async def test_what_before_turn_adds_replaces_everything_and_is_entered_once(
    sqlite_world: World,
) -> None:
    model = answering(Step.call("same", {}) + Step.call("other", {}), "Done.")

    async def other() -> str:
        return "kept"

    given = {"agent": iter([named("agent"), other]), "turn": [named("turn")]}  # read once
    Talker = agent_with(model, given)
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1", client_tools=[SAME])
    assert [part["output"] for part in call_parts(turn.message)] == ["turn", "kept"]
    await sqlite_world.stop()
    check_requests(model)


# --- the client's --------------------------------------------------------------------------------


class Bank(Think):
    """Has a tool that a client should not be able to have run with another schema."""

    ran: list[str] = []
    asked: list[str] = []
    looked: list[str] = []

    async def find_out(self, call: ToolCall) -> str:
        self.asked.append(call.id)
        return "paid"

    @tool(effect="once", reconcile="find_out")
    async def pay(self, call: ToolCall) -> str:
        """Pay."""
        self.ran.append(call.id)
        return "paid"

    @tool(effect="read")
    async def look(self) -> str:
        """Look, for ever the first time."""
        self.looked.append("once")
        if len(self.looked) == 1:
            await forever()
        return "seen"


class CarefulBank(Bank):
    @tool(needs_approval=True)
    async def pay(self, call: ToolCall) -> str:
        """Pay."""
        self.ran.append(call.id)
        return "paid"


PAY = {"name": "pay", "description": "Of the client.", "inputSchema": SCHEMA}


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    Bank.ran.clear()
    Bank.asked.clear()
    Bank.looked.clear()


def bank(model: Any, base: type[Bank] = Bank) -> type[Bank]:
    return type("Bank", (base,), {"model": model})


async def test_a_call_of_a_clients_tool_goes_to_the_client(world: World) -> None:
    Talker = bank(model := answering(calls("pay"), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[PAY])
    assert await states(a) == {"pay": "input-available"}
    assert await a.add_tool_output("pay", "by the client")
    await host.until_settled()
    assert await ledger(host) == []
    await world.stop()
    assert returned(model) == {"pay": "by the client"}
    described = {t.name: t.description for t in model.requests[0].parameters.function_tools}
    assert described["pay"] == "Of the client."
    assert Bank.ran == []


async def test_a_call_that_was_approved_here_does_not_run_once_the_client_has_the_tool(
    world: World,
) -> None:
    Talker = bank(model := answering(calls("pay", "pick"), "Done."), CarefulBank)
    pick = {"name": "pick", "inputSchema": SCHEMA}
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[pick])
    assert await states(a) == {"pay": "approval-requested", "pick": "input-available"}
    await a.add_tool_approval("pay", True)
    await a.add_tool_output("pick", 1, client_tools=[PAY, pick])
    await host.until_settled()
    assert (await states(a))["pay"] == "output-error"
    await world.stop()
    assert returned(model) == {"pay": WAITS_AGAIN, "pick": 1}
    assert Bank.ran == []


async def test_a_call_of_a_clients_tool_waits_for_the_client_after_a_crash(world: World) -> None:
    Talker = bank(model := answering(calls("pay", "look"), "Done."))
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").submit_messages("u1", client_tools=[PAY])
    await asyncio.sleep(1)
    assert Bank.looked == ["once"]
    host = await world.next_life()
    await host.until_settled()
    a = host.get(Talker, "a")
    assert await states(a) == {"pay": "input-available", "look": "output-available"}
    assert await a.has_pending_interaction()
    await world.stop()
    assert Bank.ran == []
    check_requests(model)


class Caller:
    """Whom `chat` tells."""

    def on_event(self, chunk: str) -> None: ...
    def on_done(self) -> None: ...
    def on_error(self, error: str) -> None: ...
    def on_interrupted(self) -> None: ...


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_call_of_an_executor_is_not_made_here_after_a_crash(
    world: World, has_begun: bool
) -> None:
    """The agent's own `reconcile` is not asked about it, either."""
    members = {} if has_begun else {"before_tool_call": forever}
    Talker: Any = type("Bank", (bank(answering(calls("pay"), "Done.")),), members)
    host = await world.host(Talker, shutdown_timeout=0)
    chat = host.get(Talker, "a").chat("u1", Caller(), client_tools=[PAY], executor=forever)
    asking = asyncio.create_task(chat)
    await asyncio.sleep(5)
    await world.stop()
    await asking
    host = await world.next_life()
    await host.until_settled()
    [part] = call_parts((await host.get(Talker, "a").get_messages())[-1])
    assert part["state"] == "output-error"
    assert (part["errorText"] == CLIENT_GONE) is not has_begun
    assert await ledger(host, "state") == ([("unknown",)] if has_begun else [])
    await world.stop()
    assert (Bank.ran, Bank.asked) == ([], [])


# --- parts that add something wrong --------------------------------------------------------------


async def unread(text: Unknown) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Its types cannot be found."""
    return ""


WRONG: dict[str, Callable[[], Any]] = {
    "nothing of ours": lambda: {"tools": []},
    "an unknown source": lambda: Contribution(source="nowhere", tools=[named("x")]),  # type: ignore[arg-type]
    "tools that are a number": lambda: Contribution(tools=5),  # type: ignore[arg-type]
    "tools that are a text": lambda: Contribution(tools="same"),
    "a tool that is a number": lambda: Contribution(tools=[5]),
    "a tool that is a text": lambda: Contribution(tools=["same"]),
    "a tool whose types are not found": lambda: Contribution(tools=[unread]),
    "a schema without a name": lambda: Contribution(tools=[{"inputSchema": SCHEMA}]),
    "two tools of one name": lambda: Contribution(tools=[named("x"), named("y")]),
    "sections that are a text": lambda: Contribution(sections="Be brief."),
    "a section that is a number": lambda: Contribution(sections=[5]),  # type: ignore[list-item]
    "capabilities that are a text": lambda: Contribution(capabilities="It can."),
    "an error": lambda: 1 / 0,
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_part_that_adds_something_wrong_adds_nothing(
    sqlite_world: World, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and told, and the turn goes on without it."""

    class Wrong(ChatPart):
        async def contribute(self, turn: Turn) -> Any:
            return WRONG[what]()

    class HasWrong(Think):
        battery = Battery(name="wrong", part=Wrong)

    async def look() -> str:
        return "seen"

    Right = battery("right", "extensions", look)
    model = answering(calls("look"), "Done.")
    Talker = type("Talker", (HasWrong, Right), {"model": model, "get_system_prompt": lambda _: "S"})
    host = await sqlite_world.host(Talker)
    failures = listen(host, BatteryFailed)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert (turn.status, turn.message.text) == ("completed", "Done.")
    assert [part["state"] for part in call_parts(turn.message)] == ["output-available"]
    await sqlite_world.stop()
    assert len(failures) == 1
    assert "of wrong failed" in caplog.text
    assert model.requests[0].tools == ["look"]
    assert (model.requests[0].instructions or "").split("\n\n")[0] == "S"
    assert "Be brief" not in (model.requests[0].instructions or "")
    assert "It can" not in (model.requests[0].instructions or "")
