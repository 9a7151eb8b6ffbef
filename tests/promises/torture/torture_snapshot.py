"""What stands in a store, read from outside while no worker runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from outlast.store.schema import FOUNDATION

SERVED_FOR = 60.0  # seconds


class FiberRow(NamedTuple):
    agent: str
    id: str
    root_id: str
    name: str
    managed: int
    status: str
    settled_at: int | None
    snapshot: Any
    metadata: Any


class ScheduleRow(NamedTuple):
    agent: str
    id: str
    kind: str
    occurrence: int
    run_at: int
    claimed_at: int | None
    payload: Any


QUERIES = {
    "agents": "SELECT root FROM agents",
    "storage": "SELECT agent, key, value FROM storage",
    "facts": "SELECT agent, name, value FROM facts",
    "fibers": f"SELECT {', '.join(FiberRow._fields)} FROM fibers",
    "schedules": f"SELECT {', '.join(ScheduleRow._fields)} FROM schedules",
    "alarms": "SELECT agent, source, wake_at FROM alarms",
    "sub_agents": "SELECT agent, kind, name FROM sub_agents",
    "admissions": "SELECT agent, origin, key FROM admissions",
}
# Of other tables the owners alone: whoever was removed must have nothing there either.
QUERIES |= {
    table: f"SELECT DISTINCT agent FROM {table}"
    for table in FOUNDATION.owned
    if table not in QUERIES
}


@dataclass
class Snapshot:
    """All rows of a store."""

    roots: set[str]
    storage: dict[str, dict[str, Any]]  # by agent
    state: dict[str, Any]  # by agent
    pasts: list[tuple[str, str]]  # agent and `schedule:id`, of cron schedules that have missed some
    fibers: list[FiberRow]
    schedules: list[ScheduleRow]
    alarms: list[tuple[str, str, int]]
    sub_agents: set[tuple[str, str, str]]
    admissions: list[tuple[str, str, str]]
    owners: dict[str, set[str]]  # by table
    agents: set[str]  # all of these
    fibers_of: dict[tuple[str, str], list[FiberRow]]  # managed ones, by agent and job

    @classmethod
    def of(cls, rows: dict[str, list[tuple[Any, ...]]]) -> Snapshot:
        storage: dict[str, dict[str, Any]] = {}
        for agent, key, value in rows["storage"]:
            storage.setdefault(agent, {})[key] = json.loads(value)
        fibers = [
            FiberRow._make((*row[:-2], json.loads(row[-2] or "{}"), json.loads(row[-1] or "{}")))
            for row in rows["fibers"]
        ]
        fibers_of: dict[tuple[str, str], list[FiberRow]] = {}
        for fiber in fibers:
            if fiber.managed:
                fibers_of.setdefault((fiber.agent, fiber.metadata["job"]), []).append(fiber)
        owners = {table: {row[0] for row in rows[table]} for table in FOUNDATION.owned}
        return cls(
            roots={root for (root,) in rows["agents"]},
            storage=storage,
            state={
                agent: json.loads(value) for agent, name, value in rows["facts"] if name == "state"
            },
            pasts=[
                (agent, name) for agent, name, _ in rows["facts"] if name.startswith("schedule:")
            ],
            fibers=fibers,
            schedules=[
                ScheduleRow._make((*row[:-1], json.loads(row[-1]))) for row in rows["schedules"]
            ],
            alarms=[(row[0], row[1], row[2]) for row in rows["alarms"]],
            sub_agents={(row[0], row[1], row[2]) for row in rows["sub_agents"]},
            admissions=[(row[0], row[1], row[2]) for row in rows["admissions"]],
            owners=owners,
            agents=set().union(*owners.values()),
            fibers_of=fibers_of,
        )

    def incarnation(self, agent: str) -> str | None:
        found = self.storage.get(agent, {}).get("incarnation")
        return None if found is None else str(found)


Reader = Callable[[], Snapshot]


def sqlite_reader(database: Path) -> Reader:
    """Reads a copy: opening the file itself would tidy up what the next life is to find."""

    def read() -> Snapshot:
        with tempfile.TemporaryDirectory(prefix="outlast-torture-copy-") as folder:
            for suffix in ("", "-wal"):
                original = database.with_name(database.name + suffix)
                if original.exists():
                    shutil.copyfile(original, Path(folder) / f"copy.db{suffix}")
            connection = sqlite3.connect(Path(folder) / "copy.db")
            try:
                (verdict,) = connection.execute("PRAGMA quick_check").fetchone()
                assert verdict == "ok", f"the file is damaged: {verdict}"
                return Snapshot.of(
                    {table: connection.execute(sql).fetchall() for table, sql in QUERIES.items()}
                )
            except sqlite3.DatabaseError as error:
                raise AssertionError(f"the file cannot be read: {error}") from None
            finally:
                connection.close()

    return read


@contextlib.contextmanager
def postgres_reader(database: str) -> Iterator[Reader]:
    """Reads in one transaction, once the server has done with what the dead worker sent last."""
    import asyncpg

    async def is_served() -> bool:
        return bool(
            await connection.fetch(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE datname = current_database() AND backend_type = 'client backend'"
                " AND pid <> pg_backend_pid()"
            )
        )

    async def tables() -> dict[str, list[tuple[Any, ...]]]:
        deadline = time.monotonic() + SERVED_FOR
        while await is_served():
            assert time.monotonic() < deadline, "the server still serves a worker that is dead"
            await asyncio.sleep(0.002)
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return {
                table: [tuple(row) for row in await connection.fetch(sql)]
                for table, sql in QUERIES.items()
            }

    with asyncio.Runner() as runner:
        settings = {"search_path": "outlast"}
        connection = runner.run(asyncpg.connect(database, server_settings=settings))
        try:
            yield lambda: Snapshot.of(runner.run(tables()))
        finally:
            runner.run(connection.close())


async def new_database(server: str) -> str:
    """The URL of an empty database on a server, which is left there."""
    import asyncpg

    name = f"torture_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
