"""`@rpc`: what the network may call, and how values cross it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outlast import Agent, AgentAborted, Host, RpcRefused, rpc
from outlast.agent.rpc import call_method, rpc_methods
from outlast.host.address import Address
from outlast.host.events import Rpc, RpcFailed
from support import World

pytestmark = pytest.mark.virtual_time


class Counter(Agent):
    closed = 0

    @rpc
    async def add(self, n: int, times: int = 1) -> int:
        total = (await self.storage.get("total") or 0) + n * times
        await self.storage.put("total", total)
        return total

    @rpc
    async def count(self, to: int) -> AsyncIterator[int]:
        try:
            for n in range(to):
                yield n
        finally:
            Counter.closed += 1

    @rpc
    async def strange(self) -> Any:
        return {"values": (1, 2)}

    @rpc
    async def fail(self) -> None:
        raise ZeroDivisionError("of the user's own")

    async def reset(self) -> None:
        await self.storage.delete("total")

    async def forever(self) -> AsyncIterator[int]:
        while True:
            yield 1
            await asyncio.sleep(1)


class Quiet(Counter):
    async def add(self, n: int, times: int = 1) -> int:
        return 0


async def ask(host: Host, name: str, arguments: str, kind: str = "Counter") -> list[str]:
    async with host.using(Address.of(kind, "a")) as agent:
        return [answer async for answer in call_method(agent, name, arguments)]


async def test_a_marked_method_is_called_with_json_and_answers_with_json(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Counter)
    assert await ask(host, "add", "[2]") == ["2"]
    assert await ask(host, "add", "[2, 3]") == ["8"]
    assert await ask(host, "count", "[3]") == ["0", "1", "2"]


@pytest.mark.parametrize(
    "name",
    ["reset", "destroy", "storage", "_start", "__init__", "__class__", "nothing", "", "name"],
)
async def test_nothing_else_can_be_called(sqlite_world: World, name: str) -> None:
    host = await sqlite_world.host(Counter)
    await ask(host, "add", "[1]")
    with pytest.raises(RpcRefused, match=r"Counter has no remote method .*marked with @rpc"):
        await ask(host, name, "[]")
    assert await ask(host, "add", "[0]") == ["1"]


async def test_an_override_must_be_marked_again(sqlite_world: World) -> None:
    assert sorted(rpc_methods(Counter)) == ["add", "count", "fail", "strange"]
    assert sorted(rpc_methods(Quiet)) == ["count", "fail", "strange"]
    host = await sqlite_world.host(Quiet)
    with pytest.raises(RpcRefused):
        await ask(host, "add", "[1]", "Quiet")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("[", "must be JSON"),
        ("{}", "a JSON array, got {}"),
        ("null", "a JSON array, got null"),
        ("[]", "missing a required argument: 'n'"),
        ("[1, 2, 3]", "too many positional arguments"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_and_nothing_is_called(
    sqlite_world: World, arguments: str, why: str
) -> None:
    host = await sqlite_world.host(Counter)
    with pytest.raises(RpcRefused, match=why):
        await ask(host, "add", arguments)
    assert await ask(host, "add", "[0]") == ["0"]


async def test_a_result_that_is_not_json_says_what_in_it_is_not(sqlite_world: World) -> None:
    host = await sqlite_world.host(Counter)
    with pytest.raises(
        TypeError, match=r"the result of Counter\.strange\['values'\] is a tuple.*use a list"
    ):
        await ask(host, "strange", "[]")


async def test_what_the_method_raises_passes_through(sqlite_world: World) -> None:
    host = await sqlite_world.host(Counter)
    with pytest.raises(ZeroDivisionError, match="of the user's own"):
        await ask(host, "fail", "[]")


def test_only_public_async_methods_can_be_marked() -> None:
    with pytest.raises(TypeError, match="make sync async"):

        @rpc
        def sync(self: Any) -> None: ...

    with pytest.raises(TypeError, match="_hidden is private"):

        @rpc
        async def _hidden(self: Any) -> None: ...


# --- streams through stubs -----------------------------------------------------------------------


async def test_a_stub_streams_what_an_async_generator_yields(world: World) -> None:
    host = await world.host(Counter)
    assert [n async for n in host.get(Counter, "a").count(3)] == [0, 1, 2]


async def test_leaving_a_stream_early_closes_the_generator_and_lets_the_agent_go(
    sqlite_world: World,
) -> None:
    Counter.closed = 0
    host = await sqlite_world.host(Counter)
    async for n in host.get(Counter, "a").count(3):
        assert n == 0
        break
    gc.collect()  # the generator is left to the event loop, which closes it in another task
    await host.until_settled()
    assert Counter.closed == 1
    assert host.statistics().held == 0


async def test_an_agent_is_held_while_its_stream_is_read_and_an_abort_ends_the_stream(
    sqlite_world: World,
) -> None:
    class Parent(Agent):
        sub_agents = [Counter]

        async def child(self) -> Counter:
            return await self.sub_agent(Counter, "c")

        async def stop(self) -> bool:
            return await self.abort_sub_agent(Counter, "c", "enough")

    host = await sqlite_world.host(Parent, idle_timeout=1)
    parent = host.get(Parent, "p")
    child = await parent.child()
    seen = 0

    async def read() -> None:
        nonlocal seen
        async for _ in child.forever():
            seen += 1

    reading = asyncio.create_task(read())
    await asyncio.sleep(100.5)
    assert seen == 101
    assert await parent.stop() is True
    with pytest.raises(AgentAborted, match="enough"):
        await reading


# --- events --------------------------------------------------------------------------------------


async def test_calls_through_stubs_are_told(sqlite_world: World) -> None:
    host = await sqlite_world.host(Counter)
    seen: list[Any] = []
    host.events.subscribe("rpc", seen.append)
    counter = host.get(Counter, "a")
    await counter.add(1)
    with pytest.raises(ZeroDivisionError):
        await counter.fail()
    assert [n async for n in counter.count(2)] == [0, 1]
    assert [(type(event), event.agent, event.method) for event in seen] == [
        (Rpc, "Counter/a", "add"),
        (RpcFailed, "Counter/a", "fail"),
        (Rpc, "Counter/a", "count"),
    ]
    assert seen[1].error == "ZeroDivisionError: of the user's own"
