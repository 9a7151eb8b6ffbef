"""An interrupted answer that goes on in a message of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import check_all_ended, check_tree, stored
from interruptions import (
    ADDRESS,
    SLOW,
    Told,
    asked,
    break_off,
    check_requests,
    chunks_of,
    incidents,
    is_continued,
    kinds,
    talker,
    transcript,
    wait_for,
)
from pydantic_ai.usage import UsageLimits

from outlast import ToolCall, tool
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = [pytest.mark.virtual_time, pytest.mark.invariant("H3", "H4")]


def parted(model: Any, **members: Any) -> type[Any]:
    return talker(model, continuation_style="new_message", **members)


async def test_what_was_said_is_a_message_and_the_rest_another(store_url: str) -> None:
    Talker = parted(model := ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", "u2")
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(19, "continue", "deploy")]
        first, rest = "assistant: one two ", "assistant: three four"
        assert (await transcript(host))[:3] == ["user: u1", first, rest]
        assert (await transcript(host))[3] == "user: u2"
        found = await stored(host, ADDRESS)
        check_tree(found)
        check_all_ended(found)
        starts = [each["messageId"] for each in chunks_of(found, "s1") if each["type"] == "start"]
        assert starts == [found.path[1].id, found.path[2].id]
        seen = kinds(found, "s1")
        assert (seen.count("text-start"), seen.count("text-end"), seen.count("finish")) == (2, 2, 1)
        assert seen.index("text-end") < seen.index("start", 1)
        assert await incidents(host) == []
    assert is_continued(model, 1)
    assert asked(model, 1) == ["u1"]
    check_requests(model)


async def test_three_times_makes_three_messages(store_url: str) -> None:
    Talker = parted(model := ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", after=1.5, killed=True)
    for life in ("2", "3"):
        async with hosting(Talker, url=store_url, life=life, shutdown_timeout=0):
            await asyncio.sleep(1.5)
    async with hosting(Talker, url=store_url, life="4") as host:
        await wait_for(host, Talker)
        said = [line.removeprefix("assistant: ") for line in (await transcript(host))[1:]]
        assert "".join(said) == "one two three four"
        assert len(said) == 4
        check_tree(await stored(host, ADDRESS))
    check_requests(model)


@pytest.mark.parametrize("most", [None, 2])
async def test_a_kill_before_the_next_message_begins_repeats_nothing(
    store_url: str, most: int | None
) -> None:
    is_held = False

    async def before_turn(self: Any, context: Any) -> None:
        if is_held:
            await asyncio.sleep(3600)

    limits = UsageLimits(request_limit=most)
    Talker = parted(model := ScriptedModel(SLOW), before_turn=before_turn, usage_limits=limits)
    await break_off(store_url, Talker, "u1", killed=True)
    is_held = True
    async with hosting(Talker, url=store_url, life="2", shutdown_timeout=0):
        await asyncio.sleep(1)
    is_held = False
    async with hosting(Talker, url=store_url, life="3") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == [
            "user: u1",
            "assistant: one two ",
            "assistant: three four",
        ]
        check_tree(await stored(host, ADDRESS))
    check_requests(model)


async def test_before_anything_was_said_there_is_one_message(store_url: str) -> None:
    Talker = parted(ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", after=0.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: one two three four"]


async def test_a_call_that_may_be_made_again_stays_in_its_message(store_url: str) -> None:
    made: list[str] = []

    async def look(self: Any, call: ToolCall) -> str:
        made.append(call.id)
        await asyncio.sleep(5)
        return "seen"

    Talker = parted(
        model := ScriptedModel(
            Step.text("Let me look. ") + Step.call("look", {}, id="l1"), "Done."
        ),
        look=tool(effect="read")(look),
    )
    await break_off(store_url, Talker, "u1", after=2)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: Let me look. Done."]
    assert made == ["l1", "l1"]
    check_requests(model)


async def test_what_a_tool_has_done_is_in_the_first_message(store_url: str) -> None:
    done: list[str] = []

    async def note(self: Any, call: ToolCall) -> str:
        done.append(call.id)
        return "noted"

    Talker = parted(
        model := ScriptedModel(Step.call("note", {}, id="n1"), SLOW),
        note=tool()(note),
        usage_limits=UsageLimits(request_limit=3),
    )
    await break_off(store_url, Talker, "u1", after=2.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        found = await stored(host, ADDRESS)
        first, second = found.path[1:]
        assert (first.text, second.text) == ("one two ", "three four")
        assert [part["state"] for part in first.message["parts"] if "toolCallId" in part] == [
            "output-available"
        ]
        check_tree(found)
    assert done == ["n1"]
    check_requests(model)


async def test_earlier_messages_count_for_the_limits(store_url: str) -> None:
    Talker = parted(ScriptedModel(SLOW), usage_limits=UsageLimits(request_limit=1))
    await break_off(store_url, Talker, "u1", killed=True)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: one two "]
        assert (await host.get(Talker, "a").inspect_submission("s1")).status == "error"


async def test_they_count_before_the_next_message_has_begun_too(store_url: str) -> None:
    is_held = False

    async def before_turn(self: Any, context: Any) -> None:
        if is_held:
            await asyncio.sleep(3600)

    limits = UsageLimits(request_limit=2)
    Talker = parted(model := ScriptedModel(SLOW), before_turn=before_turn, usage_limits=limits)
    await break_off(store_url, Talker, "u1", after=1.5, killed=True)
    async with hosting(Talker, url=store_url, life="2", shutdown_timeout=0):
        await asyncio.sleep(1.5)
    is_held = True
    async with hosting(Talker, url=store_url, life="3", shutdown_timeout=0):
        await asyncio.sleep(1)
    is_held = False
    async with hosting(Talker, url=store_url, life="4") as host:
        await wait_for(host, Talker)
        assert (await host.get(Talker, "a").inspect_submission("s1")).status == "error"
    assert len(model.requests) == 2


async def test_another_word_is_refused(sqlite_world: World) -> None:
    Talker = talker(ScriptedModel("x"), continuation_style="two messages")
    host = await sqlite_world.host(Talker)
    with pytest.raises(Exception, match="append.* or .new_message"):
        await host.get(Talker, "a").get_messages()
