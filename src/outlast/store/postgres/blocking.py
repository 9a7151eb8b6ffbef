"""Agents whose rows another session has locked: they are written separately from the others.

A host has one writer. Without this, one session with a forgotten open transaction on one row of one agent
would block all agents.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.store.operations import Batch

logger = logging.getLogger("outlast.store")

TRY_FOR = 100  # milliseconds that a batch waits for a row, once one is known to be locked
TRIES = 3  # locked batches of a group that are tried, before the rest must wait
FIND_BLOCKERS_AFTER = 0.5  # seconds that a statement runs before its blockers are looked up
WARN_AFTER = 2.0  # seconds
FIRST_RETRY = 0.1  # seconds
LAST_RETRY = 1.0
LONGEST_QUERY = 200  # characters

BLOCKERS = """
    SELECT pid, application_name, state, left(query, $2),
           extract(epoch FROM clock_timestamp() - xact_start)::float8
    FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids($1)) ORDER BY pid
"""


@dataclass(slots=True)
class Wait:
    """The wait of one agent's commits."""

    since: float  # on the loop's clock, as all times here
    retry_at: float
    delay: float = FIRST_RETRY
    is_logged: bool = False


class Blocking:
    """The agents that wait for locked rows, and the sessions that block them."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}  # by root
        self.by: str | None = None  # the blockers, when they were last looked up
        self.is_retry = False  # the group being written consists of agents that waited

    def __bool__(self) -> bool:
        return bool(self._waits)

    @property
    def next_at(self) -> float | None:
        """When to retry the first of them."""
        return min((wait.retry_at for wait in self._waits.values()), default=None)

    def split(self, queue: list[Batch], now: float) -> tuple[list[Batch], list[Batch]]:
        """Return the batches to write now, and those that wait. Retries are not mixed with others."""
        self.is_retry = False
        if not self._waits:
            return queue, []
        waiting = {batch.fence.root for batch in queue} & self._waits.keys()
        for root in self._waits.keys() - waiting:  # its agent was discarded
            del self._waits[root]
        due = {root for root in waiting if self._waits[root].retry_at <= now}
        free = [batch for batch in queue if batch.fence.root not in waiting]
        if due:
            self.is_retry = True
            tried = [batch for batch in queue if batch.fence.root in due]
            return tried, [batch for batch in queue if batch.fence.root not in due]
        return free, [batch for batch in queue if batch.fence.root in waiting]

    def held(self, roots: Iterable[str], began: float, now: float) -> None:
        """Record that these were tried since `began`, and must wait."""
        for root in roots:
            wait = self._waits.setdefault(root, Wait(began, now))
            wait.retry_at, wait.delay = now + wait.delay, min(LAST_RETRY, wait.delay * 2)
            if not wait.is_logged and now - wait.since >= WARN_AFTER:
                wait.is_logged = True
                logger.warning(
                    "%s: commits have waited for %.1f s for a row that another session has locked: %s",
                    root,
                    now - wait.since,
                    self.by or "unknown session",
                )

    def written(self, roots: Iterable[str], now: float) -> None:
        """Record that these no longer wait."""
        for root in roots:
            wait = self._waits.pop(root, None)
            if wait is not None and wait.is_logged:
                logger.warning("%s: commits continue after %.1f s", root, now - wait.since)
        if not self._waits:
            self.by = None

    def found(self, rows: Sequence[Sequence[Any]]) -> None:
        """Record the sessions that block the running statement."""
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
    """Describe a session for an operator who may terminate it."""
    since = "" if age is None else f", in a transaction for {age:.0f} s"
    text = " ".join((query or "").split())
    return f"session {pid} ({name or 'no name'}, {state or 'unknown'}{since}): {text}"
