"""Things that happen at once: none of them reaches into another."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from outlast import Agent, FiberCancelled, FiberContext, Host, NotInFiber
from outlast.agent.fibers.sql import BY_ID
from outlast.store.operations import Query
from support import World, alarm_rows, cancel_boot, fiber_rows, forever

pytestmark = pytest.mark.virtual_time


class Worker(Agent):
    """Counts in the store how often its work was done."""

    log: ClassVar[list[str]] = []

    async def start(self, *, wait: bool = True) -> str:
        return (await self.start_fiber("work", self.work, id="x", wait=wait)).status

    async def work(self, fiber: FiberContext) -> None:
        Worker.log.append("start")
        await asyncio.sleep(5)
        await self.storage.put("done", await self.done() + 1)
        Worker.log.append("end")

    async def on_fiber_recovered(self, fiber: Any) -> None:
        Worker.log.append("recovered")
        fiber.resume(self.work)

    async def done(self) -> int:
        return int(await self.storage.get("done") or 0)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Worker.log = []


# --- one id --------------------------------------------------------------------------------------


@pytest.mark.invariant("A19")
async def test_starts_with_one_id_at_once_run_the_code_once(world: World) -> None:
    host = await world.host(Worker)
    worker = host.get(Worker, "a")
    ends = await asyncio.gather(*(worker.start() for _ in range(3)))
    await host.until_settled()
    assert ends == ["completed"] * 3
    assert Worker.log == ["start", "end"]
    assert await worker.done() == 1


@pytest.mark.invariant("A19")
async def test_a_fiber_started_twice_at_once_can_still_be_cancelled(world: World) -> None:
    host = await world.host(Worker)
    worker = host.get(Worker, "a")
    await asyncio.gather(*(worker.start(wait=False) for _ in range(3)))
    await asyncio.sleep(1)
    assert await worker.cancel_fiber("x") is True
    await host.until_settled()
    assert Worker.log == ["start"]
    assert await fiber_rows(host, "id, status") == [("x", "aborted")]


@pytest.mark.invariant("A19")
async def test_a_start_whose_look_was_overtaken_by_the_other_start_does_not_wait_for_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await world.host(Worker)
    worker = host.get(Worker, "a")
    await worker.done()
    fetch, looks, both = host.store.fetch, [], asyncio.Event()

    async def slow(query: Query, *arguments: Any) -> list[Any]:
        rows = await fetch(query, *arguments)
        if query is BY_ID and len(looks) < 2:
            looks.append(rows)
            is_second = len(looks) == 2
            if is_second:
                both.set()
            await both.wait()  # nothing is stored before both have looked
            if is_second:
                await asyncio.sleep(1)  # the answer travels; the other fiber is stored
        return rows

    monkeypatch.setattr(host.store, "fetch", slow)
    await asyncio.gather(*(worker.start(wait=False) for _ in range(2)))
    assert looks[:2] == [[], []]
    assert await worker.cancel_fiber("x") is True
    assert Worker.log == ["start"]


async def test_an_id_is_used_again_while_the_code_of_its_last_fiber_still_unwinds(
    world: World,
) -> None:
    log: list[Any] = []

    class Reuser(Agent):
        async def go(self) -> None:
            await self.start_fiber("old", self.old, "old", id="x")
            await asyncio.sleep(1)
            await self.cancel_fiber("x")
            assert await self.delete_fibers(status="aborted") == 1
            await self.start_fiber("new", self.new, "new", id="x")

        async def old(self, fiber: FiberContext, _: str) -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(2)  # cleaning up takes a moment
                with pytest.raises(NotInFiber):
                    await fiber.stash("from the old one")
                log.append("old left")

        async def new(self, fiber: FiberContext, _: str) -> None:
            await asyncio.sleep(5)
            log.append("new done")

        async def on_fiber_recovered(self, fiber: Any) -> None:
            log.append("recovered")

    host = await world.host(Reuser)
    await host.get(Reuser, "a").go()
    await asyncio.sleep(3)
    assert log == ["old left"]
    assert await fiber_rows(host) == [("x", "running", '"new"')]
    await host.until_settled()
    assert log == ["old left", "new done"]
    assert await fiber_rows(host) == [("x", "completed", '"new"')]


# --- commit blocks -------------------------------------------------------------------------------


class Waker(Agent):
    """Wakes another agent in a commit block, which it gives up."""

    host: ClassVar[Host]

    async def go(self) -> None:
        async with self.commit():
            await self.host.get(Woken, "b").ping()
            await asyncio.sleep(1)
            raise OSError("given up")

    async def note(self, what: str) -> None:
        await self.storage.put(what, True)

    async def notes(self) -> list[str]:
        return list(await self.storage.list())


class Woken(Agent):
    async def on_start(self) -> None:
        await Waker.host.get(Waker, "a").note("on_start")

    async def ping(self) -> None: ...

    async def leave(self) -> None:
        await self.run_fiber("work", forever)._fiber.accepted

    async def on_fiber_recovered(self, fiber: Any) -> None:
        await Waker.host.get(Waker, "a").note("hook")


async def test_a_commit_block_does_not_reach_into_an_agent_that_is_woken_inside_it(
    world: World,
) -> None:
    Waker.host = await world.host(Waker, Woken)
    with pytest.raises(OSError, match="given up"):
        await Waker.host.get(Waker, "a").go()
    assert await Waker.host.get(Waker, "a").notes() == ["on_start"]


async def test_a_commit_block_does_not_reach_into_a_recovery_that_begins_inside_it(
    world: World,
) -> None:
    Waker.host = await world.host(Waker, Woken, shutdown_timeout=0)
    await Waker.host.get(Woken, "b").leave()
    host = await world.next_life()
    Waker.host = host
    cancel_boot(host)  # so that it is the call that wakes it
    with pytest.raises(OSError, match="given up"):
        await host.get(Waker, "a").go()
    await host.until_settled()
    assert await fiber_rows(host) == []
    assert await host.get(Waker, "a").notes() == ["hook", "on_start"]


async def test_cancelling_one_fiber_of_a_commit_block_leaves_the_others_alone(
    world: World,
) -> None:
    ran: list[Any] = []

    class Starter(Agent):
        async def go(self) -> list[Any]:
            async with self.commit():
                one = self.run_fiber("one", self.work, 1)
                two = self.run_fiber("two", self.work, 2)
                await self.start_fiber("three", self.work, 3, id="three")
                await asyncio.sleep(0)
                one.cancel()
            return await asyncio.gather(one, two, return_exceptions=True)

        async def work(self, fiber: FiberContext, n: int) -> int:
            ran.append(n)
            return n

        async def on_fiber_recovered(self, fiber: Any) -> None:
            ran.append(f"recovered {fiber.name}")

    host = await world.host(Starter)
    one, two = await host.get(Starter, "a").go()
    await host.until_settled()
    assert (type(one), two) == (FiberCancelled, 2)
    assert sorted(ran) == [2, 3]
    assert await fiber_rows(host, "id, status") == [("three", "completed")]
    assert await alarm_rows(host) == []


async def test_a_commit_block_is_used_once(sqlite_world: World) -> None:
    class Reuser(Agent):
        async def go(self) -> dict[str, Any]:
            block = self.commit()
            async with block:
                await self.storage.put("n", 1)
            await self.storage.put("n", 2)
            with pytest.raises(RuntimeError, match="used only once"):
                async with block:
                    await self.storage.put("m", 1)
            return await self.storage.list()

    host = await sqlite_world.host(Reuser)
    assert await host.get(Reuser, "a").go() == {"n": 2}


# --- state ---------------------------------------------------------------------------------------


class Player(Agent):
    initial_state = 0

    def validate_state_change(self, state: int, source: Any) -> None:
        if state < self.state:
            raise ValueError("a score only rises")

    async def win(self) -> None:
        await self.set_state(self.state + 1)

    async def put(self, score: int) -> None:
        await self.set_state(score)

    async def score(self) -> int:
        return int(self.state)


async def test_changes_of_the_state_at_once_build_on_each_other(world: World) -> None:
    host = await world.host(Player)
    player = host.get(Player, "a")
    await asyncio.gather(*(player.win() for _ in range(5)))
    assert await player.score() == 5
    host = await world.next_life()
    assert await host.get(Player, "a").score() == 5


async def test_a_state_is_validated_against_the_one_handed_over_before_it(world: World) -> None:
    host = await world.host(Player)
    player = host.get(Player, "a")
    first, second = await asyncio.gather(player.put(9), player.put(3), return_exceptions=True)
    assert (first, type(second)) == (None, ValueError)
    assert await player.score() == 9


# --- schedules -----------------------------------------------------------------------------------


async def test_a_callback_that_lets_a_cancellation_through_is_tried_again_as_one_that_failed(
    sqlite_world: World,
) -> None:
    runs: list[float] = []

    class Ticker(Agent):
        async def go(self) -> None:
            await self.schedule_every(10, self.tick)

        async def tick(self, payload: Any = None) -> None:
            runs.append(asyncio.get_running_loop().time())
            if len(runs) == 2:
                other = asyncio.create_task(forever())
                other.cancel()
                await other

    host = await sqlite_world.host(Ticker)
    await host.get(Ticker, "a").go()
    await asyncio.sleep(105)
    assert [int(at) for at in runs] == [10, 20, *range(20, 101, 10)]
    claims = await host.store.fetch(Query.same("SELECT claimed_at FROM schedules"))
    assert claims == [(None,)]
