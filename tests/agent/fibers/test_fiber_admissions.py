"""Work admitted by a fiber that goes on from its snapshot: each once, and nothing taken for anything else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from planner import Planner, die_in, fresh, noted, start_march

from outlast import FiberContext, FiberRecoveryContext, Host
from support import World, forever

pytestmark = pytest.mark.virtual_time


_fresh = pytest.fixture(autouse=True)(fresh)


async def lead(march: Any, world: World) -> None:
    """Two lives of a fiber; it never ends in the first, and goes on from its snapshot in the second."""

    class Marcher(Planner):
        async def march(self, fiber: FiberContext, input: Any = None) -> None:
            Planner.runs += 1
            await march(self, fiber, Planner.runs)
            if Planner.runs == 1:
                await forever()

    host = await world.host(Marcher)
    await host.get(Marcher, "p").do(
        lambda agent: agent.start_fiber("march", agent.march, "begin", id="m")
    )
    await asyncio.sleep(60)
    await world.kill()
    host = await world.next_life()
    await asyncio.sleep(300)
    assert Planner.runs == 2
    assert await noted(host) == []


async def test_a_fiber_that_goes_on_from_its_snapshot_admits_the_rest(world: World) -> None:
    async def march(agent: Planner, fiber: FiberContext, run: int) -> None:
        if run == 1:
            await agent.start_fiber("child", agent.child, "before")
            await agent.schedule(0, agent.note, "before")
            await fiber.stash("half")
        assert fiber.snapshot == "half"
        for _ in range(run + 1):
            await agent.start_fiber("child", agent.child, "after")
            await agent.schedule(0, agent.note, "after")

    await lead(march, world)
    assert sorted(Planner.log) == ["after"] * 6 + ["before"] * 2


async def test_a_fiber_that_skips_what_it_had_done_joins_no_other_work(world: World) -> None:
    """The first of a name in one run need not be the first in another, and it must not be lost."""

    async def march(agent: Planner, fiber: FiberContext, run: int) -> None:
        for what in ["one", "two", "three"][run - 1 : run + 1]:
            await agent.start_fiber("child", agent.child, what)
            await agent.schedule(0, agent.note, what)
        await agent.start_fiber(f"child {run}", agent.child, "same input")
        await agent.schedule(0, [agent.note, agent.other][run - 1], "same input")
        await agent.start_fiber("child", agent.child, None)
        if run == 2:
            await agent.start_fiber("child", agent.child)  # no input is not None

    await lead(march, world)
    assert sorted(Planner.log, key=str) == [
        None,  # which was given, and
        None,  # which was not
        ["other", "same input"],
        *["one"] * 2,
        *["same input"] * 3,
        *["three"] * 2,
        *["two"] * 2,
    ]


async def test_admissions_between_equal_stashes_are_admissions_each(world: World) -> None:
    async def march(agent: Planner, fiber: FiberContext, run: int) -> None:
        if run == 2:
            return
        for _ in range(3):
            await agent.start_fiber("child", agent.child, "alike")
            await agent.schedule(0, agent.note, "alike")
            await fiber.stash("equal")

    await lead(march, world)
    assert Planner.log == ["alike"] * 6


async def test_a_stash_and_an_admission_in_one_commit_block_are_both_there_or_both_not(
    world: World,
) -> None:
    async def march(agent: Planner, fiber: FiberContext, run: int) -> None:
        for n in range(0 if fiber.snapshot == "begin" else fiber.snapshot, 3):
            if run == 1 and n == 2:
                with pytest.raises(ValueError):
                    async with agent.commit():
                        await agent.start_fiber("child", agent.child, "alike")
                        await agent.schedule(0, agent.note, "alike")
                        await fiber.stash(n + 1)
                        raise ValueError
                return
            async with agent.commit():
                await agent.start_fiber("child", agent.child, "alike")
                await agent.schedule(0, agent.note, "alike")
                await fiber.stash(n + 1)

    await lead(march, world)
    assert Planner.log == ["alike"] * 6


@pytest.mark.parametrize("managed", [False, True])
async def test_a_fiber_that_takes_the_place_of_another_joins_what_that_had_admitted(
    world: World, managed: bool
) -> None:
    async def march(agent: Planner, run: int) -> None:
        if run == 1:
            await agent.stash("half")
        await agent.schedule(0, agent.note, "now")
        await agent.start_fiber("child", agent.child, "fiber")

    async def recover(agent: Planner, fiber: FiberRecoveryContext) -> None:
        agent.run_fiber("march", agent.march, "anew")

    async def begin(host: Host) -> None:
        async def plain(agent: Planner) -> None:
            agent.run_fiber("march", agent.march)

        await (start_march(host) if managed else host.get(Planner, "p").do(plain))

    await die_in(march, world, begin)
    Planner.recover = recover
    host = await world.next_life(Planner)
    await asyncio.sleep(60)
    assert Planner.runs == 2
    assert sorted(Planner.log) == ["fiber", "now"]
    assert await noted(host) == []


async def test_a_new_fiber_under_an_old_id_admits_anew(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        await agent.start_fiber("slow", slow, "here")
        await Planner.host.get(Planner, "other").begin("there")
        await agent.schedule(0, agent.note, "now")

    async def slow(fiber: FiberContext, what: str) -> None:
        await asyncio.sleep(100)  # it outlives the one that started it
        Planner.log.append(what)

    async def go(agent: Planner) -> None:
        await agent.start_fiber("march", agent.march, id="m", wait=True)
        assert await agent.delete_fibers() == 1

    Planner.act = act
    Planner.host = await world.host(Planner)
    for _ in range(2):
        await Planner.host.get(Planner, "p").do(go)
        await asyncio.sleep(10)
    await Planner.host.until_settled()
    assert Planner.runs == 2
    assert sorted(Planner.log) == ["here", "here", "now", "now", "there", "there"]
