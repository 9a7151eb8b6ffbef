"""Agents whose alarms are too far in the future, because the clock was ahead when they were set.

The queries may find more agents than necessary: each agent decides which alarms to move. If the clock was not
set back, they find only schedules that were deferred for long.
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


async def agents_with_distant_alarms(store: Store, now: int) -> AsyncIterator[str]:
    """Yield the addresses of agents that may have to move an alarm."""
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
    """Return the earliest time after which a cron schedule is too late, or None if none is."""
    found = None
    for cron, timezone, latest in await store.fetch(_CRONS):
        if latest <= now:
            continue
        try:
            following = next_cron(cron, timezone or "UTC", now)
        except ValueError:  # the time zone no longer exists
            continue
        if latest > following and (found is None or following < found):
            found = following
    return found


async def _pages(store: Store, query: Query, *arguments: Argument) -> AsyncIterator[str]:
    after = ""
    while rows := await store.fetch(query, *arguments, after, PAGE):
        for (after,) in rows:
            yield after
