"""When a schedule is due. Pure: times in, times out, all in milliseconds of wall time.

Cron expressions are evaluated in a time zone. When clocks go forward, a job in the skipped hour runs right
after it; when they go back, a job at a fixed time runs once, and a job that runs every n minutes runs in both
hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from outlast.core.clock import seconds, to_datetime, to_milliseconds

if TYPE_CHECKING:
    import random

ScheduleKind = Literal["delayed", "scheduled", "cron", "interval"]
FARTHEST = 253_402_300_799_000  # the end of the year 9999


@dataclass(frozen=True, slots=True)
class Timing:
    """The rule for a schedule's times. `occurrences` computes the times after the first."""

    kind: ScheduleKind
    first_at: int
    cron: str | None = None
    timezone: str | None = None
    interval: int | None = None  # milliseconds


@dataclass(frozen=True, slots=True)
class Retry:
    """How a callback that raises is retried in the same process. Delays in seconds or as `timedelta`.

    The wait before attempt n is a random part of `base_delay * 2 ** (n - 1)`, or of `max_delay` if less.
    """

    max_attempts: int = 3
    base_delay: float | timedelta = 0.1
    max_delay: float | timedelta = 3.0

    def __post_init__(self) -> None:
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise ValueError(
                f"max_attempts must be an int of at least 1, got {self.max_attempts!r}"
            )
        if seconds(self.base_delay, "base_delay") > seconds(self.max_delay, "max_delay"):
            raise ValueError(
                f"base_delay must not be longer than max_delay, got {self.base_delay!r}"
                f" and {self.max_delay!r}"
            )

    def delay_before(self, attempt: int, chance: random.Random) -> float:
        """Return the seconds to wait before this attempt (the second is 2)."""
        longest = seconds(self.base_delay) * 2 ** min(attempt - 1, 30)
        return chance.uniform(0, min(seconds(self.max_delay), longest))

    def stored(self) -> dict[str, float]:
        """Return the value for the schedule's row."""
        delays = {"base_delay": seconds(self.base_delay), "max_delay": seconds(self.max_delay)}
        return {"max_attempts": self.max_attempts, **delays}


def timing_of(when: float | timedelta | datetime | str, timezone: str | None, now: int) -> Timing:
    """Return the timing of `schedule(when)`: a delay, a time, or a cron expression."""
    if isinstance(when, str):
        zone = timezone or "UTC"
        return Timing("cron", next_cron(when, zone, now), cron=when, timezone=zone)
    if timezone is not None:
        raise ValueError(
            "timezone= requires a cron expression; set the tzinfo of a datetime instead"
        )
    if isinstance(when, datetime):
        return Timing("scheduled", to_milliseconds(when, "when"))
    if isinstance(when, bool) or not isinstance(when, int | float | timedelta):
        raise TypeError(
            "when must be a delay (seconds or a timedelta), an aware datetime or a cron expression,"
            f" got {when!r}"
        )
    delay = seconds(when, "a delay")
    if delay > (FARTHEST - now) / 1000:
        raise ValueError(f"a delay must end before the year 9999, got {when!r}")
    return Timing("delayed", now + round(delay * 1000))


def interval_timing(every: float | timedelta, now: int) -> Timing:
    """Return the timing of `schedule_every(every)`."""
    length = seconds(every, "an interval")
    if not 0.001 <= length <= 10 * 366 * 86400:
        raise ValueError(f"an interval must be between a millisecond and ten years, got {every!r}")
    interval = round(length * 1000)
    return Timing("interval", now + interval, interval=interval)


def next_cron(cron: str, timezone: str, after: int) -> int:
    """Return the first time after `after` that matches a cron expression. Raises `ValueError` if invalid."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    from cronsim import CronSim, CronSimError

    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {timezone!r}; use a name like Europe/London") from None
    try:
        found = next(CronSim(cron, to_datetime(after).astimezone(zone)))
    except CronSimError as error:
        raise ValueError(
            f"{cron!r} is not a cron expression ({error}); an example is '*/5 * * * *'"
        ) from None
    except StopIteration:
        raise ValueError(f"the cron expression {cron!r} never matches") from None
    return to_milliseconds(found, "an occurrence")
