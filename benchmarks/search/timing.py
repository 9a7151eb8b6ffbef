"""Percentiles of searches, one after another."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.meter import Metrics

WARM = 20


async def timed(
    search: Callable[[str, str], Awaitable[Any]], addresses: Sequence[str], queries: Sequence[str]
) -> Metrics:
    """Search in one agent after another, some of it for warming up."""
    took: list[float] = []
    hits = 0
    for number, query in enumerate([*queries[:WARM], *queries]):
        started = time.perf_counter()
        found = await search(addresses[number * 7919 % len(addresses)], query)
        took.append(time.perf_counter() - started)
        hits += bool(found)
    took = sorted(took[WARM:])
    return {
        "wall_ms": sum(took) / len(took) * 1000,
        "p50_ms": took[len(took) // 2] * 1000,
        "p99_ms": took[int(len(took) * 0.99)] * 1000,
        "hits_pct": hits / (len(queries) + WARM) * 100,
    }


def addresses(agents: int) -> list[str]:
    return [f"Assistant/{number}" for number in range(agents)]
