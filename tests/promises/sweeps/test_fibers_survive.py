"""Killed before and after every commit, on both engines: nothing lost, repeated or stuck."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import (
    Agent,
    FiberContext,
    FiberRecoveryContext,
    FiberResolution,
    Host,
    HostStopped,
)
from outlast.host.address import Address
from outlast.testing import Outcome
from support import alarm_rows, fiber_rows
from sweeps import crash_sweep

STEPS = 6
effects: list[str] = []  # what happened in the world outside the store


class Pipeline(Agent):
    """Everything that is durable so far, at once."""

    async def begin(self) -> None:
        await self.start_fiber("managed", self.managed, 0, idempotency_key="m")
        if not await self.storage.get("plain begun"):
            async with self.commit():
                await self.storage.put("plain begun", True)
                self.run_fiber("plain", self.plain, 0)
        await self.start_fiber("replaced", self.never, "first", idempotency_key="r")
        await self.start_fiber("handed on", self.counted, 0, idempotency_key="h")

    async def counted(self, fiber: FiberContext, n: int) -> None:
        """Started by start_fiber, and after a death by run_fiber in the hook: under one record."""
        while n < 2:
            n += 1
            async with self.commit():
                await self.storage.put(
                    f"handed on {n}", await self.storage.get(f"handed on {n}", 0) + 1
                )
                await fiber.stash(n)

    async def managed(self, fiber: FiberContext, n: int) -> None:
        await self._steps("managed", fiber, n)

    async def plain(self, fiber: FiberContext, n: int) -> None:
        await self._steps("plain", fiber, n)

    async def _steps(self, name: str, fiber: FiberContext, n: int) -> None:
        while n < STEPS:
            n += 1
            effects.append(f"{name} {n}")
            async with self.commit():
                done = await self.storage.get(f"{name} {n}", 0)
                await self.storage.put(f"{name} {n}", done + 1)
                await fiber.stash(n)

    async def never(self, fiber: FiberContext, which: str) -> None:
        await self.storage.put("replaced", True)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> FiberResolution | None:
        if fiber.name == "managed":
            fiber.resume(self.managed)
        elif fiber.name == "plain":
            self.run_fiber("plain", self.plain, fiber.snapshot)
        elif fiber.name == "handed on":
            self.run_fiber("handed on", self.counted, fiber.snapshot)
        elif fiber.name == "replaced":
            await self.storage.put("replaced", True)
            return FiberResolution("completed")
        return None

    async def everything(self) -> dict[str, Any]:
        return await self.storage.list()


async def drive(host: Host) -> None:
    await host.get(Pipeline, "p").begin()
    await host.until_settled()


async def check(outcome: Outcome) -> None:
    stored = await outcome.host.get(Pipeline, "p").everything()
    steps = {f"{name} {n}": 1 for name in ("managed", "plain") for n in range(1, STEPS + 1)}
    handed_on = {"handed on 1": 1, "handed on 2": 1}
    assert stored == {**steps, **handed_on, "plain begun": True, "replaced": True}, "exactly once"
    for effect in steps:
        count = effects.count(effect)
        assert 1 <= count <= 1 + len(outcome.deaths), "outside: at least once, again only in flight"
    assert len(effects) <= 2 * STEPS + 2 * len(outcome.deaths)
    assert sorted(await fiber_rows(outcome.host, "name, status")) == [
        ("handed on", "completed"),
        ("managed", "completed"),
        ("replaced", "completed"),
    ]
    assert await alarm_rows(outcome.host) == []


@pytest.mark.invariant("A1", "A3", "A8", "A9")
@pytest.mark.parametrize("mode", ["commits", "groups", "twice"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_pipeline_on_sqlite(mode: Any, seed: int) -> None:
    report = await crash_sweep(
        agents=[Pipeline],
        drive=drive,
        check=check,
        reset=effects.clear,
        outside=[effects],
        mode=mode,
        seed=seed,
    )
    assert report.commits >= 10
    assert report.deaths >= 2 * report.commits


@pytest.mark.parametrize("mode", ["commits", "groups", "twice"])
async def test_pipeline_on_postgresql(postgres: str, mode: Any) -> None:
    report = await crash_sweep(
        agents=[Pipeline],
        drive=drive,
        check=check,
        reset=effects.clear,
        outside=[effects],
        store=postgres,
        mode=mode,
        sample=12,
    )
    assert report.deaths >= 10


class Fallible(Agent):
    """Its hook fails twice before it does its work, and its fiber dies before the first stash."""

    failures: dict[str, int] = {}

    async def begin(self) -> None:
        await self.start_fiber("late", self.late, idempotency_key="l")
        if not await self.storage.get("begun"):
            async with self.commit():
                await self.storage.put("begun", True)
                self.run_fiber("poison", self.poison)

    async def late(self, fiber: FiberContext) -> None:
        await asyncio.sleep(10)
        await fiber.stash("was here")

    async def poison(self, fiber: FiberContext) -> None:
        await self.storage.put("healed", True)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        if fiber.name == "late":
            fiber.resume(self.late)
        elif fiber.attempt < 3:
            raise ValueError("not yet")
        else:
            fiber.resume(self.poison)

    async def healed(self) -> Any:
        return await self.storage.get("healed")


async def drive_fallible(host: Host) -> None:
    agent = host.get(Fallible, "f")
    await agent.begin()
    await host.until_settled()
    await asyncio.sleep(1000)  # long enough for the retries of the hook
    await host.until_settled()


async def check_fallible(outcome: Outcome) -> None:
    assert await outcome.host.get(Fallible, "f").healed()
    assert await fiber_rows(outcome.host, "status, snapshot") == [("completed", '"was here"')]
    assert await alarm_rows(outcome.host) == []


@pytest.mark.invariant("A10", "A13")
@pytest.mark.parametrize("mode", ["commits", "twice"])
async def test_retries_of_a_failing_hook_survive_deaths(mode: Any) -> None:
    report = await crash_sweep(
        agents=[Fallible], drive=drive_fallible, check=check_fallible, mode=mode
    )
    assert report.deaths >= 2 * report.commits


class Canceller(Agent):
    async def begin(self) -> None:
        await self.start_fiber("w", self.work, id="w")
        await self.cancel_fiber("w")
        await self.storage.put("cancelled", True)

    async def work(self, fiber: FiberContext) -> None:
        await asyncio.sleep(3600)
        await self.storage.put("ran on", True)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.work)

    async def everything(self) -> dict[str, Any]:
        return await self.storage.list()


async def test_a_cancelled_fiber_never_runs_again() -> None:
    async def drive(host: Host) -> None:
        agent = host.get(Canceller, "c")
        if not (await agent.everything()).get("cancelled"):
            await agent.begin()
        await asyncio.sleep(7200)

    async def check(outcome: Outcome) -> None:
        assert await fiber_rows(outcome.host, "status") == [("aborted",)]
        assert await outcome.host.get(Canceller, "c").everything() == {"cancelled": True}

    await crash_sweep(agents=[Canceller], drive=drive, check=check)


class Clerk(Agent):
    """Leaves its fiber interrupted, resolves it by hand, and clears up, each in one commit with a note."""

    async def work(self, fiber: FiberContext) -> None:
        await asyncio.sleep(10**9)

    async def step(self) -> str:
        found = await self.inspect_fiber("w")
        notes = await self.storage.list()
        if "deleted" in notes:
            return "done"
        if found is None and "resolved" not in notes:
            await self.start_fiber("w", self.work, id="w")
        elif found is not None and found.status == "interrupted":
            async with self.commit():
                await self.resolve_fiber("w", "completed", metadata={"by": "hand"})
                await self.storage.put("resolved", notes.get("resolved", 0) + 1)
        elif found is not None and found.settled_at is None:
            return "left"
        else:
            await self.delete_fibers(status=["completed", "aborted", "error"])
            await self.storage.put("deleted", True)
        return "again"

    async def notes(self) -> dict[str, Any]:
        return await self.storage.list()


async def test_resolving_and_deleting_by_hand_survive_every_death() -> None:
    """The fiber is left by stopping the host; what dies is the clerk's work on it."""

    async def drive(host: Host) -> None:
        clerk = host.get(Clerk, "c")
        for _ in range(10):
            said = await clerk.step()
            if said == "done":
                return
            if said == "left":  # as a host that is lost would leave it
                async with host.using(Address.of("Clerk", "c")) as agent:
                    agent._leave(HostStopped("left"))  # its tasks stop, its row stays
                await host.until_settled()
                await asyncio.sleep(60)

    async def check(outcome: Outcome) -> None:
        assert await outcome.host.get(Clerk, "c").notes() == {"resolved": 1, "deleted": True}
        assert await fiber_rows(outcome.host) == []

    report = await crash_sweep(agents=[Clerk], drive=drive, check=check)
    assert report.commits >= 5
