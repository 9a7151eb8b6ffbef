"""Virtual time: instant when nothing is under way, and standing still when something is."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from outlast import Agent, Host
from outlast.testing import CountingIds, TimeStandsStill, VirtualClock, VirtualLoop, virtual
from support import hosting

pytestmark = pytest.mark.virtual_time


async def test_sleeps_and_timeouts_take_no_real_time_and_keep_their_order() -> None:
    started = time.monotonic()
    woke: list[int] = []

    async def sleeper(hours: int) -> None:
        await asyncio.sleep(hours * 3600)
        woke.append(hours)

    await asyncio.gather(*(sleeper(hours) for hours in (5, 1, 900, 3)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000):
            await asyncio.get_running_loop().create_future()
    assert woke == [1, 3, 5, 900]
    assert asyncio.get_running_loop().time() == pytest.approx(900 * 3600 + 1000)
    assert time.monotonic() - started < 30


async def test_time_stands_still_during_a_thread_job() -> None:
    loop = asyncio.get_running_loop()
    order: list[str] = []

    async def timer() -> None:
        await asyncio.sleep(0.001)
        order.append("timer")

    def job() -> None:
        time.sleep(0.05)  # real: the timer would fire many times over
        order.append("job")

    await asyncio.gather(timer(), loop.run_in_executor(None, job))
    assert order == ["job", "timer"]


class Slow(Agent):
    async def write(self) -> None:
        await self.storage.put("a", 1)


async def test_time_stands_still_during_a_commit(postgres_url: str) -> None:
    loop = asyncio.get_running_loop()
    async with hosting(Slow, url=postgres_url) as host:
        agent = host.get(Slow, "s")
        await agent.write()
        before = loop.time()
        sleeping = asyncio.create_task(asyncio.sleep(3600))
        await agent.write()
        assert loop.time() == before
        assert not sleeping.done()
        await sleeping
        assert loop.time() == before + 3600, "idle connections do not hold time up"


async def test_time_stands_still_while_a_socket_is_read() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    sleeping = asyncio.create_task(asyncio.sleep(60))

    async def answer() -> None:
        await loop.run_in_executor(None, lambda: (time.sleep(0.05), ours.send(b"x")))

    answering = asyncio.create_task(answer())
    assert await loop.sock_recv(theirs, 1) == b"x"
    assert loop.time() == 0
    await answering
    await sleeping
    ours.close()
    theirs.close()


def test_when_nothing_can_ever_happen_it_says_so(monkeypatch: Any) -> None:
    monkeypatch.setattr(virtual, "STUCK_AFTER", 0.05)
    with pytest.raises(TimeStandsStill, match="every task waits"):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(_never())


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


async def test_the_clock_follows_the_loop_and_can_be_set() -> None:
    clock = VirtualClock(asyncio.get_running_loop(), start=1000)
    await asyncio.sleep(2)
    assert clock.now() == 3000
    clock.set(50)
    await asyncio.sleep(1)
    assert clock.now() == 1050


async def test_ids_are_the_same_in_every_run(sqlite_url: str) -> None:
    ids = CountingIds("7")
    assert [ids.new("fiber"), ids.new("owner")] == ["fiber_7_1", "owner_7_2"]
    async with Host([Slow], sqlite_url, ids=CountingIds()) as host:
        assert host.owner == "owner_1_1"
