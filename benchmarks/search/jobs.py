"""The jobs of the search workloads."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.catalogue import Job
from benchmarks.search import floors, ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.meter import Metrics
    from benchmarks.place import Place

SEARCHES = 1_000
STORED = 100_000  # messages
AGENTS = {"search": 1, "searchmany": 10_000}


def measured(function: Any) -> Callable[[Place, int], Metrics]:
    """A job's function out of an async one; a smaller run has fewer messages and agents, too."""

    def run(place: Place, n: int) -> Metrics:
        metrics: Metrics = asyncio.run(function(n / SEARCHES, place, n))
        return metrics

    return run


async def _sized(function: Any, agents: int, share: float, place: Place, n: int) -> Metrics:
    some = min(1.0, share)
    metrics: Metrics = await function(max(1, int(agents * some)), int(STORED * some), place, n)
    return metrics


JOBS = [
    Job(workload, f"{family}-{against}", label, against, measured(run), SEARCHES)
    for workload, agents in AGENTS.items()
    for family, against, label, run in (
        ("floor", "full", "raw FTS5, bm25", partial(_sized, floors.sqlite, agents)),
        ("ours", "full", "outlast SQLite", partial(_sized, partial(ours.search, "sqlite"), agents)),
        ("floor", "postgres", "raw tsvector, ts_rank", partial(_sized, floors.postgres, agents)),
        (
            "ours",
            "postgres",
            "outlast PostgreSQL",
            partial(_sized, partial(ours.search, "postgres"), agents),
        ),
    )
]
