"""What the hooks of recovery are told, and what they may change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import check_all_ended, check_tree, stored
from conversation import answering, inbox, rows
from interruptions import (
    ADDRESS,
    SLOW,
    Told,
    break_off,
    check_requests,
    chunks_of,
    chunks_read,
    incidents,
    is_continued,
    kinds,
    talker,
    transcript,
    wait_for,
)

from outlast import (
    ChatRecoveryContext,
    ChatRecoveryOptions,
    RecoveryBootEvent,
    RecoveryBootResult,
    ToolCall,
    tool,
)
from outlast.testing import ScriptedModel, Step
from support import World, forever, hosting

pytestmark = pytest.mark.virtual_time

ONE = "assistant: one two three four"
PICK = {"name": "pick", "inputSchema": {"type": "object", "properties": {}}}


# --- on_chat_recovery ----------------------------------------------------------------------------


@pytest.mark.invariant("H11")
async def test_the_hook_is_told_what_there_is_to_know(store_url: str) -> None:
    heard: list[ChatRecoveryContext] = []
    bodies: list[Any] = []

    async def on_chat_recovery(self: Any, context: ChatRecoveryContext) -> None:
        heard.append(context)

    async def before_turn(self: Any, context: Any) -> None:
        bodies.append((dict(context.body), sorted(context.tools)))
        await self.stash({"step": len(bodies)})

    Talker = talker(
        model := ScriptedModel(SLOW), on_chat_recovery=on_chat_recovery, before_turn=before_turn
    )
    options = {"body": {"user": "ann"}, "client_tools": [PICK]}
    await break_off(store_url, Talker, "u1", after=2.5, **options)
    async with hosting(Talker, url=store_url, life="2") as host:
        await asyncio.sleep(60)
        await wait_for(host, Talker)
    [context] = heard
    assert (context.incident_id, context.request_id, context.stream_id) == ("s1", "s1", "s1")
    assert (context.attempt, context.max_attempts, context.cause) == (1, 10, "deploy")
    assert (context.recovery_kind, context.partial_text) == ("continue", "one two ")
    assert [part["type"] for part in context.partial_parts] == ["step-start", "text"]
    assert context.recovery_data == {"step": 1}
    assert [message.text for message in context.messages] == ["u1"]
    assert context.last_body == {"user": "ann"}
    assert [each["name"] for each in context.last_client_tools] == ["pick"]
    assert 2 <= context.age.total_seconds() < 5
    assert bodies == [({"user": "ann"}, ["pick"])] * 2
    assert [request.tools for request in model.requests] == [["pick"]] * 2


async def test_the_hook_of_a_turn_that_had_said_nothing(store_url: str) -> None:
    heard: list[ChatRecoveryContext] = []
    Talker = talker(
        ScriptedModel(SLOW), on_chat_recovery=lambda self, context: heard.append(context)
    )
    await break_off(store_url, Talker, "u1", after=0.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
    [context] = heard
    assert (context.recovery_kind, context.partial_text) == ("retry", "")
    assert list(context.partial_parts) == [] or context.stream_id == "s1"
    assert context.recovery_data is None


@pytest.mark.invariant("H7", "L4")
@pytest.mark.parametrize("after", [0.5, 2.5])
async def test_a_turn_that_is_not_to_go_on_says_so(store_url: str, after: float) -> None:
    Talker = talker(
        model := ScriptedModel(SLOW),
        on_chat_recovery=lambda self, context: ChatRecoveryOptions(continue_=False),
    )
    await break_off(store_url, Talker, "u1", after=after)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(30, "stop", "deploy")]
        partial = ["assistant: one two "] if after > 1 else []
        assert await transcript(host) == ["user: u1", *partial]
        assert await inbox(host) == [("ended", "interrupted")]
        last = (await chunks_read(a, "s1"))[-1][1]
        assert (last["type"], last["errorText"]) == ("error", "The answer was interrupted.")
        assert (await a.inspect_submission("s1")).status == "interrupted"
        assert await incidents(host) == []
        check_tree(await stored(host, ADDRESS))
    assert len(model.requests) == 1


@pytest.mark.invariant("H8", "E24")
async def test_what_was_said_can_be_thrown_away(store_url: str) -> None:
    Talker = talker(
        model := answering(SLOW, "Something else."),
        on_chat_recovery=lambda self, context: ChatRecoveryOptions(persist=False),
    )
    await break_off(store_url, Talker, "u1", after=2.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(30, "restart", "deploy")]
        assert await transcript(host) == ["user: u1", "assistant: Something else."]
        found = await stored(host, ADDRESS)
        said = kinds(found, "s1")
        assert said.count("start") == 2, "for readers, the message begins anew"
        assert said[said.index("start", 1) - 1] == "reset-step", "and what they have seen goes"
        assert kinds(found, "s1").count("finish") == 1
        starts = [chunk for chunk in chunks_of(found, "s1") if chunk["type"] == "start"]
        assert {chunk["messageId"] for chunk in starts} == {found.path[-1].id}
    assert not is_continued(model)
    check_requests(model)


@pytest.mark.invariant("H8")
async def test_what_tools_have_done_is_not_thrown_away(store_url: str) -> None:
    done: list[str] = []

    async def note(self: Any, call: ToolCall) -> str:
        done.append(call.id)
        return "noted"

    Talker = talker(
        model := ScriptedModel(Step.call("note", {}, id="n1"), SLOW),
        note=tool()(note),
        on_chat_recovery=lambda self, context: ChatRecoveryOptions(persist=False),
    )
    await break_off(store_url, Talker, "u1", after=2.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(17, "continue", "deploy")]
        assert await transcript(host) == ["user: u1", ONE]
    assert done == ["n1"]
    assert len(model.requests) == 3


def raising(self: Any, about: Any) -> Any:
    raise RuntimeError("no idea")


@pytest.mark.invariant("H10")
@pytest.mark.parametrize("hook", ["on_chat_recovery", "on_recovery_boot"])
@pytest.mark.parametrize(
    "wrong",
    [
        raising,
        lambda self, about: "no idea",
        lambda self, about: RecoveryBootResult(chain=[{"role": "nobody"}]),
        lambda self, about: RecoveryBootResult(recovered_turns=[7]),
    ],
)
async def test_a_hook_that_fails_is_as_good_as_none(store_url: str, hook: str, wrong: Any) -> None:
    Talker = talker(model := ScriptedModel(SLOW), **{hook: wrong})
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(17, "continue", "deploy")]
        [failed] = told("chat:recovery:failed")
        assert hook in failed.reason
        assert "raised:" in failed.reason
        assert await transcript(host) == ["user: u1", ONE]
        assert await incidents(host) == []
    assert len(model.requests) == 2


@pytest.mark.parametrize("hook", ["on_chat_recovery", "on_recovery_boot"])
async def test_a_hook_that_is_interrupted_is_asked_again(store_url: str, hook: str) -> None:
    heard: list[Any] = []

    async def slow(self: Any, about: Any) -> None:
        heard.append(about)
        if len(heard) == 1:
            await forever()

    Talker = talker(model := ScriptedModel(SLOW), **{hook: slow})
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2", shutdown_timeout=0):
        await asyncio.sleep(1)
    async with hosting(Talker, url=store_url, life="3") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert [row for row, _, _ in told.decided] == [17]
        assert await transcript(host) == ["user: u1", ONE]
        assert await rows(host, "boots") == []
    assert len(heard) == 2
    assert len(model.requests) == 2


# --- on_recovery_boot ----------------------------------------------------------------------------


async def test_the_hook_of_a_boot_is_told_what_was_going_on(world: World) -> None:
    heard: list[RecoveryBootEvent] = []

    async def work(self: Any) -> str:
        await forever()
        return ""

    def on_recovery_boot(self: Any, event: RecoveryBootEvent) -> None:
        heard.append(event)
        event.writer.data("notice", {"text": "back again"})
        event.writer.data("hint", 1, transient=True)

    model = answering("First.", Step.text("Well. ") + Step.call("work", {}, id="w1"), "Done.", "3.")
    Talker = talker(model, work=tool()(work), on_recovery_boot=on_recovery_boot)
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    await a.submit_messages("u2", submission_id="s1")
    await a.submit_messages("u3", submission_id="s2")
    await asyncio.sleep(1)
    host = await world.next_life()
    await wait_for(host, Talker)
    found = await stored(host, ADDRESS)
    assert await transcript(host) == [
        "user: u1",
        "assistant: First.",
        "user: u2",
        "assistant: Well. Done.",
        "user: u3",
        "assistant: 3.",
    ]
    kept = [part for part in found.path[3].message["parts"] if part["type"].startswith("data")]
    assert [(part["type"], part["data"]) for part in kept] == [
        ("data-notice", {"text": "back again"})
    ]
    assert {"data-notice", "data-hint"} < set(kinds(found, "s1"))
    await world.stop()
    [event] = heard
    assert (event.agent, event.request_id, event.cause) == (ADDRESS, "s1", "deploy")
    assert event.previous_run_id == "s1:1"
    assert [message.text for message in event.settled_messages] == ["u1", "First."]
    assert [message.text for message in event.in_flight_users] == ["u2", "u3"]
    assert event.partial_assistant.text == "Well. "
    [pending] = event.pending_tool_calls
    assert (pending.tool_call_id, pending.tool_name, pending.state) == ("w1", "work", "begun")
    assert event.partial_assistant.parts[pending.part_index]["toolCallId"] == "w1"
    check_requests(model)


@pytest.mark.invariant("H21")
async def test_what_is_to_be_done_first_is_done_first(store_url: str) -> None:
    order: list[str] = []

    async def before_boot() -> None:
        await asyncio.sleep(5)
        order.append("ready")

    Talker = talker(
        model := ScriptedModel(SLOW),
        on_recovery_boot=lambda self, event: RecoveryBootResult(before_boot=before_boot),
        before_turn=lambda self, context: order.append("turn"),
    )
    await break_off(store_url, Talker, "u1", "u2")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", ONE, "user: u2", ONE]
    assert order == ["turn", "ready", "turn", "turn"]
    assert len(model.requests) == 3


@pytest.mark.invariant("H21")
async def test_if_that_fails_nothing_begins_and_it_is_tried_again(store_url: str) -> None:
    tries: list[float] = []

    def before_boot() -> None:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 4:
            raise RuntimeError("the sandbox is not there")

    Talker = talker(
        model := ScriptedModel(SLOW),
        on_recovery_boot=lambda self, event: RecoveryBootResult(before_boot=before_boot),
    )
    await break_off(store_url, Talker, "u1", "u2")
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await asyncio.sleep(2)
        assert len(tries) >= 1
        assert len(model.requests) == 1
        assert "the sandbox is not there" in told("chat:recovery:failed")[0].reason
        assert await rows(host, "boots") == [], "the agent itself is well"
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", ONE, "user: u2", ONE]
        assert await incidents(host) == []
    assert len(tries) == 4
    assert len(model.requests) == 3


@pytest.mark.invariant("H21")
@pytest.mark.invariant("H12")
async def test_if_that_never_works_it_is_given_up(store_url: str) -> None:
    def before_boot() -> None:
        raise RuntimeError("never")

    Talker = talker(
        model := ScriptedModel(SLOW),
        on_recovery_boot=lambda self, event: RecoveryBootResult(before_boot=before_boot),
    )
    await break_off(store_url, Talker, "u1", "u2")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await inbox(host, "outcome") == [("error",), ("completed",)]
        assert await transcript(host) == ["user: u1", "assistant: one two ", "user: u2", ONE]
    assert len(model.requests) == 2


@pytest.mark.invariant("H22")
async def test_what_waits_can_be_left_out(store_url: str) -> None:
    Talker = talker(
        model := ScriptedModel(SLOW),
        on_recovery_boot=lambda self, event: RecoveryBootResult(recovered_turns=[]),
    )
    await break_off(store_url, Talker, "u1", "u2", "u3")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", ONE]
        assert await inbox(host, "outcome") == [("completed",), ("skipped",), ("skipped",)]
        check_all_ended(await stored(host, ADDRESS))
    assert len(model.requests) == 2


@pytest.mark.invariant("H22")
async def test_what_waits_can_be_chosen_and_added_to(store_url: str) -> None:
    def on_recovery_boot(self: Any, event: RecoveryBootEvent) -> RecoveryBootResult:
        _, _, third = event.in_flight_users
        return RecoveryBootResult(recovered_turns=[third, "u4"])

    Talker = talker(model := ScriptedModel(SLOW), on_recovery_boot=on_recovery_boot)
    await break_off(store_url, Talker, "u1", "u2", "u3")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", ONE, "user: u3", ONE, "user: u4", ONE]
    check_requests(model)
