"""The reducer: chunks become a message, live, replayed and after a crash."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.chat.message.reducer import INTERRUPTED, MessageBuilder, cleaned, is_empty, text_of
from outlast.chat.message.tool_part import tool_name

GOLDEN = json.loads((Path(__file__).parent / "golden_messages.json").read_text())

START = {"type": "start", "messageId": "m1"}
STEP = {"type": "start-step"}
CALL = {"type": "tool-input-available", "toolCallId": "c1", "toolName": "add", "input": {"a": 1}}
CALL_START = {"type": "tool-input-start", "toolCallId": "c1", "toolName": "add"}
CALL_DELTA = {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": '{"a":9}'}
CALL_ERROR = {**CALL, "type": "tool-input-error", "input": "x", "errorText": "bad"}
ASK = {"type": "tool-approval-request", "approvalId": "a1", "toolCallId": "c1"}
ALLOW = {"type": "tool-approval-response", "approvalId": "a1", "approved": True}
OUTPUT = {"type": "tool-output-available", "toolCallId": "c1", "output": 2}
HALF = {**OUTPUT, "output": 1, "preliminary": True}
FAILED = {"type": "tool-output-error", "toolCallId": "c1", "errorText": "boom"}
DENIED = {"type": "tool-output-denied", "toolCallId": "c1"}


def built(chunks: list[Any], base: dict[str, Any] | None = None) -> dict[str, Any]:
    builder = MessageBuilder(base)
    for chunk in chunks:
        builder.apply(chunk)
    return builder.message()


def text(part_id: str, *deltas: str) -> list[dict[str, Any]]:
    middle = [{"type": "text-delta", "id": part_id, "delta": delta} for delta in deltas]
    return [{"type": "text-start", "id": part_id}, *middle, {"type": "text-end", "id": part_id}]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_streams_in_order_come_to_what_the_ai_sdk_makes_of_them(case: dict[str, Any]) -> None:
    assert built([json.dumps(c) for c in case["chunks"]], case["base"]) == case["message"]
    assert built(case["chunks"], case["base"]) == case["message"]


# --- tools never go backwards --------------------------------------------------------------------

TABLE = [
    # what came before, what comes, and the state that it leads to
    ([CALL_START], CALL, "input-available"),
    ([], CALL, "input-available"),
    ([CALL], CALL_START, "input-available"),
    ([CALL], CALL_DELTA, "input-available"),
    ([CALL], {**CALL, "input": {"a": 9}}, "input-available"),
    ([CALL, ASK], CALL, "approval-requested"),
    ([CALL, ASK], {**ASK, "approvalId": "a2"}, "approval-requested"),
    ([CALL, ASK, ALLOW], ASK, "approval-responded"),
    ([CALL, ASK, ALLOW], CALL, "approval-responded"),
    ([CALL, ASK, ALLOW], {**ALLOW, "approved": False}, "approval-responded"),
    ([CALL, ASK, ALLOW], DENIED, "approval-responded"),
    ([CALL, ASK, ALLOW], OUTPUT, "output-available"),
    ([CALL, ASK], DENIED, "output-denied"),
    ([CALL, ASK, DENIED], FAILED, "output-denied"),
    ([CALL, ASK, DENIED], ASK, "output-denied"),
    ([CALL, OUTPUT], CALL, "output-available"),
    ([CALL, OUTPUT], CALL_START, "output-available"),
    ([CALL, OUTPUT], ASK, "output-available"),
    ([CALL, OUTPUT], DENIED, "output-available"),
    ([CALL, OUTPUT], CALL_ERROR, "output-available"),
    ([CALL, OUTPUT], FAILED, "output-available"),
    ([CALL, OUTPUT], HALF, "output-available"),
    ([CALL, FAILED], CALL_ERROR, "output-error"),
    ([CALL, FAILED], HALF, "output-error"),
    ([CALL, FAILED], OUTPUT, "output-available"),
    ([CALL, HALF], OUTPUT, "output-available"),
    ([CALL, HALF], FAILED, "output-error"),
    ([CALL_START], CALL_ERROR, "output-error"),
]


@pytest.mark.invariant("E19")
@pytest.mark.parametrize(("before", "chunk", "state"), TABLE)
def test_a_tool_part_never_goes_backwards(before: list[Any], chunk: Any, state: str) -> None:
    [part] = built([*before, chunk])["parts"]
    assert part["state"] == state
    is_done = state == "output-available" and len(before) > 1
    if is_done and chunk is not OUTPUT:
        assert built([*before, chunk]) == built(before)
    if chunk is OUTPUT:
        assert part["output"] == 2
        assert "preliminary" not in part
        assert "errorText" not in part


@pytest.mark.invariant("E19")
def test_a_provider_that_repeats_a_whole_call_changes_nothing() -> None:
    call = [CALL_START, CALL_DELTA, CALL]
    for outcome in ([OUTPUT], [FAILED], [ASK], [ASK, ALLOW], [ASK, DENIED]):
        assert built([*call, *outcome, *call]) == built([*call, *outcome])


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a":1}', {"a": 1}),
        ("no json", {}),
        ("[1]", {}),
        ([1], {}),
        (None, {}),
        (7, {}),
    ],
)
def test_tool_inputs_are_plain_objects(given: object, stored: object) -> None:
    assert built([{**CALL, "input": given}])["parts"][0]["input"] == stored


def test_a_half_input_shows_what_can_be_read_of_it() -> None:
    pieces = [{**CALL_DELTA, "inputTextDelta": piece} for piece in ('{"to', 'wn":"Par', "")]
    [part] = built([CALL_START, *pieces])["parts"]
    assert (part["input"], part["rawInput"]) == ({"town": "Par"}, '{"town":"Par')


# --- text, reasoning, data -----------------------------------------------------------------------


@pytest.mark.invariant("E20")
def test_reasoning_keeps_the_metadata_of_every_chunk() -> None:
    def chunk(kind: str, **metadata: object) -> dict[str, Any]:
        return {"type": f"reasoning-{kind}", "id": "r", "providerMetadata": {"p": metadata}}

    chunks = [chunk("start", id=1), {**chunk("delta", signature="s"), "delta": "Hm"}]
    [part] = built([*chunks, {**chunk("end", more=2), "providerMetadata": {"q": 3}}])["parts"]
    assert part["providerMetadata"] == {"p": {"id": 1, "signature": "s"}, "q": 3}
    assert (part["text"], part["state"]) == ("Hm", "done")


@pytest.mark.invariant("E20")
def test_a_call_keeps_its_metadata_beside_that_of_its_result() -> None:
    call = {**CALL, "providerMetadata": {"p": {"signature": "s"}}}
    output = {**OUTPUT, "providerMetadata": {"p": {"other": 1}}}
    [part] = built([{**CALL_START, "providerMetadata": {"p": {"id": 1}}}, call, output])["parts"]
    assert part["callProviderMetadata"] == {"p": {"id": 1, "signature": "s"}}
    assert part["resultProviderMetadata"] == {"p": {"other": 1}}


@pytest.mark.invariant("E21")
def test_data_is_stored_once_per_type_and_id_and_not_at_all_when_transient() -> None:
    chunks = [
        {"type": "data-progress", "id": "p", "data": 0, "transient": True},
        {"type": "data-progress", "id": "p", "data": 1},
        {"type": "data-progress", "id": "p", "data": 2},
        {"type": "data-other", "id": "p", "data": 3},
    ]
    assert built(chunks)["parts"] == [
        {"type": "data-progress", "id": "p", "data": 2},
        {"type": "data-other", "id": "p", "data": 3},
    ]


def test_a_text_begun_again_under_its_id_is_a_new_part() -> None:
    again = [*text("a", "Hel")[:-1], *text("a", "Hello")]
    parts = built(again)["parts"]
    assert [(part["text"], part["state"]) for part in parts] == [("Hel", "done"), ("Hello", "done")]


def test_a_step_that_is_tried_again_loses_what_came_of_it() -> None:
    chunks = [START, STEP, *text("a", "kept"), STEP, CALL_START, *text("b", "lost")[:-1]]
    after = built([*chunks, {"type": "reset-step"}, CALL_START, *text("b", "found")])
    assert text_of(after) == "kept found"
    assert [part["type"] for part in after["parts"]].count("tool-add") == 1


# --- malformed and repeated ----------------------------------------------------------------------


@pytest.mark.invariant("F9")
@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "{",
        "null",
        "[]",
        '"text-delta"',
        {"type": None},
        {"type": ["text-delta"]},
        {"type": "text-delta", "id": "a"},
        {"type": "text-delta", "id": "unknown", "delta": "x"},
        {"type": "text-delta", "id": ["a"], "delta": "x"},
        {"type": "text-delta", "id": "a", "delta": 7},
        {"type": "tool-output-available", "toolCallId": "unknown", "output": 1},
        {"type": "tool-input-start", "toolCallId": {}, "toolName": "add"},
        {"type": "tool-input-available", "toolCallId": "c"},
        {"type": "never seen", "id": "a"},
        {"type": "data-x"},
        {},
    ],
)
def test_a_malformed_chunk_is_skipped_and_the_rest_survives(malformed: Any) -> None:
    whole = [START, STEP, *text("a", "Hel", "lo"), CALL, OUTPUT]
    for place in range(1, len(whole) + 1):
        assert built([*whole[:place], malformed, *whole[place:]]) == built(whole)


@pytest.mark.invariant("F1")
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_a_replay_changes_nothing(case: dict[str, Any]) -> None:
    chunks = case["chunks"]
    once = built(chunks, case["base"])
    assert built([*chunks, *chunks], case["base"]) == once
    for length in range(len(chunks)):
        assert built([*chunks[:length], *chunks], case["base"]) == once
    if "messageId" in chunks[0]:
        assert built(chunks, once) == once  # onto what a first reconstruction has stored


@pytest.mark.invariant("F2")
def test_a_new_turn_never_merges_into_the_message_before_it() -> None:
    before = built([START, *text("a", "first")])
    after = built([{"type": "start", "messageId": "m2"}, *text("a", "second")], before)
    assert (after["id"], text_of(after)) == ("m2", "second")
    assert text_of(before) == "first"


@pytest.mark.invariant("F3")
def test_a_continuation_extends_its_target_and_leaves_what_was_handed_in_as_it_was() -> None:
    base = built([START, STEP, *text("a", "first"), CALL, {"type": "data-x", "id": "d", "data": 1}])
    base["parts"].append({"type": "from-the-future", "x": [1]})
    untouched = copy.deepcopy(base)
    more = [{"type": "start"}, OUTPUT, {"type": "data-x", "id": "d", "data": 2}, STEP]
    after = built([*more, *text("a", "second"), {"type": "finish-step"}], base)
    assert base == untouched
    assert after["id"] == "m1"
    assert [part["type"] for part in after["parts"]] == [
        *(part["type"] for part in base["parts"]),
        "step-start",
        "text",
    ]
    assert after["parts"][1] == base["parts"][1]
    assert after["parts"][2]["output"] == 2


def test_a_snapshot_is_not_changed_by_later_chunks() -> None:
    builder = MessageBuilder()
    for chunk in [START, *text("a", "Hel")[:-1], CALL]:
        builder.apply(chunk)
    before = builder.message()
    copied = copy.deepcopy(before)
    for chunk in [OUTPUT, {"type": "text-delta", "id": "a", "delta": "lo"}]:
        builder.apply(chunk)
    assert before == copied
    assert text_of(builder.message()) == "Hello"


# --- messages as wholes --------------------------------------------------------------------------


@pytest.mark.invariant("F8")
@pytest.mark.parametrize(
    "chunks",
    [
        [START],
        [START, STEP],
        [START, STEP, CALL_START, CALL_DELTA],
        [START, STEP, {"type": "text-start", "id": "a"}],
        [START, STEP, {"type": "reasoning-start", "id": "r"}],
    ],
)
def test_a_partial_that_says_nothing_is_dropped(chunks: list[Any]) -> None:
    assert cleaned(built(chunks)) is None


def test_a_partial_is_made_presentable() -> None:
    half = {"type": "tool-input-start", "toolCallId": "c9", "toolName": "add"}
    reasoning = [{"type": "reasoning-start", "id": "r"}, {"type": "text-start", "id": "a"}]
    asked = [{**CALL, "toolCallId": "c2"}, {**ASK, "toolCallId": "c2"}]
    client = {**CALL, "toolCallId": "c3", "toolName": "locate"}
    running = [{**CALL, "toolCallId": "c4"}, {**HALF, "toolCallId": "c4"}]
    partial = built([START, STEP, *reasoning, CALL, half, *asked, client, *running])
    message = cleaned(partial, waiting={"c3"})
    assert message is not None
    states = {part.get("toolCallId"): part.get("state") for part in message["parts"][3:]}
    assert states == {
        "c1": "output-error",
        "c2": "approval-requested",
        "c3": "input-available",
        "c4": "output-error",
    }
    assert message["parts"][3]["errorText"] == INTERRUPTED
    assert "output" not in message["parts"][-1]
    assert [part["state"] for part in message["parts"][1:3]] == ["done", "done"]
    assert cleaned(message, waiting={"c3"}) == message
    assert built([CALL])["parts"][0]["state"] == "input-available"


@pytest.mark.invariant("E22")
@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        ("One.", "Two.", "One. Two."),
        ("One. ", "Two.", "One. Two."),
        ("One.", "\nTwo.", "One.\nTwo."),
        ("", "Two.", "Two."),
        ("One.", "", "One."),
    ],
)
def test_texts_on_both_sides_of_a_tool_do_not_run_together(
    first: str, second: str, whole: str
) -> None:
    chunks = [START, STEP, *text("a", first), CALL, OUTPUT, STEP, *text("b", second)]
    assert text_of(built(chunks)) == whole


def test_texts_with_nothing_between_them_are_one() -> None:
    assert (
        text_of(built([START, STEP, *text("a", "con"), STEP, *text("b", "tinued")])) == "continued"
    )


def test_a_signature_alone_is_not_nothing() -> None:
    redacted = {"type": "reasoning", "text": ""}
    assert is_empty({"parts": [redacted]})
    metadata = {"outlast": {"signature": "x"}}
    assert not is_empty({"parts": [{**redacted, "providerMetadata": metadata}]})
    assert is_empty({})


# --- properties ----------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPES = sorted({chunk["type"] for case in GOLDEN["cases"] for chunk in case["chunks"]})
IDS = st.sampled_from(["a", "b", "c1", "c2"])
CHUNKS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from([*TYPES, "reset-step", "tool-approval-response", "tool-x"])},
        optional={
            "id": IDS | JSON,
            "toolCallId": IDS | JSON,
            "toolName": st.sampled_from(["add", "sub"]) | JSON,
            "delta": st.text(max_size=3) | JSON,
            "inputTextDelta": st.sampled_from(['{"a"', ":1", "}", "x"]) | JSON,
            "input": JSON,
            "output": JSON,
            "data": JSON,
            "errorText": st.text(max_size=3) | JSON,
            "approvalId": IDS | JSON,
            "approved": st.booleans() | JSON,
            "dynamic": st.booleans(),
            "preliminary": st.booleans(),
            "transient": st.booleans(),
            "messageId": IDS | JSON,
            "messageMetadata": JSON,
            "providerMetadata": JSON,
        },
    ),
    JSON,
)


def is_sound(message: dict[str, Any]) -> bool:
    json.dumps(message)
    parts = message["parts"]
    called = [part for part in parts if tool_name(part) is not None]
    calls = [part["toolCallId"] for part in called]
    return (
        isinstance(message["id"], str)
        and message["role"] == "assistant"
        and all(isinstance(part["type"], str) for part in parts)
        and all(isinstance(part["text"], str) for part in parts if part["type"] == "text")
        and all(isinstance(part.get("input", {}), dict) for part in called)
        and len(set(calls)) == len(calls)
    )


@given(st.lists(CHUNKS, max_size=25))
@settings(max_examples=150)
def test_whatever_comes_the_message_is_sound_and_can_be_cleaned(chunks: list[Any]) -> None:
    builder = MessageBuilder()
    for chunk in chunks:
        builder.apply(chunk)
        message = builder.message()
        assert is_sound(message)
    message = builder.message()
    assert message == built([json.dumps(chunk) for chunk in chunks])
    text_of(message)
    after = cleaned(message)
    assert after is None or (is_sound(after) and cleaned(after) == after)


@given(st.lists(JSON | st.fixed_dictionaries({"type": JSON, "state": JSON}), max_size=6), JSON)
@settings(max_examples=200)
def test_a_message_of_garbage_can_be_extended_and_cleaned(parts: list[Any], metadata: Any) -> None:
    stored = {"id": "m0", "role": "assistant", "parts": parts, "metadata": metadata}
    after = built([{"type": "start"}, STEP, *text("z", "on"), CALL, OUTPUT], stored)
    assert after["parts"][: len(parts)] == parts
    cleaned(after)
    is_empty(after)
    text_of(after)


@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_text_is_the_same_however_it_is_cut(whole: str, cuts: list[int], fast: bool) -> None:
    places = [0, *sorted(cut for cut in cuts if cut <= len(whole)), len(whole)]
    builder = MessageBuilder()
    builder.apply({"type": "text-start", "id": "a"})
    builder.apply({"type": "reasoning-start", "id": "a"})
    for start, end in zip(places, places[1:], strict=False):
        if fast:
            builder.append("text", "a", whole[start:end])
            builder.append("reasoning", "a", whole[start:end])
        else:
            builder.apply({"type": "text-delta", "id": "a", "delta": whole[start:end]})
            builder.apply({"type": "reasoning-delta", "id": "a", "delta": whole[start:end]})
    assert [part["text"] for part in builder.message()["parts"]] == [whole, whole]
