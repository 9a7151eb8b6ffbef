"""The table of decisions: each of its rows, and what holds whatever the facts are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.chat.recovery.decision import Action, Decision, Facts, Pending, decide
from outlast.chat.types.recovery import CAUSES, Cause, Reason

LIVED_ON: tuple[Cause, ...] = ("crashed", "deploy", "evicted", "unknown", "cancelled")
"""The causes that say nothing about what a next attempt would do."""

ROWS: list[tuple[int, Action, dict[str, Any]]] = [
    (1, "finalise", {"is_complete": True, "has_partial": True}),
    (1, "finalise", {"is_complete": True, "has_partial": True, "before": 2, "after": 1}),
    (1, "finalise", {"is_complete": True, "has_partial": True, "spent": "stale"}),
    (1, "finalise", {"is_complete": True, "has_partial": True, "is_degraded": True}),
    (2, "abort", {"is_cancelled": True}),
    (2, "abort", {"is_cancelled": True, "pending": "human"}),
    (3, "abort", {"is_cancelled": True, "before": 1}),
    (3, "abort", {"is_cancelled": True, "after": 1}),
    (4, "abort", {"is_cancelled": True, "has_partial": True}),
    (4, "abort", {"is_cancelled": True, "has_partial": True, "pending": "server"}),
    (5, "abort", {"is_cancelled": True, "has_partial": True, "after": 1}),
    (5, "abort", {"is_cancelled": True, "has_partial": True, "before": 1, "pending": "server"}),
    (6, "abort", {"is_cancelled": True, "has_partial": True, "pending": "human"}),
    (6, "abort", {"is_cancelled": True, "has_partial": True, "pending": "human", "after": 3}),
    (7, "skip", {"is_cleared": True}),
    (7, "skip", {"is_cleared": True, "has_partial": True, "pending": "human", "after": 1}),
    (8, "seal", {"spent": "max_attempts_exceeded"}),
    (8, "seal", {"spent": "out_of_memory", "has_partial": True, "cause": "oom"}),
    (8, "seal", {"spent": "no_progress_timeout", "has_partial": True, "pending": "server"}),
    (9, "seal", {"spent": "work_budget_exceeded", "has_partial": True, "before": 1}),
    (9, "seal", {"spent": "recovery_aborted", "after": 1}),
    (10, "park", {"has_partial": True, "pending": "human"}),
    (10, "park", {"has_partial": True, "pending": "human", "cause": "oom"}),
    (10, "park", {"has_partial": True, "pending": "human", "spent": "stale"}),
    (10, "park", {"has_partial": True, "pending": "human", "continue_": False}),
    (11, "park", {"has_partial": True, "pending": "human", "before": 2}),
    (12, "splice", {"has_partial": True, "pending": "human", "after": 1}),
    (12, "splice", {"has_partial": True, "pending": "human", "after": 1, "before": 1}),
    (13, "requeue", {"is_applied": False}),
    (13, "requeue", {"is_applied": False, "before": 1, "after": 1, "cause": "oom"}),
    (14, "retry", {}),
    (15, "retry", {"before": 1}),
    (15, "retry", {"before": 1, "supersedes": True}),
    (16, "retry", {"after": 1}),
    (16, "retry", {"after": 1, "before": 1}),
    (16, "splice", {"after": 1, "supersedes": True}),
    (17, "continue", {"has_partial": True}),
    (18, "continue", {"has_partial": True, "pending": "server"}),
    (19, "continue", {"has_partial": True, "before": 1}),
    (19, "continue", {"has_partial": True, "before": 1, "pending": "server"}),
    (20, "splice", {"has_partial": True, "before": 1, "supersedes": True}),
    (21, "splice", {"has_partial": True, "after": 1}),
    (21, "splice", {"has_partial": True, "after": 1, "before": 1, "pending": "server"}),
    (22, "retry", {"cause": "stalled"}),
    (22, "retry", {"cause": "stalled", "after": 1}),
    (23, "continue", {"cause": "stalled", "has_partial": True}),
    (23, "continue", {"cause": "stalled", "has_partial": True, "before": 1, "pending": "server"}),
    (24, "splice", {"cause": "stalled", "has_partial": True, "after": 1}),
    (24, "splice", {"cause": "stalled", "has_partial": True, "before": 1, "supersedes": True}),
    (25, "retry", {"cause": "oom"}),
    (25, "retry", {"cause": "oom", "before": 1, "after": 1}),
    (26, "continue", {"cause": "oom", "has_partial": True}),
    (26, "continue", {"cause": "oom", "has_partial": True, "before": 1, "pending": "server"}),
    (27, "splice", {"cause": "oom", "has_partial": True, "after": 1}),
    (28, "seal", {"is_degraded": True}),
    (28, "seal", {"is_degraded": True, "has_partial": True, "pending": "human", "after": 1}),
    (29, "seal", {"spent": "stale"}),
    (29, "seal", {"spent": "stale", "has_partial": True}),
    (29, "seal", {"spent": "stale", "before": 1}),
    (29, "splice", {"spent": "stale", "has_partial": True, "before": 1}),
    (29, "splice", {"spent": "stale", "has_partial": True, "after": 1}),
    (30, "stop", {"continue_": False}),
    (30, "stop", {"continue_": False, "has_partial": True, "has_settled_work": True}),
    (30, "restart", {"persist": False, "has_partial": True}),
]


@pytest.mark.parametrize(("row", "action", "facts"), ROWS)
def test_each_row_of_the_table(row: int, action: Action, facts: dict[str, Any]) -> None:
    causes = (facts["cause"],) if "cause" in facts else LIVED_ON
    for cause in causes:
        decision = decide(Facts(**{**facts, "cause": cause}))
        assert (decision.row, decision.action) == (row, action)
        assert decision.why


def test_no_row_is_missing() -> None:
    assert {row for row, _, _ in ROWS} == set(range(1, 31))


def test_what_waits_for_a_human_is_closed_where_nobody_will_answer_it() -> None:
    for row, action, facts in ROWS:
        decision = decide(Facts(**facts))
        waits = facts.get("pending") == "human"
        assert decision.denies == (row in (6, 12)), (row, action)
        assert waits or not decision.denies


def test_only_what_ran_out_of_memory_goes_on_with_less() -> None:
    for row, _, facts in ROWS:
        assert decide(Facts(**facts)).shrinks == (row in (25, 26)), row


@pytest.mark.parametrize("persist", [None, True, False])
def test_a_hook_that_says_nothing_of_it_changes_nothing(persist: bool | None) -> None:
    """Not even `persist=False`, where there is nothing to be thrown away, or tools have done something."""
    facts = Facts(persist=persist, continue_=True)
    assert decide(facts) == decide(Facts())
    settled = Facts(has_partial=True, has_settled_work=True, persist=persist)
    assert decide(settled).row == 17


# --- whatever the facts are ----------------------------------------------------------------------

any_facts = st.builds(
    Facts,
    cause=st.sampled_from(CAUSES),
    is_complete=st.booleans(),
    is_cleared=st.booleans(),
    is_cancelled=st.booleans(),
    is_applied=st.booleans(),
    has_partial=st.booleans(),
    has_settled_work=st.booleans(),
    pending=st.sampled_from(get_args(Pending)),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
    supersedes=st.booleans(),
    spent=st.sampled_from([None, *get_args(Reason)]),
    is_degraded=st.booleans(),
    persist=st.sampled_from([None, True, False]),
    continue_=st.sampled_from([None, True, False]),
)
GOES_ON = ("requeue", "retry", "restart", "continue")


@given(any_facts)
def test_any_facts_give_a_decision(facts: Facts) -> None:
    decision = decide(facts)
    assert isinstance(decision, Decision)
    assert 1 <= decision.row <= 30
    assert decision.action in get_args(Action)
    assert decision == decide(facts), "the same facts, the same decision"


@pytest.mark.invariant("H24")
@given(any_facts)
def test_a_cancel_outranks_everything_but_a_clear(facts: Facts) -> None:
    decision = decide(replace(facts, is_cancelled=True))
    assert decision.action == ("skip" if facts.is_cleared else "abort")


@given(any_facts)
def test_what_is_complete_is_never_asked_for_again(facts: Facts) -> None:
    decision = decide(replace(facts, is_complete=True))
    assert decision.action in ("finalise", "abort", "skip")


@pytest.mark.invariant("G13")
@given(any_facts)
def test_no_budget_ends_what_waits_for_a_human(facts: Facts) -> None:
    decision = decide(replace(facts, pending="human"))
    assert decision.action != "seal" or facts.is_degraded
    if not facts.is_degraded:
        unspent = decide(replace(facts, pending="human", spent=None))
        assert decision == unspent


@given(any_facts)
def test_what_is_spent_does_not_go_on(facts: Facts) -> None:
    decision = decide(facts)
    if facts.spent is not None and facts.pending != "human":
        assert decision.action not in GOES_ON


@pytest.mark.invariant("H8")
@given(any_facts)
def test_what_tools_have_done_is_never_thrown_away(facts: Facts) -> None:
    decision = decide(replace(facts, has_settled_work=True, has_partial=True))
    assert decision.action not in ("restart", "retry")


@given(any_facts)
def test_a_hook_never_makes_more_of_a_turn_than_there_would_be_without(facts: Facts) -> None:
    """It may stop it or have it begin anew; what had ended without it has ended with it."""
    without = decide(replace(facts, persist=None, continue_=None))
    decision = decide(facts)
    if decision != without:
        assert decision.row == 30
        assert without.action in ("requeue", "retry", "continue", "splice")


@given(any_facts)
def test_follow_ups_of_a_queue_never_take_the_place_of_a_turn_that_has_said_nothing(
    facts: Facts,
) -> None:
    waiting = replace(facts, has_partial=False, supersedes=False, pending="none")
    assert decide(waiting).action != "splice"
