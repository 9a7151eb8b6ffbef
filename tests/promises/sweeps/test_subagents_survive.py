"""Sub-agents made, at work, deleted, destroyed: killed at every commit, all of it is there or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from families import orphans, rows_under

from outlast import Agent, AgentDestroyed, FiberContext, FiberRecoveryContext, Host
from outlast.host.address import Address
from outlast.testing import Outcome
from support import alarm_rows
from sweeps import crash_sweep

MODES = ["commits", "groups", "twice"]
effects: list[str] = []  # what happened in the world outside the store


class Worker(Agent):
    """A sub-agent with a bit of everything; what it is told to do, it does once."""

    async def begin(self, steps: int) -> None:
        if not await self.storage.get("begun"):
            async with self.commit():
                await self.storage.put("begun", True)
                await self.start_fiber("steps", self.steps, {"done": 0, "of": steps}, id="steps")
                await self.schedule(30, self.report)

    async def steps(self, fiber: FiberContext, plan: dict[str, int]) -> None:
        while plan["done"] < plan["of"]:
            plan["done"] += 1
            effects.append(f"{self.name} {plan['done']}")
            async with self.commit():
                key = f"step {plan['done']}"
                await self.storage.put(key, await self.storage.get(key, 0) + 1)
                await fiber.stash(plan)

    async def report(self) -> None:
        effects.append(f"{self.name} reports")
        above: type[Any] = Boss if self.parent_path[-1][0] == "Boss" else Worker
        await self.parent_agent(above).hear(self.name)

    async def hear(self, name: str) -> None:
        effects.append(f"{self.name} hears {name}")

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.finish if fiber.name == "finish" else self.steps)

    async def done(self) -> dict[str, Any]:
        return await self.storage.list("step ")

    # --- for the one that goes by itself ---------------------------------------------------------

    async def begin_and_go(self) -> None:
        """Work, hand the result over, and be gone."""
        await self.storage.put("scratch", "paper")
        await (await self.sub_agent(Worker, "help")).begin(1)
        await self.start_fiber("finish", self.finish, id="finish")

    async def finish(self, fiber: FiberContext) -> None:
        effects.append(f"{self.name} finishes")
        await self.parent_agent(Boss).hear(self.name)
        await self.destroy()


Worker.sub_agents = [Worker]


class Boss(Agent):
    sub_agents = [Worker]

    async def hear(self, name: str) -> None:
        await self.storage.put(f"heard {name}", True)

    async def everything(self) -> dict[str, Any]:
        return await self.storage.list()

    async def employ(self, name: str, steps: int) -> None:
        worker = await self.sub_agent(Worker, name)
        await worker.begin(steps)
        await (await worker.sub_agent(Worker, f"{name}'s own")).begin(1)

    async def dismiss(self, name: str) -> None:
        """Once: employ somebody, and dismiss them while they work."""
        if not await self.storage.get(f"dismissed {name}"):
            if not await self.storage.get(f"employed {name}"):
                await self.employ(name, 3)
                await self.storage.put(f"employed {name}", True)
            await self.delete_sub_agent(Worker, name)
            await self.storage.put(f"dismissed {name}", True)

    async def employ_for_a_day(self, name: str) -> None:
        if not await self.storage.get(f"heard {name}"):
            worker = await self.sub_agent(Worker, name)
            try:
                await worker.begin_and_go()
            except AgentDestroyed:
                assert await self.storage.get(f"heard {name}")  # it was that quick

    async def replace(self, name: str) -> None:
        """Once: the old one goes, with all that it had, and a new one comes under its name."""
        stage = await self.storage.get(f"stage {name}")
        if stage is None:
            await self.employ(name, 2)
            await self.storage.put(f"stage {name}", "old")
        if stage in (None, "old"):
            await self.delete_sub_agent(Worker, name)
            await self.storage.put(f"stage {name}", "gone")
        await self.employ(name, 1)

    async def close_down(self) -> None:
        await self.destroy()


class Town(Agent):
    """Knows what has been done; its own fence is not that of those it knows of."""

    async def put(self, key: str) -> None:
        await self.storage.put(key, True)

    async def has(self, key: str) -> bool:
        return bool(await self.storage.get(key))


async def looked_around(host: Host) -> None:
    """Whenever one looks: no row of an agent that is not there."""
    assert await orphans(host) == []


def counted(outcome: Outcome) -> None:
    for effect in set(effects):
        assert effects.count(effect) <= 1 + len(outcome.deaths), "again only for what was in flight"


# --- made, and at work ---------------------------------------------------------------------------


async def drive_work(host: Host) -> None:
    await looked_around(host)
    await host.get(Boss, "b").employ("ann", 4)
    await asyncio.sleep(100)
    await host.until_settled()


async def check_work(outcome: Outcome) -> None:
    boss = outcome.host.get(Boss, "b")
    ann = await boss.sub_agent(Worker, "ann")
    own = await ann.sub_agent(Worker, "ann's own")
    assert await ann.done() == {f"step {n}": 1 for n in range(1, 5)}, "exactly once"
    assert await own.done() == {"step 1": 1}
    assert await boss.everything() == {"heard ann": True}
    assert [each.name for each in await boss.list_sub_agents()] == ["ann"]
    counted(outcome)
    assert await orphans(outcome.host) == []
    assert await alarm_rows(outcome.host) == []


# --- deleted -------------------------------------------------------------------------------------


async def drive_delete(host: Host) -> None:
    await looked_around(host)
    await host.get(Boss, "b").dismiss("ann")
    await looked_around(host)
    await host.get(Boss, "b").replace("bob")
    await asyncio.sleep(100)
    await host.until_settled()


async def check_delete(outcome: Outcome) -> None:
    host = outcome.host
    boss = host.get(Boss, "b")
    assert await rows_under(host, "Boss/b/Worker/ann") == {}
    assert [each.name for each in await boss.list_sub_agents()] == ["bob"]
    bob = await boss.sub_agent(Worker, "bob")
    assert await bob.done() == {"step 1": 1}, "nothing of the old one"
    assert await (await bob.sub_agent(Worker, "bob's own")).done() == {"step 1": 1}
    assert await orphans(host) == []
    assert await alarm_rows(host) == []


# --- destroyed -----------------------------------------------------------------------------------


async def drive_destroy(host: Host) -> None:
    await looked_around(host)
    town, boss = host.get(Town, "t"), host.get(Boss, "b")
    if await town.has("closed"):
        return
    if not await town.has("opened"):
        await boss.employ("ann", 3)
        await boss.employ_for_a_day("eve")
        await town.put("opened")
    left = await rows_under(host, "Boss/b")
    assert not left or left.keys() >= {"agents", "sub_agents", "fibers"}, "all of it, or none"
    await boss.close_down()
    assert await rows_under(host, "Boss/b") == {}
    await town.put("closed")
    await asyncio.sleep(100)
    await host.until_settled()


async def check_destroy(outcome: Outcome) -> None:
    host = outcome.host
    assert await host.get(Town, "t").has("closed")
    assert await rows_under(host, "Boss/b") == {}
    assert await orphans(host) == []
    assert await alarm_rows(host) == []


# --- made by its own first commit ----------------------------------------------------------------

VISITED = Address.of("Boss", "b").child("Worker", "guest")


async def drive_visit(host: Host) -> None:
    """Somebody asks for sub-agents that nobody has made, as a request does."""
    await looked_around(host)
    for address in (VISITED.child("Worker", "guest's own"), VISITED):
        async with host.using(address, may_make=True) as agent:
            await looked_around(host)
            await agent.begin(3)  # type: ignore[attr-defined]
    await asyncio.sleep(100)
    await host.until_settled()


async def check_visit(outcome: Outcome) -> None:
    host = outcome.host
    boss = host.get(Boss, "b")
    assert [each.name for each in await boss.list_sub_agents()] == ["guest"]
    guest = await boss.sub_agent(Worker, "guest")
    assert [each.name for each in await guest.list_sub_agents()] == ["guest's own"]
    for each in (guest, await guest.sub_agent(Worker, "guest's own")):
        assert await each.done() == {f"step {n}": 1 for n in range(1, 4)}, "exactly once"
    assert await orphans(host) == []
    assert await alarm_rows(host) == []


# --- all of it at once ---------------------------------------------------------------------------


async def drive_all(host: Host) -> None:
    await looked_around(host)
    boss = host.get(Boss, "b")
    await asyncio.gather(
        boss.employ("ann", 2),
        boss.dismiss("dan"),
        boss.employ_for_a_day("eve"),
        boss.replace("bob"),
        drive_destroy_of("c", host),
    )
    await looked_around(host)
    await asyncio.sleep(100)
    await host.until_settled()


async def drive_destroy_of(name: str, host: Host) -> None:
    town, boss = host.get(Town, "t"), host.get(Boss, name)
    if not await town.has(f"{name} closed"):
        if not await town.has(f"{name} opened"):
            await boss.employ("ann", 2)
            await town.put(f"{name} opened")
        await boss.close_down()
        await town.put(f"{name} closed")


async def check_all(outcome: Outcome) -> None:
    host = outcome.host
    boss = host.get(Boss, "b")
    assert sorted(each.name for each in await boss.list_sub_agents()) == ["ann", "bob"]
    stored = await boss.everything()
    for name in ("ann", "bob", "eve"):
        assert stored[f"heard {name}"] is True, "nothing is lost"
    ann, bob = [await boss.sub_agent(Worker, name) for name in ("ann", "bob")]
    assert await ann.done() == {"step 1": 1, "step 2": 1}
    assert await bob.done() == {"step 1": 1}
    for name in ("dan", "eve"):
        assert await rows_under(host, f"Boss/b/Worker/{name}") == {}
    assert await rows_under(host, "Boss/c") == {}
    assert await orphans(host) == []
    assert await alarm_rows(host) == []


SWEEPS = {
    "work": (drive_work, check_work),
    "delete": (drive_delete, check_delete),
    "destroy": (drive_destroy, check_destroy),
    "visit": (drive_visit, check_visit),
    "all": (drive_all, check_all),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", SWEEPS)
async def test_on_sqlite(what: str, mode: Any) -> None:
    drive, check = SWEEPS[what]
    report = await crash_sweep(
        agents=[Boss, Town],
        drive=drive,
        check=check,
        reset=effects.clear,
        outside=[effects],
        mode=mode,
        seed=len(what),
        sample=(24 if what == "all" else None) if mode == "commits" else 8,
    )
    assert report.commits >= (3 if mode == "groups" else 10)
    assert report.deaths >= min(8, 2 * report.commits)


@pytest.mark.parametrize("what", SWEEPS)
async def test_on_postgresql(what: str, postgres: str) -> None:
    drive, check = SWEEPS[what]
    report = await crash_sweep(
        agents=[Boss, Town],
        drive=drive,
        check=check,
        reset=effects.clear,
        outside=[effects],
        store=postgres,
        sample=3,
    )
    assert report.deaths >= 2
