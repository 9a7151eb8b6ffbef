"""Wall time is integer milliseconds in the store and an aware datetime outside; ids never repeat."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.clock import SystemClock, seconds, to_datetime
from outlast.core.ids import RandomIds

YEAR_9999 = 253_402_300_799_999


def test_the_system_clock_shows_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    shown = SystemClock().now()
    assert isinstance(shown, int)
    assert before <= shown <= time.time_ns() // 1_000_000


@given(st.integers(0, YEAR_9999))
def test_a_stored_timestamp_becomes_an_aware_datetime_of_the_same_millisecond(
    milliseconds: int,
) -> None:
    shown = to_datetime(milliseconds)
    assert shown.tzinfo is UTC
    assert (shown - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) == milliseconds
    assert shown.microsecond % 1000 == 0


@pytest.mark.parametrize("duration", [1.5, timedelta(seconds=1, milliseconds=500)])
def test_a_duration_is_seconds_or_a_timedelta(duration: float | timedelta) -> None:
    assert seconds(duration) == 1.5


def test_ids_say_what_they_are_of_and_never_repeat() -> None:
    ids = RandomIds()
    made = {ids.new("fiber") for _ in range(10_000)}
    assert len(made) == 10_000
    assert all(id.startswith("fiber_") and len(id) == len("fiber_") + 24 for id in made)
