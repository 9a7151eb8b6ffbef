"""Which occurrence of a schedule comes next, also when the wall clock is set. Pure.

A clock that was ahead and is set right again leaves times behind that are far away by then. So nothing waits
longer than it was meant to: a cron schedule until its next time, an interval one interval, a delay as long as
that delay, what was put off as long as it was put off.

A clock that is set back comes to the same times again. The time of a cron schedule's occurrence is what that
occurrence is known by, and none is run twice: a schedule remembers from when to when all of its occurrences
have been run. As long as it misses none that is one span, from its making to its next occurrence, and there
is nothing to store. An interval has no times of its own; what its occurrences are known by only grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from outlast.agent.schedules.sql import ScheduleRow
from outlast.agent.schedules.timetable import next_cron
from outlast.core import json

MOST_SPANS = 16
FIRST_DEFER = 30_000  # milliseconds
LAST_DEFER = 3_600_000

Span = tuple[int, int]  # from the first millisecond up to, not including, the second


@dataclass(frozen=True, slots=True)
class Past:
    """What a cron schedule has run: every occurrence from `since` up to the next one, and in each span."""

    since: int
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, row: ScheduleRow, stored: Any) -> Self:
        """From what was stored of it, if anything was: without a gap, it began when it was made."""
        try:
            since, spans = stored
            return cls(int(since), tuple((int(start), int(end)) for start, end in spans))
        except (TypeError, ValueError):
            return cls(row.created_at + 1)

    @property
    def text(self) -> str:
        return json.encode([self.since, [list(span) for span in self.spans]])

    def ended(self, end: int, since: int) -> Past:
        """The span that goes on until now ends at `end`, and a new one begins."""
        spans = sorted((*self.spans, (self.since, end)) if self.since < end else self.spans)
        while len(spans) > MOST_SPANS:  # close the smallest gap: what it holds counts as run
            at = min(range(len(spans) - 1), key=lambda n: spans[n + 1][0] - spans[n][1])
            spans[at : at + 2] = [(spans[at][0], max(spans[at][1], spans[at + 1][1]))]
        return Past(since, tuple(spans))

    def next_of(self, row: ScheduleRow, now: int, end: int) -> int:
        """The first occurrence behind `now` that has not been run; up to `end` all have been."""
        at = _cron_after(row, now)
        spans = (*self.spans, (self.since, end))
        while passed := [stop for start, stop in spans if start <= at < stop]:
            at = _cron_after(row, max(passed) - 1)
        return at


@dataclass(frozen=True, slots=True)
class Following:
    """What a schedule waits for."""

    occurrence: int
    run_at: int
    past: Past
    defers: int = 0


def after_run(row: ScheduleRow, past: Past, now: int) -> Following | None:
    """What comes after the occurrence that has run; None: that was the last."""
    if row.kind == "interval":
        assert row.interval is not None
        at = now + row.interval
        return Following(max(at, row.occurrence + 1), at, past)
    if row.kind != "cron":
        return None
    at = past.next_of(row, now, row.occurrence + 1)
    if at != _cron_after(row, row.occurrence):
        past = past.ended(row.occurrence + 1, at)
    return Following(at, at, past)


def put_off(row: ScheduleRow, past: Past, now: int) -> Following:
    """The same occurrence, later."""
    return Following(row.occurrence, now + _wait(row.defers + 1), past, row.defers + 1)


def brought_nearer(row: ScheduleRow, past: Past, now: int) -> Following | None:
    """What a schedule should wait for, if what it waits for is too far away; None: it is not."""
    if row.run_at <= now:
        return None
    if row.kind == "cron" and not row.defers:
        at = past.next_of(row, now, row.occurrence)
        return Following(at, at, past.ended(row.occurrence, at)) if at < row.occurrence else None
    longest = _longest_wait(row)
    if longest is None or row.run_at <= now + longest:
        return None
    return Following(row.occurrence, now + longest, past, row.defers)


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
    """How long an occurrence is put off for the n-th time."""
    return int(min(LAST_DEFER, FIRST_DEFER * 2 ** min(defers - 1, 20)))
