"""What an interrupted turn had said, folded from its chunks, and how it is closed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.chat.message.partial import Partial, folded
from outlast.chat.message.reducer import cleaned

START: dict[str, Any] = {"type": "start", "messageId": "m1"}
STEP: dict[str, Any] = {"type": "start-step"}
STEP_END: dict[str, Any] = {"type": "finish-step"}


def text(id: str, *deltas: str, ended: bool = False) -> list[dict[str, Any]]:
    chunks = [{"type": "text-start", "id": id}]
    chunks += [{"type": "text-delta", "id": id, "delta": delta} for delta in deltas]
    return [*chunks, *([{"type": "text-end", "id": id}] if ended else [])]


def thought(id: str, *deltas: str, ended: bool = False) -> list[dict[str, Any]]:
    chunks = [{"type": "reasoning-start", "id": id}]
    chunks += [{"type": "reasoning-delta", "id": id, "delta": delta} for delta in deltas]
    return [*chunks, *([{"type": "reasoning-end", "id": id}] if ended else [])]


def half_call(id: str, name: str, *deltas: str) -> list[dict[str, Any]]:
    start = {"type": "tool-input-start", "toolCallId": id, "toolName": name}
    delta = {"type": "tool-input-delta", "toolCallId": id}
    return [start, *({**delta, "inputTextDelta": each} for each in deltas)]


def call(id: str, name: str, **input: Any) -> list[dict[str, Any]]:
    whole = {"type": "tool-input-available", "toolCallId": id, "toolName": name, "input": input}
    return [*half_call(id, name, json.dumps(input)), whole]


def output(id: str, value: Any) -> dict[str, Any]:
    return {"type": "tool-output-available", "toolCallId": id, "output": value}


def fold(*chunks: Any, begun: dict[str, Any] | None = None) -> Partial:
    return folded([each if isinstance(each, str) else json.dumps(each) for each in chunks], begun)


def seam(partial: Partial) -> list[dict[str, Any]]:
    return [json.loads(chunk) for chunk in partial.seam()]


# --- how it is closed ----------------------------------------------------------------------------


def test_a_text_in_whose_middle_it_broke_off_stays_open() -> None:
    partial = fold(START, STEP, *text("t1", "Hel", "lo"))
    assert (partial.open_text, partial.text, partial.is_step_open) == ("t1", "Hello", True)
    assert seam(partial) == []
    partial.take(['{"type":"text-delta","id":"t1","delta":" there"}'])
    assert partial.text == "Hello there"
    assert len(partial.last_step) == 1, "the same part"


def test_a_text_that_has_ended_is_not_gone_on_with() -> None:
    partial = fold(START, STEP, *text("t1", "Hello.", ended=True))
    assert partial.open_text is None
    assert seam(partial) == []


def test_a_thought_without_its_end_is_marked_as_unfinished() -> None:
    partial = fold(START, STEP, *thought("r1", "Hm"))
    assert partial.open_text is None
    [end] = seam(partial)
    assert (end["type"], end["id"]) == ("reasoning-end", "r1")
    assert end["providerMetadata"] == {"outlast": {"unfinished": True}}
    [part] = partial.last_step
    assert (part["text"], part["state"]) == ("Hm", "done")
    assert part["providerMetadata"]["outlast"]["unfinished"] is True
    assert seam(partial) == [], "what is closed is closed"


def test_a_thought_that_has_ended_is_left_alone() -> None:
    partial = fold(START, STEP, *thought("r1", "Hm", ended=True), *text("t1", "So"))
    assert seam(partial) == []
    assert partial.open_text == "t1"


def test_a_call_whose_input_is_half_was_never_made() -> None:
    partial = fold(START, STEP, *half_call("c1", "look", '{"at": "le'))
    [failed] = seam(partial)
    assert failed["type"] == "tool-input-error"
    assert (failed["toolCallId"], failed["toolName"]) == ("c1", "look")
    assert failed["input"] == '{"at": "le'
    assert "was cut off" in failed["errorText"]
    [part] = partial.last_step
    assert part["state"] == "output-error"
    assert partial.has_settled_work, "nobody makes it any more"
    assert seam(partial) == []


def test_everything_is_closed_but_the_text_that_comes_last() -> None:
    """Once something has come after a text, nobody can go on with it."""
    partial = fold(START, STEP, *text("t1", "Let me "), *half_call("c1", "look", "{"))
    assert partial.open_text is None
    assert [chunk["type"] for chunk in seam(partial)] == ["text-end", "tool-input-error"]
    partial = fold(START, STEP, *text("t1", "a"), *text("t2", "b"))
    assert partial.open_text == "t2"
    assert seam(partial) == [{"type": "text-end", "id": "t1"}]


def test_a_call_that_is_whole_is_not_closed_by_the_seam() -> None:
    partial = fold(START, STEP, *call("c1", "look", at="left"))
    assert seam(partial) == []
    assert [part["state"] for part in partial.last_calls] == ["input-available"]
    assert not partial.has_settled_work


def test_a_step_that_begins_or_ends_closes_what_was_open() -> None:
    for boundary in (STEP, STEP_END, START):
        partial = fold(START, STEP, *text("t1", "a"), *thought("r1", "b"), boundary)
        assert partial.open_text is None
        assert seam(partial) == []


def test_a_message_that_begins_anew_has_nothing_of_the_first_attempt() -> None:
    partial = fold(START, STEP, *text("t1", "wrong"), START, STEP, *text("t1", "right"))
    assert (partial.text, partial.steps, partial.open_text) == ("right", 1, "t1")
    assert partial.produced == 2, "what was produced was produced"


def test_a_step_that_is_thrown_away_leaves_nothing_open() -> None:
    partial = fold(START, STEP, *text("t1", "half"), {"type": "reset-step"}, *text("t2", "new"))
    assert (partial.text, partial.open_text) == ("new", "t2")
    assert seam(partial) == []


# --- what is known of it -------------------------------------------------------------------------


def test_what_is_complete() -> None:
    answered = [START, STEP, *text("t1", "Hello.", ended=True)]
    assert not fold(*answered).is_complete, "there may be more"
    assert fold(*answered, STEP_END).is_complete
    assert not fold(*answered, STEP_END, STEP).is_complete
    called = [START, STEP, *call("c1", "look"), output("c1", "a cat"), STEP_END]
    assert not fold(*called).is_complete, "the model has not heard of it"
    assert fold(*called, STEP, *text("t2", "A cat.", ended=True), STEP_END).is_complete
    assert not fold().is_complete
    assert not fold(START).is_complete


def test_a_call_that_the_provider_has_made_is_not_ours() -> None:
    theirs = {
        "type": "tool-input-available",
        "toolCallId": "c1",
        "toolName": "search",
        "input": {},
        "providerExecuted": True,
    }
    partial = fold(START, STEP, theirs, *text("t1", "Found.", ended=True), STEP_END)
    assert partial.calls == []
    assert partial.is_complete


@pytest.mark.invariant("G6", "G7")
def test_what_counts_as_produced() -> None:
    chunks = [
        START,
        STEP,
        *thought("r1", "a", "b", ended=True),  # 2
        *text("t1", "c", "d", "e", ended=True),  # 3
        *call("c1", "look", at="left"),  # 2
        output("c1", "a cat"),  # 1
        STEP_END,
        {"type": "file", "mediaType": "image/png", "url": "data:,"},  # 1
        {"type": "finish"},
    ]
    partial = fold(*chunks)
    assert partial.produced == 9
    partial.seam()
    assert partial.produced == 9


@pytest.mark.invariant("G6")
def test_what_recovery_itself_writes_is_not_progress() -> None:
    partial = fold(START, STEP, *thought("r1", "a"), *half_call("c1", "look", "{"))
    before = partial.produced
    partial.seam()
    partial.take(['{"type":"tool-output-error","toolCallId":"c1","errorText":"unknown"}'])
    assert partial.produced == before


def test_the_steps_and_their_calls() -> None:
    partial = fold(
        START, STEP, *call("c1", "look"), output("c1", 1), STEP_END, STEP, *text("t", "x")
    )
    assert partial.steps == 2
    assert [part["toolCallId"] for part in partial.calls] == ["c1"]
    assert partial.last_calls == []
    assert partial.has_settled_work


def test_whether_it_says_more_than_what_it_goes_on_with() -> None:
    assert not fold().adds_to(None)
    assert not fold(START, STEP, *text("t1")).adds_to(None)
    assert not fold(START, STEP, *half_call("c1", "look", "{")).adds_to(None)
    assert fold(START, STEP, *text("t1", "a")).adds_to(None)
    assert fold(START, STEP, *call("c1", "look")).adds_to(None)
    begun = {"id": "m1", "role": "assistant", "parts": [{"type": "text", "text": "So far."}]}
    start = {"type": "start"}
    assert not fold(start, STEP, begun=begun).adds_to(begun)
    assert fold(start, STEP, *text("t1", " More."), begun=begun).adds_to(begun)


# --- what is damaged -----------------------------------------------------------------------------

DAMAGED = [
    "",
    "{",
    "null",
    "[]",
    '"text-delta"',
    '{"type": "text-delta", "id": "t1"}',
    '{"type": "text-delta", "id": "nobody", "delta": "x"}',
    '{"type": "text-delta", "id": ["t1"], "delta": "x"}',
    '{"type": ["text-delta"]}',
    '{"type": {"a": 1}}',
    '{"type": "text-start"}',
    '{"type": "text-end", "id": {}}',
    '{"type": "reasoning-end", "id": []}',
    '{"type": "tool-input-delta", "toolCallId": [], "inputTextDelta": "x"}',
    '{"type": "tool-input-start", "toolCallId": 7}',
    '{"type": "tool-output-available", "toolCallId": {}, "output": 1}',
    '{"type": "never-heard-of"}',
]


@pytest.mark.invariant("F9")
@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_chunk_is_skipped_and_the_rest_is_kept(damaged: str) -> None:
    partial = fold(START, STEP, *text("t1", "Hel"), damaged, *text("t1", "lo")[1:])
    assert partial.text == "Hello"
    assert partial.open_text == "t1"
    assert seam(partial) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
KINDS = ["start", "start-step", "finish-step", "reset-step", "text-start", "text-delta", "text-end"]
KINDS += ["reasoning-start", "reasoning-delta", "reasoning-end", "tool-input-start", "finish"]
KINDS += ["tool-input-delta", "tool-input-available", "tool-output-available", "tool-output-error"]
ids = st.sampled_from(["a", "b"])
any_chunk = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "id": ids | json_values,
        "toolCallId": ids | json_values,
        "toolName": st.sampled_from(["look", "send"]) | json_values,
        "delta": st.text(max_size=3) | json_values,
        "inputTextDelta": st.text(max_size=3) | json_values,
        "input": json_values,
        "output": json_values,
        "errorText": st.text(max_size=3) | json_values,
        "providerMetadata": json_values,
    },
)


@pytest.mark.invariant("F1", "F9")
@given(st.lists(any_chunk | json_values, max_size=12))
def test_whatever_is_stored_is_folded_and_closed_for_good(chunks: list[Any]) -> None:
    once, again = fold(*map(json.dumps, chunks)), fold(*map(json.dumps, chunks))
    assert once.raw == again.raw
    produced = once.produced
    closing = seam(once)
    assert seam(once) == [], "it has nothing left to close"
    assert once.produced == produced
    whole = fold(*map(json.dumps, [*chunks, *closing]))
    assert whole.raw == once.raw, "live and from the store, it is the same"
    for part in (cleaned(once.raw) or {"parts": []})["parts"]:
        assert part.get("state") != "streaming"
