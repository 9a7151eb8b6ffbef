"""DBOS: a step of a workflow records its result; a workflow is a unit."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from benchmarks.catalogue import Job
from benchmarks.drive import Driver, at_a_time, in_loop, one_by_one
from benchmarks.payload import payload

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place


def configure(store: str, place: Place) -> Any:
    """DBOS on `sqlite` (as shipped: rollback journal, FULL), `wal` (set by us) or `postgres`."""
    from dbos import DBOS

    path = place.directory / "dbos.db"
    if store == "wal":
        sqlite3.connect(path).execute("pragma journal_mode = wal")
    url = place.postgres if store == "postgres" else f"sqlite:///{path}"
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "application_version": "1",
            "executor_id": "local",
        }
    )
    return DBOS


async def steps(store: str, place: Place, n: int) -> Metrics:
    """W1: n steps of one workflow."""
    dbos = configure(store, place)
    meter = place.meter()

    @dbos.step()
    async def step(i: int) -> dict[str, object]:
        return payload(i)

    @dbos.workflow()
    async def workflow(count: int) -> None:
        with meter:
            for i in range(count):
                await step(i)

    dbos.launch()
    await workflow(20)
    await workflow(n)
    dbos.destroy()
    return meter.each(n)


async def units(driver: Driver, store: str, place: Place, n: int) -> Metrics:
    """W2: empty workflows."""
    dbos = configure(store, place)

    @dbos.workflow()
    async def workflow(key: str) -> int:
        return 1

    dbos.launch()
    metrics = await driver(workflow, n, place.meter())
    dbos.destroy()
    return metrics


JOBS = [
    Job("w1", "dbos-sqlite", "DBOS SQLite", "full", in_loop(steps, "sqlite"), 300),
    Job(
        "w1", "dbos-sqlite-wal", "DBOS SQLite, switched to WAL", "full", in_loop(steps, "wal"), 300
    ),
    Job("w1", "dbos-postgres", "DBOS PostgreSQL", "postgres", in_loop(steps, "postgres"), 300),
    Job("w2", "dbos-sqlite", "DBOS SQLite", "full", in_loop(units, one_by_one, "sqlite"), 200),
    Job(
        "w2",
        "dbos-sqlite-wal",
        "DBOS SQLite, switched to WAL",
        "full",
        in_loop(units, one_by_one, "wal"),
        200,
    ),
    Job(
        "w2",
        "dbos-postgres",
        "DBOS PostgreSQL",
        "postgres",
        in_loop(units, one_by_one, "postgres"),
        200,
    ),
    Job("w2c", "dbos-sqlite", "DBOS SQLite", "full", in_loop(units, at_a_time, "sqlite"), 500),
    Job(
        "w2c",
        "dbos-sqlite-wal",
        "DBOS SQLite, switched to WAL",
        "full",
        in_loop(units, at_a_time, "wal"),
        500,
    ),
    Job(
        "w2c",
        "dbos-postgres",
        "DBOS PostgreSQL",
        "postgres",
        in_loop(units, at_a_time, "postgres"),
        500,
    ),
]
