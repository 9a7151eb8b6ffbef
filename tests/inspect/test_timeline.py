"""The timeline of a turn: what is stored in, moments in words out. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.recovery.decision import Decision, Facts, decide
from outlast.inspect.timeline import (
    CallFacts,
    DecisionFacts,
    Moment,
    Piece,
    TurnRows,
    timeline,
)

ENTRY = EntryRow(
    seq=1,
    id="r1",
    kind="message",
    origin="save",
    policy="queue",
    key=None,
    state="ended",
    outcome="completed",
    error=None,
    messages=None,
    options="{}",
    metadata=None,
    target="m1",
    message_id="m2",
    attempt=1,
    cancelled=None,
    accepted_at=1000,
    started_at=1010,
    ended_at=2000,
)


def piece(seq: int, attempt: int, *chunks: dict[str, Any]) -> Piece:
    return Piece(seq, attempt, [json.dumps(chunk) for chunk in chunks])


def text(said: str) -> dict[str, Any]:
    return {"type": "text-delta", "id": "t", "delta": said}


def call(id: str, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool-input-available", "toolCallId": id, "toolName": name, "input": given}


STEP, STEP_END = {"type": "start-step"}, {"type": "finish-step"}
CONTINUE = DecisionFacts(
    attempt=1,
    row=17,
    action="continue",
    why="it was interrupted in the middle of its answer",
    cause="crashed",
    produced=2,
    at=1500,
)


def told(rows: TurnRows) -> list[tuple[str, int | None]]:
    return [(moment.kind, moment.at) for moment in timeline(rows)]


def one(rows: TurnRows, kind: str) -> Moment:
    (found,) = [moment for moment in timeline(rows) if moment.kind == kind]
    return found


def test_an_undisturbed_turn() -> None:
    rows = TurnRows(
        "A/a",
        ENTRY,
        pieces=[
            piece(0, 1, {"type": "start"}, STEP, text("Hel")),
            piece(3, 1, text("lo"), STEP_END),
        ],
        asked="Hi there",
    )
    assert told(rows) == [
        ("accepted", 1000),
        ("claimed", 1010),
        ("step", None),
        ("said", None),
        ("settled", 2000),
    ]
    assert one(rows, "accepted").what == "Accepted through save_messages(): “Hi there”"
    assert one(rows, "said").what == "It says “Hello” (5 characters)."
    assert one(rows, "said").seq == 2, "the chunk that began it"
    assert one(rows, "settled").what == "Completed after 990 ms."


def test_an_interruption_stands_between_the_attempts_with_the_row_and_the_reason() -> None:
    rows = TurnRows(
        "A/a",
        replace(ENTRY, attempt=2),
        pieces=[piece(0, 1, STEP, text("It is ")), piece(2, 2, text("sunny."), STEP_END)],
        decisions=[CONTINUE],
    )
    assert told(rows) == [
        ("accepted", 1000),
        ("claimed", 1010),
        ("step", None),
        ("said", None),
        ("interrupted", None),
        ("decided", 1500),
        ("continued", None),
        ("said", None),
        ("settled", 2000),
    ]
    decided = one(rows, "decided")
    assert (decided.row, decided.action, decided.why) == (17, "continue", CONTINUE.why)
    assert one(rows, "interrupted").what.startswith("The process crashed: a signal")
    assert [m.what for m in timeline(rows) if m.kind == "said"] == [
        "It says “It is” (6 characters).",
        "It says “sunny.” (6 characters).",
    ]
    assert [m.attempt for m in timeline(rows) if m.kind == "said"] == [1, 2]
    assert one(rows, "settled").what.endswith("in 2 attempts.")


def test_a_tool_that_runs_again_has_both_its_calls_and_no_time_where_none_is_known() -> None:
    """The ledger keeps the time of the last run only."""
    rows = TurnRows(
        "A/a",
        replace(ENTRY, attempt=2),
        pieces=[
            piece(0, 1, STEP, call("c1", "look", city="Oslo")),
            piece(
                2,
                2,
                {"type": "tool-output-available", "toolCallId": "c1", "output": "sunny"},
                STEP_END,
            ),
        ],
        calls=[CallFacts("c1", "look", "read", "done", '{"city":"Oslo"}', 1510, 1520)],
        decisions=[replace(CONTINUE, row=18)],
    )
    calls = [m for m in timeline(rows) if m.tool == "look"]
    assert [(m.kind, m.at, m.attempt) for m in calls] == [
        ("called", None, 1),
        ("called", 1510, 2),
        ("returned", 1520, 2),
    ]
    assert calls[0].what == 'It calls look(city="Oslo"). Effect read: may run again.'
    assert calls[1].what.startswith("look runs again.")


def test_what_nobody_knows_is_said_so() -> None:
    rows = TurnRows(
        "A/a",
        replace(ENTRY, attempt=2),
        pieces=[
            piece(0, 1, STEP, call("c1", "pay")),
            piece(2, 2, {"type": "tool-output-error", "toolCallId": "c1", "errorText": "?"}),
        ],
        calls=[CallFacts("c1", "pay", "once", "unknown", "{}", 1020, 1510)],
        decisions=[CONTINUE],
    )
    returned = one(rows, "returned")
    assert returned.what == "The outcome of pay is unknown: it started, and no result was stored."
    assert not returned.ok
    assert one(rows, "called").at == 1020


@pytest.mark.parametrize(
    ("is_hosted", "kind"), [(True, "running"), (False, "left"), (None, "running")]
)
def test_a_turn_that_is_not_over_is_running_or_left(is_hosted: bool | None, kind: str) -> None:
    entry = replace(ENTRY, state="running", outcome=None, ended_at=None)
    last = timeline(TurnRows("A/a", entry, is_hosted=is_hosted))[-1]
    assert last.kind == kind
    assert ("not visible" in last.what) == (is_hosted is None)


def test_what_has_not_begun_waits() -> None:
    entry = replace(
        ENTRY, state="accepted", attempt=0, outcome=None, started_at=None, ended_at=None
    )
    waiting = timeline(TurnRows("A/a", entry, is_hosted=True, before=2))[-1]
    assert (waiting.kind, waiting.what) == ("waiting", "Waiting for 2 earlier requests.")
    cancelled = replace(entry, state="ended", outcome="aborted", cancelled="no", ended_at=1100)
    assert told(TurnRows("A/a", cancelled)) == [
        ("accepted", 1000),
        ("cancelled", None),
        ("settled", 1100),
    ]


def test_a_turn_that_was_put_back_before_it_said_anything_was_not_interrupted() -> None:
    """Then it is claimed anew, which counts as an attempt, and nothing had to be decided."""
    said = piece(0, 2, STEP, text("Hello"), STEP_END)
    rows = TurnRows("A/a", replace(ENTRY, attempt=2), pieces=[said])
    assert told(rows) == [
        ("accepted", 1000),
        ("waiting", None),
        ("claimed", 1010),
        ("step", None),
        ("said", None),
        ("settled", 2000),
    ]
    assert "before the model answered" in one(rows, "waiting").what
    waiting = replace(
        ENTRY, state="accepted", attempt=1, outcome=None, started_at=None, ended_at=None
    )
    assert [each.kind for each in timeline(TurnRows("A/a", waiting))] == [
        "accepted",
        "waiting",
        "waiting",
    ]
    later = TurnRows(
        "A/a",
        replace(ENTRY, attempt=3),
        pieces=[piece(0, 1, STEP, text("Hel")), piece(2, 3, text("lo"))],
        decisions=[CONTINUE],
    )
    assert [each.kind for each in timeline(later)] == [
        "accepted",
        "claimed",
        "step",
        "said",
        "interrupted",
        "decided",
        "continued",
        "waiting",
        "said",
        "settled",
    ]


def test_without_its_chunks_a_turn_is_told_from_ledger_and_transcript() -> None:
    rows = TurnRows(
        "A/a",
        replace(ENTRY, attempt=2),
        calls=[
            CallFacts("c2", "pay", "once", "unknown", "{}", 1600, 1610),
            CallFacts("c1", "look", "read", "done", "{}", 1100, 1110),
        ],
        decisions=[CONTINUE],
        said="All done.",
    )
    assert told(rows) == [
        ("accepted", 1000),
        ("claimed", 1010),
        ("said", None),
        ("called", 1100),
        ("returned", 1110),
        ("interrupted", None),
        ("decided", 1500),
        ("continued", None),
        ("called", 1600),
        ("returned", 1610),
        ("settled", 2000),
    ]
    assert "The chunks were deleted" in one(rows, "said").what


def test_damaged_chunks_do_not_hide_the_others() -> None:
    rows = TurnRows("A/a", ENTRY, pieces=[Piece(0, 1, ["{", "[]", json.dumps(text("Hello")), ""])])
    assert one(rows, "said").what == "It says “Hello” (5 characters)."


@pytest.mark.parametrize(
    "facts",
    [
        Facts(is_complete=True),
        Facts(is_cancelled=True),
        Facts(is_cleared=True),
        Facts(spent="stale"),
        Facts(pending="human"),
        Facts(is_applied=False),
        Facts(),
        Facts(has_partial=True),
        Facts(has_partial=True, after=1),
        Facts(has_partial=True, persist=False),
        Facts(continue_=False),
    ],
)
def test_every_decision_has_words(facts: Facts) -> None:
    decision: Decision = decide(facts)
    known = replace(CONTINUE, action=decision.action, row=decision.row, why=decision.why)
    moment = one(TurnRows("A/a", ENTRY, decisions=[known]), "decided")
    assert moment.what != decision.action
    assert moment.what.endswith(".")
    assert moment.row == decision.row


@pytest.mark.parametrize(
    ("seam", "why"),
    [
        (None, None),
        ({"way": "retrieve"}, "the rest was fetched from the provider"),
        (
            {"way": "prefill", "kind": "continue", "removed": 0, "held_ms": 0},
            "the model was given its own words to continue",
        ),
        (
            {
                "way": "instruct",
                "kind": "spliced",
                "removed": 30,
                "held_ms": 120,
                "why_not_better": "it thinks first",
            },
            "the model was asked to continue; 30 repeated characters were left out, decided after 120 ms"
            " (it thinks first)",
        ),
        (
            {"way": "instruct", "kind": "replace", "removed": 0, "held_ms": 0},
            "the model was asked to continue; its new answer replaced the partial one",
        ),
    ],
)
def test_it_says_how_the_rest_of_a_text_was_obtained(seam: Any, why: str | None) -> None:
    rows = TurnRows("A/a", replace(ENTRY, attempt=2), decisions=[replace(CONTINUE, seam=seam)])
    assert one(rows, "continued").why == why
