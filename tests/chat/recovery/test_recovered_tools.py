"""Calls of tools when their turn is interrupted: what has happened is neither done again nor forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import check_all_ended, check_answers, stored
from conversation import answering, inbox, rows
from interruptions import (
    ADDRESS,
    Told,
    break_off,
    call_states,
    check_requests,
    check_stream,
    incidents,
    talker,
    transcript,
    wait_for,
)

from outlast import ChatRecovery, NotDone, ToolCall, tool
from outlast.testing import ScriptedModel, Step
from support import World, forever, hosting

pytestmark = pytest.mark.virtual_time

PICK = {"name": "pick", "inputSchema": {"type": "object", "properties": {}}}

done: list[str] = []  # the world outside


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    done.clear()


def worker(model: Any, effect: Any = "once", *, hangs: bool = True, **options: Any) -> type[Any]:
    """An agent with a tool that takes for ever the first time, and one that is done at once."""

    async def work(self: Any, call: ToolCall) -> str:
        done.append(call.id)
        if hangs and len(done) == 1:
            await forever()
        return "worked"

    async def note(self: Any, call: ToolCall) -> str:
        done.append(call.id)
        return "noted"

    members = {name: options.pop(name) for name in ("chat_recovery",) if name in options}
    return talker(model, work=tool(effect=effect, **options)(work), note=tool()(note), **members)


def called(*names: str) -> Step:
    return sum((Step.call(name, {}, id=f"{name}-1") for name in names), Step())


@pytest.mark.invariant("I8", "G14", "I2")
async def test_what_may_happen_once_is_not_done_again(store_url: str) -> None:
    Talker = worker(model := ScriptedModel(called("work"), "I do not know."))
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(18, "continue", "deploy")]
        answer = (await a.get_messages())[-1]
        assert call_states(answer) == {"work-1": "unknown"}
        assert answer.text == "I do not know."
        assert await rows(host, "calls", "state") == [("unknown",)]
        check_stream(await stored(host, ADDRESS), "s1", "I do not know.")
        assert await inbox(host) == [("ended", "completed")]
    assert done == ["work-1"]
    assert len(model.requests) == 2
    check_requests(model)


@pytest.mark.invariant("I8")
@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_what_may_happen_again_is_done_again(store_url: str, effect: str) -> None:
    Talker = worker(model := ScriptedModel(called("work"), "Done."), effect)
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(18, "continue", "deploy")]
        answer = (await a.get_messages())[-1]
        assert call_states(answer) == {"work-1": "output-available"}
        assert answer.text == "Done."
        found = await stored(host, ADDRESS)
        assert sum("tool-output-available" in chunk for chunk in found.streams["s1"]) == 1
    assert done == ["work-1", "work-1"]
    assert len(model.requests) == 2, "the model is not asked for the call again"
    check_requests(model)


@pytest.mark.parametrize("has_happened", [True, False])
async def test_a_tool_that_can_find_out_is_asked(store_url: str, has_happened: bool) -> None:
    def reconcile(call: ToolCall) -> Any:
        return "worked before" if has_happened else NotDone()

    Talker = worker(model := ScriptedModel(called("work"), "Done."), reconcile=reconcile)
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        a = await wait_for(host, Talker)
        state = call_states((await a.get_messages())[-1])["work-1"]
        assert state == ("output-available" if has_happened else "output-error")
    assert done == ["work-1"]
    check_requests(model)


@pytest.mark.invariant("I8", "H18")
async def test_what_has_its_result_keeps_it_and_what_had_not_begun_is_begun(
    store_url: str,
) -> None:
    """The process ends between the call and its tool: what is stored is a call, and no beginning of it."""

    async def before_tool_call(self: Any, context: Any) -> None:
        if context.tool_call_id == "note-1" and not type(self).goes_on:
            await forever()

    Talker = worker(model := ScriptedModel(called("work", "note"), "Done."), hangs=False)
    Talker.before_tool_call, Talker.goes_on = before_tool_call, False
    await break_off(store_url, Talker, "u1", after=1)
    assert done == ["work-1"]
    Talker.goes_on = True
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(18, "continue", "deploy")]
        answer = (await a.get_messages())[-1]
        assert call_states(answer) == {"work-1": "output-available", "note-1": "output-available"}
        assert answer.text == "Done."
    assert done == ["work-1", "note-1"]
    assert len(model.requests) == 2
    check_requests(model)


@pytest.mark.invariant("I8", "H18", "H3")
async def test_no_step_of_a_long_run_is_done_twice(store_url: str) -> None:
    """A process that ends in the middle of each of them."""
    steps = [Step.text(f"{n} ") + Step.call("note", {}, id=f"n{n}") for n in range(10)]
    slow = [Step.stalls(1) + step for step in steps]
    Talker = worker(model := ScriptedModel(*slow, "All done."), hangs=False)
    Talker.max_steps = 20
    await break_off(store_url, Talker, "u1", after=1.5)
    for life in range(2, 9):
        async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0):
            await asyncio.sleep(1.5)
    async with hosting(Talker, url=store_url, life="99") as host:
        await wait_for(host, Talker)
        found = await stored(host, ADDRESS)
        check_all_ended(found)
        check_answers(found)
        assert found.path[-1].text == "".join(f"{n} " for n in range(10)) + "All done."
        check_stream(found, "s1", found.path[-1].text)
    assert done == [f"n{n}" for n in range(10)]
    check_requests(model)


async def test_steps_of_all_attempts_count_towards_the_limit(store_url: str) -> None:
    steps = [Step.stalls(1) + Step.call("note", {}, id=f"n{n}") for n in range(9)]
    Talker = worker(ScriptedModel(*steps), hangs=False)
    Talker.max_steps = 4
    await break_off(store_url, Talker, "u1", after=2.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await inbox(host) == [("ended", "completed")]
    assert done == ["n0", "n1", "n2", "n3"]


# --- humans --------------------------------------------------------------------------------------


def asking_one(model: Any, **members: Any) -> type[Any]:
    """An agent with a tool that needs to be allowed, and another that keeps its turn from ending."""

    async def send(self: Any, call: ToolCall) -> str:
        done.append(call.id)
        return "sent"

    async def slow(self: Any, call: ToolCall) -> str:
        done.append(call.id)
        if len(done) == 1:
            await forever()
        return "at last"

    return talker(
        model,
        send=tool(needs_approval=True)(send),
        slow=tool(effect="read")(slow),
        **members,
    )


@pytest.mark.invariant("G13", "J18")
@pytest.mark.parametrize("kind", ["approval", "client"])
async def test_what_waits_for_a_human_goes_on_waiting(store_url: str, kind: str) -> None:
    """And its turn ends, as it does without an interruption."""
    name = "send" if kind == "approval" else "pick"
    config = ChatRecovery(max_attempts=1, no_progress_timeout=1, max_age=1.0)
    Talker = asking_one(model := ScriptedModel(called("slow", name), "Done."), chat_recovery=config)
    tools = [PICK] if kind == "client" else None
    await break_off(store_url, Talker, "u1", after=3600, client_tools=tools)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(10, "park", "deploy")]
        assert "chat:recovery:scheduled" not in told.names
        assert (await a.inspect_submission("s1")).status == "completed"
        waiting = "approval-requested" if kind == "approval" else "input-available"
        states = call_states((await a.get_messages())[-1])
        assert states == {"slow-1": "output-available", f"{name}-1": waiting}
        assert await a.has_pending_interaction()
        assert await incidents(host) == [], "nothing was counted, and nothing is left"
    assert len(model.requests) == 1
    assert done == ["slow-1", "slow-1"]
    async with hosting(Talker, url=store_url, life="3") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.names == []
        assert (await a.inspect_submission("s1")).status == "completed"
        if kind == "approval":
            assert await a.add_tool_approval("send-1", True)
        else:
            assert await a.add_tool_output("pick-1", "red")
        await host.until_settled()
        answer = (await a.get_messages())[-1]
        assert answer.text == "Done."
        assert call_states(answer)[f"{name}-1"] == "output-available"
    assert done == ["slow-1", "slow-1"] + (["send-1"] if kind == "approval" else [])
    assert len(model.requests) == 2
    check_requests(model)


@pytest.mark.invariant("F4", "F3")
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("after", [0.5, 2.5])
async def test_what_a_human_has_said_is_not_taken_back(
    world: World, approved: bool, after: float
) -> None:
    """The turn that goes on with it is interrupted."""
    slow = Step.text("one two three four", delay=1)
    Talker = asking_one(model := answering(called("send", "pick"), slow, Step.text("the rest")))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[PICK])
    await a.add_tool_approval("send-1", approved)
    await a.add_tool_output("pick-1", "red")
    await asyncio.sleep(after)
    host = await world.next_life()
    a = await wait_for(host, Talker)
    answer = (await a.get_messages())[-1]
    sent = "output-available" if approved else "output-denied"
    assert call_states(answer) == {"send-1": sent, "pick-1": "output-available"}
    assert answer.text == ("one two the rest" if after > 1 else "the rest")
    assert not await a.has_pending_interaction()
    await world.stop()
    assert done == (["send-1"] if approved else [])
    assert len(model.requests) == 3
    check_requests(model)


@pytest.mark.invariant("G13")
async def test_what_waited_behind_a_question_waits_on(store_url: str) -> None:
    Talker = asking_one(model := answering(called("slow", "send"), "Done.", "Second."))
    await break_off(store_url, Talker, "u1", "u2", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(11, "park", "deploy")]
        assert (await a.inspect_submission("s1.1")).status == "pending"
        await a.add_tool_approval("send-1", False)
        await host.until_settled()
        assert await transcript(host) == [
            "user: u1",
            "assistant: Done.",
            "user: u2",
            "assistant: Second.",
        ]
    assert "send-1" not in done
    check_requests(model)


async def test_a_user_who_has_moved_on_without_answering_is_not_asked_again(
    store_url: str,
) -> None:
    async def on_start(self: Any) -> None:
        if type(self).says_more:
            await self.submit_messages("u2", submission_id="s2")

    Talker = asking_one(model := answering(called("slow", "send"), "Second."), on_start=on_start)
    Talker.says_more = False
    await break_off(store_url, Talker, "u1", after=1)
    Talker.says_more = True
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(12, "splice", "deploy")]
        assert not await a.has_pending_interaction()
        assert await inbox(host, "outcome") == [("skipped",), ("completed",)]
        messages = await a.get_messages()
        assert [message.text for message in messages][-2:] == ["u2", "Second."]
        assert "approval-requested" not in call_states(messages[1]).values()
    assert done == ["slow-1"]
    check_requests(model)


@pytest.mark.invariant("H24")
async def test_what_waits_for_a_human_and_is_cancelled_waits_no_more(world: World) -> None:
    Talker = asking_one(model := ScriptedModel(called("slow", "send"), "Done."))
    host = await world.host(Talker, shutdown_timeout=0)
    from conversation import agent_of, meddle

    await host.get(Talker, "a").submit_messages("u1", submission_id="s1")
    await asyncio.sleep(1)
    agent = agent_of(host, Talker)
    await meddle(agent, "UPDATE inbox SET cancelled = 'no' WHERE agent = ?", ADDRESS)
    host = await world.next_life()
    told = Told(host)
    a = await wait_for(host, Talker)
    assert told.decided == [(6, "abort", "deploy")]
    assert not await a.has_pending_interaction()
    assert not await a.add_tool_approval("send-1", True)
    states = call_states((await a.get_messages())[-1])
    assert states["send-1"] in ("output-error", "output-denied")
    await world.stop()
    assert done == ["slow-1"]
    assert len(model.requests) == 1
