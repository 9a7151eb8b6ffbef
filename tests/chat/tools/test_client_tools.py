"""Tools that the client runs: the turn ends with their calls, and goes on with their results."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import permutations
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    inbox,
    leftovers,
    said,
    talker,
    until,
    until_running,
)
from interacting import (
    CLIENT,
    call_parts,
    calls,
    check_requests,
    continuations,
    last_calls,
    returned,
    states,
)
from pydantic_ai.toolsets import FunctionToolset

from outlast import Think, TurnContext, tool
from outlast.agent.agent import parts_of
from outlast.chat.turn.state import TurnState
from outlast.chat.types.events import ToolAnswered
from outlast.host.events import AgentEvicted
from outlast.testing import ScriptedModel, Step
from support import World, listen

pytestmark = pytest.mark.virtual_time

BOTH = Step.text("Let me see. ") + calls("locate", "pick")
SLOW = calls("locate") + Step.text("one two three. ", delay=1)  # and goes on talking


class Counting(Think):
    """Has a tool of its own, which takes a while."""

    chat_recovery = False

    ran: list[str] = []

    @tool(effect="read")
    async def count(self) -> int:
        self.ran.append("count")
        await asyncio.sleep(10)
        return 7


# --- the way of a call ---------------------------------------------------------------------------


async def test_a_turn_ends_with_its_open_calls_and_goes_on_with_the_same_message(
    world: World,
) -> None:
    Talker = talker(model := ScriptedModel(BOTH, "You are there."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    answered = listen(host, ToolAnswered)
    turn = await a.save_messages("u1", client_tools=CLIENT)
    assert (turn.status, turn.message.text) == ("completed", "Let me see. ")
    assert {part["state"] for part in call_parts(turn.message).values()} == {"input-available"}
    assert await a.has_pending_interaction()
    await host.until_settled()
    assert leftovers(agent_of(host, Talker)) == {}
    assert await a.add_tool_output("locate", {"lat": 1})
    await host.until_settled()
    assert (len(model.requests), await states(a)) == (
        1,
        {"locate": "output-available", "pick": "input-available"},
    )
    assert await a.add_tool_output("pick", None)
    assert await a.wait_until_stable()
    assert not await a.has_pending_interaction()
    [_, message] = await a.get_messages()
    assert message.id == turn.message.id
    assert message.text == "Let me see. You are there."
    assert {id: part["output"] for id, part in call_parts(message).items()} == {
        "locate": {"lat": 1},
        "pick": None,
    }
    assert set(returned(model)) == {"locate", "pick"}
    assert model.requests[0].tools == model.requests[1].tools == ["locate", "pick"]
    assert await continuations(host) == ["completed"]
    assert [(each.tool_call_id, each.tool_name) for each in answered] == [
        ("locate", "locate"),
        ("pick", "pick"),
    ]
    (request,) = [id for id, origin in await inbox(host, "id, origin") if origin == "auto"]
    chunks = [chunk async for _, chunk in a.resume_stream(request)]
    assert "messageId" not in chunks[0]  # a client goes on with the message that it has
    assert leftovers(agent_of(host, Talker)) == {}


@pytest.mark.invariant("J3")
async def test_a_batch_goes_on_once_in_whatever_order_its_results_come(world: World) -> None:
    names = ["pick", "pick:2", "locate", "locate:2"]
    Talker = talker(model := ScriptedModel(calls(*names), "Done."))
    host = await world.host(Talker)
    for number, order in enumerate(permutations(names), 1):
        a = host.get(Talker, f"a{number}")
        await a.save_messages("u1", client_tools=CLIENT)
        for place, name in enumerate(order):
            assert await continuations(host) == ["completed"] * (number - 1)
            opts = place == number % 4  # one of them does, whichever
            assert await a.add_tool_output(name, place, auto_continue=opts)
        await host.until_settled()
        found = (await a.get_messages())[-1]
        outputs = {id: part["output"] for id, part in call_parts(found).items()}
        assert outputs == {name: place for place, name in enumerate(order)}
        assert found.text == "Done."
    assert await continuations(host) == ["completed"] * 24
    assert len(model.requests) == 48
    check_requests(model)


@pytest.mark.invariant("J1", "J3")
async def test_results_that_come_at_the_same_time_do_not_overwrite_each_other(
    world: World,
) -> None:
    names = [f"pick:{number}" for number in range(10)]
    Talker = talker(model := ScriptedModel(calls(*names), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=CLIENT)
    given = [(name, f"{name} {time}") for time in range(3) for name in names]
    counted = await asyncio.gather(*(a.add_tool_output(*each) for each in given))
    first = {name: said for (name, said), is_it in zip(given, counted, strict=True) if is_it}
    assert sum(counted) == 10
    await host.until_settled()
    found = await last_calls(a)
    assert {id: part["output"] for id, part in found.items()} == first
    assert (returned(model), len(model.requests)) == (first, 2)
    assert await continuations(host) == ["completed"]


@pytest.mark.invariant("J6")
@pytest.mark.parametrize("is_alone", [True, False])
async def test_an_error_goes_on_only_as_the_last_of_a_batch_that_wants_to(
    world: World, is_alone: bool
) -> None:
    Talker = talker(model := ScriptedModel(calls("locate") if is_alone else BOTH, "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=CLIENT)
    if not is_alone:
        assert await a.add_tool_output("pick", 1)
    assert await a.add_tool_output("locate", error_text="no GPS", auto_continue=False)
    await host.until_settled()
    part = (await last_calls(a))["locate"]
    assert (part["state"], part["errorText"], part["input"]) == ("output-error", "no GPS", {})
    assert await continuations(host) == ([] if is_alone else ["completed"])
    await a.save_messages("u2")  # the model learns of it then, if not before
    assert "no GPS" in str(returned(model)["locate"])


async def test_what_was_opted_for_one_batch_does_not_count_for_the_next(world: World) -> None:
    Talker = talker(model := answering(calls("locate"), calls("pick"), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=CLIENT)
    await a.add_tool_output("locate", 1)
    await host.until_settled()
    assert await states(a) == {"locate": "output-available", "pick": "input-available"}
    await a.add_tool_output("pick", 2, auto_continue=False)
    await host.until_settled()
    assert (len(model.requests), await continuations(host)) == (2, ["completed"])


async def test_a_turn_that_goes_on_has_the_body_of_the_request(world: World) -> None:
    """Also when the result came before the message was stored."""
    bodies: list[Any] = []

    async def before_turn(self: Any, context: TurnContext) -> None:
        bodies.append((context.origin, context.continuation, dict(context.body)))

    Talker = talker(ScriptedModel(SLOW, calls("pick"), "Done."), before_turn=before_turn)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1", client_tools=CLIENT, body={"k": 1}))
    await until_running(host, Talker)
    await asyncio.sleep(1.5)
    assert await a.add_tool_output("locate", 1)
    await first
    await host.until_settled()
    await a.add_tool_output("pick", 2)
    await host.until_settled()
    assert bodies == [("save", False, {"k": 1})] + [("auto", True, {"k": 1})] * 2


# --- while it streams ----------------------------------------------------------------------------


@pytest.mark.invariant("J2", "J4")
async def test_a_result_may_come_while_the_answer_still_streams(world: World) -> None:
    Talker = talker(model := ScriptedModel(SLOW, "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    async with aclosing(a.stream("u1", client_tools=CLIENT)) as stream:
        async for chunk in stream:
            if chunk["type"] == "tool-input-available":
                assert await a.has_pending_interaction()
                durable = parts_of(agent_of(host, Talker))[TurnState].live.stream.chunks
                assert await a.add_tool_output("locate", "here")
                assert '"output":"here"' in durable[-1], "when it returns"
                assert not await a.has_pending_interaction()
                assert not await a.add_tool_output("locate", "there")
            assert len(model.requests) == 1
    await host.until_settled()
    [_, message] = await a.get_messages()
    assert call_parts(message)["locate"]["output"] == "here"
    assert message.text == "one two three. Done."
    assert (returned(model), len(model.requests)) == ({"locate": "here"}, 2)
    assert await continuations(host) == ["completed"]


@pytest.mark.invariant("J4")
async def test_a_fast_client_waits_for_a_slow_tool_of_the_same_step(world: World) -> None:
    Counting.model = model = ScriptedModel(calls("locate", "count", "pick"), "Done.")
    host = await world.host(Counting)
    a = host.get(Counting, "a")
    first = asyncio.create_task(a.save_messages("u1", client_tools=CLIENT))
    await until_running(host, Counting)
    await asyncio.sleep(5)
    assert not await a.add_tool_output("count", 99), "it is not the client's to answer"
    assert await a.add_tool_output("pick", 1)
    assert await a.add_tool_output("locate", 2)
    assert not first.done()
    assert (await first).status == "completed"
    await host.until_settled()
    assert returned(model) == {"locate": 2, "count": 7, "pick": 1}
    assert (len(model.requests), await continuations(host)) == (2, ["completed"])


@pytest.mark.invariant("J2", "J4")
@pytest.mark.parametrize("opts", [True, False])
async def test_a_result_that_comes_as_the_turn_is_being_stored_is_part_of_it(
    world: World, opts: bool
) -> None:
    """Between the last chunk and the commit of the turn's end."""

    class Slow(FunctionToolset[Any]):
        async def __aexit__(self, *_: Any) -> None:
            await asyncio.sleep(1)

    toolset = Slow()
    Talker = talker(model := ScriptedModel(calls("locate"), "Done."), get_tools=lambda _: toolset)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1", client_tools=CLIENT))
    turn = await until_running(host, Talker)
    await until(lambda: turn.stream.is_held)
    both = [a.add_tool_output("locate", each, auto_continue=opts) for each in (1, 2)]
    assert await asyncio.gather(*both) == [True, False]
    assert (await last_calls(a))["locate"]["output"] == 1
    await first
    await host.until_settled()
    assert await continuations(host) == (["completed"] if opts else [])
    assert returned(model) == ({"locate": 1} if opts else {})


@pytest.mark.invariant("J2")
async def test_a_result_outlasts_a_host_that_stops_before_the_turn_does(world: World) -> None:
    Talker = talker(model := answering(SLOW, "Next."))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    await a.submit_messages("u1", client_tools=CLIENT)
    await until_running(host, Talker)
    await asyncio.sleep(1.5)
    assert await a.add_tool_output("locate", "here")
    host = await world.next_life()
    a = host.get(Talker, "a")
    await host.until_settled()
    assert (await last_calls(a))["locate"]["output"] == "here"
    assert not await a.has_pending_interaction()
    assert (await a.save_messages("u2")).status == "completed"
    assert returned(model) == {"locate": "here"}


# --- people take their time ----------------------------------------------------------------------


@pytest.mark.invariant("J5")
@pytest.mark.parametrize("is_more_waiting", [False, True])
async def test_an_agent_with_open_calls_leaves_memory_and_comes_back_for_the_answer(
    world: World, is_more_waiting: bool
) -> None:
    Talker = talker(model := answering(Step.text("", delay=1) + BOTH, "Done.", "Next."))
    host = await world.host(Talker, idle_timeout=5)
    a = host.get(Talker, "a")
    evicted = listen(host, AgentEvicted)
    await a.submit_messages("u1", client_tools=CLIENT)
    if is_more_waiting:
        await a.submit_messages("u2")
    await host.until_settled()
    await a.add_tool_output("locate", 1)
    await asyncio.sleep(3600)
    assert len(evicted) <= 2  # the second time after the sweep of its streams
    assert host.statistics().active == 0
    assert (len(model.requests), await continuations(host)) == (1, [])
    assert await a.add_tool_output("pick", 2, auto_continue=False)
    await host.until_settled()
    order = ["user: u1", "assistant: Let me see. Done."]
    order += ["user: u2", "assistant: Next."] if is_more_waiting else []
    assert said(await a.get_messages()) == order
    assert await continuations(host) == ["completed"]


@pytest.mark.invariant("J7")
@pytest.mark.parametrize("opting", [(True, False), (False, True), (False, False)])
async def test_whether_to_go_on_is_known_in_another_life(
    world: World, opting: tuple[bool, bool]
) -> None:
    Talker = talker(model := ScriptedModel(BOTH, "Done."))
    host = await world.host(Talker)
    await host.get(Talker, "a").save_messages("u1", client_tools=CLIENT, body={"k": 1})
    host = await world.next_life()
    a = host.get(Talker, "a")
    assert await a.has_pending_interaction()
    assert await a.add_tool_output("pick", 1, auto_continue=opting[0])
    host = await world.next_life()
    a = host.get(Talker, "a")
    assert not await a.add_tool_output("pick", 3)
    assert await a.add_tool_output("locate", 2, auto_continue=opting[1])
    await host.until_settled()
    assert await continuations(host) == (["completed"] if any(opting) else [])
    assert returned(model) == ({"pick": 1, "locate": 2} if any(opting) else {})
    assert model.requests[-1].tools == ["locate", "pick"]


@pytest.mark.invariant("J9")
@pytest.mark.parametrize("is_live", [False, True])
async def test_a_result_counts_also_if_whoever_brought_it_is_gone(
    world: World, is_live: bool
) -> None:
    """Cancelled when its commit is under way, as the handler of a socket that closes is."""
    Talker = talker(model := ScriptedModel(SLOW, "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1", client_tools=CLIENT))
    await until_running(host, Talker)
    await (asyncio.sleep(1.5) if is_live else first)
    activation = parts_of(agent_of(host, Talker)).activation
    before, written = activation.last_write, []
    answer = asyncio.create_task(a.add_tool_output("locate", 1))
    for _ in range(100_000):
        await asyncio.sleep(0)  # time stands still
        if activation.last_write is not before:
            written.append(answer.cancel())
            break
    assert written == [True]
    with pytest.raises(asyncio.CancelledError):
        await answer
    assert not await a.add_tool_output("locate", 2)
    await first
    await host.until_settled()
    assert (returned(model), await continuations(host)) == ({"locate": 1}, ["completed"])
    assert (await last_calls(a))["locate"]["output"] == 1


@pytest.mark.invariant("J18")
async def test_a_submission_whose_turn_leaves_calls_open_is_completed(world: World) -> None:
    Talker = talker(ScriptedModel(BOTH, "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    sent = await a.submit_messages("u1", client_tools=CLIENT)
    await host.until_settled()
    parked = await a.inspect_submission(sent.id)
    assert (parked.status, parked.error) == ("completed", None)
    host = await world.next_life()
    a = host.get(Talker, "a")
    assert await a.inspect_submission(sent.id) == parked
    for name in ("pick", "locate"):
        await a.add_tool_output(name, 1)
    await host.until_settled()
    assert await a.inspect_submission(sent.id) == parked
    assert [each.id for each in await a.list_submissions()] == [sent.id]
    assert await continuations(host) == ["completed"]
