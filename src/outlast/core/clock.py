"""Wall time. Stored and sent as integer milliseconds; shown as aware datetimes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999  # milliseconds: the years 1 to 9999
FOREVER = 10_000 * 366 * 86_400.0  # seconds: longer than any moment is away
_LONGEST = 86_399_999_999_999_999


class Clock(Protocol):
    """Where a host takes wall time from. Timeouts and sleeps use the event loop's time instead."""

    def now(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000


def to_datetime(milliseconds: int) -> datetime:
    """The aware datetime of a stored timestamp.

    ```python
    from outlast.core.clock import to_datetime
    assert to_datetime(0).isoformat() == "1970-01-01T00:00:00+00:00"
    ```

    A damaged one is the nearest moment that there is.
    """
    return _EPOCH + to_timedelta(max(_FIRST, min(_LAST, _number(milliseconds))))


def to_timedelta(milliseconds: int) -> timedelta:
    """A stored duration; a damaged one is none, or a very long one."""
    return timedelta(milliseconds=max(-_LONGEST, min(_LONGEST, _number(milliseconds))))


def _number(stored: object) -> int:
    return stored if isinstance(stored, int) else 0


def to_milliseconds(moment: datetime, what: str) -> int:
    """The stored timestamp of an aware datetime; without a time zone, nobody knows when that is.

    ```python
    from datetime import UTC, datetime
    from outlast.core.clock import to_milliseconds
    assert to_milliseconds(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "start") == 1000
    ```
    """
    if not isinstance(moment, datetime):
        raise TypeError(f"{what} is a datetime, not {moment!r}")
    if moment.utcoffset() is None:
        raise ValueError(f"{what} has no time zone: {moment!r}; use datetime.now(UTC) or the like")
    return round(moment.timestamp() * 1000)


def seconds(duration: float | timedelta, what: str = "a duration") -> float:
    """A duration as every parameter takes it, seconds or a `timedelta`, in seconds.

    ```python
    from datetime import timedelta
    from outlast.core.clock import seconds
    assert seconds(timedelta(minutes=1), "timeout") == seconds(60, "timeout") == 60.0
    ```

    What is none, or is negative, is refused; `what` names the parameter. An infinite one is merely very long,
    so that it can be added to a time.
    """
    if isinstance(duration, timedelta):
        length = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        length = float(max(min(duration, FOREVER), -1.0))  # the size of an int has no limit
    else:
        raise TypeError(f"{what} must be a number of seconds or a timedelta, got {duration!r}")
    if not length >= 0:  # NaN is not
        raise ValueError(f"{what} must not be negative or NaN, got {duration!r}")
    return min(length, FOREVER)
