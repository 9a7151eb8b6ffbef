"""The encoder: what a model streams, as chunks."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from model_streams import SCRIPTS, events
from pydantic_ai.messages import (
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.usage import RequestUsage

from outlast.chat.message.encoder import Encoder
from outlast.chat.message.open_parts import BROKEN_OFF, MALFORMED


def chunks_of(script: list[Any], step: int = 1, **options: Any) -> list[dict[str, Any]]:
    encoder = Encoder(**options)
    encoder.start_step(step)
    made, _ = events(script)
    texts = [chunk for event in made for chunk in encoder.event(event)]
    return [json.loads(text) for text in texts + encoder.end_response()]


def test_text_is_one_start_its_deltas_and_one_end() -> None:
    assert chunks_of(SCRIPTS["text"], step=3) == [
        {"type": "text-start", "id": "s3-0"},
        {"type": "text-delta", "id": "s3-0", "delta": "Hel"},
        {"type": "text-delta", "id": "s3-0", "delta": "lo"},
        {"type": "text-end", "id": "s3-0"},
    ]


def test_the_same_stream_makes_the_same_chunks() -> None:
    for name, script in SCRIPTS.items():
        assert chunks_of(script, step=2) == chunks_of(script, step=2), name


def test_a_call_is_announced_streamed_and_made_whole() -> None:
    assert chunks_of(SCRIPTS["a call in pieces"])[3:] == [
        {"type": "tool-input-start", "toolCallId": "c1", "toolName": "add"},
        {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": '{"a": '},
        {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": "1}"},
        {"type": "tool-input-available", "toolCallId": "c1", "toolName": "add", "input": {"a": 1}},
    ]


def test_calls_that_interleave_are_complete_only_when_their_arguments_are() -> None:
    made = chunks_of(SCRIPTS["calls that interleave"])
    inputs = {c["toolCallId"]: c["input"] for c in made if c["type"] == "tool-input-available"}
    assert inputs == {"c1": {"a": 1}, "c2": {"x": 1}}
    assert not [c for c in made if c["type"] == "tool-input-error"]


def test_arguments_that_are_no_object_are_an_error_and_never_a_call() -> None:
    [*_, last] = chunks_of(SCRIPTS["malformed arguments"])
    assert last["type"] == "tool-input-error"
    assert (last["input"], last["errorText"]) == ('{"a": oops', MALFORMED)


def test_a_signature_travels_with_its_reasoning() -> None:
    made = chunks_of(SCRIPTS["thinking with a signature"])
    [end] = [chunk for chunk in made if chunk["type"] == "reasoning-end"]
    ours = {"provider_name": "anthropic", "signature": "c2ln"}
    assert end["providerMetadata"] == {"outlast": ours}


def test_reasoning_can_be_hidden() -> None:
    made = chunks_of(SCRIPTS["thinking with a signature"], send_reasoning=False)
    assert {chunk["type"] for chunk in made} == {"text-start", "text-delta", "text-end"}
    assert made[0]["id"] == "s1-1"


def test_a_file_is_a_data_url() -> None:
    made = chunks_of(SCRIPTS["a file"])
    assert made[0]["url"] == "data:image/png;base64,iVBORw=="
    assert made[0]["mediaType"] == "image/png"


def test_a_broken_stream_ends_its_texts_and_fails_its_half_calls() -> None:
    encoder = Encoder()
    encoder.start_step(1)
    encoder.event(PartStartEvent(index=0, part=ThinkingPart("Hm")))
    encoder.event(PartStartEvent(index=1, part=TextPart("Hel")))
    encoder.event(PartStartEvent(index=2, part=ToolCallPart("add", '{"a"', "c1")))
    reasoning, text, call = (json.loads(chunk) for chunk in encoder.close())
    assert reasoning["type"] == "reasoning-end"
    assert reasoning["providerMetadata"] == {"outlast": {"unfinished": True}}
    assert text == {"type": "text-end", "id": "s1-1"}
    assert (call["type"], call["errorText"]) == ("tool-input-error", BROKEN_OFF)
    assert encoder.close() == []


def test_what_is_unknown_is_skipped() -> None:
    @dataclass
    class Novelty:
        event_kind: str = "part_start"
        index: int = 0
        part: object = None

    encoder = Encoder()
    encoder.start_step(1)
    assert encoder.event(Novelty()) == []
    assert encoder.event(Novelty(event_kind="never seen")) == []
    assert encoder.event(PartDeltaEvent(index=7, delta=TextPartDelta("nowhere"))) == []
    assert encoder.event(object()) == []


def test_a_delta_of_another_kind_than_its_part_is_skipped() -> None:
    encoder = Encoder()
    encoder.start_step(1)
    encoder.event(PartStartEvent(index=0, part=ToolCallPart("add", "", "c1")))
    assert encoder.event(PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta="x"))) == []


def test_half_surrogates_do_not_break_a_chunk() -> None:
    encoder = Encoder()
    encoder.start_step(1)
    encoder.event(PartStartEvent(index=0, part=TextPart("")))
    [chunk] = encoder.event(PartDeltaEvent(index=0, delta=TextPartDelta("a\ud800b")))
    assert json.loads(chunk)["delta"] == "a\ufffdb"


def test_details_that_are_no_json_are_left_out() -> None:
    loop: list[Any] = []
    loop.append(loop)
    details = {"self": loop}
    part = TextPart("Hi", id="m", provider_name="p", provider_details=details)
    encoder = Encoder()
    encoder.start_step(1)
    [start, _] = encoder.event(PartStartEvent(index=0, part=part))
    ours = {"id": "m", "provider_name": "p"}
    assert json.loads(start)["providerMetadata"] == {"outlast": ours}


def test_the_chunks_around_the_answer() -> None:
    encoder = Encoder()
    response = ModelResponse(parts=[], model_name="m", provider_name="p", finish_reason="stop")
    usage = RequestUsage(input_tokens=3, output_tokens=4)
    made = [
        encoder.start("m1", {"a": 1}),
        encoder.start(),
        encoder.start_step(1),
        *encoder.finish_step(response),
        encoder.finish("tool_call", usage, {"x": 1}),
        encoder.finish(),
        encoder.metadata({"y": 2}),
        encoder.data("note", {"n": 1}, data_id="d", transient=True),
        encoder.error("boom"),
        encoder.abort("stop"),
        encoder.tool_output("c1", {"sum": 2}),
        encoder.tool_output("c1", "half", preliminary=True),
        encoder.tool_error("c1", "no"),
        encoder.tool_error("c1", "again", outcome="retried"),
        encoder.tool_denied("c1"),
        encoder.tool_approval_request("c1", "a1"),
    ]
    assert [json.loads(chunk) for chunk in made] == [
        {"type": "start", "messageId": "m1", "messageMetadata": {"a": 1}},
        {"type": "start"},
        {"type": "start-step"},
        {
            "type": "finish-step",
            "providerMetadata": {
                "outlast": {"model_name": "m", "provider_name": "p", "finish_reason": "stop"}
            },
        },
        {
            "type": "finish",
            "finishReason": "tool-calls",
            "messageMetadata": {
                "x": 1,
                "usage": {
                    "inputTokens": 3,
                    "outputTokens": 4,
                    "totalTokens": 7,
                    "cachedInputTokens": 0,
                    "cacheWriteTokens": 0,
                },
            },
        },
        {"type": "finish"},
        {"type": "message-metadata", "messageMetadata": {"y": 2}},
        {"type": "data-note", "id": "d", "data": {"n": 1}, "transient": True},
        {"type": "error", "errorText": "boom"},
        {"type": "abort", "reason": "stop"},
        {"type": "tool-output-available", "toolCallId": "c1", "output": {"sum": 2}},
        {
            "type": "tool-output-available",
            "toolCallId": "c1",
            "output": "half",
            "preliminary": True,
        },
        {"type": "tool-output-error", "toolCallId": "c1", "errorText": "no"},
        {
            "type": "tool-output-error",
            "toolCallId": "c1",
            "errorText": "again",
            "providerMetadata": {"outlast": {"outcome": "retried"}},
        },
        {"type": "tool-output-denied", "toolCallId": "c1"},
        {"type": "tool-approval-request", "approvalId": "a1", "toolCallId": "c1"},
    ]


def test_an_output_becomes_the_json_that_comes_nearest_or_a_type_error() -> None:
    @dataclass
    class Sum:
        value: int

    [chunk] = [Encoder().tool_output("c1", {"sum": Sum(2), "raw": b"\xff", "pair": (1, 2)})]
    assert json.loads(chunk)["output"] == {"sum": {"value": 2}, "raw": "_w==", "pair": [1, 2]}
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="cannot be encoded as JSON"):
        Encoder().tool_output("c1", loop)


def test_the_codec_does_not_load_pydantic_ai() -> None:
    modules = ", ".join(
        f"outlast.chat.{name}"
        for name in ("message.encoder", "message.reducer", "message.incoming", "context.history")
    )
    check = f"import sys, {modules}; sys.exit('pydantic_ai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
