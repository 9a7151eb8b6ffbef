"""Wall time: integer milliseconds in the store and on the wire, aware datetimes in the API."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999  # milliseconds: the years 1 to 9999
FOREVER = 10_000 * 366 * 86_400.0  # seconds: longer than the range of datetimes
_LONGEST = 86_399_999_999_999_999


class Clock(Protocol):
    """A host's source of wall time. Timeouts and sleeps use the event loop's time instead."""

    def now(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000


def to_datetime(milliseconds: int) -> datetime:
    """Convert a stored timestamp to an aware datetime.

    ```python
    from outlast.core.clock import to_datetime
    assert to_datetime(0).isoformat() == "1970-01-01T00:00:00+00:00"
    ```

    A damaged timestamp becomes the nearest valid datetime.
    """
    return _EPOCH + to_timedelta(max(_FIRST, min(_LAST, _number(milliseconds))))


def to_timedelta(milliseconds: int) -> timedelta:
    """Convert a stored duration; a damaged one becomes zero or the longest timedelta."""
    return timedelta(milliseconds=max(-_LONGEST, min(_LONGEST, _number(milliseconds))))


def _number(stored: object) -> int:
    return stored if isinstance(stored, int) else 0


def to_milliseconds(moment: datetime, what: str) -> int:
    """Convert an aware datetime to a stored timestamp; `what` names the parameter in errors.

    ```python
    from datetime import UTC, datetime
    from outlast.core.clock import to_milliseconds
    assert to_milliseconds(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "start") == 1000
    ```
    """
    if not isinstance(moment, datetime):
        raise TypeError(f"{what} must be a datetime, got {moment!r}")
    if moment.utcoffset() is None:
        raise ValueError(f"{what} must have a time zone, got {moment!r}; use datetime.now(UTC)")
    return round(moment.timestamp() * 1000)


def seconds(duration: float | timedelta, what: str = "a duration") -> float:
    """Convert a duration, given in seconds or as a `timedelta`, to seconds.

    ```python
    from datetime import timedelta
    from outlast.core.clock import seconds
    assert seconds(timedelta(minutes=1), "timeout") == seconds(60, "timeout") == 60.0
    ```

    `what` names the parameter in errors. A value that is not a duration, or is negative, raises. An infinite
    duration becomes a very long one, so that it can be added to a time.
    """
    if isinstance(duration, timedelta):
        length = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        length = float(max(min(duration, FOREVER), -1.0))  # an int may be too large for a float
    else:
        raise TypeError(f"{what} must be a number of seconds or a timedelta, got {duration!r}")
    if not length >= 0:  # false for NaN, too
        raise ValueError(f"{what} must not be negative or NaN, got {duration!r}")
    return min(length, FOREVER)
