"""Which occurrence comes next, as a table; clocks that are set above all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.agent.schedules.occurrences import (
    MAX_SPANS,
    NextRun,
    Past,
    after_run,
    deferred,
    moved_earlier,
)
from outlast.agent.schedules.sql import ScheduleRow
from outlast.agent.schedules.timetable import next_cron
from outlast.core import json

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOW = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def at(text: str) -> int:
    """`1:30` of the first day; `+10 1:30` ten days later."""
    days, _, time = text.rpartition(" ")
    hours, minutes = time.split(":")
    return NOW + int(days or 0) * DAY + int(hours) * HOUR + int(minutes) * MINUTE


def waiting(kind: Any, occurrence: int, **more: Any) -> ScheduleRow:
    row = ScheduleRow(
        id="s",
        identity=None,
        kind=kind,
        callback="tick",
        payload="null",
        cron=None,
        timezone=None,
        interval=None,
        retry=None,
        created_at=NOW - 1,
        occurrence=occurrence,
        run_at=occurrence,
        claimed_at=None,
        defers=0,
        crashes=0,
    )
    return replace(row, **more)


def hourly(occurrence: str, **more: Any) -> ScheduleRow:
    return waiting("cron", at(occurrence), cron="0 * * * *", timezone="UTC", **more)


def past(since: str, *spans: tuple[str, str]) -> Past:
    """All from each first to each second time have run, and all since then."""
    return Past(at(since), tuple((at(first), at(last) + 1) for first, last in spans))


@pytest.mark.parametrize(
    ("ran", "before", "now", "then", "after"),
    [
        # as usual, and a bit late
        ("1:00", past("0:00"), "1:00", "2:00", past("0:00")),
        ("1:00", past("0:00"), "1:59", "2:00", past("0:00")),
        # late by hours, because the host was down or the clock was set ahead: those are skipped
        ("1:00", past("0:00"), "5:30", "6:00", past("6:00", ("0:00", "1:00"))),
        ("1:00", past("0:00"), "+10 1:30", "+10 2:00", past("+10 2:00", ("0:00", "1:00"))),
        # the clock was set back, while its callback ran: what has run does not run again
        ("3:00", past("0:00"), "0:30", "4:00", past("0:00")),
        ("3:00", past("2:00"), "0:30", "1:00", past("1:00", ("2:00", "3:00"))),
        ("3:00", past("3:00", ("0:00", "1:00")), "0:30", "2:00",
         past("2:00", ("0:00", "1:00"), ("3:00", "3:00"))),
        # it comes to what has run when the clock was ahead
        ("1:00", past("1:00", ("2:00", "4:00")), "1:00", "5:00",
         past("5:00", ("1:00", "1:00"), ("2:00", "4:00"))),
    ],
)  # fmt: skip
def test_after_an_occurrence_of_a_cron_text(
    ran: str, before: Past, now: str, then: str, after: Past
) -> None:
    assert after_run(hourly(ran), before, at(now)) == NextRun(at(then), at(then), after)


@pytest.mark.parametrize(
    ("waits_for", "before", "now"),
    [
        ("2:00", past("0:00"), "1:30"),
        ("2:00", past("0:00"), "2:00"),  # it is due
        ("2:00", past("0:00"), "5:30"),  # and late
        ("2:00", past("0:00"), "0:30"),  # set back: 1:00 has run
        ("+3 2:00", past("0:00"), "0:30"),
        ("2:00", past("2:00", ("0:00", "1:00")), "0:30"),
    ],
)
def test_a_cron_text_that_waits_for_the_right_time(waits_for: str, before: Past, now: str) -> None:
    assert moved_earlier(hourly(waits_for), before, at(now)) is None


@pytest.mark.parametrize(
    ("waits_for", "before", "now", "then", "after"),
    [
        # set back to before it was made: nothing there has run
        ("1:00", past("1:00"), "-1 5:30", "-1 6:00", past("-1 6:00")),
        ("+10 2:00", past("+10 2:00"), "1:30", "2:00", past("2:00")),
        ("+10 2:00", past("+10 1:00"), "1:30", "2:00", past("2:00", ("+10 1:00", "+10 1:59"))),
        # it was ahead for a while, and what has run there is known
        ("+10 3:00", past("+10 2:00", ("0:00", "1:00")), "2:30", "3:00",
         past("3:00", ("0:00", "1:00"), ("+10 2:00", "+10 2:59"))),
        ("+10 3:00", past("+10 2:00", ("0:00", "1:00")), "0:30", "2:00",
         past("2:00", ("0:00", "1:00"), ("+10 2:00", "+10 2:59"))),
        ("+10 2:00", past("+10 2:00", ("0:00", "1:00")), "1:10", "2:00",
         past("2:00", ("0:00", "1:00"))),
    ],
)  # fmt: skip
def test_a_cron_text_that_waits_for_too_long(
    waits_for: str, before: Past, now: str, then: str, after: Past
) -> None:
    following = moved_earlier(hourly(waits_for), before, at(now))
    assert following is not None
    assert (following.occurrence, following.run_at) == (at(then), at(then))
    assert _cron_times(following.past) == _cron_times(after)


def _cron_times(known: Past) -> tuple[int, list[tuple[int, int]]]:
    """Since when, and the first and the last whole hour of each span."""
    return known.since, [(-(-a // HOUR), (b - 1) // HOUR) for a, b in known.spans]


@pytest.mark.parametrize(
    ("row", "now", "expected"),
    [
        # an interval: never further away than one
        (waiting("interval", NOW + MINUTE, interval=MINUTE), NOW, None),
        (waiting("interval", NOW + MINUTE, interval=MINUTE), NOW + 2 * MINUTE, None),
        (waiting("interval", NOW + MINUTE, interval=MINUTE), NOW - 1, NOW + MINUTE - 1),
        (waiting("interval", NOW + 10 * DAY, interval=MINUTE), NOW, NOW + MINUTE),
        # a delay: never longer than it was meant to be
        (waiting("delayed", NOW - 1 + HOUR), NOW + MINUTE, None),
        (waiting("delayed", NOW - 1 + HOUR), NOW - DAY, NOW - DAY + HOUR),
        # a moment is a moment
        (waiting("scheduled", NOW + HOUR), NOW - DAY, None),
        # what was put off waits for as long as it was put off
        (waiting("scheduled", NOW, run_at=NOW + DAY, defers=1), NOW, NOW + 30 * SECOND),
        (waiting("delayed", NOW, run_at=NOW + DAY, defers=2), NOW, NOW + MINUTE),
        (waiting("interval", NOW, interval=DAY, run_at=NOW + DAY, defers=99), NOW, NOW + HOUR),
        (hourly("0:00", run_at=NOW + DAY, defers=1), NOW, NOW + 30 * SECOND),
        (hourly("0:00", run_at=NOW + 20 * SECOND, defers=1), NOW, None),
    ],
)
def test_nothing_waits_longer_than_it_was_meant_to(
    row: ScheduleRow, now: int, expected: int | None
) -> None:
    nearer = moved_earlier(row, Past(NOW), now)
    if expected is None:
        assert nearer is None
    else:
        assert nearer == NextRun(row.occurrence, expected, Past(NOW), row.defers)


def test_an_interval_counts_from_now_and_is_never_known_by_the_same_time_twice() -> None:
    row = waiting("interval", NOW, interval=MINUTE)
    late, back = NOW + 5 * HOUR, NOW - DAY
    assert after_run(row, Past(NOW), late) == NextRun(late + MINUTE, late + MINUTE, Past(NOW))
    assert after_run(row, Past(NOW), back) == NextRun(NOW + 1, back + MINUTE, Past(NOW))


@pytest.mark.parametrize("kind", ["delayed", "scheduled"])
def test_nothing_comes_after_a_one_shot(kind: str) -> None:
    assert after_run(waiting(kind, NOW), Past(NOW), NOW) is None


def test_putting_off_doubles_up_to_an_hour() -> None:
    row, waits = hourly("1:00"), []
    for _ in range(9):
        following = deferred(row, Past(NOW), NOW)
        assert (following.occurrence, following.past) == (row.occurrence, Past(NOW))
        waits.append((following.run_at - NOW) // SECOND)
        row = replace(row, run_at=following.run_at, defers=following.defers)
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_what_has_run_is_stored_and_read() -> None:
    row = hourly("1:00")
    known = Past(5, ((1, 2), (3, 4)))
    assert Past.of(row, json.decode(known.text)) == known
    for nothing in (None, {}, [], "text", [1], [1, [2]], ["x", []], [1, [["a", "b"]]]):
        assert Past.of(row, nothing) == Past(row.created_at + 1)


def test_it_does_not_grow_for_ever_and_closes_the_smallest_gaps() -> None:
    known = Past(0).ended(50, 10**6)
    for n in range(100):
        known = known.ended(10**6 + n * 100 + 50, 10**6 + n * 100 + 100)
    known = known.ended(known.since + 50, 10**9)
    known = known.ended(10**9 + 50, 5)
    assert len(known.spans) == MAX_SPANS
    assert (known.spans[0], known.spans[-1]) == ((0, 50), (10**9, 10**9 + 50))
    assert (known.spans[1][0], known.spans[-2][1]) == (10**6, 10**6 + 10_050)


# --- a clock that is set at random ----------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 300)),
        st.tuples(st.just("set"), st.integers(-2000, 2000)),
    ),
    max_size=12,
)


@settings(max_examples=300)
@given(steps=STEPS, cron=st.sampled_from(["*/7 * * * *", "0 * * * *", "5,50 3 * * *"]))
def test_nothing_is_run_twice_and_nothing_waits_for_more_than_the_next(
    steps: list[tuple[str, int]], cron: str
) -> None:
    """A model of the host: it runs what is due, and sets it right when the clock went back."""
    now = NOW
    first = next_cron(cron, "UTC", now)
    row = waiting("cron", first, cron=cron, timezone="UTC", created_at=now)
    known = Past.of(row, None)
    ran: set[int] = set()

    def take(following: NextRun | None) -> None:
        nonlocal row, known
        assert following is not None
        row = replace(row, occurrence=following.occurrence, run_at=following.run_at)
        known = following.past

    def run_what_is_due() -> None:
        while row.run_at <= now:
            assert row.occurrence not in ran
            ran.add(row.occurrence)
            take(after_run(row, known, now))

    def check() -> None:
        following = next_cron(cron, "UTC", now)
        while following in ran:
            following = next_cron(cron, "UTC", following)
        assert row.occurrence == following

    for what, minutes in steps:
        if what == "set":
            now += minutes * MINUTE
            nearer = moved_earlier(row, known, now)
            if nearer is not None:
                take(nearer)
            run_what_is_due()
        else:
            end = now + minutes * MINUTE
            while row.run_at <= end:
                now = max(now, row.run_at)
                run_what_is_due()
            now = end
        check()
