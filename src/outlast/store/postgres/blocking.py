"""Rows that somebody else has locked: the agents that wait for them are written apart from the others.

A host has one writer. Without this, one session that forgets a transaction with one row of one agent in it
would hold up all agents for as long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.store.operations import Batch

logger = logging.getLogger("outlast.store")

TRY_FOR = (
    100  # milliseconds that a batch waits for a row, once it is known that somebody has locked one
)
TRIES = 3  # batches of a group that are tried that way; then the others have their turn
LOOK_AFTER = 0.5  # seconds that a statement takes before it is asked who is in its way
TELL_AFTER = 2.0  # seconds
FIRST_RETRY = 0.1  # seconds
LAST_RETRY = 1.0
LONGEST = 200  # characters of a query

BLOCKERS = """
    SELECT pid, application_name, state, left(query, $2),
           extract(epoch FROM clock_timestamp() - xact_start)::float8
    FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids($1)) ORDER BY pid
"""


@dataclass(slots=True)
class Wait:
    """An agent whose commits wait."""

    since: float  # on the loop's clock, as all times here
    retry_at: float
    delay: float = FIRST_RETRY
    is_told: bool = False


class Blocking:
    """Which agents wait, and for whom."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}  # by root
        self.by: str | None = None  # who was in the way when that was looked up last
        self.is_tried = False  # the group that is being written has waited before

    def __bool__(self) -> bool:
        return bool(self._waits)

    @property
    def next_at(self) -> float | None:
        """When the first of them is to be tried again."""
        return min((wait.retry_at for wait in self._waits.values()), default=None)

    def parted(self, queue: list[Batch], now: float) -> tuple[list[Batch], list[Batch]]:
        """What may be written now, and what waits. Those who are tried again are so by themselves."""
        self.is_tried = False
        if not self._waits:
            return queue, []
        waiting = {batch.fence.root for batch in queue} & self._waits.keys()
        for root in self._waits.keys() - waiting:  # given up with its agent
            del self._waits[root]
        due = {root for root in waiting if self._waits[root].retry_at <= now}
        free = [batch for batch in queue if batch.fence.root not in waiting]
        if due:
            self.is_tried = True
            tried = [batch for batch in queue if batch.fence.root in due]
            return tried, [batch for batch in queue if batch.fence.root not in due]
        return free, [batch for batch in queue if batch.fence.root in waiting]

    def held(self, roots: Iterable[str], began: float, now: float) -> None:
        """They were tried, from `began` on, and have to wait."""
        for root in roots:
            wait = self._waits.setdefault(root, Wait(began, now))
            wait.retry_at, wait.delay = now + wait.delay, min(LAST_RETRY, wait.delay * 2)
            if not wait.is_told and now - wait.since >= TELL_AFTER:
                wait.is_told = True
                logger.warning(
                    "%s: its commits have waited for %.1f s for a row that somebody else has locked: %s",
                    root,
                    now - wait.since,
                    self.by or "it is not known who",
                )

    def written(self, roots: Iterable[str], now: float) -> None:
        """They need not wait any more."""
        for root in roots:
            wait = self._waits.pop(root, None)
            if wait is not None and wait.is_told:
                logger.warning("%s: its commits go on after %.1f s", root, now - wait.since)
        if not self._waits:
            self.by = None

    def found(self, rows: Sequence[Sequence[Any]]) -> None:
        """Who is in the way of the statement that is being executed."""
        if rows:
            self.by = "; ".join(_described(*row) for row in rows)

    def statistics(self, now: float) -> dict[str, Any]:
        if not self._waits:
            return {}
        return {
            "blocked_agents": tuple(sorted(self._waits)),
            "blocked_for": now - min(wait.since for wait in self._waits.values()),
            "blocked_by": self.by,
        }


def _described(
    pid: int, name: str | None, state: str | None, query: str | None, age: float | None
) -> str:
    """One session, for a person who is about to end it."""
    since = "" if age is None else f", in a transaction for {age:.0f} s"
    text = " ".join((query or "").split())
    return f"session {pid} ({name or 'no name'}, {state or 'unknown'}{since}): {text}"
