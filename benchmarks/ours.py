"""outlast itself. With `ours_chat`, all of this folder that knows its API."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import shutil
import statistics
import time
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.busy import Latencies
from benchmarks.catalogue import Job
from benchmarks.drive import AT_A_TIME, in_loop
from benchmarks.meter import Metrics, resident_mb
from benchmarks.payload import payload
from benchmarks.place import Place

IDLE_SECONDS = 5.0
WOKEN = 200


@cache
def agent_class() -> Any:
    """The agent under test; made on demand, since planning needs no installed package."""
    from outlast import Agent

    class Bench(Agent):
        async def touch(self) -> None:
            """Makes the agent known to the store."""
            await self.storage.put("known", True)

        async def read(self) -> Any:
            return await self.storage.get("known")

        async def stashes(self, n: int) -> None:
            """One fiber that stashes n times."""

            async def work(fiber: Any) -> None:
                for i in range(n):
                    await fiber.stash(payload(i))

            await self.run_fiber("work", work)

        async def stashers(self, fibers: int, n: int) -> None:
            """So many fibers at once, each stashing n times."""

            async def work(fiber: Any) -> None:
                for i in range(n):
                    await fiber.stash(payload(i))

            await asyncio.gather(*[self.run_fiber("work", work) for _ in range(fibers)])

        async def units(self, n: int) -> None:
            """n empty fibers, one after another."""

            async def nothing(fiber: Any) -> None:
                pass

            for _ in range(n):
                await self.run_fiber("unit", nothing)

        async def latencies(self, run: Latencies, k: int) -> None:
            """One fiber that stashes until the run is over."""

            async def work(fiber: Any) -> None:
                await run.writer(lambda _, i: fiber.stash(payload(i)), k)

            await self.run_fiber("work", work)

    return Bench


def host(place: Place, kind: str, path: Path | None = None) -> Any:
    """A host over an empty store: `full` or `normal` (SQLite's synchronous), or `postgres`."""
    from outlast import Host

    path = path or place.directory / "ours.db"
    store = place.postgres if kind == "postgres" else f"sqlite:///{path}?synchronous={kind}"
    return Host(agents=[agent_class()], store=store)


async def stash(kind: str, place: Place, n: int) -> Metrics:
    """W1: a fiber stashes, one after another."""
    async with host(place, kind) as opened:
        agent = opened.get(agent_class(), "agent")
        await agent.stashes(100)
        with place.meter() as meter:
            await agent.stashes(n)
    return meter.each(n)


async def concurrent_stash(kind: str, agents: int, place: Place, n: int) -> Metrics:
    """W1c: 100 fibers, in 100 agents or in one."""
    async with host(place, kind) as opened:
        stubs = [opened.get(agent_class(), f"agent-{k}") for k in range(agents)]

        async def all_stash(each: int) -> None:
            await asyncio.gather(*(stub.stashers(AT_A_TIME // agents, each) for stub in stubs))

        await all_stash(20)
        with place.meter() as meter:
            await all_stash(n // AT_A_TIME)
    return meter.each(n)


async def latency(place: Place, seconds: int) -> Metrics:
    """W1b: 100 fibers in 100 agents beside a busy coroutine."""
    async with host(place, "full") as opened:
        stubs = [opened.get(agent_class(), f"agent-{k}") for k in range(AT_A_TIME)]
        await asyncio.gather(*(stub.touch() for stub in stubs))
        run = Latencies(seconds)
        writers = [stub.latencies(run, k) for k, stub in enumerate(stubs)]
        await asyncio.gather(run.spinner(), *writers)
        return run.metrics()


async def units(kind: str, place: Place, n: int) -> Metrics:
    """W2: empty fibers, one after another."""
    async with host(place, kind) as opened:
        agent = opened.get(agent_class(), "agent")
        await agent.units(20)
        with place.meter() as meter:
            await agent.units(n)
    return meter.each(n)


async def concurrent_units(kind: str, place: Place, n: int) -> Metrics:
    """W2c: empty fibers, one after another in each of 100 agents."""
    async with host(place, kind) as opened:
        stubs = [opened.get(agent_class(), f"agent-{k}") for k in range(AT_A_TIME)]
        await asyncio.gather(*(stub.units(1) for stub in stubs))
        with place.meter() as meter:
            await asyncio.gather(*(stub.units(n // AT_A_TIME) for stub in stubs))
    return meter.each(n)


async def fill(path: Path, n: int) -> None:
    """Writes n agents into a store, a few thousand for each host so that none keeps them all."""
    for first in range(0, n, 5000):
        last = min(first + 5000, n)
        async with host(Place(path.parent, path.parent), "normal", path) as opened:
            for some in range(first, last, 500):
                names = (f"idle-{i}" for i in range(some, min(some + 500, last)))
                await asyncio.gather(*(opened.get(agent_class(), name).touch() for name in names))


def fill_in_loop(path: Path, n: int) -> None:
    """The body of the process that fills the store."""
    asyncio.run(fill(path, n))


def filled_store(place: Place, n: int) -> Path:
    """A copy of a store with n idle agents, built once a run in a process of its own."""
    original = place.shared / f"idle-{n}.db"
    if not original.exists():
        building = place.shared / "building.db"
        child = multiprocessing.get_context("spawn").Process(
            target=fill_in_loop, args=(building, n)
        )
        child.start()
        child.join()
        if child.exitcode:
            raise RuntimeError("could not build the store of idle agents")
        building.rename(original)
    return Path(shutil.copy(original, place.directory / "ours.db"))


async def idle(known: bool, place: Place, n: int) -> Metrics:
    """W5: memory and CPU of a host that has just started, and what it costs to wake an agent."""
    path = filled_store(place, n) if known else place.directory / "ours.db"
    async with host(place, "full", path) as opened:
        await opened.get(agent_class(), "somebody").read()
        await asyncio.sleep(0.5)
        gc.collect()
        metrics = {"rss_mb": resident_mb()}
        with place.meter() as meter:
            await asyncio.sleep(IDLE_SECONDS)
        metrics["idle_cpu_pct"] = meter.cpu / meter.wall * 100
        waking = []
        for i in range(WOKEN):
            stub = opened.get(agent_class(), f"idle-{i * (n // WOKEN)}")
            before = time.perf_counter()
            found = await stub.read()
            waking.append(time.perf_counter() - before)
            assert bool(found) is known
    metrics["wake_ms"] = statistics.median(waking) * 1e3
    return metrics


JOBS = [
    Job("w1", "ours-full", "outlast SQLite, FULL", "full", in_loop(stash, "full"), 5000),
    Job("w1", "ours-normal", "outlast SQLite, NORMAL", "normal", in_loop(stash, "normal"), 10000),
    Job("w1", "ours-postgres", "outlast PostgreSQL", "postgres", in_loop(stash, "postgres"), 3000),
    Job("w1b", "ours-busy", "outlast SQLite, FULL", "busy", in_loop(latency), 4),
    Job(
        "w1c",
        "ours-100-agents",
        "outlast SQLite, FULL, 100 agents",
        "100-agents",
        in_loop(concurrent_stash, "full", 100),
        100000,
    ),
    Job(
        "w1c",
        "ours-1-agent",
        "outlast SQLite, FULL, 1 agent",
        "1-agent",
        in_loop(concurrent_stash, "full", 1),
        100000,
    ),
    Job(
        "w1c",
        "ours-postgres",
        "outlast PostgreSQL, 100 agents",
        "postgres",
        in_loop(concurrent_stash, "postgres", 100),
        20000,
    ),
    Job("w2", "ours-full", "outlast SQLite, FULL", "full", in_loop(units, "full"), 3000),
    Job("w2", "ours-normal", "outlast SQLite, NORMAL", "normal", in_loop(units, "normal"), 5000),
    Job("w2", "ours-postgres", "outlast PostgreSQL", "postgres", in_loop(units, "postgres"), 2000),
    Job(
        "w2c", "ours-full", "outlast SQLite, FULL", "full", in_loop(concurrent_units, "full"), 20000
    ),
    Job(
        "w2c",
        "ours-normal",
        "outlast SQLite, NORMAL",
        "normal",
        in_loop(concurrent_units, "normal"),
        20000,
    ),
    Job(
        "w2c",
        "ours-postgres",
        "outlast PostgreSQL",
        "postgres",
        in_loop(concurrent_units, "postgres"),
        5000,
    ),
    Job("w5", "ours-empty", "outlast, an empty store", "store", in_loop(idle, False), 100000),
    Job("w5", "ours-idle", "outlast, the idle agents", "store", in_loop(idle, True), 100000),
]
