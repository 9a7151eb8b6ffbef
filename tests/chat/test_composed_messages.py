"""`save_messages(function)`: the function is called when its turn begins, and sees every answer before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    doing,
    failing,
    inbox,
    leftovers,
    reasons,
    said,
    talker,
    until,
    until_running,
)

from outlast import InsideTurn
from outlast.agent.agent import parts_of
from outlast.chat.run.runner import LOST_FUNCTION, Runner
from outlast.core.errors import HostStopped
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time

SLOW = Step.text("one two three", delay=1)


async def test_it_sees_the_answer_that_was_running_when_it_was_asked(world: World) -> None:
    Talker = talker(answering(SLOW, "Second."))
    seen: list[list[str]] = []

    def after(messages: list[Any]) -> str:
        seen.append(said(messages))
        return f"After {messages[-1].text!r}"

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    async with asyncio.TaskGroup() as side:
        side.create_task(a.save_messages("u1"))
        await until_running(host, Talker)
        second = side.create_task(a.save_messages(after))
    assert second.result().status == "completed"
    assert seen == [["user: u1", "assistant: one two three"]]
    assert said(await a.get_messages()) == [
        "user: u1",
        "assistant: one two three",
        "user: After 'one two three'",
        "assistant: Second.",
    ]
    await host.until_settled()
    assert leftovers(agent_of(host, Talker)) == {}
    assert parts_of(agent_of(host, Talker))[Runner].composing == {}


@pytest.mark.parametrize("door", ["save", "chat", "stream"])
async def test_every_way_to_ask_takes_an_async_function(world: World, door: str) -> None:
    Talker = talker(ScriptedModel("Hi."))

    async def compose(messages: list[Any]) -> list[str]:
        await asyncio.sleep(5)
        return ["one", "two"]

    class Silent:
        def on_event(self, chunk: str) -> None: ...

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    if door == "save":
        await a.save_messages(compose)
    elif door == "chat":
        await a.chat(compose, Silent())
    else:
        assert [chunk async for chunk in a.stream(compose)]
    assert said(await a.get_messages()) == ["user: one", "user: two", "assistant: Hi."]


@pytest.mark.parametrize("wrong", ["raises", "makes no sense"])
async def test_a_function_that_fails_is_an_error_of_its_turn_alone(
    world: World, wrong: str
) -> None:
    Talker = talker(ScriptedModel("Hi."))

    def compose(messages: list[Any]) -> Any:
        if wrong == "raises":
            raise LookupError("no such customer")
        return 7

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = await a.save_messages(compose)
    assert turn.status == "error"
    if wrong == "raises":
        assert "no such customer" in (await reasons(host))[0]
    assert (await a.save_messages("u1")).status == "completed"
    assert said(await a.get_messages()) == ["user: u1", "assistant: Hi."]


async def test_a_stream_says_that_its_function_failed(world: World) -> None:
    Talker = talker(ScriptedModel("Hi."))

    def compose(messages: list[Any]) -> Any:
        raise LookupError("no such customer")

    host = await world.host(Talker)
    chunks = await failing(host.get(Talker, "a").stream(compose))
    assert [chunk["type"] for chunk in chunks] == ["error"]
    assert "no such customer" not in str(chunks)


async def test_one_that_died_with_its_process_ends_with_an_error_that_says_so(
    world: World,
) -> None:
    Talker = talker(ScriptedModel(SLOW, repeat=True))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1"))
    await until_running(host, Talker)
    second = asyncio.create_task(a.save_messages(lambda messages: "never", idempotency_key="k"))
    await until(lambda: doing(host, Talker).waiting)
    host_is_over = asyncio.gather(first, second, return_exceptions=True)
    await world.stop()
    assert {type(each) for each in await host_is_over} == {HostStopped}
    host = await world.next_life()
    a = host.get(Talker, "a")
    turn = await a.save_messages(lambda messages: "other", idempotency_key="k")
    assert (turn.status, turn.error, turn.accepted) == ("error", LOST_FUNCTION, False)
    assert await inbox(host, "state, outcome, error") == [
        ("ended", "interrupted", (await inbox(host, "error"))[0][0]),
        ("ended", "error", LOST_FUNCTION),
    ]
    assert [m.text for m in await a.get_messages() if m.role == "user"] == ["u1"]


async def test_the_function_of_a_call_that_joins_another_is_not_called(world: World) -> None:
    Talker = talker(ScriptedModel("Hi."))
    called: list[str] = []

    def compose(name: str) -> Any:
        return lambda messages: called.append(name) or name

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turns = await asyncio.gather(
        a.save_messages(compose("first"), idempotency_key="k"),
        a.save_messages(compose("second"), idempotency_key="k"),
    )
    assert len(called) == 1, "whichever was accepted"
    assert len({turn.request_id for turn in turns}) == 1
    assert parts_of(agent_of(host, Talker))[Runner].composing == {}


async def test_it_cannot_wait_for_another_turn_of_its_agent(world: World) -> None:
    Talker = talker(ScriptedModel("Hi."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")

    async def compose(messages: list[Any]) -> str:
        with pytest.raises(InsideTurn, match="submit_messages"):
            await a.save_messages("inner")
        return "outer"

    turn = await a.save_messages(compose)
    assert turn.status == "completed"
    assert said(await a.get_messages()) == ["user: outer", "assistant: Hi."]


async def test_it_can_be_stopped_while_it_waits(world: World) -> None:
    Talker = talker(ScriptedModel(SLOW, "Hi."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1"))
    await until_running(host, Talker)
    second = asyncio.create_task(a.save_messages(lambda messages: "never"))
    waiting = await until(lambda: doing(host, Talker).waiting)
    assert await a.cancel_chat(waiting[0])
    assert (await second).status == "aborted"
    await first
    assert said(await a.get_messages()) == ["user: u1", "assistant: one two three"]
    assert parts_of(agent_of(host, Talker))[Runner].composing == {}


async def test_add_messages_calls_its_function_at_once(world: World) -> None:
    Talker = talker(ScriptedModel("Hi."))

    async def compose(messages: list[Any]) -> str:
        return f"there were {len(messages)}"

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.add_messages("u1")
    await a.add_messages(compose)
    assert said(await a.get_messages()) == ["user: u1", "user: there were 1"]
