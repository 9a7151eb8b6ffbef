"""A discarded agent with unfinished work boots again by itself, later and later while that fails."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any, ClassVar

import pytest

from outlast import Agent, CommitFailed, FiberContext
from outlast.store.operations import Query
from support import World, fiber_rows, raw, write_alarm

pytestmark = pytest.mark.virtual_time


class Stepper(Agent):
    """Takes a step a second, and stores each."""

    starts: ClassVar[list[float]] = []
    left: ClassVar[list[float]] = []
    slow_to_leave: ClassVar[float] = 0
    breaks_at: ClassVar[set[int]] = set()  # steps at which it writes what cannot be written
    breaks_after_recovery: ClassVar[int] = 0  # how often

    async def on_start(self) -> None:
        Stepper.starts.append(asyncio.get_running_loop().time())

    async def begin(self, steps: int) -> None:
        await self.run_fiber("steps", self.step, {"done": 0, "of": steps})._fiber.accepted

    async def step(self, fiber: FiberContext, plan: dict[str, int]) -> None:
        try:
            while plan["done"] < plan["of"]:
                await asyncio.sleep(1)
                if plan["done"] in Stepper.breaks_at:
                    Stepper.breaks_at = Stepper.breaks_at - {plan["done"]}
                    await self.break_a_commit()
                plan["done"] += 1
                async with self.commit():
                    await fiber.stash(plan)
                    await self.storage.put(f"step {plan['done']:02}", True)
        finally:
            if Stepper.slow_to_leave and plan["done"] < plan["of"]:
                await asyncio.sleep(Stepper.slow_to_leave)
            Stepper.left.append(asyncio.get_running_loop().time())

    async def on_fiber_recovered(self, fiber: Any) -> None:
        if Stepper.breaks_after_recovery:
            Stepper.breaks_after_recovery -= 1
            await self.break_a_commit()
        fiber.resume(self.step)

    async def break_a_commit(self) -> None:
        """Hand over a batch that no engine can write: the number is too large for its column."""
        await write_alarm(self, "x", 1 << 70)

    async def put(self, value: str) -> None:
        await self.storage.put("value", value)

    async def steps(self) -> list[str]:
        return list(await self.storage.list("step "))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Stepper.starts, Stepper.left = [], []
    Stepper.slow_to_leave, Stepper.breaks_at, Stepper.breaks_after_recovery = 0, set(), 0


def expected(steps: int) -> list[str]:
    return [f"step {n:02}" for n in range(1, steps + 1)]


def waits() -> list[int]:
    """How long the agent was away, each time."""
    return [round(b - a) for a, b in zip(Stepper.starts, Stepper.starts[1:], strict=False)]


async def test_a_commit_that_fails_discards_the_agent_which_boots_again_by_itself_and_goes_on(
    world: World,
) -> None:
    Stepper.breaks_at = {5}
    host = await world.host(Stepper)
    await host.get(Stepper, "x").begin(10)
    await asyncio.sleep(5.9)
    assert host.statistics().active == 1
    await asyncio.sleep(0.2)
    assert host.statistics().active == 0  # discarded at 6 s
    await asyncio.sleep(20)
    assert len(Stepper.starts) == 2
    assert Stepper.starts[1] == pytest.approx(7, abs=0.01)  # a second later
    assert await host.get(Stepper, "x").steps() == expected(10)
    assert await fiber_rows(host) == []


async def test_the_one_that_wrote_and_those_behind_it_are_told_why(world: World) -> None:
    host = await world.host(Stepper)
    stub = host.get(Stepper, "x")
    await stub.put("before")
    answers = await asyncio.gather(
        stub.break_a_commit(), stub.put("behind"), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [CommitFailed, CommitFailed]
    assert "cannot write alarms set" in str(answers[0])
    assert "boots again from the store" in str(answers[1])
    assert host.statistics().active == 0
    query = Query.same("SELECT value FROM storage")
    assert await host.store.fetch(query) == [('"before"',)]
    await stub.put("after")
    assert await host.store.fetch(query) == [('"after"',)]


async def test_an_agent_without_unfinished_work_is_not_woken_again(world: World) -> None:
    host = await world.host(Stepper)
    with pytest.raises(CommitFailed):
        await host.get(Stepper, "x").break_a_commit()
    await asyncio.sleep(3600)
    assert (len(Stepper.starts), host.statistics().active) == (1, 0)


async def test_while_it_goes_on_failing_the_waits_double_up_to_five_minutes(
    sqlite_world: World,
) -> None:
    Stepper.breaks_at = set(range(11))  # each life takes one step and fails at the next
    host = await sqlite_world.host(Stepper)
    await host.get(Stepper, "x").begin(12)
    await asyncio.sleep(3600)
    seconds_alive = [1, *[2] * 10]
    waited = [wait - alive for wait, alive in zip(waits(), seconds_alive, strict=True)]
    assert waited == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert await host.get(Stepper, "x").steps() == expected(12)


async def test_an_agent_that_fails_whenever_it_is_recovered_never_spins(
    sqlite_world: World,
) -> None:
    Stepper.breaks_at, Stepper.breaks_after_recovery = {0}, 10
    host = await sqlite_world.host(Stepper)
    await host.get(Stepper, "x").begin(3)
    await asyncio.sleep(5000)
    assert min(waits()) >= 1
    assert len(Stepper.starts) < 40
    assert await host.get(Stepper, "x").steps() == expected(3)


async def test_once_it_has_been_well_the_next_failure_waits_a_second_again(
    sqlite_world: World,
) -> None:
    Stepper.breaks_at, Stepper.breaks_after_recovery = {0}, 4
    host = await sqlite_world.host(Stepper)
    await host.get(Stepper, "x").begin(3)
    await asyncio.sleep(3600)
    assert host.statistics().active == 0  # evicted: all is well
    Stepper.starts, Stepper.breaks_at = [], {1}
    await host.get(Stepper, "x").begin(3)
    await asyncio.sleep(100)
    assert waits() == [3]


@pytest.mark.parametrize(
    "damage",
    ["UPDATE agents SET commit_no = commit_no - 2", "DELETE FROM agents"],
    ids=["commits are missing", "the agent's row is missing"],
)
async def test_when_the_store_goes_back_in_time_the_agent_boots_again_by_itself_and_goes_on(
    sqlite_world: World, damage: str
) -> None:
    host = await sqlite_world.host(Stepper)
    await host.get(Stepper, "x").begin(10)
    await asyncio.sleep(4.5)
    with closing(raw(sqlite_world.url)) as db:
        db.execute(damage)
    await asyncio.sleep(100)
    assert len(Stepper.starts) == 2
    assert await host.get(Stepper, "x").steps() == expected(10)
    assert await fiber_rows(host) == []


async def test_an_agent_that_another_host_has_taken_is_not_woken_here(sqlite_world: World) -> None:
    host = await sqlite_world.host(Stepper)
    await host.get(Stepper, "x").begin(10)
    await asyncio.sleep(4.5)
    with closing(raw(sqlite_world.url)) as db:
        db.execute("UPDATE agents SET epoch = epoch + 1, owner = 'another'")
    await asyncio.sleep(3600)
    assert (len(Stepper.starts), len(Stepper.left)) == (1, 1)
    assert host.statistics().active == 0


async def test_a_new_activation_waits_until_the_work_of_the_old_one_has_stopped(
    sqlite_world: World,
) -> None:
    Stepper.slow_to_leave = 3
    host = await sqlite_world.host(Stepper)
    stub = host.get(Stepper, "x")
    await stub.begin(10)
    await asyncio.sleep(0.5)
    with pytest.raises(CommitFailed):
        await stub.break_a_commit()
    assert await stub.steps() == []
    assert Stepper.left == [3.5]
    assert Stepper.starts[1] == 3.5


async def test_but_not_for_longer_than_five_seconds(sqlite_world: World) -> None:
    Stepper.slow_to_leave = 1000
    host = await sqlite_world.host(Stepper)
    stub = host.get(Stepper, "x")
    await stub.begin(3)
    await asyncio.sleep(0.5)
    with pytest.raises(CommitFailed):
        await stub.break_a_commit()
    assert await stub.steps() == []
    assert Stepper.starts[1] == 5.5
    assert Stepper.left == []
    await asyncio.sleep(1100)
    assert await stub.steps() == expected(3)


async def test_a_host_that_stops_forgets_whom_it_wanted_to_wake_again(sqlite_world: World) -> None:
    Stepper.breaks_at = {1}
    host = await sqlite_world.host(Stepper)
    await host.get(Stepper, "x").begin(3)
    await asyncio.sleep(2.5)
    assert host.statistics().active == 0
    await host.stop()
    await asyncio.sleep(100)
    assert len(Stepper.starts) == 1
    host = await sqlite_world.next_life()
    await host.until_settled()
    assert await host.get(Stepper, "x").steps() == expected(3)
