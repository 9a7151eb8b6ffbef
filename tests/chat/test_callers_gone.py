"""Whoever calls may be cancelled at any time: what it has begun is done whole, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from conversation import agent_of, answering, inbox, talker, until, until_running
from interacting import CLIENT, calls
from pydantic_ai.toolsets import FunctionToolset

from outlast import HostStopped
from outlast.agent.agent import parts_of
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time


async def cut_off(agent: Any, work: Callable[[], Any]) -> None:
    """Cancel a call when its commit is under way, as the handler of a socket that closes is."""
    before = parts_of(agent).activation.last_write
    task = asyncio.create_task(work())
    for _ in range(100_000):
        await asyncio.sleep(0)  # time stands still
        if parts_of(agent).activation.last_write is not before:
            break
    assert task.cancel(), "it was done before its commit was"
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("what", ["add", "update", "select", "clear", "reset", "cancel"])
async def test_what_is_in_memory_is_what_is_stored(world: World, what: str) -> None:
    Talker = talker(model := answering("one", "two", Step.text("a b c d", delay=1), "Next."))

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = (await a.save_messages("u1")).message
    second = (await a.regenerate()).message
    sent = await a.submit_messages("u2")
    await until_running(host, Talker)
    await asyncio.sleep(1.5)
    if what in ("add", "update", "select"):
        await host.until_settled()
    doing: dict[str, Callable[[], Any]] = {
        "add": lambda: a.add_messages("u3"),
        "update": lambda: a.update_message({**second.raw, "metadata": {"seen": 1}}),
        "select": lambda: a.select_branch(first.id),
        "clear": a.clear_messages,
        "reset": a.reset_turns,
        "cancel": lambda: a.cancel_chat(sent.id),
    }
    await cut_off(agent_of(host, Talker), doing[what])
    begun = asyncio.get_running_loop().time()
    await host.until_settled()
    assert asyncio.get_running_loop().time() - begun < 1, "the turn has not been stopped"
    shown = [message.raw for message in await a.get_messages()]
    outcomes = await inbox(host)
    assert outcomes[-1][1] == ("completed" if what in ("add", "update", "select") else "aborted")
    host = await world.next_life()
    a = host.get(Talker, "a")
    assert [message.raw for message in await a.get_messages()] == shown
    assert await inbox(host) == outcomes
    assert (await a.save_messages("u4")).message.text == "Next."
    await world.stop()
    assert len(model.requests) == 4


async def test_an_answer_that_is_not_stored_yet_when_the_host_stops_is_an_error(
    world: World,
) -> None:
    """And not a cancellation, which would be taken for one of the caller's own."""

    class Slow(FunctionToolset[Any]):
        async def __aexit__(self, *_: Any) -> None:
            await asyncio.sleep(100)

    toolset = Slow()
    Talker = talker(ScriptedModel(calls("locate"), "Done."), get_tools=lambda _: toolset)
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    await a.submit_messages("u1", client_tools=CLIENT)
    turn = await until_running(host, Talker)
    await until(lambda: turn.stream.is_held)
    answer = asyncio.create_task(a.add_tool_output("locate", 1))
    await asyncio.sleep(1)
    await world.stop()
    with pytest.raises(HostStopped):
        await answer
