"""Which agents wait for longer than their schedules and fibers say, by the clock as it is now.

What is found may be more than what has to be brought nearer: each agent decides for itself. When the clock
has not gone back, nothing is found, but for what was put off for long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from outlast.agent.fibers.backoff import FiberRecovery
from outlast.agent.schedules.occurrences import FIRST_DEFER
from outlast.agent.schedules.timetable import next_cron
from outlast.core.clock import seconds
from outlast.store.base import Store
from outlast.store.operations import Argument, Query

PAGE = 200

_PAGE_OF_AGENTS = "agent > ? ORDER BY agent LIMIT ?"
_CRONS = Query.same(
    "SELECT cron, timezone, max(run_at) FROM schedules"
    " WHERE kind = 'cron' AND claimed_at IS NULL AND defers = 0 GROUP BY cron, timezone",
    bulk=True,
)
_OF_CRONS = Query.same(
    "SELECT DISTINCT agent FROM schedules WHERE kind = 'cron' AND claimed_at IS NULL"
    f" AND defers = 0 AND run_at > ? AND {_PAGE_OF_AGENTS}",
    bulk=True,
)
_OF_OTHERS = Query.same(
    "SELECT DISTINCT agent FROM schedules WHERE claimed_at IS NULL AND CASE"
    f" WHEN defers > 0 THEN run_at - {FIRST_DEFER}"
    " WHEN kind = 'interval' THEN run_at - schedules.interval"
    " WHEN kind = 'delayed' THEN run_at - (occurrence - created_at)"
    f" END > ? AND {_PAGE_OF_AGENTS}",
    bulk=True,
)
_OF_FIBERS = Query.same(
    "SELECT DISTINCT agent FROM fibers WHERE settled_at IS NULL AND retry_at > ?"
    f" AND {_PAGE_OF_AGENTS}",
    bulk=True,
)


async def sleepers(store: Store, now: int) -> AsyncIterator[str]:
    """The addresses of agents that may have to be set right."""
    async for agent in _pages(store, _OF_OTHERS, now):
        yield agent
    first = await _first_too_late(store, now)
    if first is not None:
        async for agent in _pages(store, _OF_CRONS, first):
            yield agent
    longest = round(seconds(FiberRecovery().retry_at_most) * 1000)
    async for agent in _pages(store, _OF_FIBERS, now + longest):
        yield agent


async def _first_too_late(store: Store, now: int) -> int | None:
    """After when a cron schedule is too late, at the earliest; None: none of them is."""
    found = None
    for cron, timezone, latest in await store.fetch(_CRONS):
        if latest <= now:
            continue
        try:
            following = next_cron(cron, timezone or "UTC", now)
        except ValueError:  # a time zone that is gone
            continue
        if latest > following and (found is None or following < found):
            found = following
    return found


async def _pages(store: Store, query: Query, *arguments: Argument) -> AsyncIterator[str]:
    after = ""
    while rows := await store.fetch(query, *arguments, after, PAGE):
        for (after,) in rows:
            yield after
