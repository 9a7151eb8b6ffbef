"""When a schedule is due. Pure: times in, times out, all in milliseconds of wall time.

Cron texts are read in a time zone. When clocks are set ahead, a job of the hour that does not exist runs at
once after it; when they are set back, a job at a fixed time runs once, and one that runs every so many
minutes runs in both hours.
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
    """What a schedule's times follow from. What comes after the first is in `occurrences`."""

    kind: ScheduleKind
    first_at: int
    cron: str | None = None
    timezone: str | None = None
    interval: int | None = None  # milliseconds


@dataclass(frozen=True, slots=True)
class Retry:
    """How a callback that raises is tried again, in the same process. Delays in seconds.

    The wait before try n is a random part of `base_delay * 2 ** (n - 1)`, at most of `max_delay`.
    """

    max_attempts: int = 3
    base_delay: float = 0.1
    max_delay: float = 3.0

    def __post_init__(self) -> None:
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise ValueError(f"max_attempts is a number from 1 on, not {self.max_attempts!r}")
        if not 0 <= self.base_delay <= self.max_delay:
            raise ValueError(
                f"base_delay is at least 0 and at most max_delay, not {self.base_delay!r}"
            )

    def delay_before(self, attempt: int, chance: random.Random) -> float:
        """Seconds to wait before this attempt (the second is 2)."""
        return chance.uniform(0, min(self.max_delay, self.base_delay * 2 ** min(attempt - 1, 30)))


def timing_of(when: float | timedelta | datetime | str, timezone: str | None, now: int) -> Timing:
    """What `schedule(when)` means: a delay, a moment, or a cron text."""
    if isinstance(when, str):
        zone = timezone or "UTC"
        return Timing("cron", next_cron(when, zone, now), cron=when, timezone=zone)
    if timezone is not None:
        raise ValueError("timezone= goes with a cron text; give a datetime its own tzinfo")
    if isinstance(when, datetime):
        return Timing("scheduled", to_milliseconds(when, "when"))
    if isinstance(when, bool) or not isinstance(when, int | float | timedelta):
        raise TypeError(
            f"when is a delay (seconds or timedelta), an aware datetime or a cron text, not {when!r}"
        )
    delay = seconds(when)
    if not 0 <= delay <= (FARTHEST - now) / 1000:
        raise ValueError(
            f"a delay is not negative and ends before the year 9999; {when!r} is not such"
        )
    return Timing("delayed", now + round(delay * 1000))


def interval_timing(every: float | timedelta, now: int) -> Timing:
    """What `schedule_every(every)` means."""
    if isinstance(every, bool) or not isinstance(every, int | float | timedelta):
        raise TypeError(f"an interval is seconds or a timedelta, not {every!r}")
    length = seconds(every)
    if not 0.001 <= length <= 10 * 366 * 86400:
        raise ValueError(f"an interval is between a millisecond and ten years, not {every!r}")
    interval = round(length * 1000)
    return Timing("interval", now + interval, interval=interval)


def next_cron(cron: str, timezone: str, after: int) -> int:
    """The first occurrence of a cron text behind `after`; a `ValueError` says what is wrong with it."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    from cronsim import CronSim, CronSimError

    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"there is no time zone {timezone!r}; use a name like Europe/London"
        ) from None
    try:
        found = next(CronSim(cron, to_datetime(after).astimezone(zone)))
    except CronSimError as error:
        raise ValueError(
            f"{cron!r} is not a cron text ({error}); for example '*/5 * * * *'"
        ) from None
    except StopIteration:
        raise ValueError(f"{cron!r} never comes up") from None
    return to_milliseconds(found, "an occurrence")
