"""What was admitted from inside is remembered while the work around can run again, and no longer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from planner import Child, Parent, Planner, die_in, fresh, noted

from outlast import CommitFailed, FiberRecovery, FiberRecoveryContext, FiberResolution, Host
from support import World, forever

pytestmark = pytest.mark.virtual_time


_fresh = pytest.fixture(autouse=True)(fresh)


async def note_and_check(agent: Planner) -> None:
    await agent.schedule(0, agent.note, "now")
    await agent.schedule(5, agent.note, "soon")
    assert len(await noted(Planner.host)) == 2


@pytest.mark.parametrize("how", ["completes", "fails", "is cancelled"])
async def test_after_a_callback_has_ended_nothing_is_left(
    world: World, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(agent: Planner, run: int) -> None:
        if run == 1:
            await note_and_check(agent)
        if how == "fails":
            raise ValueError("always")
        if how == "is cancelled":
            for made in await agent.get_schedules(callback="tick"):
                assert await agent.cancel_schedule(made.id)
            await agent.schedule(0, agent.note, "after it was cancelled")

    Planner.act = act
    Planner.host = await world.host(Planner)
    await Planner.host.get(Planner, "p").schedule_every(1000, "tick")
    await asyncio.sleep(1010)
    assert Planner.runs == (3 if how == "fails" else 1)
    assert await noted(Planner.host) == []
    assert len(Planner.log) == (3 if how == "is cancelled" else 2)


@pytest.mark.parametrize("block", [False, True])
async def test_a_schedule_that_is_cancelled_while_it_runs_leaves_nothing_also_if_it_never_ends(
    world: World, block: bool
) -> None:
    async def act(agent: Planner, run: int) -> None:
        await note_and_check(agent)
        (tick,) = await agent.get_schedules(callback="tick")
        if block:
            async with agent.commit():
                await agent.schedule(50, agent.note, "before")
                await agent.cancel_schedule(tick.id)
                await agent.schedule(50, agent.note, "after")
        else:
            await agent.schedule(50, agent.note, "before")
            await agent.cancel_schedule(tick.id)
            await agent.schedule(50, agent.note, "after")
        assert await noted(Planner.host) == [], "it cannot run again"

    await die_in(act, world)
    host = await world.next_life(Planner)
    await asyncio.sleep(100)
    assert Planner.runs == 1
    assert sorted(Planner.log) == ["after", "before", "now", "soon"]
    assert await noted(host) == []


async def test_a_callback_that_is_put_off_after_its_schedule_was_cancelled_leaves_nothing(
    world: World,
) -> None:
    async def act(agent: Planner, run: int) -> None:
        if run == 1:
            await note_and_check(agent)
            (tick,) = await agent.get_schedules(callback="tick")
            await agent.cancel_schedule(tick.id)
        raise CommitFailed("the store is away")

    Planner.act = act
    Planner.host = await world.host(Planner)
    await Planner.host.get(Planner, "p").schedule(10, "tick")
    await asyncio.sleep(1000)
    assert Planner.runs == 3, "the tries of the one run"
    assert await noted(Planner.host) == []


async def test_after_a_fiber_has_ended_by_itself_nothing_is_left(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(agent: Planner, run: int) -> None:
        await note_and_check(agent)
        if run % 2:
            raise ValueError("it failed")

    Planner.act = act
    Planner.host = await world.host(Planner)
    for kind in ("start_fiber", "run_fiber"):
        for _ in range(2):

            async def begin(agent: Any, kind: str = kind) -> None:
                started = getattr(agent, kind)("march", agent.march)
                if kind == "start_fiber":
                    await started

            await Planner.host.get(Planner, "p").do(begin)
            await asyncio.sleep(30)
            assert await noted(Planner.host) == []
    assert Planner.runs == 4


@pytest.mark.parametrize("how", ["handle.cancel", "cancel_fiber"])
@pytest.mark.parametrize("dies", [False, True])
async def test_after_a_fiber_was_cancelled_nothing_is_left(
    world: World, how: str, dies: bool
) -> None:
    async def act(agent: Planner, run: int) -> None:
        await note_and_check(agent)
        try:
            await forever()
        finally:
            await agent.schedule(0, agent.note, "on the way out")
            if dies:
                await forever()

    async def recover(agent: Planner, fiber: FiberRecoveryContext) -> None: ...

    Planner.act, Planner.recover = act, recover
    Planner.host = await world.host(Planner, shutdown_timeout=0)

    async def begin(agent: Any) -> Any:
        if how == "handle.cancel":
            return agent.run_fiber("march", agent.march)
        return await agent.start_fiber("march", agent.march)

    fiber = await Planner.host.get(Planner, "p").do(begin)
    await asyncio.sleep(10)
    if how == "handle.cancel":
        assert fiber.cancel()
    else:
        assert await Planner.host.get(Planner, "p").cancel_fiber(fiber.id)
        assert await noted(Planner.host) == []
    await asyncio.sleep(10)
    assert Planner.log == ["now", "soon", "on the way out"]
    host = await world.next_life()
    await host.until_settled()
    assert await noted(host) == []


async def _dropped(agent: Planner, fiber: FiberRecoveryContext) -> FiberResolution | None:
    return None


async def _resolved(agent: Planner, fiber: FiberRecoveryContext) -> FiberResolution | None:
    return FiberResolution("completed") if fiber.managed else None


async def _raising(agent: Planner, fiber: FiberRecoveryContext) -> FiberResolution | None:
    raise ValueError("no")


async def _by_hand(agent: Planner, fiber: FiberRecoveryContext) -> FiberResolution | None:
    if fiber.managed:
        assert await agent.resolve_fiber(fiber.id, "aborted")
        await forever()
    return None


async def _by_hand_then_resumed(
    agent: Planner, fiber: FiberRecoveryContext
) -> FiberResolution | None:
    if fiber.managed:
        assert await agent.resolve_fiber(fiber.id, "aborted")
        fiber.resume(agent.march)
    return None


@pytest.mark.parametrize("hook", [_dropped, _resolved, _raising, _by_hand, _by_hand_then_resumed])
async def test_after_a_fiber_was_recovered_and_dropped_nothing_is_left(
    world: World, hook: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(agent: Planner, run: int) -> None:
        await agent.schedule(0, agent.note, run)
        if run == 2:
            await asyncio.sleep(1)
            assert len(await noted(Planner.host)) == 2

    async def begin(host: Host) -> None:
        async def both(agent: Planner) -> None:
            agent.run_fiber("march", agent.march)
            await agent.start_fiber("march", agent.march)

        await host.get(Planner, "p").do(both)

    await die_in(act, world, begin)
    Planner.recover = hook
    Planner.fiber_recovery = FiberRecovery(retry=1, retry_at_most=1, max_age=60)
    host = await world.next_life(Planner, shutdown_timeout=0)
    await asyncio.sleep(200)
    assert (Planner.runs, sorted(Planner.log)) == (2, [1, 2])
    assert await noted(host) == []


async def test_after_an_agent_was_destroyed_nothing_is_left(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        await agent.schedule(0, agent.note, run)
        await forever()

    async def begin(agent: Any) -> None:
        await agent.schedule(1, agent.tick)
        await agent.start_fiber("march", agent.march)

    async def both(agent: Any) -> None:
        await begin(agent)
        await (await agent.sub_agent(Child, "c")).do(begin)

    async def delete(agent: Any) -> bool:
        return await agent.delete_sub_agent(Child, "c")  # type: ignore[no-any-return]

    Planner.act = act
    host = await world.host(Parent, shutdown_timeout=0)
    await host.get(Parent, "p").do(both)
    await asyncio.sleep(10)
    assert len(await noted(host)) == 4
    assert await host.get(Parent, "p").do(delete)
    assert [agent for agent, *_ in await noted(host)] == ["Parent/p"] * 2
    await host.get(Parent, "p").destroy()
    assert await noted(host) == []


async def test_what_is_joined_after_the_agent_was_stopped_in_the_process(world: World) -> None:
    """A death of the agent alone: its parent aborts it."""

    async def act(agent: Planner, run: int) -> None:
        await agent.start_fiber("child", agent.child, "fiber")
        await agent.schedule(0, agent.note, "now")
        await asyncio.sleep(1)
        if run == 1:
            await Planner.host.get(Parent, "p").abort_sub_agent(Child, "c")
            await forever()

    async def begin(agent: Any) -> None:
        await (await agent.sub_agent(Child, "c")).schedule(1, "tick")

    async def poke(agent: Any) -> None:
        await (await agent.sub_agent(Child, "c")).get_schedules()

    Planner.act = act
    Planner.host = await world.host(Parent)
    await Planner.host.get(Parent, "p").do(begin)
    await asyncio.sleep(10)
    await Planner.host.get(Parent, "p").do(poke)
    await asyncio.sleep(10)
    assert Planner.runs == 2
    assert sorted(Planner.log) == ["fiber", "now"]
    assert await noted(Planner.host) == []
