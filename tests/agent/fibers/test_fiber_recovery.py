"""What becomes of fibers that a dead process left behind."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from outlast import Agent, FiberContext, FiberRecovery, FiberRecoveryContext, NotInFiber
from outlast.agent.agent import parts_of
from outlast.agent.fibers.backoff import judge
from outlast.agent.fibers.recovery import Recovery
from outlast.agent.fibers.sql import FiberRow
from outlast.host.address import Address
from support import World, alarm_rows, fiber_rows, forever, listen, raw

pytestmark = pytest.mark.virtual_time


class Recoverer(Agent):
    """Leaves fibers behind, and does with them what the test says."""

    hook: Any = None

    async def leave(self, *inputs: Any, name: str = "work") -> list[str]:
        return [self.run_fiber(name, forever, input).id for input in inputs]

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> Any:
        return await type(self).hook(self, fiber)


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    Recoverer.hook = None


async def left_behind(world: World, *inputs: Any) -> list[str]:
    """A host that is killed in the middle of one fiber per input."""
    host = await world.host(Recoverer)
    ids = await host.get(Recoverer, "a").leave(*inputs)
    await host.store.drained()
    await world.kill()
    return ids


@pytest.mark.invariant("A8")
async def test_all_orphans_are_recovered_exactly_once_oldest_first(world: World) -> None:
    ids = await left_behind(world, *range(60))
    seen: list[Any] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        seen.append((fiber.id, fiber.name, fiber.snapshot, fiber.attempt))

    Recoverer.hook = hook
    host = await world.next_life()
    await host.until_settled()
    assert await fiber_rows(host) == []
    await world.stop()
    assert sorted(seen) == sorted((id, "work", number, 1) for number, id in enumerate(ids))
    host = await world.next_life()
    await host.until_settled()
    await world.stop()
    assert len(seen) == 60


@pytest.mark.invariant("A7")
async def test_a_running_fiber_is_never_recovered(world: World) -> None:
    seen: list[str] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        seen.append(fiber.id)

    class Scanner(Recoverer):
        async def scan(self) -> None:
            await parts_of(self)[Recovery].scan_soon()

    Scanner.hook = hook
    host = await world.host(Scanner, shutdown_timeout=0)
    agent = host.get(Scanner, "a")
    await agent.leave(1, 2, 3)
    await host.store.drained()
    await agent.scan()
    assert seen == []
    assert len(await fiber_rows(host)) == 3


@pytest.mark.invariant("A9")
async def test_scans_at_start_and_by_alarm_never_recover_twice(world: World) -> None:
    await left_behind(world, 1, 2)
    seen: list[str] = []
    inside = asyncio.Event()

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        seen.append(fiber.id)
        inside.set()
        await asyncio.sleep(5)

    Recoverer.hook = hook
    host = await world.next_life()
    await inside.wait()
    async with host.using(Address.of("Recoverer", "a")) as agent:
        await asyncio.gather(*(agent._wake("fibers") for _ in range(5)))
    await host.until_settled()
    await world.stop()
    assert len(seen) == len(set(seen)) == 2


@pytest.mark.invariant("A6")
@pytest.mark.parametrize("garbage", ["{not json", "", '{"__framework": 99}', "\x01", "[" * 500])
async def test_a_corrupt_snapshot_is_null_or_the_value_itself_never_a_crash(
    sqlite_world: World, garbage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await left_behind(sqlite_world, "fine", "broken")
    with raw(sqlite_world.url) as db:
        db.execute("UPDATE fibers SET snapshot = ? WHERE snapshot = '\"broken\"'", (garbage,))
    db.close()
    seen: list[Any] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        seen.append(fiber.snapshot)

    Recoverer.hook = hook
    host = await sqlite_world.next_life()
    await host.until_settled()
    assert await fiber_rows(host) == []
    await sqlite_world.stop()
    assert "fine" in seen
    assert {"__framework": 99} in seen if "framework" in garbage else None in seen


async def test_resume_goes_on_under_the_same_id_with_the_snapshot(world: World) -> None:
    (id,) = await left_behind(world, {"done": 1})
    seen: list[Any] = []

    async def rest(fiber: FiberContext, plan: Any) -> str:
        seen.append((fiber.id, plan, fiber.snapshot))
        await fiber.stash({"done": 2})
        return "ended"

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        seen.append(await fiber.resume(rest))

    Recoverer.hook = hook
    host = await world.next_life()
    await host.until_settled()
    assert await fiber_rows(host) == []
    await world.stop()
    assert seen == [(id, {"done": 1}, {"done": 1}), "ended"]


async def test_resume_calls_a_function_of_one_argument_with_the_fiber_alone(
    sqlite_world: World,
) -> None:
    await left_behind(sqlite_world, 7)
    seen: list[Any] = []

    async def rest(fiber: FiberContext) -> None:
        seen.append(fiber.snapshot)

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        fiber.resume(rest)
        with pytest.raises(NotInFiber, match="already"):
            fiber.resume(rest)

    Recoverer.hook = hook
    host = await sqlite_world.next_life()
    await host.until_settled()
    await sqlite_world.stop()
    assert seen == [7]


async def test_first_fiber_started_in_the_hook_takes_the_old_ones_place(world: World) -> None:
    (old,) = await left_behind(world, {"kept": True})
    ids: list[str] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        ids.append(agent.run_fiber("again", forever).id)
        ids.append(agent.run_fiber("another", forever, 2).id)

    Recoverer.hook = hook
    host = await world.next_life(shutdown_timeout=0)
    await asyncio.sleep(1)
    assert await fiber_rows(host, "id, root_id, name, snapshot") == [
        (ids[0], old, "again", '{"kept":true}'),
        (ids[1], ids[1], "another", "2"),
    ]


async def test_a_fiber_started_after_the_hook_returned_replaces_nothing(
    sqlite_world: World,
) -> None:
    (old,) = await left_behind(sqlite_world, 1)
    late: list[asyncio.Task[Any]] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        async def later() -> None:
            await asyncio.sleep(1)
            agent.run_fiber("late", forever)

        late.append(asyncio.create_task(later()))

    Recoverer.hook = hook
    host = await sqlite_world.next_life(shutdown_timeout=0)
    await asyncio.sleep(2)
    rows = await fiber_rows(host, "name, root_id <> id")
    await sqlite_world.stop()
    assert rows == [("late", 0)]


async def test_a_hook_that_goes_on_after_resuming_holds_up_nobody(sqlite_world: World) -> None:
    await left_behind(sqlite_world, 1, 2, 3)
    resumed: list[Any] = []

    async def work(fiber: FiberContext) -> None:
        resumed.append(fiber.snapshot)

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        fiber.resume(work)
        await forever()

    Recoverer.hook = hook
    await sqlite_world.next_life(shutdown_timeout=0)
    await asyncio.sleep(1)
    assert resumed == [1, 2, 3]


@pytest.mark.invariant("A10")
async def test_a_failing_hook_is_tried_again_later_and_later_and_dropped_in_the_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await left_behind(world, "poison")
    loop = asyncio.get_running_loop()
    tries: list[float] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        tries.append(loop.time())
        raise ValueError("poison")

    Recoverer.hook = hook
    host = await world.next_life()
    events = listen(host, "fiber")
    await asyncio.sleep(timedelta(hours=25).total_seconds())
    assert await fiber_rows(host) == []
    assert await alarm_rows(host) == []
    await world.stop()
    delays = [round(later - earlier) for earlier, later in zip(tries, tries[1:], strict=False)]
    assert delays[:6] == [30, 60, 120, 240, 300, 300]
    assert tries[-1] - tries[0] < timedelta(hours=24).total_seconds()
    assert tries[-1] - tries[0] > timedelta(hours=23.9).total_seconds()
    skipped = [event for event in events if event.name == "fiber:recovery:skipped"]
    assert [event.payload["reason"] for event in skipped] == ["max_age_exceeded"]
    assert "dropped the" in caplog.text


@pytest.mark.invariant("A11")
async def test_waits_are_short_again_as_soon_as_any_fiber_is_resolved(sqlite_world: World) -> None:
    await left_behind(sqlite_world, "poison", "good")
    loop = asyncio.get_running_loop()
    tries: list[float] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        if fiber.snapshot == "poison":
            tries.append(loop.time())
            raise ValueError
        if loop.time() < 400:
            raise ValueError

    Recoverer.hook = hook
    host = await sqlite_world.next_life()
    await asyncio.sleep(700)
    assert len(await fiber_rows(host)) == 1
    await sqlite_world.stop()
    delays = [round(later - earlier) for earlier, later in zip(tries, tries[1:], strict=False)]
    assert delays == [30, 60, 120, 240, 30, 60, 120], "the good one was resolved after 450 s"


@pytest.mark.invariant("A12", "A13")
async def test_a_scan_over_its_deadline_makes_way_and_goes_on_until_nothing_is_left(
    sqlite_world: World,
) -> None:
    await left_behind(sqlite_world, *range(100))
    seen: list[int] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        seen.append(fiber.snapshot)
        await asyncio.sleep(1)

    Recoverer.hook = hook
    host = await sqlite_world.next_life()
    events = listen(host, "fiber")
    await host.until_settled()
    assert sorted(seen) == list(range(100))
    assert await alarm_rows(host) == []
    assert host.statistics().next_alarm_at is None
    await sqlite_world.stop()
    skipped = [event for event in events if event.name == "fiber:recovery:skipped"]
    assert {event.payload["reason"] for event in skipped} == {"scan_deadline_exceeded"}
    assert len(skipped) == 9


async def test_an_evicted_agent_wakes_for_its_next_try(sqlite_world: World) -> None:
    await left_behind(sqlite_world, 1)
    tries: list[object] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        tries.append(agent)
        if len(tries) < 3:
            raise ValueError

    Recoverer.hook = hook
    host = await sqlite_world.next_life(idle_timeout=5)
    await asyncio.sleep(10)
    assert host.statistics().active == 0
    await asyncio.sleep(300)
    assert await fiber_rows(host) == []
    await sqlite_world.stop()
    assert len({id(agent) for agent in tries}) == 3, "each try had an object of its own"


async def test_a_new_process_tries_at_once_until_the_fiber_may_be_what_kills_it(
    sqlite_world: World,
) -> None:
    await left_behind(sqlite_world, 1)
    tries: list[int] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        tries.append(fiber.attempt)
        raise ValueError

    Recoverer.hook = hook
    for _ in range(6):
        host = await sqlite_world.next_life()
        await host.until_settled()
        await sqlite_world.stop()
        await asyncio.sleep(20)
    assert tries == [1, 2, 3], "from the fourth on even a new process waits for its turn"
    await sqlite_world.next_life()
    await asyncio.sleep(130)
    await sqlite_world.stop()
    assert tries == [1, 2, 3, 4]


async def test_deaths_in_quick_succession_count_once(sqlite_world: World) -> None:
    await left_behind(sqlite_world, 1)
    tries: list[int] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        tries.append(fiber.attempt)
        await forever()

    Recoverer.hook = hook
    for _ in range(20):
        await sqlite_world.next_life(shutdown_timeout=0)
        await asyncio.sleep(2)
    await sqlite_world.stop()
    assert tries == [1] * 8 + [2] * 8 + [3], "then even a new process waits"


async def test_a_stash_makes_earlier_recoveries_count_no_more(sqlite_world: World) -> None:
    (id,) = await left_behind(sqlite_world, 0)
    attempts: list[int] = []

    async def work(fiber: FiberContext, n: int) -> None:
        await fiber.stash(n + 1)
        await forever()

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        attempts.append(fiber.attempt)
        fiber.resume(work)

    Recoverer.hook = hook
    for stashed in range(1, 11):
        host = await sqlite_world.next_life()
        await asyncio.sleep(1)
        assert await fiber_rows(host) == [(id, "running", str(stashed))]
        await sqlite_world.kill()
    assert attempts == [1] * 10


async def test_a_fiber_that_is_resumed_and_dies_again_and_again_is_given_up(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing spins for ever: here the fiber, not the hook, is what never gets anywhere."""
    await left_behind(sqlite_world, 0)
    deaths: list[float] = []

    async def dies(fiber: FiberContext) -> None:
        deaths.append(asyncio.get_running_loop().time())
        raise asyncio.CancelledError  # as it looks when something it awaits was cancelled

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        fiber.resume(dies)

    Recoverer.hook = hook
    host = await sqlite_world.next_life()
    await asyncio.sleep(timedelta(hours=26).total_seconds())
    assert await fiber_rows(host) == []
    assert await alarm_rows(host) == []
    await sqlite_world.stop()
    assert 23.9 * 3600 < deaths[-1] - deaths[0] < 24 * 3600
    assert len(deaths) < 400
    assert "dropped the" in caplog.text


async def test_without_a_hook_the_fiber_is_dropped_with_a_warning(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(Agent):
        async def leave(self) -> None:
            self.run_fiber("work", forever)

    host = await sqlite_world.host(Silent)
    await host.get(Silent, "a").leave()
    await host.store.drained()
    await sqlite_world.kill()
    with caplog.at_level(logging.WARNING, "outlast"):
        host = await sqlite_world.next_life()
        await host.until_settled()
        assert await fiber_rows(host) == []
    assert "Silent does not override on_fiber_recovered" in caplog.text


async def test_recovery_starts_after_on_start(sqlite_world: World) -> None:
    """What on_start sets up, configuration and connections, is there for recovered work."""
    await left_behind(sqlite_world, 1)
    order: list[str] = []

    async def hook(agent: Any, fiber: FiberRecoveryContext) -> None:
        order.append(f"hook {agent.ready}")

    class Ordered(Recoverer):
        async def on_start(self) -> None:
            await asyncio.sleep(3)
            self.ready = True
            order.append("on_start")

    Ordered.__name__ = "Recoverer"
    Ordered.hook = hook
    host = await sqlite_world.next_life(Ordered)
    await host.until_settled()
    await sqlite_world.stop()
    assert order == ["on_start", "hook True"]


async def test_a_plain_def_hook_is_accepted(sqlite_world: World) -> None:
    await left_behind(sqlite_world, 1)
    seen: list[Any] = []

    class Plain(Recoverer):
        def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:  # type: ignore[override]
            seen.append(fiber.snapshot)

    Plain.__name__ = "Recoverer"
    host = await sqlite_world.next_life(Plain)
    await host.until_settled()
    assert await fiber_rows(host) == []
    await sqlite_world.stop()
    assert seen == [1]


async def test_a_senseless_return_value_is_an_error_not_a_lost_fiber(sqlite_world: World) -> None:
    await left_behind(sqlite_world, 1)
    answers: list[Any] = ["yes", None]

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> Any:
        return answers.pop(0)

    Recoverer.hook = hook
    host = await sqlite_world.next_life()
    events = listen(host, "fiber")
    await host.until_settled()
    assert len(await fiber_rows(host)) == 1
    assert "fiber:recovery:failed" in [event.name for event in events]
    await asyncio.sleep(31)
    assert await fiber_rows(host) == []


async def test_events_tell_the_whole_story(sqlite_world: World) -> None:
    await left_behind(sqlite_world, 1)

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        async def work(fiber: FiberContext) -> None: ...

        fiber.resume(work)

    Recoverer.hook = hook
    host = await sqlite_world.next_life()
    events = listen(host, "fiber")
    await host.until_settled()
    await sqlite_world.stop()
    names = [event.name for event in events]
    assert names[:3] == [
        "fiber:recovery:detected",
        "fiber:run:interrupted",
        "fiber:recovery:attempt",
    ]
    assert sorted(names[3:]) == [
        "fiber:recovery:handled",
        "fiber:run:completed",
        "fiber:run:started",
    ]
    assert {event.agent for event in events} == {"Recoverer/a"}


def _row(**changes: Any) -> FiberRow:
    values: dict[str, Any] = dict.fromkeys(FiberRow.__slots__)
    return FiberRow(**{**values, "created_at": 0, "tries": 0, "waits": 1, **changes})


DAY = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("row", "same_process", "turn"),
    [
        (_row(), True, "now"),
        (_row(tries=1, interrupted_at=0, retry_at=500), True, "now"),
        (_row(tries=1, interrupted_at=0, retry_at=5000), True, "later"),
        (_row(tries=1, interrupted_at=0, retry_at=1000 + 30_000), True, "later"),
        (_row(tries=1, interrupted_at=0, retry_at=1001 + 30_000), True, "now"),  # put off by a
        (_row(tries=1, interrupted_at=0, retry_at=10 * DAY), True, "now"),  # clock that was ahead
        (_row(tries=9, interrupted_at=0, retry_at=10 * DAY), False, "now"),
        (_row(tries=2, interrupted_at=0, retry_at=5000), False, "now"),
        (_row(tries=3, interrupted_at=0, retry_at=5000), False, "later"),
        (_row(tries=20, interrupted_at=1000 - DAY, retry_at=5000), True, "too old"),
        (_row(tries=19, interrupted_at=1000 - DAY, retry_at=5000), True, "later"),
        (_row(tries=20, interrupted_at=1001 - DAY, retry_at=5000), True, "later"),
        (_row(tries=20, interrupted_at=None, retry_at=None, created_at=-9 * DAY), True, "now"),
        (_row(tries=0, interrupted_at=1000 - DAY), True, "now"),
    ],
)
def test_whose_turn_it_is(row: FiberRow, same_process: bool, turn: str) -> None:
    assert judge(row, 1000, FiberRecovery(), same_process=same_process) == turn


def test_max_age_of_zero_drops_nothing() -> None:
    row = _row(tries=99, interrupted_at=-900 * DAY)
    assert judge(row, 0, FiberRecovery(max_age=0), same_process=True) == "now"


async def test_recovery_settings_made_in_on_start_are_in_force(sqlite_world: World) -> None:
    await left_behind(sqlite_world, 1)
    tries: list[float] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        tries.append(asyncio.get_running_loop().time())
        raise ValueError

    class Configured(Recoverer):
        async def on_start(self) -> None:
            self.fiber_recovery = FiberRecovery(retry=5, retry_at_most=7)

    Configured.__name__ = "Recoverer"
    Configured.hook = hook
    await sqlite_world.next_life(Configured)
    await asyncio.sleep(30)
    await sqlite_world.stop()
    assert [round(at) for at in tries] == [0, 5, 12, 19, 26]
