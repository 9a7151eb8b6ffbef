"""Which occurrence of a schedule is next, even if the wall clock is set. Pure.

A clock that was ahead leaves stored times that are far in the future once it is corrected. So no schedule
waits longer than intended: a cron schedule until its next time, an interval for one interval, a delay for
that delay, a deferred occurrence for its deferral.

A clock that is set back passes the same times again. An occurrence of a cron schedule is identified by its
time, and none runs twice: a schedule records the spans in which all occurrences ran. Without gaps that is one
span, from its creation to its next occurrence, and nothing is stored. The occurrences of an interval have no
fixed times; their numbers only grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from outlast.agent.schedules.sql import ScheduleRow
from outlast.agent.schedules.timetable import next_cron
from outlast.core import json

MAX_SPANS = 16
FIRST_DEFER = 30_000  # milliseconds
LAST_DEFER = 3_600_000

Span = tuple[int, int]  # from the first millisecond up to, not including, the second


@dataclass(frozen=True, slots=True)
class Past:
    """The occurrences that a cron schedule has run: all from `since` up to the next, and all in each span."""

    since: int
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, row: ScheduleRow, stored: Any) -> Self:
        """Return the stored past; without a valid one, the span since the schedule was created."""
        try:
            since, spans = stored
            return cls(int(since), tuple((int(start), int(end)) for start, end in spans))
        except (TypeError, ValueError):
            return cls(row.created_at + 1)

    @property
    def text(self) -> str:
        return json.encode([self.since, [list(span) for span in self.spans]])

    def ended(self, end: int, since: int) -> Past:
        """Return the past with the current span ended at `end`, and a new span from `since`."""
        spans = sorted((*self.spans, (self.since, end)) if self.since < end else self.spans)
        while len(spans) > MAX_SPANS:  # close the smallest gap: its occurrences count as run
            at = min(range(len(spans) - 1), key=lambda n: spans[n + 1][0] - spans[n][1])
            spans[at : at + 2] = [(spans[at][0], max(spans[at][1], spans[at + 1][1]))]
        return Past(since, tuple(spans))

    def next_of(self, row: ScheduleRow, now: int, end: int) -> int:
        """Return the first occurrence after `now` that has not run; all from `since` to `end` have."""
        at = _cron_after(row, now)
        spans = (*self.spans, (self.since, end))
        while passed := [stop for start, stop in spans if start <= at < stop]:
            at = _cron_after(row, max(passed) - 1)
        return at


@dataclass(frozen=True, slots=True)
class NextRun:
    """The occurrence that a schedule waits for."""

    occurrence: int
    run_at: int
    past: Past
    defers: int = 0


def after_run(row: ScheduleRow, past: Past, now: int) -> NextRun | None:
    """Return the occurrence after the one that ran, or None if that was the last."""
    if row.kind == "interval":
        assert row.interval is not None
        at = now + row.interval
        return NextRun(max(at, row.occurrence + 1), at, past)
    if row.kind != "cron":
        return None
    at = past.next_of(row, now, row.occurrence + 1)
    if at != _cron_after(row, row.occurrence):
        past = past.ended(row.occurrence + 1, at)
    return NextRun(at, at, past)


def deferred(row: ScheduleRow, past: Past, now: int) -> NextRun:
    """Return the same occurrence at a later time."""
    return NextRun(row.occurrence, now + _wait(row.defers + 1), past, row.defers + 1)


def moved_earlier(row: ScheduleRow, past: Past, now: int) -> NextRun | None:
    """Return the occurrence to wait for instead of one too far in the future, or None to keep it."""
    if row.run_at <= now:
        return None
    if row.kind == "cron" and not row.defers:
        at = past.next_of(row, now, row.occurrence)
        return NextRun(at, at, past.ended(row.occurrence, at)) if at < row.occurrence else None
    longest = _longest_wait(row)
    if longest is None or row.run_at <= now + longest:
        return None
    return NextRun(row.occurrence, now + longest, past, row.defers)


def _cron_after(row: ScheduleRow, time: int) -> int:
    assert row.cron is not None
    return next_cron(row.cron, row.timezone or "UTC", time)


def _longest_wait(row: ScheduleRow) -> int | None:
    if row.defers:
        return _wait(row.defers)
    if row.kind == "interval":
        return row.interval
    return row.occurrence - row.created_at if row.kind == "delayed" else None


def _wait(defers: int) -> int:
    """Return how long an occurrence is deferred the n-th time."""
    return int(min(LAST_DEFER, FIRST_DEFER * 2 ** min(defers - 1, 20)))
