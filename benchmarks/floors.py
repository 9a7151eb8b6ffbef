"""The least that must be done: plain sqlite3, plain asyncpg, and a bare group-commit writer.

They keep no record of failures, check nothing and recover nothing: they bound, they do not compete.
"""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.busy import Latencies
from benchmarks.catalogue import Job
from benchmarks.drive import AT_A_TIME, Driver, at_a_time, in_loop, one_by_one
from benchmarks.payload import payload_json

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.meter import Metrics
    from benchmarks.place import Place

SCHEMA = """
create table fibers (
    agent text, id text, status text not null, snapshot text, primary key (agent, id)
) without rowid;
create table owners (
    agent text primary key, epoch int not null, owner text not null, commit_no int not null
) without rowid
"""
START = "insert into fibers values (?, ?, 'running', null)"
STASH = "update fibers set snapshot = ? where agent = ? and id = ?"
FINISH = "update fibers set status = 'completed' where agent = ? and id = ?"
FENCE = """
update owners set commit_no = commit_no + 1 where agent = ? and epoch = 1 and owner = 'token'
"""


def open_sqlite(directory: Path, synchronous: str) -> sqlite3.Connection:
    """A database in WAL mode with the tables of a durable unit."""
    db = sqlite3.connect(directory / "floor.db", isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute(f"pragma synchronous = {synchronous}")
    db.executescript(SCHEMA)
    return db


class GroupWriter:
    """Everything queued in a tick of the loop goes into one transaction, on the loop itself.

    A transaction also advances the fence of each agent that has a write in it, once.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._rows: dict[str, list[tuple[str, ...]]] = {}
        self._agents: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []

    def write(self, agent: str, statement: str, row: tuple[str, ...]) -> asyncio.Future[None]:
        """Queues a row; the future is done when it is durable."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        future = self._loop.create_future()
        self._rows.setdefault(statement, []).append(row)
        self._agents.add(agent)
        self._waiting.append(future)
        return future

    def _flush(self) -> None:
        rows, self._rows = self._rows, {}
        agents, self._agents = self._agents, set()
        waiting, self._waiting = self._waiting, []
        self._db.execute("begin immediate")
        for statement, group in rows.items():
            self._db.executemany(statement, group)
        fenced = self._db.executemany(FENCE, [(agent,) for agent in agents])
        assert fenced.rowcount == len(agents)
        self._db.execute("commit")
        for future in waiting:
            future.set_result(None)


def sqlite_stash(synchronous: str, place: Place, n: int) -> Metrics:
    """W1: one row, updated in a transaction of its own each time."""
    db = open_sqlite(place.directory, synchronous)
    db.execute(START, ("agent", "fiber"))
    for i in range(100):
        db.execute(STASH, (payload_json(-i), "agent", "fiber"))
    with place.meter() as meter:
        for i in range(n):
            db.execute(STASH, (payload_json(i), "agent", "fiber"))
    return meter.each(n)


async def asyncpg_stash(place: Place, n: int) -> Metrics:
    """W1: the same on PostgreSQL, on one connection, with a prepared statement."""
    import asyncpg

    db = await asyncpg.connect(place.postgres)
    await db.execute("create table fibers (id text primary key, snapshot text)")
    await db.execute("insert into fibers values ('fiber', '')")
    stash = await db.prepare("update fibers set snapshot = $1 where id = $2")
    for i in range(100):
        await stash.fetch(payload_json(-i), "fiber")
    with place.meter() as meter:
        for i in range(n):
            await stash.fetch(payload_json(i), "fiber")
    await db.close()
    return meter.each(n)


def group_writer(place: Place, synchronous: str, agents: int) -> GroupWriter:
    """A writer over `AT_A_TIME` fibers that belong to so many agents."""
    db = open_sqlite(place.directory, synchronous)
    for k in range(agents):
        db.execute("insert into owners values (?, 1, 'token', 0)", (f"agent-{k}",))
    for k in range(AT_A_TIME):
        db.execute(START, (f"agent-{k % agents}", f"fiber-{k}"))
    return GroupWriter(db)


async def group_stash(agents: int, place: Place, n: int) -> Metrics:
    """W1c: concurrent stashers of one group-commit writer."""
    writer = group_writer(place, "full", agents)

    async def stasher(k: int, first: int, last: int) -> None:
        agent, fiber = f"agent-{k % agents}", f"fiber-{k}"
        for i in range(first, last):
            await writer.write(agent, STASH, (payload_json(i), agent, fiber))

    await asyncio.gather(*(stasher(k, -20, 0) for k in range(AT_A_TIME)))
    with place.meter() as meter:
        await asyncio.gather(*(stasher(k, 0, n // AT_A_TIME) for k in range(AT_A_TIME)))
    return meter.each(n)


async def group_latency(place: Place, seconds: int) -> Metrics:
    """W1b: the same writer beside a busy coroutine."""
    writer = group_writer(place, "full", AT_A_TIME)

    def commit(k: int, i: int) -> asyncio.Future[None]:
        agent = f"agent-{k}"
        return writer.write(agent, STASH, (payload_json(i), agent, f"fiber-{k}"))

    run = Latencies(seconds)
    await asyncio.gather(run.spinner(), *(run.writer(commit, k) for k in range(AT_A_TIME)))
    return run.metrics()


async def sqlite_units(driver: Driver, synchronous: str, place: Place, n: int) -> Metrics:
    """W2: a unit is a row written as running, then as completed, in two commits."""
    db = open_sqlite(place.directory, synchronous)

    async def unit(key: str) -> None:
        db.execute(START, ("agent", key))
        db.execute(FINISH, ("agent", key))

    return await driver(unit, n, place.meter())


async def group_units(synchronous: str, place: Place, n: int) -> Metrics:
    """W2c: the same two commits, shared by all units of a tick."""
    writer = group_writer(place, synchronous, 1)

    async def unit(key: str) -> None:
        await writer.write("agent-0", START, ("agent-0", key))
        await writer.write("agent-0", FINISH, ("agent-0", key))

    return await at_a_time(unit, n, place.meter())


async def asyncpg_units(driver: Driver, place: Place, n: int) -> Metrics:
    """W2: the same two commits on PostgreSQL, from a pool of 20 connections."""
    import asyncpg

    async def keep(_: object) -> None:
        """In place of the pool's reset, which is a round trip of its own."""

    async with asyncpg.create_pool(place.postgres, min_size=20, max_size=20, reset=keep) as pool:
        await pool.execute("create table fibers (id text primary key, status text)")

        async def unit(key: str) -> None:
            await pool.execute("insert into fibers values ($1, 'running')", key)
            await pool.execute("update fibers set status = 'completed' where id = $1", key)

        return await driver(unit, n, place.meter())


JOBS = [
    Job("w1", "floor-full", "plain sqlite3, FULL", "full", partial(sqlite_stash, "full"), 5000),
    Job(
        "w1",
        "floor-normal",
        "plain sqlite3, NORMAL",
        "normal",
        partial(sqlite_stash, "normal"),
        20000,
    ),
    Job("w1", "floor-postgres", "plain asyncpg", "postgres", in_loop(asyncpg_stash), 3000),
    Job("w1b", "floor-busy", "bare group commit", "busy", in_loop(group_latency), 4),
    Job(
        "w1c",
        "floor-100-agents",
        "bare group commit, 100 agents",
        "100-agents",
        in_loop(group_stash, 100),
        100000,
    ),
    Job(
        "w1c",
        "floor-1-agent",
        "bare group commit, 1 agent",
        "1-agent",
        in_loop(group_stash, 1),
        100000,
    ),
    Job(
        "w2",
        "floor-full",
        "plain sqlite3, FULL, 2 commits",
        "full",
        in_loop(sqlite_units, one_by_one, "full"),
        3000,
    ),
    Job(
        "w2",
        "floor-normal",
        "plain sqlite3, NORMAL, 2 commits",
        "normal",
        in_loop(sqlite_units, one_by_one, "normal"),
        10000,
    ),
    Job(
        "w2",
        "floor-postgres",
        "plain asyncpg, 2 commits",
        "postgres",
        in_loop(asyncpg_units, one_by_one),
        2000,
    ),
    Job(
        "w2c", "floor-full", "bare group commit, FULL", "full", in_loop(group_units, "full"), 20000
    ),
    Job(
        "w2c",
        "floor-normal",
        "bare group commit, NORMAL",
        "normal",
        in_loop(group_units, "normal"),
        20000,
    ),
    Job(
        "w2c",
        "floor-postgres",
        "plain asyncpg, 20 connections",
        "postgres",
        in_loop(asyncpg_units, at_a_time),
        4000,
    ),
    Job(
        "w2c",
        "plain-full",
        "plain sqlite3, FULL, 2 commits",
        "full",
        in_loop(sqlite_units, at_a_time, "full"),
        3000,
    ),
]
