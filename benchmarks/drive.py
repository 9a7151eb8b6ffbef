"""Ways to call a system: one after another, or 100 at a time; warmed up, then measured."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from benchmarks.meter import Meter, Metrics

if TYPE_CHECKING:
    from benchmarks.place import Place

AT_A_TIME = 100
Unit = Callable[[str], Awaitable[Any]]
Driver = Callable[[Unit, int, Meter], Awaitable[Metrics]]


def in_loop(function: Any, *first: Any) -> Callable[[Place, int], Metrics]:
    """A job's function out of an async one whose first arguments are given."""

    def run(place: Place, n: int) -> Metrics:
        return asyncio.run(function(*first, place, n))

    return run


async def one_by_one(unit: Unit, n: int, meter: Meter) -> Metrics:
    """Runs `unit(key)` n times in sequence, each with its own key."""
    for i in range(5):
        await unit(f"warm-{i}")
    with meter:
        for i in range(n):
            await unit(f"unit-{i}")
    return meter.each(n)


async def at_a_time(unit: Unit, n: int, meter: Meter) -> Metrics:
    """Runs `unit(key)` n times with `AT_A_TIME` in flight."""
    await asyncio.gather(*(unit(f"warm-{i}") for i in range(5)))
    keys = iter(range(n))

    async def worker() -> None:
        for i in keys:
            await unit(f"unit-{i}")

    with meter:
        await asyncio.gather(*(worker() for _ in range(AT_A_TIME)))
    return meter.each(n)
