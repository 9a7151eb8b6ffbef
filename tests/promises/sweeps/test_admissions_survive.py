"""Callbacks and fibers that admit more work, killed at every commit: each admission is made once.

What is admitted counts itself in the store, in one commit with its own end, so that running it a second
time would show, and so would losing it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from outlast import Agent, FiberContext, FiberRecoveryContext, Host, Schedule
from outlast.store.operations import Query
from outlast.testing import Outcome
from support import alarm_rows
from sweeps import crash_sweep

Mode = Literal["commits", "groups", "twice"]
MODES: list[Mode] = ["commits", "groups", "twice"]
LATER = 30  # seconds


class Counting(Agent):
    """What is admitted, and how it counts itself."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # alike ones count at once

    async def begin(self) -> None:
        if not await self.storage.get("begun"):
            async with self.commit():
                await self.storage.put("begun", True)
                await self.start()

    async def start(self) -> None:
        raise NotImplementedError

    async def child(self, fiber: FiberContext, what: str | None) -> None:
        if what is not None:
            async with self.lock, self.commit():
                await self._count(what)
                await fiber.stash(None)

    async def once(self, what: str, schedule: Schedule) -> None:
        async with self.lock, self.commit():
            await self._count(what)
            await self.cancel_schedule(schedule.id)

    async def plainly(self, what: str) -> None:
        """As most callbacks are: its end is a commit of its own."""
        await self.storage.put(f"plain {what}", True)

    async def _count(self, what: str) -> None:
        await self.storage.put(what, await self.storage.get(what, 0) + 1)

    async def admit(self, name: str) -> None:
        """A fiber, one-shots for now and for later; what was for now has gone when this returns."""
        await self.start_fiber("child", self.child, f"{name} fiber")
        await self.schedule(0, self.once, f"{name} now")
        await self.schedule(0, self.plainly, f"{name} now")
        await self.schedule(LATER, self.once, f"{name} later")
        await asyncio.sleep(1)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.child)

    async def everything(self) -> dict[str, Any]:
        return await self.storage.list()


def admitted(*names: str) -> dict[str, Any]:
    """What `admit` leaves in the store."""
    counts: dict[str, Any] = {
        f"{name} {what}": 1 for name in names for what in ("fiber", "now", "later")
    }
    return {"begun": True, **counts, **{f"plain {name} now": True for name in names}}


async def nothing_is_left(host: Host) -> None:
    for table in ("admissions", "schedules"):
        assert await host.store.fetch(Query.same(f"SELECT * FROM {table}")) == [], table
    assert (
        await host.store.fetch(Query.same("SELECT id FROM fibers WHERE settled_at IS NULL")) == []
    )
    assert await alarm_rows(host) == []


async def sweep(
    agent: type[Any],
    expected: dict[str, Any],
    *,
    mode: Mode,
    store: str | None,
    sample: int | None,
) -> None:
    async def drive(host: Host) -> None:
        await host.get(agent, "a").begin()
        await asyncio.sleep(20 * LATER)
        await host.until_settled()

    async def check(outcome: Outcome) -> None:
        assert await outcome.host.get(agent, "a").everything() == expected
        await nothing_is_left(outcome.host)

    report = await crash_sweep(
        agents=[agent], drive=drive, check=check, mode=mode, store=store, sample=sample
    )
    assert report.commits >= 10
    assert report.deaths >= (sample or 2 * report.commits)


def swept(*, points: int | None, postgresql: list[Mode]) -> Any:
    """On SQLite at so many points (None: all), and fewer in the other modes; on PostgreSQL at a few."""
    cases = [(mode, "sqlite", points if mode == "commits" else 16) for mode in MODES]
    cases += [(mode, "postgresql", 4) for mode in postgresql]
    ids = [f"{mode}-{engine}" for mode, engine, _ in cases]
    return pytest.mark.parametrize(("mode", "engine", "sample"), cases, ids=ids)


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest) -> str | None:
    return str(request.getfixturevalue("postgres")) if engine == "postgresql" else None


# --- callbacks -----------------------------------------------------------------------------------


class Once(Counting):
    async def start(self) -> None:
        await self.schedule(10, self.tick)

    async def tick(self) -> None:
        await self.admit("first")
        async with self.commit():
            await self.storage.put("in a block", True)
            await self.start_fiber("child", self.child, "block")
            await self.schedule(0, self.once, "block now")


@swept(points=None, postgresql=MODES)
async def test_a_callback_that_admits(mode: Mode, store: str | None, sample: int | None) -> None:
    expected = admitted("first") | {"in a block": True, "block": 1, "block now": 1}
    await sweep(Once, expected, mode=mode, store=store, sample=sample)


class Beats(Counting):
    """A recurring one: each occurrence admits anew, until it cancels itself while it runs."""

    async def start(self) -> None:
        await self.schedule_every(50, self.beat)

    async def beat(self, payload: None, schedule: Schedule) -> None:
        beat = f"beat {schedule.time.timestamp():.0f}"
        beats = {**await self.storage.get("beats", {}), beat: True}
        await self.admit(beat)
        await self.storage.put("beats", beats)
        if len(beats) == 3:
            await self.cancel_schedule(schedule.id)
            await self.schedule(0, self.once, "the last one")


async def drive_beats(host: Host) -> None:
    await host.get(Beats, "a").begin()
    await asyncio.sleep(20 * LATER)
    await host.until_settled()


async def check_beats(outcome: Outcome) -> None:
    stored = await outcome.host.get(Beats, "a").everything()
    beats = stored.pop("beats")
    last = stored.pop("the last one", 0)
    assert stored == admitted(*beats)
    assert len(beats) == 3
    assert last == 1 or outcome.deaths, "after it was cancelled it does not run again"
    await nothing_is_left(outcome.host)


@swept(points=60, postgresql=["twice"])
async def test_a_recurring_callback_that_admits(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    report = await crash_sweep(
        agents=[Beats], drive=drive_beats, check=check_beats, mode=mode, store=store, sample=sample
    )
    assert report.deaths >= (sample or 2 * report.commits)


class Chain(Counting):
    """A one-shot that schedules itself anew: it stays one chain, and never breaks."""

    async def start(self) -> None:
        await self.schedule(5, self.link, 1)

    async def link(self, number: int) -> None:
        if number < 4:
            await self.schedule(5 if number % 2 else 0, self.link, number + 1)
        await self.schedule(0, self.once, f"link {number}")
        await asyncio.sleep(1)


@pytest.mark.invariant("B3")
@swept(points=None, postgresql=["groups"])
async def test_a_chain_of_one_shots(mode: Mode, store: str | None, sample: int | None) -> None:
    expected = {"begun": True} | {f"link {number}": 1 for number in range(1, 5)}
    await sweep(Chain, expected, mode=mode, store=store, sample=sample)


# --- fibers --------------------------------------------------------------------------------------

STEPS = 2
MARCHED = admitted(*(f"step {step}" for step in range(1, STEPS + 1)))
MARCHED |= {"alike": 2 * STEPS, "alike now": 2 * STEPS}
MARCHED |= {"a": 1, "b": 1, "a now": 1, "b now": 1, "did a": True, "did b": True}


class March(Counting):
    """A fiber that admits between stashes, alike ones too, and skips what it knows to be done."""

    async def start(self) -> None:
        await self.start_fiber("march", self.march, 0)

    async def march(self, fiber: FiberContext, step: int) -> None:
        while step < STEPS:
            step += 1
            await self.admit(f"step {step}")
            for _ in range(2):
                await self.start_fiber("child", self.child, "alike")
                await self.schedule(0, self.once, "alike now")
            for what in ("a", "b") if step == 1 else ():
                if not await self.storage.get(f"did {what}"):
                    await self.start_fiber("child", self.child, what)
                    await self.schedule(0, self.once, f"{what} now")
                    await self.storage.put(f"did {what}", True)
            await fiber.stash(step)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        if fiber.name == "march":
            fiber.resume(self.march)
        else:
            fiber.resume(self.child)


@swept(points=None, postgresql=MODES)
async def test_a_fiber_that_admits_between_stashes(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    await sweep(March, MARCHED, mode=mode, store=store, sample=sample)


class Relay(March):
    """The same as a plain fiber, whose place is taken by another after each death."""

    async def start(self) -> None:
        self.run_fiber("march", self.march, 0)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        if fiber.name == "march":
            self.run_fiber("march", self.march, fiber.snapshot)
        else:
            fiber.resume(self.child)


@swept(points=20, postgresql=["twice"])
async def test_fibers_that_take_one_anothers_place(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    await sweep(Relay, MARCHED, mode=mode, store=store, sample=sample)


class Detached(March):
    """A callback starts the fiber, and has ended long before that admits anything."""

    async def start(self) -> None:
        await self.schedule(1, self.tick)

    async def tick(self) -> None:
        await self.start_fiber("march", self.march, 0)

    async def march(self, fiber: FiberContext, step: int) -> None:
        await asyncio.sleep(5)
        await super().march(fiber, step)


@swept(points=20, postgresql=["twice"])
async def test_a_fiber_that_a_callback_has_started(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    await sweep(Detached, MARCHED, mode=mode, store=store, sample=sample)


# --- sub-agents ----------------------------------------------------------------------------------


class Helper(Counting):
    """A sub-agent with a callback and a fiber of its own, which also call its parent."""

    async def start(self) -> None:
        await self.schedule(10, self.tick)
        await self.start_fiber("march", self.march, 0)

    async def tick(self) -> None:
        await self.admit("callback")
        await self.parent_agent(Chief).help("for a callback")

    async def march(self, fiber: FiberContext, step: int) -> None:
        while step < 2:
            step += 1
            await self.schedule(0, self.once, "alike")
            await self.parent_agent(Chief).help("for a fiber")
            await fiber.stash(step)

    async def help(self, what: str) -> None:
        await self.start_fiber("child", self.child, what)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.march if fiber.name == "march" else self.child)


class Chief(Counting):
    sub_agents = (Helper,)

    async def start(self) -> None:
        await self.schedule(10, self.tick)

    async def tick(self) -> None:
        helpers = [await self.sub_agent(Helper, name) for name in ("x", "y")]
        await helpers[0].begin()
        await asyncio.gather(*(helper.help("for the chief") for helper in helpers))
        await self.admit("chief")

    async def help(self, what: str) -> None:
        await self.start_fiber("child", self.child, what)

    async def everything(self) -> dict[str, Any]:
        own = await self.storage.list()
        return own | {
            name: await (await self.sub_agent(Helper, name)).everything() for name in ("x", "y")
        }


@swept(points=80, postgresql=MODES)
async def test_a_parent_and_its_sub_agents_that_admit_at_one_another(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    expected = admitted("chief") | {
        "for a callback": 1,
        "for a fiber": 2,
        "x": admitted("callback") | {"alike": 2, "for the chief": 1},
        "y": {"for the chief": 1},
    }
    await sweep(Chief, expected, mode=mode, store=store, sample=sample)
