"""When to call the recovery hook of an orphaned fiber. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from outlast.agent.fibers.sql import FiberRow
from outlast.core.clock import seconds

TRIES_BEFORE_WAIT = 3  # after these, even a new process waits for `retry_at`
TRIES_BEFORE_EXPIRY = 20  # a fiber gets these even if it is older than `max_age`
LARGEST_EXPONENT = 20


@dataclass(frozen=True, slots=True)
class FiberRecovery:
    """How orphaned fibers are recovered. Durations in seconds or as `timedelta`.

    `retry` is the wait after the first failure of the hook; it doubles up to `retry_at_most`.
    A fiber that made no progress for `max_age`, because its hook fails or because its process keeps
    crashing before it stashes anything, is dropped with an event (0: never).
    `max_attempts` bounds crashes: a fiber is dropped if its process crashes that many times in a row after
    the hook was called, without a stash in between. From the second crash on, such a fiber waits for its
    neighbours (1, 2, 4, then 5 seconds), and runs alone. A process that was asked to stop did not crash.
    A scan that has run for `scan_deadline` yields, and continues a moment later.
    """

    retry: float | timedelta = 30.0
    retry_at_most: float | timedelta = 300.0
    max_age: float | timedelta = timedelta(hours=24)
    max_attempts: int = 10
    scan_deadline: float | timedelta = 10.0

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):
            raise TypeError(f"max_attempts must be an int, got {self.max_attempts!r}")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {self.max_attempts}")
        for name in ("retry", "retry_at_most", "max_age", "scan_deadline"):
            seconds(getattr(self, name), name)

    def delay_after(self, waits: int) -> int:
        """Return the milliseconds to wait after this many tries in a row without progress."""
        factor = 2 ** min(max(waits - 1, 0), LARGEST_EXPONENT)
        return int(min(seconds(self.retry_at_most), seconds(self.retry) * factor) * 1000)


def last_attempt_at(row: FiberRow, options: FiberRecovery) -> int:
    """Return when the hook of an orphaned fiber was last called, in milliseconds."""
    return 0 if row.retry_at is None else row.retry_at - options.delay_after(row.waits)


def count_attempt(row: FiberRow, now: int, options: FiberRecovery) -> tuple[int, int, int]:
    """Return what to write before calling the hook: tries, waits, and when to retry if this attempt fails.

    Tries within half a `retry` count once, so that a series of deploys does not look like a fiber that kills
    its process. After a crash, each try counts.
    """
    if row.tries and row.retry_at is not None and not row.crashes:
        counted_at = last_attempt_at(row, options)
        if counted_at <= now < counted_at + options.delay_after(1) // 2:
            return row.tries, row.waits, row.retry_at
    return row.tries + 1, row.waits + 1, now + options.delay_after(row.waits + 1)


Verdict = Literal["now", "later", "alone", "too old", "crashed too often"]


def judge(row: FiberRow, now: int, options: FiberRecovery, *, same_process: bool) -> Verdict:
    """Decide whether to call the hook of an orphaned fiber now.

    A new process retries at once (it may run fixed code), unless the fiber failed so often that it may be
    what kills the process. After a crash, the fiber is recovered alone. A wait longer than the longest delay
    was computed by a clock that was ahead, and is ignored.
    """
    if row.crashes and not same_process:
        return "alone" if row.crashes < options.max_attempts else "crashed too often"
    max_age = int(seconds(options.max_age) * 1000)
    stuck_since = row.interrupted_at if row.tries >= TRIES_BEFORE_EXPIRY else None
    if max_age and stuck_since is not None and now - stuck_since >= max_age:
        return "too old"
    must_wait = same_process or row.tries >= TRIES_BEFORE_WAIT
    if must_wait and last_attempt_at(row, options) <= now < (row.retry_at or 0):
        return "later"
    return "now"
