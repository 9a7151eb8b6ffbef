"""Work admitted from inside a callback, or from inside anything: by a second run again, and still once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from planner import (
    Child,
    Parent,
    Planner,
    die_in,
    fiber_names,
    fresh,
    noted,
    scheduled,
    start_march,
)

from outlast import CommitFailed, Host, Retry, Schedule
from outlast.agent.admission import WAS_ADMITTED
from outlast.store.operations import Query
from support import World, alarm_rows, forever

pytestmark = pytest.mark.virtual_time


_fresh = pytest.fixture(autouse=True)(fresh)


# --- a callback that runs again ------------------------------------------------------------------


async def admit_all(agent: Planner, run: int) -> None:
    """Two of each, and they are alike; a second run finds the same."""
    for _ in range(2):
        await agent.start_fiber("child", agent.child, "fiber")
        await agent.schedule(0, agent.note, "now")
        await agent.schedule(100, agent.note, "later")
    await asyncio.sleep(1)


@pytest.mark.parametrize("begin", [None, start_march], ids=["callback", "fiber"])
async def test_a_run_after_a_death_joins_what_the_first_run_admitted(
    world: World, begin: Any
) -> None:
    await die_in(admit_all, world, begin)
    assert sorted(Planner.log) == ["fiber", "fiber", "now", "now"]
    host = await world.next_life(Planner)
    await host.until_settled()
    assert Planner.runs == 2
    assert await scheduled(host) == [("note", '"later"')] * 2
    assert [name for name in await fiber_names(host) if name == "child"] == ["child"] * 2
    await asyncio.sleep(200)
    assert sorted(Planner.log) == ["fiber", "fiber", "later", "later", "now", "now"]
    assert await noted(host) == await alarm_rows(host) == []


async def test_a_retry_in_the_process_joins_what_the_failed_try_admitted(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        await admit_all(agent, run)
        if run < 3:
            raise ValueError("not yet")

    Planner.act = act
    host = await world.host(Planner)
    await host.get(Planner, "p").schedule(10, "tick")
    await asyncio.sleep(60)
    assert Planner.runs == 3
    assert await scheduled(host) == [("note", '"later"')] * 2
    await asyncio.sleep(200)
    assert sorted(Planner.log) == ["fiber", "fiber", "later", "later", "now", "now"]
    assert await noted(host) == []


async def test_a_callback_that_was_put_off_joins_what_it_had_admitted(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        await admit_all(agent, run)
        if run < 3:
            raise CommitFailed("the store is away")

    Planner.act = act
    host = await world.host(Planner)
    await host.get(Planner, "p").schedule(10, "tick", retry=Retry(max_attempts=1))
    await asyncio.sleep(15)
    assert Planner.runs == 1
    assert len(await noted(host)) == 4, "it will run again"
    await asyncio.sleep(300)
    assert Planner.runs == 3
    assert sorted(Planner.log) == ["fiber", "fiber", "later", "later", "now", "now"]
    assert await noted(host) == []


async def test_a_second_run_that_admits_more_adds_just_that(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        for _ in range(run + 1):
            await agent.start_fiber("child", agent.child, "fiber")
            await agent.schedule(0, agent.note, "now")

    await die_in(act, world)
    host = await world.next_life(Planner)
    await asyncio.sleep(10)
    assert sorted(Planner.log) == ["fiber"] * 3 + ["now"] * 3
    assert await noted(host) == []


async def test_the_next_occurrence_admits_anew(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        await agent.start_fiber("child", agent.child, "fiber")
        await agent.schedule(0, agent.note, "now")
        if run == 2:
            raise ValueError("and a retry adds nothing")

    Planner.act = act
    host = await world.host(Planner)
    await host.get(Planner, "p").schedule_every(10, "tick")
    await asyncio.sleep(35)
    assert Planner.runs == 4
    assert sorted(Planner.log) == ["fiber"] * 3 + ["now"] * 3
    assert await noted(host) == []


async def test_a_one_shot_that_was_cancelled_is_not_made_again(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        made = await agent.schedule(100, agent.note, "never")
        assert await agent.cancel_schedule(made.id) is (run == 1)

    await die_in(act, world)
    host = await world.next_life(Planner)
    await asyncio.sleep(200)
    assert (Planner.runs, Planner.log) == (2, [])
    assert await noted(host) == []


async def test_what_was_joined_is_returned(world: World) -> None:
    seen: list[Any] = []

    async def act(agent: Planner, run: int) -> None:
        fiber = await agent.start_fiber("child", agent.child, "fiber", wait=True)
        now = await agent.schedule(0, agent.note, "now")
        later = await agent.schedule(100, agent.note, "later")
        seen.append((fiber.accepted, fiber.id, fiber.status, now.id, later))

    await die_in(act, world)
    host = await world.next_life(Planner)
    await host.until_settled()
    assert [accepted for accepted, *_ in seen] == [True, False]
    assert seen[0][1:] == seen[1][1:]


async def test_in_a_callback_other_input_is_other_work(world: World) -> None:
    """What the second run asks for may have changed: nothing of it is lost by joining the first."""

    async def act(agent: Planner, run: int) -> None:
        await agent.start_fiber("child", agent.child, f"fiber of run {run}")
        await agent.start_fiber("another", agent.child, f"another of run {run}")
        await agent.schedule(0, agent.note, f"now of run {run}")
        await agent.schedule(0, agent.other, f"now of run {run}")

    await die_in(act, world)
    host = await world.next_life(Planner)
    await asyncio.sleep(10)
    assert Planner.runs == 2
    assert len(Planner.log) == 8
    assert await noted(host) == []


async def test_what_is_named_explicitly_is_left_alone(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        for _ in range(2):
            assert (await agent.start_fiber("child", agent.child, 1, id="i")).id == "i"
            fiber = await agent.start_fiber("child", agent.child, 2, idempotency_key="k")
            assert fiber.idempotency_key == "k"
            await agent.schedule(50, agent.note, "once", idempotent=True)
            await agent.schedule("0 * * * *", agent.other, "hourly")
            await agent.schedule_every(7200, agent.other, "interval")
        assert await noted(Planner.host) == []

    await die_in(act, world)
    Planner.host = await world.next_life(Planner)
    await Planner.host.until_settled()
    found = await Planner.host.store.fetch(
        Query.same("SELECT id, idempotency_key FROM fibers ORDER BY snapshot")
    )
    assert [found[0], found[1][1]] == [("i", None), "k"]
    assert await scheduled(Planner.host) == [
        ("note", '"once"'),
        ("other", '"hourly"'),
        ("other", '"interval"'),
    ]


async def test_a_cron_text_that_is_not_idempotent_is_deduplicated_too(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        for _ in range(2):
            await agent.schedule("0 * * * *", agent.note, "hourly", idempotent=False)

    await die_in(act, world)
    host = await world.next_life(Planner)
    await host.until_settled()
    assert await scheduled(host) == [("note", '"hourly"')] * 2


async def test_outside_of_durable_work_nothing_is_joined(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        await asyncio.sleep(10)

    Planner.act = act
    host = await world.host(Planner)
    planner = host.get(Planner, "p")
    await planner.schedule(1, "tick")
    await asyncio.sleep(5)
    for _ in range(2):  # while the callback runs
        await planner.begin("fiber")
        await planner.schedule(0, "note", "now")
    assert await noted(host) == []
    await host.until_settled()
    assert sorted(Planner.log) == ["fiber", "fiber", "now", "now"]


# --- at once -------------------------------------------------------------------------------------


async def test_admissions_at_once_are_as_many_and_a_second_run_joins_all_of_them(
    world: World,
) -> None:
    async def act(agent: Planner, run: int) -> None:
        await asyncio.gather(
            *(agent.start_fiber("child", agent.child, n) for n in range(5)),
            *(agent.schedule(0, agent.note, n) for n in range(5)),
            *(agent.schedule(50, agent.note, "alike") for _ in range(5)),
        )

    await die_in(act, world)
    host = await world.next_life(Planner)
    await asyncio.sleep(100)
    expected = [*range(5), *range(5), *["alike"] * 5]
    assert sorted(Planner.log, key=str) == sorted(expected, key=str)
    assert await noted(host) == []


@pytest.mark.parametrize("delay", [0, 100])
async def test_a_try_that_failed_may_leave_tasks_behind_that_admit_what_the_next_try_admits(
    world: World, delay: int
) -> None:
    """asyncio.gather lets the others run on when one raises. Here both come at the same moment."""
    gate = asyncio.Event()

    async def act(agent: Planner, run: int) -> None:
        if run == 2:
            asyncio.get_running_loop().call_later(5, gate.set)
        await asyncio.gather(late(agent), fail(run))

    async def late(agent: Planner) -> None:
        await gate.wait()
        await agent.schedule(delay, agent.note, "once")
        await agent.start_fiber("child", agent.child, "fiber")
        Planner.log.append("admitted")

    async def fail(run: int) -> None:
        if run == 1:
            raise ValueError("the first try")

    Planner.act = act
    host = await world.host(Planner)
    await host.get(Planner, "p").schedule(10, "tick")
    await asyncio.sleep(200)
    assert Planner.runs == 2
    assert sorted(Planner.log) == ["admitted", "admitted", "fiber", "once"]
    assert await noted(host) == []


async def test_an_admission_that_was_overtaken_by_its_double_joins_it_also_when_that_has_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look was before, the commit is after: the row has come and gone in between."""
    others: list[asyncio.Task[Schedule]] = []

    async def act(agent: Planner, run: int) -> None:
        if run == 1:
            others.append(asyncio.create_task(agent.schedule(0, agent.note, "once")))
            await asyncio.sleep(0.5)
            assert not others[0].done()
            raise ValueError("the first try")
        await agent.schedule(0, agent.note, "once")
        await asyncio.sleep(20)

    Planner.act = act
    host = await world.host(Planner)
    fetch, looks = host.store.fetch, []

    async def slow(query: Query, *arguments: Any) -> list[Any]:
        rows = await fetch(query, *arguments)
        if query is WAS_ADMITTED:
            looks.append(rows)
            if len(looks) == 1:
                await asyncio.sleep(10)  # the answer travels
        return rows

    monkeypatch.setattr(host.store, "fetch", slow)
    await host.get(Planner, "p").schedule(10, "tick")
    await asyncio.sleep(100)
    assert looks == [[], []]
    assert Planner.log == ["once"]
    assert others[0].result().payload == "once"
    assert await noted(host) == []


async def test_what_a_task_of_its_own_admits_after_the_end_is_admitted_and_leaves_no_trace(
    world: World,
) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def act(agent: Planner, run: int) -> None:
        async def later() -> None:
            await asyncio.sleep(5)
            for _ in range(2):
                await agent.schedule(0, agent.note, "now")
                await agent.start_fiber("child", agent.child, "fiber")
            async with agent.commit():
                await agent.schedule(0, agent.note, "now")

        tasks.append(asyncio.create_task(later()))

    Planner.act = act
    host = await world.host(Planner)
    await host.get(Planner, "p").schedule(10, "tick")
    await start_march(host)
    await asyncio.sleep(60)
    await asyncio.gather(*tasks)
    assert sorted(Planner.log) == ["fiber"] * 4 + ["now"] * 6
    assert await noted(host) == []


# --- other agents --------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [None, start_march], ids=["callback", "fiber"])
async def test_what_another_agent_admits_when_it_is_called_is_deduplicated_there(
    world: World, begin: Any
) -> None:
    async def act(agent: Planner, run: int) -> None:
        for name in ("a", "b"):
            for _ in range(2):
                fiber = await Planner.host.get(Planner, name).begin("fiber")
                assert fiber.accepted is (run == 1)

    await die_in(act, world, begin)
    Planner.host = await world.next_life(Planner)
    await Planner.host.until_settled()
    assert Planner.runs == 2
    for name in ("a", "b"):
        assert await fiber_names(Planner.host, f"Planner/{name}") == ["child"] * 2
    assert Planner.log == ["fiber"] * 4


@pytest.mark.parametrize("begin", [None, start_march], ids=["callback", "fiber"])
async def test_in_which_order_other_agents_are_reached_does_not_matter(
    world: World, begin: Any
) -> None:
    """Waking one may take longer than waking the other, and next time it is the other way round."""

    async def act(agent: Planner, run: int) -> None:
        async def call(name: str, delay: float) -> None:
            await asyncio.sleep(delay)
            await Planner.host.get(Planner, name).begin("fiber")

        await asyncio.gather(call("a", run), call("b", 3 - run), agent.begin("fiber"))

    await die_in(act, world, begin)
    Planner.host = await world.next_life(Planner)
    await Planner.host.until_settled()
    assert Planner.runs == 2
    assert Planner.log == ["fiber"] * 3


async def test_sub_agents_count_as_other_agents(world: World) -> None:
    async def act(agent: Planner, run: int) -> None:
        if isinstance(agent, Parent):
            await (await agent.sub_agent(Child, "c")).begin("below")
        else:
            await agent.parent_agent(Parent).begin("above")
        await agent.schedule(0, agent.note, "now")

    async def begin(host: Host) -> None:
        parent = host.get(Parent, "p")
        await parent.schedule(10, "tick")

        async def in_child(agent: Any) -> None:
            await (await agent.sub_agent(Child, "c")).schedule(10, "tick")

        await parent.do(in_child)

    await die_in(act, world, begin)
    Planner.host = await world.next_life(Parent)
    await asyncio.sleep(60)
    assert Planner.runs == 4
    assert sorted(Planner.log) == ["above", "below", "now", "now"]
    assert await noted(Planner.host) == []


async def test_what_another_agent_schedules_when_it_is_called_is_left_to_that_agent(
    world: World,
) -> None:
    """It has no part in the commits of the one that calls, which alone knows when it has ended."""

    async def act(agent: Planner, run: int) -> None:
        await Planner.host.get(Planner, "a").schedule(0, "note", "by default a second one")
        await Planner.host.get(Planner, "a").schedule(100, "note", "one", idempotent=True)
        await asyncio.sleep(1)
        assert await noted(Planner.host) == []

    await die_in(act, world)
    Planner.host = await world.next_life(Planner)
    await asyncio.sleep(200)
    assert Planner.runs == 2
    assert sorted(Planner.log) == ["by default a second one"] * 2 + ["one"]


async def test_what_a_fiber_admits_belongs_to_it_and_not_to_the_callback_that_started_it(
    world: World,
) -> None:
    async def act(agent: Planner, run: int) -> None:
        if run == 1:  # the callback, which soon ends
            await agent.start_fiber("march", agent.march)
            return
        await asyncio.sleep(5)
        await agent.schedule(0, agent.note, "now")
        await agent.start_fiber("child", agent.child, "fiber")
        await asyncio.sleep(5)
        (row,) = await noted(Planner.host)
        assert row[1].startswith("fiber:"), "also while the callback could not run again"
        if run == 2:
            await forever()

    Planner.act = act
    Planner.host = await world.host(Planner, shutdown_timeout=0)
    await Planner.host.get(Planner, "p").schedule(10, "tick")
    await asyncio.sleep(60)
    Planner.host = await world.next_life()
    await Planner.host.until_settled()
    assert Planner.runs == 3
    assert sorted(Planner.log) == ["fiber", "now"]
    assert await noted(Planner.host) == []


# --- commit blocks -------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [None, start_march], ids=["callback", "fiber"])
async def test_of_a_commit_block_that_is_given_up_nothing_stays_admitted(
    world: World, begin: Any
) -> None:
    async def act(agent: Planner, run: int) -> None:
        if run == 1:
            with pytest.raises(ValueError):
                async with agent.commit():
                    await agent.start_fiber("child", agent.child, "fiber")
                    await agent.schedule(0, agent.note, "now")
                    raise ValueError("given up")
            assert await noted(Planner.host) == []
            return
        async with agent.commit():
            await agent.start_fiber("child", agent.child, "fiber")
            await agent.schedule(0, agent.note, "now")
        await asyncio.sleep(1)
        assert len(await noted(Planner.host)) == 1

    await die_in(act, world, begin)
    assert Planner.log == []
    Planner.host = await world.next_life(Planner)
    await asyncio.sleep(60)
    assert Planner.runs == 2
    assert sorted(Planner.log) == ["fiber", "now"]
    assert await noted(Planner.host) == []


@pytest.mark.parametrize("begin", [None, start_march], ids=["callback", "fiber"])
async def test_an_admission_that_was_given_up_is_not_counted(world: World, begin: Any) -> None:
    """A block that needed two attempts in one run and one in the next admits the same."""

    async def act(agent: Planner, run: int) -> None:
        for attempt in range(run, 3):
            try:
                async with agent.commit():
                    for _ in range(2):
                        await agent.start_fiber("child", agent.child, "fiber")
                        await agent.schedule(0, agent.note, "now")
                    if attempt == 1:
                        raise ValueError("given up")
            except ValueError:
                continue

    await die_in(act, world, begin)
    host = await world.next_life(Planner)
    await asyncio.sleep(60)
    assert Planner.runs == 2
    assert sorted(Planner.log) == ["fiber", "fiber", "now", "now"]
    assert await noted(host) == []


async def test_an_admission_that_was_given_up_after_another_does_not_give_its_number_to_a_third(
    world: World,
) -> None:
    async def act(agent: Planner, run: int) -> None:
        async def block() -> None:
            async with agent.commit():
                await agent.start_fiber("child", agent.child, "never")
                await asyncio.sleep(2)
                raise ValueError("given up")

        async def beside() -> None:
            await asyncio.sleep(1)
            await agent.start_fiber("child", agent.child, "beside")

        await asyncio.gather(block(), beside(), return_exceptions=True)
        await agent.start_fiber("child", agent.child, "after")
        await agent.start_fiber("child", agent.child, "last")

    await die_in(act, world)
    host = await world.next_life(Planner)
    await host.until_settled()
    assert Planner.runs == 2
    assert Planner.log == ["beside", "after", "last"]
