"""When a schedule is due, as a table; daylight-saving changes above all."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast.agent.schedules.timetable import Retry, Timing, interval_timing, next_cron, timing_of
from outlast.core.clock import to_datetime

NOW = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("zone", "cron", "start", "expected"),
    [
        # London, spring: 01:00 to 02:00 does not exist on 29 March 2026
        ("Europe/London", "30 1 * * *", "2026-03-28T12:00+00:00",
         ["2026-03-29T02:00+01:00", "2026-03-30T01:30+01:00"]),
        ("Europe/London", "0 2 * * *", "2026-03-28T12:00+00:00",
         ["2026-03-29T02:00+01:00", "2026-03-30T02:00+01:00"]),
        ("Europe/London", "*/30 * * * *", "2026-03-29T00:15+00:00",
         ["2026-03-29T00:30+00:00", "2026-03-29T02:00+01:00", "2026-03-29T02:30+01:00"]),
        # London, autumn: 01:00 to 02:00 comes twice on 25 October 2026
        ("Europe/London", "30 1 * * *", "2026-10-24T12:00+01:00",
         ["2026-10-25T01:30+01:00", "2026-10-26T01:30+00:00"]),
        ("Europe/London", "*/30 * * * *", "2026-10-25T00:45+01:00",
         ["2026-10-25T01:00+01:00", "2026-10-25T01:30+01:00", "2026-10-25T01:00+00:00",
          "2026-10-25T01:30+00:00", "2026-10-25T02:00+00:00"]),
        # New York: 8 March and 1 November 2026, at 02:00
        ("America/New_York", "15 2 * * *", "2026-03-07T12:00-05:00",
         ["2026-03-08T03:00-04:00", "2026-03-09T02:15-04:00"]),
        ("America/New_York", "15 1 * * *", "2026-10-31T12:00-04:00",
         ["2026-11-01T01:15-04:00", "2026-11-02T01:15-05:00"]),
        ("America/New_York", "0 9 * * 1-5", "2026-10-30T12:00-04:00",
         ["2026-11-02T09:00-05:00", "2026-11-03T09:00-05:00"]),
        # Lord Howe changes by half an hour: back at 02:00 on 5 April, ahead on 4 October 2026
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00+11:00",
         ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00+10:30",
         ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
        # Apia had no 30 December 2011
        ("Pacific/Apia", "0 12 * * *", "2011-12-29T00:00-10:00",
         ["2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T12:00+14:00"]),
        # Casablanca leaves summer time for Ramadan: back on 15 February, ahead on 22 March 2026
        ("Africa/Casablanca", "30 2 * * *", "2026-02-14T12:00+01:00",
         ["2026-02-15T02:30+01:00", "2026-02-16T02:30+00:00"]),
        ("Africa/Casablanca", "30 2 * * *", "2026-03-21T12:00+00:00",
         ["2026-03-22T03:00+01:00", "2026-03-23T02:30+01:00"]),
    ],
)  # fmt: skip
def test_daylight_saving_changes(zone: str, cron: str, start: str, expected: list[str]) -> None:
    at = utc(start)
    found = []
    for _ in expected:
        at = next_cron(cron, zone, at)
        found.append(at)
    assert [to_datetime(at) for at in found] == [datetime.fromisoformat(text) for text in expected]


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (0, NOW),
        (1.5, NOW + 1500),
        (timedelta(hours=1), NOW + 3_600_000),
        (datetime(2026, 1, 2, tzinfo=UTC), NOW + 86_400_000),
        (datetime(2020, 1, 1, tzinfo=UTC), utc("2020-01-01T00:00+00:00")),
        ("0 0 * * *", NOW + 86_400_000),
    ],
)
def test_when_is_a_delay_a_moment_or_a_cron_text(when: Any, expected: int) -> None:
    assert timing_of(when, None, NOW).first_at == expected


@pytest.mark.parametrize(
    ("when", "timezone", "says"),
    [
        (-1, None, "not be negative"),
        (float("nan"), None, "not be negative"),
        (1e300, None, "before the year 9999"),
        (True, None, "when must be a delay"),
        (None, None, "when must be a delay"),
        (datetime(2026, 1, 1), None, "must have a time zone"),
        (5, "Europe/London", "requires a cron expression"),
        ("every day", None, "is not a cron expression"),
        ("61 * * * *", None, "is not a cron expression"),
        ("0 0 31 2 *", None, "cron expression|never matches"),
        ("* * * * *", "Europe/Nowhere", "unknown time zone"),
        ("* * * * *", "../../etc/passwd", "unknown time zone"),
    ],
)
def test_what_is_no_time_is_refused(when: Any, timezone: str | None, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        timing_of(when, timezone, NOW)


def test_an_interval_begins_one_interval_from_now() -> None:
    assert interval_timing(60, NOW) == Timing("interval", NOW + 60_000, interval=60_000)
    assert interval_timing(timedelta(minutes=1), NOW).first_at == NOW + 60_000
    for bad in (0, -5, float("nan"), 1e12, timedelta(0)):
        with pytest.raises(ValueError, match="an interval must (not )?be"):
            interval_timing(bad, NOW)


@pytest.mark.parametrize("every", ["5", True, None, [5]])
def test_an_interval_that_is_no_duration_is_refused(every: Any) -> None:
    with pytest.raises(
        TypeError, match=r"an interval must be a number of seconds or a timedelta, got "
    ):
        interval_timing(every, NOW)


def test_retries_wait_a_random_part_of_doubling_delays() -> None:
    retry = Retry(max_attempts=5, base_delay=0.1, max_delay=1)
    chance = random.Random(1)
    for attempt, most in ((2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (99, 1.0)):
        delays = [retry.delay_before(attempt, chance) for _ in range(200)]
        assert 0 <= min(delays) < most * 0.2
        assert most * 0.8 < max(delays) <= most


@pytest.mark.parametrize(
    "options", [{"max_attempts": 0}, {"max_attempts": 1.5}, {"base_delay": -1}, {"base_delay": 9}]
)
def test_bad_retry_options_are_refused_at_once(options: Any) -> None:
    with pytest.raises(ValueError):
        Retry(**options)
