"""The budgets of recovery: what is counted of a turn that is interrupted, and when it is enough."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import ChatRecovery
from outlast.chat.recovery.budget import Incident, evaluated, incident_of
from outlast.chat.types.recovery import CAUSES, Cause, recovery_of

SECOND = 1000
MINUTE = 60 * SECOND
START = 1_700_000_000_000


class Turn:
    """A turn that is interrupted again and again."""

    def __init__(self, **config: Any) -> None:
        self.config = ChatRecovery(**config)
        self.now = START
        self.produced = 0
        self.incident: Incident | None = None

    def interrupted(
        self,
        after: float = 0,
        *,
        said: int = 0,
        cause: Cause = "crashed",
        awaits_human: bool = False,
    ) -> Incident:
        """So many milliseconds later, with so many chunks more."""
        self.now += int(after)
        self.produced += said
        self.incident = evaluated(
            self.incident,
            cause=cause,
            progress=self.produced,
            now=self.now,
            age=self.now - START,
            awaits_human=awaits_human,
            config=self.config,
        )
        return self.incident


@pytest.mark.invariant("G1")
def test_a_turn_that_goes_forward_survives_any_number_of_interruptions() -> None:
    turn = Turn()
    for number in range(1, 501):
        incident = turn.interrupted(10 * MINUTE, said=1)
        assert (incident.reason, incident.attempt, incident.attempts) == (None, 1, number)
    assert turn.now - START > 3 * 24 * 60 * MINUTE


@pytest.mark.invariant("G2")
def test_a_turn_that_is_stuck_is_given_up_within_the_window() -> None:
    turn = Turn()
    assert turn.interrupted().reason is None
    assert turn.interrupted(4 * MINUTE).reason is None
    assert turn.interrupted(MINUTE).reason is None, "not at the edge of the window"
    assert turn.interrupted(1).reason == "no_progress_timeout"


@pytest.mark.invariant("G3")
@pytest.mark.parametrize("cause", ["crashed", "oom", "unknown"])
def test_every_death_without_progress_counts_however_soon_it_comes(cause: Cause) -> None:
    turn = Turn(max_attempts=4, max_oom_retries=100)
    for number in range(1, 5):
        incident = turn.interrupted(3 * SECOND, cause=cause)
        assert (incident.attempt, incident.host_deaths) == (number, number)
        assert (incident.reason, incident.is_suspect) == (None, number >= 2)
    incident = turn.interrupted(3 * SECOND, cause=cause)
    assert (incident.reason, incident.host_deaths) == ("max_attempts_exceeded", 5)


@pytest.mark.parametrize("cause", ["deploy", "evicted", "stalled"])
def test_whoever_was_asked_to_stop_is_no_suspect(cause: Cause) -> None:
    turn = Turn(max_attempts=20)
    for number in range(1, 20):
        incident = turn.interrupted(SECOND, cause=cause)
        assert (incident.attempt, incident.attempts, incident.host_deaths) == (1, number, 0)
        assert not incident.is_suspect
    assert turn.interrupted(30 * SECOND, cause=cause).attempt == 2


def test_an_attempt_that_waited_for_its_turn_does_not_count() -> None:
    turn = Turn(max_attempts=2)
    for _ in range(2):
        incident = turn.interrupted(SECOND, cause="crashed")
    for _ in range(50):
        turn.incident = replace(incident, begun=0)
        incident = turn.interrupted(SECOND, cause="crashed")
        assert (incident.attempt, incident.host_deaths, incident.reason) == (2, 2, None)
    assert turn.interrupted(SECOND, cause="crashed").reason == "max_attempts_exceeded"


def test_progress_clears_the_suspicion() -> None:
    turn = Turn(max_attempts=10)
    for _ in range(3):
        incident = turn.interrupted(SECOND, cause="crashed")
    assert incident.is_suspect
    incident = turn.interrupted(SECOND, cause="crashed", said=5)
    assert (incident.attempt, incident.host_deaths, incident.is_suspect) == (1, 1, False)


def test_a_clock_that_was_set_back_does_not_hide_attempts() -> None:
    turn = Turn(max_attempts=2)
    turn.interrupted()
    assert turn.interrupted(-60 * MINUTE).attempt == 2
    assert turn.interrupted(31 * SECOND).reason == "max_attempts_exceeded"


@pytest.mark.invariant("G4")
def test_progress_sets_the_attempts_back_to_one() -> None:
    turn = Turn(no_progress_timeout=timedelta(days=1))
    for expected in range(1, 10):
        assert turn.interrupted(MINUTE).attempt == expected
    assert turn.interrupted(MINUTE, said=1).attempt == 1
    for expected in range(2, 11):
        incident = turn.interrupted(MINUTE)
        assert (incident.attempt, incident.reason) == (expected, None)
    incident = turn.interrupted(MINUTE)
    assert (incident.attempt, incident.reason) == (11, "max_attempts_exceeded")


@pytest.mark.invariant("G6")
def test_progress_is_what_was_produced_and_never_goes_back() -> None:
    """A stream that looks shorter (it was swept, or cannot be read) is neither progress nor a loss."""
    turn = Turn()
    turn.interrupted(said=100)
    assert turn.interrupted(MINUTE, said=-60).attempt == 2
    assert turn.incident is not None
    assert turn.incident.progress == 100
    assert turn.interrupted(MINUTE, said=60).attempt == 3, "the same hundred"
    assert turn.interrupted(MINUTE, said=1).attempt == 1


@pytest.mark.invariant("G7")
def test_one_long_text_is_progress() -> None:
    turn = Turn(no_progress_timeout=60)
    turn.interrupted()
    for _ in range(20):
        assert turn.interrupted(50 * SECOND, said=300).reason is None
    assert turn.interrupted(61 * SECOND).reason == "no_progress_timeout"


def test_what_was_said_before_the_first_interruption_is_not_work_of_recovery() -> None:
    turn = Turn(max_recovery_work=10)
    assert turn.interrupted(said=1000).work == 0
    assert turn.interrupted(MINUTE, said=10).reason is None
    assert turn.incident is not None
    assert turn.incident.work == 10
    assert turn.interrupted(MINUTE, said=1).reason == "work_budget_exceeded"


def test_work_has_no_limit_by_default() -> None:
    turn = Turn()
    turn.interrupted()
    assert turn.interrupted(said=10**9).reason is None
    assert turn.config.max_recovery_work == math.inf


@pytest.mark.invariant("G9")
def test_memory_has_a_limit_that_progress_does_not_set_back() -> None:
    turn = Turn()
    for expected in range(1, 4):
        incident = turn.interrupted(MINUTE, said=50, cause="oom")
        assert (incident.oom_attempts, incident.reason) == (expected, None)
    turn.interrupted(MINUTE, said=50, cause="deploy")
    incident = turn.interrupted(MINUTE, said=50, cause="oom")
    assert (incident.oom_attempts, incident.reason) == (4, "out_of_memory")


@pytest.mark.invariant("G9")
def test_without_retries_the_first_time_is_enough() -> None:
    assert Turn(max_oom_retries=0).interrupted(cause="oom").reason == "out_of_memory"
    assert Turn(max_oom_retries=0).interrupted(cause="crashed").reason is None


def test_no_other_bound_applies_the_first_time() -> None:
    turn = Turn(max_attempts=1, no_progress_timeout=0, max_recovery_work=0)
    assert turn.interrupted(60 * MINUTE, said=1000).reason is None


def test_the_reason_is_the_first_of_the_table() -> None:
    limits = {"max_attempts": 1, "no_progress_timeout": 0, "max_age": 1.0}
    turn = Turn(**limits, max_oom_retries=0, max_recovery_work=0)
    turn.incident = Incident(attempt=5, attempts=5, first_seen_at=START, last_attempt_at=START)
    turn.incident = replace(turn.incident, last_progress_at=START, progress=5)
    assert turn.interrupted(MINUTE, cause="oom").reason == "out_of_memory"
    turn.incident = replace(turn.incident, oom_attempts=0)
    assert turn.interrupted(MINUTE).reason == "work_budget_exceeded"
    turn.incident = replace(turn.incident, baseline=5)
    assert turn.interrupted(MINUTE).reason == "no_progress_timeout"
    turn.config = replace(turn.config, no_progress_timeout=math.inf)
    assert turn.interrupted(MINUTE).reason == "max_attempts_exceeded"
    turn.config = replace(turn.config, max_attempts=100)
    assert turn.interrupted(MINUTE).reason == "stale"


def test_age_counts_only_where_it_was_asked_for() -> None:
    assert Turn().interrupted(10**12).reason is None
    turn = Turn(max_age=timedelta(hours=1))
    assert turn.interrupted(60 * MINUTE).reason is None
    assert turn.interrupted(1).reason == "stale"
    assert Turn(max_age=3600.0).interrupted(60 * MINUTE + 1).reason == "stale", "the first time too"


@pytest.mark.invariant("G13")
def test_a_human_who_is_waited_for_uses_up_nothing() -> None:
    turn = Turn(max_attempts=1, no_progress_timeout=60, max_age=60.0, max_oom_retries=0)
    for _ in range(5):
        incident = turn.interrupted(60 * MINUTE, awaits_human=True, cause="oom")
        assert incident.reason is None
    turn = Turn(no_progress_timeout=60)
    turn.interrupted()
    turn.interrupted(60 * MINUTE, awaits_human=True)
    assert turn.interrupted(50 * SECOND).reason is None, "the window begins when they have answered"


# --- records that others have written ------------------------------------------------------------

NAMES = [each.name for each in fields(Incident)]


@pytest.mark.invariant("G16")
@pytest.mark.parametrize("missing", NAMES)
def test_a_record_that_lacks_a_field_is_read_and_not_given_up_for_it(missing: str) -> None:
    turn = Turn()
    body = turn.interrupted(said=3).body
    del body[missing]
    turn.incident = incident_of(body)
    assert turn.incident is not None
    assert turn.interrupted(MINUTE).reason is None
    assert turn.interrupted(MINUTE, said=1).reason is None


@pytest.mark.invariant("G16")
@pytest.mark.parametrize("body", [{}, {"attempt": None}, {"attempt": "7"}, {"later": [1]}])
def test_a_record_of_another_version_is_as_good_as_a_first_interruption(body: Any) -> None:
    turn = Turn()
    turn.incident = incident_of(body)
    incident = turn.interrupted(said=2)
    assert (incident.attempt, incident.reason) == (1, None)


@pytest.mark.invariant("G17")
@pytest.mark.parametrize("stored", [None, "", "text", 7, [], True])
def test_what_is_no_record_counts_for_nothing(stored: Any) -> None:
    assert incident_of(stored) is None


def test_a_record_is_stored_and_read_as_it_is() -> None:
    turn = Turn(max_attempts=1)
    turn.interrupted(said=2, cause="oom")
    incident = turn.interrupted(MINUTE, cause="deploy")
    assert incident.reason == "max_attempts_exceeded"
    assert incident_of(incident.body) == incident


anything = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([])
)


@given(
    stored=st.dictionaries(st.sampled_from(NAMES), anything),
    cause=st.sampled_from(CAUSES),
    progress=st.integers(0, 10**6),
)
def test_whatever_is_stored_can_be_counted_on(stored: Any, cause: Cause, progress: int) -> None:
    before = incident_of(stored)
    assert before is not None
    after = evaluated(
        before,
        cause=cause,
        progress=progress,
        now=START,
        age=0,
        awaits_human=False,
        config=ChatRecovery(),
    )
    assert after.attempt >= 1
    assert after.attempts == before.attempts + 1
    assert after.progress >= before.progress
    assert incident_of(after.body) == after


# --- the configuration ---------------------------------------------------------------------------


def test_what_chat_recovery_may_be() -> None:
    assert recovery_of(True) == ChatRecovery()
    assert recovery_of(False) is None
    own = ChatRecovery(max_attempts=3)
    assert recovery_of(own) is own
    with pytest.raises(TypeError, match="a bool or a ChatRecovery"):
        recovery_of("yes")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_oom_retries": -1},
        {"max_recovery_work": -1},
        {"max_recovery_work": math.nan},
        {"stable_timeout": -1},
        {"no_progress_timeout": timedelta(seconds=-1)},
        {"max_age": 0},
        {"max_age": timedelta(0)},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ChatRecovery(**wrong)
