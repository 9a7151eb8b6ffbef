"""Recovery when something else goes wrong meanwhile: a scan never dies, and no fiber is forgotten."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from outlast import Agent, FiberContext, FiberRecoveryContext, FiberResolution
from outlast.agent.fibers import sql
from outlast.core.errors import StoreUnavailable
from support import World, alarm_rows, fiber_rows, forever

pytestmark = pytest.mark.virtual_time

DAY = timedelta(days=1).total_seconds()


class Recoverer(Agent):
    """Leaves fibers behind, and does with them what the test says."""

    hook: ClassVar[Any]
    on_life: ClassVar[Any]
    log: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        if type(self).on_life is not None:
            await type(self).on_life(self)

    async def leave(self, *names: str) -> None:
        for name in names:
            await self.run_fiber(name, forever)._fiber.accepted
            await asyncio.sleep(0.01)

    async def leave_managed(self, *ids: str) -> None:
        for id in ids:
            await self.start_fiber(id, forever, id=id)
            await asyncio.sleep(0.01)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> Any:
        self.log.append(f"hook {fiber.name}")
        return await type(self).hook(self, fiber)

    async def rest(self, fiber: FiberContext) -> None:
        self.log.append(f"rest of {fiber.name}")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Recoverer.hook = Recoverer.on_life = None
    Recoverer.log = []


async def left_behind(world: World, *plain: str, managed: tuple[str, ...] = ()) -> None:
    """A host that is killed in the middle of these fibers."""
    host = await world.host(Recoverer)
    await host.get(Recoverer, "a").leave(*plain)
    await host.get(Recoverer, "a").leave_managed(*managed)
    await host.store.drained()
    await world.kill()


async def resume(agent: Recoverer, fiber: FiberRecoveryContext) -> None:
    fiber.resume(agent.rest)


# --- rows that change while a scan is under way --------------------------------------------------


@pytest.mark.invariant("A12")
async def test_a_fiber_that_is_cancelled_while_an_earlier_hook_runs_does_not_stop_the_scan(
    world: World,
) -> None:
    await left_behind(world, managed=("1", "2", "3"))

    async def hook(agent: Recoverer, fiber: FiberRecoveryContext) -> None:
        if fiber.id == "1":
            await asyncio.sleep(5)
        fiber.resume(agent.rest)

    Recoverer.hook = hook
    host = await world.next_life()
    await asyncio.sleep(1)
    assert await host.get(Recoverer, "a").cancel_fiber("2") is True
    await host.until_settled()
    ends = await fiber_rows(host, "id, status")
    assert ends == [("1", "completed"), ("2", "aborted"), ("3", "completed")]
    assert await alarm_rows(host) == []
    await world.stop()
    assert Recoverer.log == ["hook 1", "rest of 1", "hook 3", "rest of 3"]


@pytest.mark.invariant("A12")
async def test_a_fiber_that_ends_while_an_earlier_hook_runs_does_not_stop_the_scan(
    world: World,
) -> None:
    await left_behind(world, "old")

    async def on_life(agent: Recoverer) -> None:
        await agent.run_fiber("warm up", warm_up)._fiber.accepted

    async def warm_up(fiber: FiberContext) -> None:
        await asyncio.sleep(1)

    async def hook(agent: Recoverer, fiber: FiberRecoveryContext) -> None:
        if fiber.attempt == 1:
            await asyncio.sleep(5)
            raise OSError("a remote service is down")
        fiber.resume(agent.rest)

    Recoverer.hook, Recoverer.on_life = hook, on_life
    host = await world.next_life()
    await asyncio.sleep(40)
    assert Recoverer.log == ["hook old", "hook old", "rest of old"]
    assert (await fiber_rows(host), await alarm_rows(host)) == ([], [])


async def test_the_hook_is_given_the_snapshot_that_was_stashed_last(world: World) -> None:
    await left_behind(world, "slow")
    done: list[int] = []

    async def on_life(agent: Recoverer) -> None:
        await agent.run_fiber("steps", steps, 0)._fiber.accepted

    async def steps(fiber: FiberContext, n: int) -> None:
        while n < 3:
            n += 1
            done.append(n)
            await fiber.stash(n)
            await asyncio.sleep(1)
            if n == 2 and len(done) == 2:
                raise asyncio.CancelledError  # as if what it awaits had been cancelled

    async def hook(agent: Recoverer, fiber: FiberRecoveryContext) -> None:
        if fiber.name == "slow":
            await asyncio.sleep(8)  # meanwhile the other one stashes, and is interrupted
        else:
            fiber.resume(steps)

    Recoverer.hook, Recoverer.on_life = hook, on_life
    host = await world.next_life()
    await host.until_settled()
    assert await fiber_rows(host) == []
    await world.stop()
    assert Recoverer.log == ["hook slow", "hook steps"]
    assert done == [1, 2, 3], "no step is done twice"


async def test_a_resumed_fiber_that_is_interrupted_while_its_hook_still_runs_is_recovered_again(
    world: World,
) -> None:
    await left_behind(world, "work")

    async def rest(fiber: FiberContext) -> None:
        Recoverer.log.append("resumed")
        await asyncio.sleep(1)
        if Recoverer.log.count("resumed") == 1:
            raise asyncio.CancelledError
        Recoverer.log.append("done")

    async def hook(agent: Recoverer, fiber: FiberRecoveryContext) -> None:
        fiber.resume(rest)
        await asyncio.sleep(5)

    Recoverer.hook = hook
    host = await world.next_life()
    await asyncio.sleep(60)
    assert (await fiber_rows(host), await alarm_rows(host)) == ([], [])
    await world.stop()
    assert Recoverer.log == ["hook work", "resumed", "hook work", "resumed", "done"]


# --- hooks that fail in unusual ways -------------------------------------------------------------


async def test_a_resolution_that_cannot_be_stored_is_an_error_and_stops_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await left_behind(world, managed=("1", "2"))

    async def hook(agent: Recoverer, fiber: FiberRecoveryContext) -> Any:
        if fiber.id == "1":
            return FiberResolution("completed", metadata={"tags": {"a", "b"}})
        fiber.resume(agent.rest)
        return None

    Recoverer.hook = hook
    host = await world.next_life()
    await host.until_settled()
    (first, _, error), second = await fiber_rows(host, "id, status, error")
    assert (first, second) == ("1", ("2", "completed", None))
    assert "metadata['tags'] is a set" in error
    await world.stop()
    assert "metadata['tags'] is a set" in caplog.text


async def test_a_cancellation_that_a_hook_lets_through_is_a_failure_and_stops_no_other(
    world: World,
) -> None:
    await left_behind(world, "1", "2")

    async def hook(agent: Recoverer, fiber: FiberRecoveryContext) -> None:
        if fiber.name == "1" and fiber.attempt == 1:
            other = asyncio.create_task(forever())
            asyncio.get_running_loop().call_later(1, other.cancel)
            await other
        fiber.resume(agent.rest)

    Recoverer.hook = hook
    host = await world.next_life()
    await asyncio.sleep(5)
    assert Recoverer.log == ["hook 1", "hook 2", "rest of 2"]
    await asyncio.sleep(30)
    assert Recoverer.log[3:] == ["hook 1", "rest of 1"]
    assert (await fiber_rows(host), await alarm_rows(host)) == ([], [])


@pytest.mark.parametrize("how", ["resume", "run_fiber"])
async def test_a_hook_that_gives_up_the_block_in_which_it_went_on_is_tried_again(
    world: World, how: str
) -> None:
    await left_behind(world, "plain", managed=("managed",))

    async def hook(agent: Recoverer, fiber: FiberRecoveryContext) -> None:
        async with agent.commit():
            if how == "resume":
                fiber.resume(agent.rest)
            else:
                agent.run_fiber(fiber.name, agent.rest)
            await agent.storage.put(fiber.name, fiber.attempt)
            if fiber.attempt == 1:
                raise OSError("a remote service is down")

    Recoverer.hook = hook
    host = await world.next_life()
    await asyncio.sleep(5)
    assert Recoverer.log == ["hook plain", "hook managed"]
    await asyncio.sleep(30)
    assert sorted(Recoverer.log[2:]) == [
        "hook managed",
        "hook plain",
        "rest of managed",
        "rest of plain",
    ]
    async with host.using(host.get(Recoverer, "a")._address) as agent:
        assert await agent.storage.list() == {"managed": 2, "plain": 2}
    assert await fiber_rows(host, "id, status") == [("managed", "completed")]
    assert await alarm_rows(host) == []


# --- a store that cannot be read -----------------------------------------------------------------


async def test_a_scan_that_cannot_read_is_made_again_by_itself(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await left_behind(world, "work")
    Recoverer.hook = resume
    host = await world.next_life()
    fetch, failures = host.store.fetch, iter(range(3))

    async def failing(query: Any, *arguments: Any) -> Any:
        if query is sql.UNFINISHED and next(failures, None) is not None:
            raise StoreUnavailable("the network is down")
        return await fetch(query, *arguments)

    host.store.fetch = failing  # type: ignore[method-assign]
    await asyncio.sleep(60)
    assert Recoverer.log == ["hook work", "rest of work"]
    assert (await fiber_rows(host), await alarm_rows(host)) == ([], [])
    await world.stop()
    assert caplog.text.count("recovery failed, will retry") == 3


# --- work that never gets anywhere ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["resume", "run_fiber"])
async def test_a_fiber_that_kills_its_process_each_time_is_dropped_however_its_hook_goes_on(
    sqlite_world: World, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    await left_behind(sqlite_world, "work")
    attempts: list[int] = []

    async def hook(agent: Recoverer, fiber: FiberRecoveryContext) -> None:
        attempts.append(fiber.attempt)
        if how == "resume":
            fiber.resume(forever)
        else:
            agent.run_fiber(fiber.name, forever)

    Recoverer.hook = hook
    for _ in range(88):  # it dies a second after each start, three times an hour
        host = await sqlite_world.next_life(shutdown_timeout=0)
        await asyncio.sleep(1)
        rows = await fiber_rows(host)
        await sqlite_world.stop()
        await asyncio.sleep(1200)
    assert rows == []
    assert attempts == list(range(1, 73)), "a day of them"
    assert "dropped the" in caplog.text


async def test_a_fiber_beside_others_that_get_on_is_dropped_all_the_same(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await left_behind(sqlite_world, "poison")
    failed_at: list[float] = []

    async def blip(fiber: FiberContext) -> None:
        raise asyncio.CancelledError  # is interrupted, and recovered at once

    async def hook(agent: Recoverer, fiber: FiberRecoveryContext) -> None:
        if fiber.name == "poison":
            failed_at.append(asyncio.get_running_loop().time())
            raise OSError("never")

    Recoverer.hook = hook
    host = await sqlite_world.next_life()
    for _ in range(30):
        await asyncio.sleep(3600)
        async with host.using(host.get(Recoverer, "a")._address) as agent:
            agent.run_fiber("blip", blip)
    await host.until_settled()
    assert await fiber_rows(host) == []
    await sqlite_world.stop()
    assert 0.9 * DAY < failed_at[-1] - failed_at[0] < DAY
    assert Recoverer.log.count("hook blip") == 30
    assert "dropped the" in caplog.text
