"""Turns that were interrupted are taken up: they go on where they stopped, once, under the same names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import check_all_ended, check_answers, check_tree, stored
from conversation import agent_of, answering, inbox, meddle, rows
from interruptions import (
    ADDRESS,
    SLOW,
    Callback,
    Told,
    asked,
    break_off,
    call_states,
    check_requests,
    check_stream,
    chunks_of,
    chunks_read,
    incidents,
    is_continued,
    kinds,
    talker,
    transcript,
    wait_for,
)
from pydantic import BaseModel

from outlast import ChatRecoveryOptions, TurnConfig
from outlast.agent.agent import parts_of
from outlast.chat.turn.state import TurnState
from outlast.testing import ScriptedModel, Step
from support import World, forever, hosting

pytestmark = pytest.mark.virtual_time


class Place(BaseModel):
    city: str


@pytest.mark.invariant("F2", "H1", "H3", "H4", "L4", "G17")
@pytest.mark.parametrize("after", [1.5, 2.5, 3.5])
async def test_an_answer_goes_on_where_it_stopped(store_url: str, after: float) -> None:
    Talker = talker(model := ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", after=after)
    async with hosting(Talker, url=store_url, life="2") as host:
        before = await stored(host, ADDRESS)
        told = Told(host)
        a = host.get(Talker, "a")
        readers = [asyncio.create_task(chunks_read(a, "s1")) for _ in range(5)]
        await wait_for(host, Talker)
        assert told.decided == [(17, "continue", "deploy")]
        found = await stored(host, ADDRESS)
        assert await transcript(host) == ["user: u1", "assistant: one two three four"]
        check_stream(found, "s1", "one two three four")
        check_all_ended(found)
        check_answers(found)
        check_tree(found)
        assert found.streams["s1"][: len(before.streams["s1"])] == before.streams["s1"]
        assert kinds(found, "s1").count("text-start") == 1, "the same part"
        assert kinds(found, "s1").count("start") == 1
        assert found.path[-1].id == chunks_of(found, "s1")[0]["messageId"]
        assert [part["type"] for part in found.path[-1].message["parts"]] == ["step-start", "text"]
        assert found.path[-1].status == "settled"
        whole = list(enumerate(chunks_of(found, "s1")))
        assert [await reader for reader in readers] == [whole] * 5
        assert await chunks_read(a, "s1", after=3) == whole[3:]
        assert found.entry("s1").attempt == 2
        assert await inbox(host) == [("ended", "completed")]
        assert await incidents(host) == []
        assert await rows(host, "boots") == []
    assert len(model.requests) == 2
    assert is_continued(model)
    check_requests(model)
    assert asked(model) == ["u1"]


@pytest.mark.invariant("H19", "F6")
async def test_what_has_ended_is_left_alone(store_url: str) -> None:
    Talker = talker(model := ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", after=10)
    for life in range(2, 6):
        async with hosting(Talker, url=store_url, life=str(life)) as host:
            told = Told(host)
            await wait_for(host, Talker)
            assert told.names == []
            assert await transcript(host) == ["user: u1", "assistant: one two three four"]
    assert len(model.requests) == 1


@pytest.mark.invariant("G1", "H18")
async def test_an_answer_survives_an_interruption_after_every_word(store_url: str) -> None:
    words = [f"w{number} " for number in range(15)]
    Talker = talker(model := ScriptedModel(Step.text(chunks=words, delay=1)))
    await break_off(store_url, Talker, "u1", after=1.5)
    for life in range(2, 15):
        async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0) as host:
            await asyncio.sleep(1.5)
            assert await incidents(host) == [("s1", "open")]
    async with hosting(Talker, url=store_url, life="99") as host:
        await wait_for(host, Talker)
        found = await stored(host, ADDRESS)
        check_stream(found, "s1", "".join(words))
        check_answers(found)
        assert await transcript(host) == ["user: u1", "assistant: " + "".join(words)]
        assert await incidents(host) == []
    assert len(model.requests) == 15
    check_requests(model)


@pytest.mark.invariant("F7", "H2", "L5")
@pytest.mark.parametrize("lives", [1, 3])
async def test_what_had_said_nothing_is_tried_again(store_url: str, lives: int) -> None:
    """Also where the stream had begun: there is nothing in it that anybody could go on with."""
    Talker = talker(model := ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", after=0.5)
    for life in range(1, lives):
        async with hosting(Talker, url=store_url, life=f"1{life}", shutdown_timeout=0):
            await asyncio.sleep(0.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(14, "retry", "deploy")]
        assert await transcript(host) == ["user: u1", "assistant: one two three four"]
        check_stream(await stored(host, ADDRESS), "s1", "one two three four")
        assert len(await rows(host, "messages")) == 2
        assert await inbox(host) == [("ended", "completed")]
    assert len(model.requests) == 1 + lives
    assert not is_continued(model)
    assert [asked(model, place) for place in range(1 + lives)] == [["u1"]] * (1 + lives)


@pytest.mark.invariant("F2")
async def test_the_answer_before_is_not_touched(world: World) -> None:
    Talker = talker(model := answering("First.", SLOW, Step.text("three four")))
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").save_messages("u1")
    [_, first] = (await stored(host, ADDRESS)).path
    await host.get(Talker, "a").submit_messages("u2", submission_id="s1")
    await asyncio.sleep(2.5)
    host = await world.next_life()
    await wait_for(host, Talker)
    found = await stored(host, ADDRESS)
    assert found.path[1] == first
    assert found.path[3].text == "one two three four"
    assert found.path[3].id != first.id
    await world.stop()
    check_requests(model)


@pytest.mark.invariant("F3")
async def test_a_continuation_goes_on_with_its_own_message(world: World) -> None:
    Talker = talker(model := answering("First.", "Second.", SLOW, Step.text("three four")))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    await a.save_messages("u2")
    before = await stored(host, ADDRESS)
    going = asyncio.create_task(a.continue_last_turn())
    await asyncio.sleep(2.5)
    await world.stop()
    with pytest.raises(Exception, match="stop"):
        await going
    host = await world.next_life()
    told = Told(host)
    await wait_for(host, Talker)
    assert told.decided == [(17, "continue", "deploy")]
    found = await stored(host, ADDRESS)
    assert [row.body for row in found.path[:3]] == [row.body for row in before.path[:3]]
    assert found.path[3].id == before.path[3].id
    assert found.path[3].text == "Second.one two three four"
    assert len(found.messages) == 4
    await world.stop()
    check_requests(model)


@pytest.mark.invariant("F3", "F7")
async def test_a_continuation_that_had_said_nothing_is_tried_again(world: World) -> None:
    Talker = talker(model := answering("First.", SLOW, " More."))
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").save_messages("u1")
    going = asyncio.create_task(host.get(Talker, "a").continue_last_turn())
    await asyncio.sleep(0.5)
    await world.stop()
    with pytest.raises(Exception, match="stop"):
        await going
    host = await world.next_life()
    told = Told(host)
    await wait_for(host, Talker)
    assert told.decided == [(14, "retry", "deploy")]
    assert await transcript(host) == ["user: u1", "assistant: First. More."]
    await world.stop()
    check_requests(model)


@pytest.mark.invariant("F11")
@pytest.mark.parametrize("after", [0.5, 2.5])
async def test_another_answer_in_place_of_one_goes_on_too(world: World, after: float) -> None:
    rest = "three four" if after > 2 else "one two three four"
    Talker = talker(model := answering("First.", SLOW, Step.text(rest)))
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").save_messages("u1")
    going = asyncio.create_task(host.get(Talker, "a").regenerate())
    await asyncio.sleep(after)
    await world.stop()
    with pytest.raises(Exception, match="stop"):
        await going
    host = await world.next_life()
    a = await wait_for(host, Talker)
    messages = await a.get_messages()
    assert [message.text for message in messages] == ["u1", "one two three four"]
    branches = await a.get_branches(messages[1].id)
    assert [message.text for message in branches] == ["First.", "one two three four"]
    assert "First." not in str(model.requests[-1].messages), "what it takes the place of"
    await world.stop()
    check_requests(model)


@pytest.mark.invariant("F5", "F6")
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_answer_that_was_complete_is_stored_without_a_request(
    world: World, is_cancelled: bool
) -> None:
    async def on_step_finish(self: Any, context: Any) -> None:
        await forever()

    Talker = talker(model := ScriptedModel("All of it."), on_step_finish=on_step_finish)
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").submit_messages("u1", submission_id="s1")
    await asyncio.sleep(1)
    assert kinds(await stored(host, ADDRESS), "s1")[-1] == "finish-step"
    if is_cancelled:
        agent = agent_of(host, Talker)
        await meddle(agent, "UPDATE inbox SET cancelled = 'enough' WHERE agent = ?", ADDRESS)
    host = await world.next_life()
    told = Told(host)
    await wait_for(host, Talker)
    [(row, action, _)] = told.decided
    assert (row, action) == ((4, "abort") if is_cancelled else (1, "finalise"))
    found = await stored(host, ADDRESS)
    assert await transcript(host) == ["user: u1", "assistant: All of it."]
    assert found.path[-1].status == ("stopped" if is_cancelled else "settled")
    check_stream(found, "s1", "All of it.")
    check_answers(found)
    assert await inbox(host) == [("ended", "aborted" if is_cancelled else "completed")]
    assert await incidents(host) == []
    await world.stop()
    assert len(model.requests) == 1


@pytest.mark.invariant("F8")
@pytest.mark.parametrize("goes_on", [True, False])
async def test_half_a_call_leaves_no_empty_bubble(store_url: str, goes_on: bool) -> None:
    def on_chat_recovery(self: Any, context: Any) -> Any:
        assert context.recovery_kind == "retry"
        return ChatRecoveryOptions(continue_=goes_on)

    half = Step.call("look", '{"at": "le') + Step.stalls()
    Talker = talker(model := answering(half, "Here."), on_chat_recovery=on_chat_recovery)
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        assert "tool-input-delta" in kinds(await stored(host, ADDRESS), "s1")
        await wait_for(host, Talker)
        answer = ["assistant: Here."] if goes_on else []
        assert await transcript(host) == ["user: u1", *answer]
        check_tree(await stored(host, ADDRESS))
    assert len(model.requests) == 1 + goes_on


@pytest.mark.invariant("F1", "F9")
async def test_a_damaged_row_of_the_stream_costs_only_itself(world: World) -> None:
    Talker = talker(model := answering(SLOW, Step.text(" and the rest")))
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").submit_messages("u1", submission_id="s1")
    await asyncio.sleep(3.5)
    stream = await rows(host, "streams", "seq, body", "seq")
    [seq] = [seq for seq, body in stream if '"two ' in body]
    damage = "UPDATE streams SET body = '{' WHERE agent = ? AND seq = ?"
    await meddle(agent_of(host, Talker), damage, ADDRESS, seq)
    host = await world.next_life()
    a = await wait_for(host, Talker)
    messages = await a.get_messages()
    assert [message.text for message in messages] == ["u1", "one three  and the rest"]
    await world.stop()
    check_requests(model)


@pytest.mark.invariant("H23", "L6")
async def test_what_had_not_begun_is_no_interruption(store_url: str) -> None:
    """It waits behind a call that the client has not answered, over any number of lives."""
    heard: list[Any] = []
    tools = [{"name": "pick", "inputSchema": {"type": "object", "properties": {}}}]
    Talker = talker(
        model := answering(Step.stalls(1) + Step.call("pick", {}, id="c1"), "Picked.", "Second."),
        on_chat_recovery=lambda self, context: heard.append(context),
    )
    async with hosting(Talker, url=store_url, shutdown_timeout=0) as host:
        a = host.get(Talker, "a")
        await a.submit_messages("u1", client_tools=tools)
        await a.submit_messages("u2", submission_id="s2")
        await asyncio.sleep(2)
    for life in range(2, 5):
        async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0) as host:
            told = Told(host)
            await asyncio.sleep(1)
            assert (await host.get(Talker, "a").inspect_submission("s2")).status == "pending"
            assert told.names == []
            assert await incidents(host) == []
    async with hosting(Talker, url=store_url, life="9") as host:
        await host.get(Talker, "a").add_tool_output("c1", "red")
        await wait_for(host, Talker)
        order = ["user: u1", "assistant: Picked.", "user: u2", "assistant: Second."]
        assert await transcript(host) == order
    assert heard == []
    assert len(model.requests) == 3


# --- what it was in the middle of ----------------------------------------------------------------


async def test_a_thought_that_broke_off_is_kept_and_not_sent(store_url: str) -> None:
    thinking = Step.reasoning("Hm hm hm", delay=1) + Step.text("Hello.")
    Talker = talker(model := answering(thinking, Step.reasoning("Ah.") + Step.text("Hello.")))
    await break_off(store_url, Talker, "u1", after=2.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(17, "continue", "deploy")]
        answer = (await a.get_messages())[-1]
        thoughts = [part for part in answer.parts if part["type"] == "reasoning"]
        assert [part["text"] for part in thoughts] == ["Hm hm ", "Ah."]
        assert thoughts[0]["providerMetadata"]["outlast"]["unfinished"] is True
        assert kinds(await stored(host, ADDRESS), "s1").count("reasoning-end") == 2
        assert answer.text == "Hello."
    assert "Hm hm" not in str(model.requests[-1].messages)
    check_requests(model)


@pytest.mark.invariant("F10")
async def test_half_an_answer_of_a_type_is_begun_anew(store_url: str) -> None:
    """Nobody can go on in the middle of an object."""

    def before_turn(self: Any, context: Any) -> TurnConfig:
        return TurnConfig(output=Place)

    whole = Step.text(chunks=['{"city"', ': "Rome', '"}'], delay=1)
    Talker = talker(model := answering(whole), before_turn=before_turn)
    await break_off(store_url, Talker, "u1", after=2.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        a = host.get(Talker, "a")
        await a.get_messages()
        end = await parts_of(agent_of(host, Talker))[TurnState].wait("s1")
        assert (end.status, end.output) == ("completed", Place(city="Rome"))
        answer = (await a.get_messages())[-1]
        assert answer.text == '{"city": "Rome"}'
        assert {part["type"] for part in answer.parts} == {"step-start", "text"}, (
            "and nothing of ours"
        )
        assert "reset-step" in kinds(await stored(host, ADDRESS), "s1")
    check_requests(model)


@pytest.mark.invariant("J15")
async def test_a_tool_of_a_caller_who_is_gone_is_not_waited_for(world: World) -> None:
    tools = [{"name": "pick", "inputSchema": {"type": "object", "properties": {}}}]
    Talker = talker(model := answering(Step.call("pick", {}, id="p1"), "Without it, then."))
    host = await world.host(Talker, shutdown_timeout=0)
    chat = host.get(Talker, "a").chat("u1", Callback(), client_tools=tools, executor=forever)
    calling = asyncio.create_task(chat)
    await asyncio.sleep(1)
    await world.stop()
    await asyncio.wait({calling})
    assert calling.exception() is None or "stop" in str(calling.exception())
    host = await world.next_life()
    a = await wait_for(host, Talker)
    assert not await a.has_pending_interaction()
    answer = (await a.get_messages())[-1]
    assert answer.text == "Without it, then."
    assert call_states(answer)["p1"] in ("unknown", "output-error")
    assert await inbox(host) == [("ended", "completed")]
    await world.stop()
    check_requests(model)


@pytest.mark.invariant("F8")
async def test_an_empty_answer_that_was_complete_leaves_no_bubble(store_url: str) -> None:
    async def on_step_finish(self: Any, context: Any) -> None:
        await forever()

    Talker = talker(model := ScriptedModel(Step()), on_step_finish=on_step_finish)
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert [row for row, _, _ in told.decided] == [1]
        assert await transcript(host) == ["user: u1"]
        assert await inbox(host) == [("ended", "completed")]
    assert len(model.requests) == 1
