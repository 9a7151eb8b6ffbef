"""Clean exits: they are no interruptions, and nothing that was asked is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from chat_rows import check_all_ended, check_tree, stored
from conversation import answering, inbox
from interruptions import (
    ADDRESS,
    Told,
    asked,
    check_requests,
    incidents,
    talker,
    transcript,
    wait_for,
)

from outlast import ToolCall, tool
from outlast.chat.recovery import upgrade as leaving
from outlast.chat.types.events import UpgradeRequested
from outlast.host.events import AgentEvicted
from outlast.testing import ScriptedModel, Step
from support import World, listen

pytestmark = [pytest.mark.virtual_time, pytest.mark.invariant("H23")]


def upgrading(model: Any, version: list[int], hooks: list[str], **members: Any) -> type[Any]:
    """Version 1 wants to be replaced before each turn; later ones do not."""

    async def before_turn(self: Any, context: Any) -> None:
        if version[0] == 1:
            assert await self.request_upgrade() is True

    def told(name: str) -> Callable[[Any, Any], None]:
        return lambda self, about: hooks.append(name)

    members.setdefault("before_turn", before_turn)
    return talker(
        model,
        on_chat_recovery=told("on_chat_recovery"),
        on_recovery_boot=told("on_recovery_boot"),
        **members,
    )


async def test_before_a_turn_it_is_left_to_the_next_version(world: World) -> None:
    version, hooks, asked_for = [1], list[str](), list[str]()
    Talker = upgrading(model := answering("one", "two"), version, hooks)
    upgrade = lambda: asked_for.append("upgrade")  # noqa: E731
    host = await world.host(Talker, shutdown_timeout=5, on_upgrade=upgrade)
    seen = listen(host, UpgradeRequested)
    agent = host.get(Talker, "a")
    await agent.submit_messages("u1", submission_id="s1")
    await agent.submit_messages("u2", submission_id="s2")
    await asyncio.sleep(1)
    assert asked_for == ["upgrade"]
    assert len(seen) == 1
    assert await inbox(host, "id, state") == [("s1", "accepted"), ("s2", "accepted")]
    assert [message.text for message in await agent.get_messages()] == ["u1"]
    before = asyncio.get_running_loop().time()
    await world.stop()
    assert asyncio.get_running_loop().time() - before < 1, "it does not hold up the host"
    assert model.requests == []
    version[0] = 2
    host = await world.next_life(on_upgrade=upgrade)
    told = Told(host)
    await wait_for(host, Talker)
    assert await transcript(host) == [
        "user: u1",
        "assistant: one",
        "user: u2",
        "assistant: two",
    ]
    assert told.names == []
    assert await incidents(host) == []
    check_all_ended(found := await stored(host, ADDRESS))
    check_tree(found)
    await world.stop()
    assert hooks == []
    assert [asked(model, 0), asked(model, 1)] == [["u1"], ["u1", "u2"]]
    assert asked_for == ["upgrade"]


@pytest.mark.parametrize("door", ["regenerate", "continue"])
async def test_what_is_said_anew_or_gone_on_with_is_left_too(world: World, door: str) -> None:
    version, hooks = [2], list[str]()
    Talker = upgrading(answering("one", "two"), version, hooks)
    host = await world.host(Talker, on_upgrade=lambda: None)
    agent = host.get(Talker, "a")
    await agent.save_messages("u1")
    version[0] = 1
    call = agent.regenerate if door == "regenerate" else agent.continue_last_turn
    waiting = asyncio.ensure_future(call(idempotency_key="k"))
    await asyncio.sleep(1)
    assert not waiting.done()
    await world.stop()
    await asyncio.wait({waiting})
    assert waiting.exception() is not None, "whoever waited is told that it was not here"
    version[0] = 2
    host = await world.next_life()
    told = Told(host)
    await wait_for(host, Talker)
    said = "two" if door == "regenerate" else "onetwo"
    assert await transcript(host) == ["user: u1", f"assistant: {said}"]
    assert told.names == hooks == []
    check_tree(await stored(host, ADDRESS))


async def test_a_call_of_the_client_is_gone_on_with_by_the_next_version(world: World) -> None:
    version, hooks = [2], list[str]()
    model = ScriptedModel(Step.call("pick", {}, id="c1"), "picked")
    Talker = upgrading(model, version, hooks)
    pick = {"name": "pick", "inputSchema": {"type": "object", "properties": {}}}
    host = await world.host(Talker, on_upgrade=lambda: None)
    agent = host.get(Talker, "a")
    await agent.save_messages("u1", client_tools=[pick])
    version[0] = 1
    assert await agent.add_tool_output("c1", "red")
    await asyncio.sleep(1)
    assert len(model.requests) == 1
    await world.stop()
    version[0] = 2
    host = await world.next_life()
    await wait_for(host, Talker)
    assert await transcript(host) == ["user: u1", "assistant: picked"]
    check_requests(model)


async def test_later_in_a_turn_it_ends_first(world: World) -> None:
    asked_for: list[float] = []

    async def work(self: Any, call: ToolCall) -> str:
        assert await self.request_upgrade() is True
        await asyncio.sleep(3)
        assert asked_for == []
        return "done"

    Talker = talker(ScriptedModel(Step.call("work", {}, id="w"), "over"), work=tool()(work))
    loop = asyncio.get_running_loop()
    host = await world.host(Talker, on_upgrade=lambda: asked_for.append(loop.time()))
    assert (await host.get(Talker, "a").save_messages("u1")).status == "completed"
    assert len(asked_for) == 1
    assert await host.get(Talker, "a").request_upgrade() is True, "outside of a turn: at once"
    assert len(asked_for) == 2


async def test_where_nobody_can_replace_the_process_the_turn_goes_on(world: World) -> None:
    heard: list[bool] = []

    async def before_turn(self: Any, context: Any) -> None:
        heard.append(await self.request_upgrade())

    Talker = talker(answering("one"), before_turn=before_turn)
    host = await world.host(Talker)
    assert (await host.get(Talker, "a").save_messages("u1")).message.text == "one"
    await world.stop()
    assert heard == [False]


@pytest.mark.parametrize("trouble", ["nothing happens", "it raises"])
async def test_a_process_that_is_not_replaced_does_the_work_itself(
    world: World, trouble: str
) -> None:
    def upgrade() -> None:
        if trouble == "it raises":
            raise OSError("the supervisor is gone")

    Talker = upgrading(answering("one"), [1], [])
    host = await world.host(Talker, idle_timeout=1, on_upgrade=upgrade)
    before = asyncio.get_running_loop().time()
    await host.get(Talker, "a").submit_messages("u1", submission_id="s1")
    await host.until_settled()
    took = asyncio.get_running_loop().time() - before
    assert (took >= leaving.REPLACED_WITHIN) == (trouble == "nothing happens")
    assert await transcript(host) == ["user: u1", "assistant: one"]


async def test_what_was_put_back_can_be_cancelled_and_cleared(world: World) -> None:
    Talker = upgrading(model := answering("one"), [1], [])
    host = await world.host(Talker, on_upgrade=lambda: None)
    agent = host.get(Talker, "a")
    await agent.submit_messages("u1", submission_id="s1")
    await asyncio.sleep(1)
    assert await agent.cancel_chat("s1")
    host = await world.next_life()
    await wait_for(host, Talker)
    assert (await host.get(Talker, "a").inspect_submission("s1")).status == "aborted"
    await world.stop()
    assert model.requests == []


async def test_an_agent_that_ends_its_run_leaves_memory_at_once(world: World) -> None:
    starts: list[int] = []

    async def on_start(self: Any) -> None:
        starts.append(1)

    async def on_chat_response(self: Any, result: Any) -> None:
        if result.message.text == "one":
            await self.end_run()

    members: dict[str, Any] = {"on_start": on_start, "on_chat_response": on_chat_response}
    Talker = talker(answering("one", "two", "three"), **members)
    host = await world.host(Talker, idle_timeout=3600)
    evicted = listen(host, AgentEvicted)
    agent = host.get(Talker, "a")
    await agent.save_messages("u1")
    await asyncio.sleep(0.1)
    assert (len(evicted), len(starts)) == (1, 1)
    await agent.save_messages("u2")
    await agent.save_messages("u3")
    await asyncio.sleep(0.1)
    assert (len(evicted), len(starts)) == (1, 2), "the next message has woken it, and it stays"
    said = [message.text for message in await agent.get_messages()]
    assert said == ["u1", "one", "u2", "two", "u3", "three"]
