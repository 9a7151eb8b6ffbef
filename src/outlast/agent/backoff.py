"""When to hand a left-behind fiber to its hook again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from outlast.agent.fiber_rows import FiberRow
from outlast.core.clock import seconds

PATIENCE = 3  # tries after which even a new process waits for its turn
PERSISTENCE = 20  # tries that a fiber gets in any case, however long ago it was interrupted
LARGEST_EXPONENT = 20


@dataclass(frozen=True, slots=True)
class FiberRecovery:
    """How left-behind fibers are recovered. Durations in seconds or as `timedelta`.

    `retry` is the wait after the first failure of the hook; it doubles up to `retry_at_most`.
    A fiber that has got nowhere for `max_age`, because its hook fails or because it dies again and
    again without having stashed anything, is dropped with an event (0: never).
    A scan that has run for `scan_deadline` makes way, and goes on a moment later.
    """

    retry: float | timedelta = 30.0
    retry_at_most: float | timedelta = 300.0
    max_age: float | timedelta = timedelta(hours=24)
    scan_deadline: float | timedelta = 10.0

    def delay_after(self, waits: int) -> int:
        """Milliseconds to wait after this many tries in a row without progress."""
        factor = 2 ** min(max(waits - 1, 0), LARGEST_EXPONENT)
        return int(min(seconds(self.retry_at_most), seconds(self.retry) * factor) * 1000)


def attempted(row: FiberRow, now: int, options: FiberRecovery) -> tuple[int, int, int]:
    """What to write before the hook is called: tries, waits, and when to try again if this fails.

    Tries bunched within half a `retry` count once, however often the process is restarted meanwhile:
    a series of deploys is not a fiber that kills its process.
    """
    if row.tries and row.retry_at is not None:
        counted_at = row.retry_at - options.delay_after(row.waits)
        if counted_at <= now < counted_at + options.delay_after(1) // 2:
            return row.tries, row.waits, row.retry_at
    return row.tries + 1, row.waits + 1, now + options.delay_after(row.waits + 1)


Turn = Literal["now", "later", "too old"]


def turn_of(row: FiberRow, now: int, options: FiberRecovery, *, same_process: bool) -> Turn:
    """Whether a left-behind fiber is handed to the hook now.

    A new process tries at once what failed in an old one (it may well be the repaired version),
    unless that has failed so often that the fiber may be what kills it. One that would have to wait
    for longer than it ever waits was put off by a clock that was ahead, and need not wait.
    """
    max_age = int(seconds(options.max_age) * 1000)
    stuck_since = row.interrupted_at if row.tries >= PERSISTENCE else None
    if max_age and stuck_since is not None and now - stuck_since >= max_age:
        return "too old"
    must_wait = same_process or row.tries >= PATIENCE
    if must_wait and row.retry_at is not None:
        put_off_at = row.retry_at - options.delay_after(row.waits)
        if put_off_at <= now < row.retry_at:
            return "later"
    return "now"
