"""When to hand a left-behind fiber to its hook again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from outlast.agent.fibers.sql import FiberRow
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
    `max_attempts` bounds crashes: a fiber is dropped, too, if its process has crashed that often after the
    fiber was handed to the hook, in a row and without a stash in between. From the second crash on such a
    fiber waits for its neighbours (1, 2, 4, then 5 seconds), and runs alone. A process that was asked to
    stop has not crashed.
    A scan that has run for `scan_deadline` makes way, and goes on a moment later.
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
        """Milliseconds to wait after this many tries in a row without progress."""
        factor = 2 ** min(max(waits - 1, 0), LARGEST_EXPONENT)
        return int(min(seconds(self.retry_at_most), seconds(self.retry) * factor) * 1000)


def handed_over_at(row: FiberRow, options: FiberRecovery) -> int:
    """When a left-behind fiber was handed to its hook last, in milliseconds."""
    return 0 if row.retry_at is None else row.retry_at - options.delay_after(row.waits)


def attempted(row: FiberRow, now: int, options: FiberRecovery) -> tuple[int, int, int]:
    """What to write before the hook is called: tries, waits, and when to try again if this fails.

    Tries bunched within half a `retry` count once, however often the process is restarted meanwhile: a
    series of deploys is not a fiber that kills its process. After a crash each of them counts.
    """
    if row.tries and row.retry_at is not None and not row.crashes:
        counted_at = handed_over_at(row, options)
        if counted_at <= now < counted_at + options.delay_after(1) // 2:
            return row.tries, row.waits, row.retry_at
    return row.tries + 1, row.waits + 1, now + options.delay_after(row.waits + 1)


Turn = Literal["now", "later", "alone", "too old", "crashed too often"]


def turn_of(row: FiberRow, now: int, options: FiberRecovery, *, same_process: bool) -> Turn:
    """Whether a left-behind fiber is handed to the hook now.

    A new process tries at once what failed in an old one (it may well be the repaired version),
    unless that has failed so often that the fiber may be what kills it, or has crashed before: then it
    is recovered alone. One that would have to wait for longer than it ever waits was put off by a clock
    that was ahead, and need not wait.
    """
    if row.crashes and not same_process:
        return "alone" if row.crashes < options.max_attempts else "crashed too often"
    max_age = int(seconds(options.max_age) * 1000)
    stuck_since = row.interrupted_at if row.tries >= PERSISTENCE else None
    if max_age and stuck_since is not None and now - stuck_since >= max_age:
        return "too old"
    must_wait = same_process or row.tries >= PATIENCE
    if must_wait and handed_over_at(row, options) <= now < (row.retry_at or 0):
        return "later"
    return "now"
