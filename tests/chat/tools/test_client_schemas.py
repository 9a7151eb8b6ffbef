"""What a client says of its tools: who is offered them, for how long, and who runs them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import agent_of, answering, inbox, rows, said, talker, until_running
from interacting import (
    CLIENT,
    LOCATE,
    PICK,
    calls,
    check_requests,
    continuations,
    returned,
    schema,
    states,
)

from outlast import ToolCall, ToolError
from outlast.agent.agent import parts_of
from outlast.chat.answer.attempt import Attempts
from outlast.core import json
from outlast.testing import Step
from support import World

pytestmark = pytest.mark.virtual_time


def offered(model: Any) -> list[list[str]]:
    """The names of the tools in each request."""
    return [request.tools for request in model.requests]


async def kept(host: Any) -> Any:
    """The schemas that are remembered."""
    found = await rows(host, "facts", "name, value")
    return json.decode(dict(found).get("chat:client_tools", "null"))


class Caller:
    """What `chat` tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_event(self, chunk: str) -> None:
        self.told.append(json.decode(chunk)["type"])

    def on_done(self) -> None:
        self.told.append("DONE")

    def on_error(self, error: str) -> None:
        self.told.append(f"ERROR {error}")

    def on_interrupted(self) -> None:
        self.told.append("INTERRUPTED")


# --- for how long --------------------------------------------------------------------------------


@pytest.mark.invariant("D16")
async def test_schemas_are_kept_until_others_come_or_none_or_the_conversation_is_cleared(
    world: World,
) -> None:
    Talker = talker(model := answering("Hi"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("none yet")
    await a.save_messages("both", client_tools=CLIENT)
    await a.save_messages("says nothing")
    await a.regenerate()
    await a.continue_last_turn()
    assert await kept(host) == CLIENT
    host = await world.next_life()
    a = host.get(Talker, "a")
    await a.save_messages("in another life")
    await a.save_messages("one", client_tools=[PICK])
    await a.save_messages("says nothing")
    await a.save_messages("has none", client_tools=[])
    await a.save_messages("says nothing")
    await a.submit_messages("both", client_tools=CLIENT)
    await a.clear_messages()
    assert await kept(host) is None
    await a.save_messages("begins anew")
    await world.stop()
    both = ["locate", "pick"]
    expected = [[], both, both, both, both, both, ["pick"], ["pick"], [], []]
    assert offered(model)[:10] == expected
    assert offered(model)[-1] == []


@pytest.mark.invariant("D16")
async def test_a_turn_has_the_schemas_of_its_own_request(world: World) -> None:
    """However many others were asked with other ones before it begins."""
    Talker = talker(model := answering(Step.text("Hi there", delay=1)))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    for number, tools in enumerate([[LOCATE], [PICK], None, [], None, CLIENT]):
        await a.submit_messages(f"u{number}", client_tools=tools)
    await host.until_settled()
    await world.stop()
    assert offered(model) == [["locate"], ["pick"], ["pick"], [], [], ["locate", "pick"]]


async def test_a_result_may_bring_the_schemas_for_what_follows(world: World) -> None:
    Talker = talker(model := answering(calls("locate"), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[LOCATE])
    assert not await a.add_tool_output("nowhere", 1, client_tools=CLIENT)
    assert await kept(host) == [LOCATE], "what answers nothing changes nothing"
    assert await a.add_tool_output("locate", 1, client_tools=[PICK])
    await host.until_settled()
    assert await kept(host) == [PICK]
    await a.save_messages("u2")
    await world.stop()
    assert offered(model) == [["locate"], ["pick"], ["pick"]]


async def test_a_result_that_comes_while_the_answer_streams_may_do_so_too(world: World) -> None:
    Talker = talker(model := answering(calls("locate") + Step.text("one two", delay=1), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1", client_tools=[LOCATE]))
    await until_running(host, Talker)
    await asyncio.sleep(1.5)
    assert await a.add_tool_output("locate", 1, client_tools=[PICK])
    assert await kept(host) is None, "nothing has been answered yet"
    await first
    await host.until_settled()
    assert await kept(host) == [PICK]
    await world.stop()
    assert offered(model) == [["locate"], ["pick"]]


# --- what they say -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "least",
    [
        {"name": "confirm"},
        {"name": "confirm", "inputSchema": None},
        {"name": "confirm", "parameters": {"type": "object"}},
        {"name": "confirm", "description": "Ask them.", "title": "more than is known"},
    ],
)
async def test_a_schema_may_say_little(world: World, least: dict[str, Any]) -> None:
    Talker = talker(model := answering(calls("confirm"), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = await a.save_messages("u1", client_tools=[least])
    assert (turn.status, turn.error) == ("completed", None)
    assert await a.add_tool_output("confirm", True)
    await host.until_settled()
    assert returned(model) == {"confirm": True}
    (definition,) = model.requests[0].parameters.function_tools
    assert definition.parameters_json_schema["type"] == "object"
    assert definition.description == least.get("description")


BAD: dict[str, tuple[Any, type[Exception]]] = {
    "a text": ("locate", TypeError),
    "one schema": (LOCATE, TypeError),
    "a number": (5, TypeError),
    "texts": (["locate"], TypeError),
    "no name": ([{"inputSchema": {}}], ValueError),
    "an empty name": ([{"name": ""}], ValueError),
    "a number as the name": ([{"name": 5}], ValueError),
    "a list as the schema": ([{"name": "x", "inputSchema": []}], ValueError),
    "a number as the description": ([{"name": "x", "description": 5}], ValueError),
    "what is not JSON": ([{"name": "x", "inputSchema": {"default": {1}}}], TypeError),
    "keys that are not texts": ([{"name": "x", "inputSchema": {1: 2}}], TypeError),
}


@pytest.mark.parametrize("what", BAD)
async def test_bad_schemas_are_refused_and_nothing_is_accepted(world: World, what: str) -> None:
    bad, error = BAD[what]
    Talker = talker(answering(calls("locate"), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[LOCATE])
    asking = [
        lambda: a.save_messages("u2", client_tools=bad),
        lambda: a.submit_messages("u2", client_tools=bad),
        lambda: a.chat("u2", Caller(), client_tools=bad),
        lambda: a.chat("u2", Caller(), client_tools=bad, executor=lambda call: None),
        lambda: a.add_tool_output("locate", 1, client_tools=bad),
    ]
    for ask in asking:
        with pytest.raises(error):
            await ask()
    assert await inbox(host) == [("ended", "completed")]
    assert await states(a) == {"locate": "input-available"}
    assert await kept(host) == [LOCATE]
    assert parts_of(agent_of(host, Talker))[Attempts].executors == {}


# --- run by whoever asks -------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_executor_runs_the_clients_tools_in_the_turn(world: World, is_async: bool) -> None:
    Talker = talker(model := answering(calls("locate", "pick"), "Done.", "Next."))
    seen: list[ToolCall] = []

    def run(call: ToolCall) -> Any:
        seen.append(call)
        if call.tool_name == "pick":
            raise ToolError("nothing to pick")
        return {"lat": 1}

    async def run_later(call: ToolCall) -> Any:
        await asyncio.sleep(1)
        return run(call)

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    caller = Caller()
    executor = run_later if is_async else run
    await a.chat("u1", caller, client_tools=CLIENT, executor=executor)
    assert caller.told[-1] == "DONE"
    assert returned(model)["locate"] == {"lat": 1}
    assert "nothing to pick" in str(returned(model)["pick"])
    assert [call.tool_name for call in seen] == ["locate", "pick"]
    assert said(await a.get_messages()) == ["user: u1", "assistant: Done."]
    assert (await continuations(host), await kept(host)) == ([], None)
    await a.save_messages("u2")
    assert offered(model) == [["locate", "pick"], ["locate", "pick"], []]
    assert parts_of(agent_of(host, Talker))[Attempts].executors == {}


async def test_an_executor_leaves_what_is_remembered_as_it_is(world: World) -> None:
    Talker = talker(model := answering("Hi."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[PICK])
    await a.chat("u2", Caller(), client_tools=[LOCATE], executor=lambda call: None)
    await a.save_messages("u3")
    await world.stop()
    assert offered(model) == [["pick"], ["locate"], ["pick"]]


async def test_nobody_else_can_answer_what_an_executor_runs(world: World) -> None:
    Talker = talker(model := answering(calls("locate"), "Done."))

    async def slowly(call: ToolCall) -> str:
        await asyncio.sleep(10)
        return "by the executor"

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    chat = a.chat("u1", Caller(), client_tools=CLIENT, executor=slowly)
    asking = asyncio.create_task(chat)
    await until_running(host, Talker)
    await asyncio.sleep(1)
    assert not await a.has_pending_interaction()
    assert not await a.add_tool_output("locate", "by the client")
    await asking
    await world.stop()
    assert returned(model) == {"locate": "by the executor"}


async def test_a_second_chat_with_the_same_key_joins_the_first(world: World) -> None:
    Talker = talker(model := answering(calls("locate"), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    ran: list[int] = []

    async def run(number: int) -> None:
        caller = Caller()
        tools = {"client_tools": CLIENT, "idempotency_key": "k"}
        await a.chat("u1", caller, **tools, executor=lambda call: ran.append(number))
        assert caller.told[-1] == "DONE"

    await asyncio.gather(run(1), run(2))
    await run(3)
    assert ran in ([1], [2])  # whichever came first
    assert parts_of(agent_of(host, Talker))[Attempts].executors == {}
    await world.stop()
    assert len(model.requests) == 2


@pytest.mark.invariant("J15")
async def test_nobody_waits_for_an_executor_after_a_restart(world: World) -> None:
    Talker = talker(model := answering(calls("locate", "pick"), "Next."))

    async def never(call: ToolCall) -> None:
        await asyncio.get_running_loop().create_future()

    host = await world.host(Talker, shutdown_timeout=0)
    caller = Caller()
    chat = host.get(Talker, "a").chat("u1", caller, client_tools=CLIENT, executor=never)
    asking = asyncio.create_task(chat)
    await until_running(host, Talker)
    await asyncio.sleep(1)
    await world.stop()
    await asking
    assert caller.told[-1] == "INTERRUPTED"
    host = await world.next_life()
    a = host.get(Talker, "a")
    await host.until_settled()
    assert await inbox(host) == [("ended", "interrupted")]
    assert not await a.has_pending_interaction()
    assert await states(a) == {"locate": "output-error", "pick": "output-error"}
    assert not await a.add_tool_output("locate", 1)
    assert await a.wait_until_stable(timeout=0)
    assert (await a.save_messages("u2")).status == "completed"
    assert offered(model)[-1] == []
    await world.stop()
    check_requests(model)


@pytest.mark.invariant("I16")
async def test_what_a_client_returned_in_the_first_turn_is_in_context_in_the_tenth(
    world: World,
) -> None:
    Talker = talker(model := answering(calls("locate"), "Done.", "And?"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=CLIENT)
    await a.add_tool_output("locate", {"city": "Bern"})
    await host.until_settled()
    for number in range(2, 6):
        await a.save_messages(f"u{number}")
    host = await world.next_life()
    for number in range(6, 11):
        await host.get(Talker, "a").save_messages(f"u{number}")
    await world.stop()
    assert len(model.requests) == 11
    assert returned(model) == {"locate": {"city": "Bern"}}


async def test_schemas_of_one_agent_are_not_those_of_another(world: World) -> None:
    Talker = talker(model := answering("Hi."))
    host = await world.host(Talker)
    await host.get(Talker, "a").save_messages("u1", client_tools=[schema("other")])
    await host.get(Talker, "b").save_messages("u1")
    await world.stop()
    assert offered(model) == [["other"], []]
