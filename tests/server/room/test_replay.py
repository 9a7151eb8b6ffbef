"""Chunks that no stream holds make the message that is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outlast.chat.message.reducer import MessageBuilder, cleaned
from outlast.server.room.replay import closing, denied, rebuild_chunks

CALL: dict[str, Any] = {"type": "tool-f", "toolCallId": "c1", "input": {"city": "Paris"}}
ASKED = {"id": "a1"}


def built(chunks: list[str]) -> dict[str, Any]:
    builder = MessageBuilder()
    for chunk in chunks:
        builder.apply(chunk)
    return builder.message()


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [{"type": "step-start"}, {"type": "text", "text": "Hello", "state": "done"}],
        [
            {"type": "step-start", "providerMetadata": {"outlast": {"model_name": "x"}}},
            {"type": "text", "text": "Hello", "state": "done"},
            {"type": "step-start"},
            {"type": "step-start", "providerMetadata": {"outlast": {"model_name": "y"}}},
        ],
        [{"type": "reasoning", "id": "r", "text": "Hm", "state": "done"}],
        [
            {"type": "text", "text": "a", "state": "done", "providerMetadata": {"x": {"y": 1}}},
            {"type": "text", "text": "b", "state": "done", "citations": [{"n": 1}]},
        ],
        [{**CALL, "state": "output-available", "output": None}],
        [{**CALL, "input": {}, "state": "output-error", "errorText": "no"}],
        [
            {
                **CALL,
                "type": "dynamic-tool",
                "toolName": "f",
                "state": "output-available",
                "output": 1,
            }
        ],
        [{**CALL, "state": "approval-requested", "approval": ASKED}],
        [{**CALL, "state": "approval-responded", "approval": {**ASKED, "approved": True}}],
        [
            {
                **CALL,
                "state": "output-denied",
                "approval": {**ASKED, "approved": False, "reason": "x"},
            }
        ],
        [
            {
                **CALL,
                "state": "output-available",
                "output": 1,
                "approval": {**ASKED, "approved": True},
            }
        ],
        [
            {**CALL, "state": "output-available", "output": {"a": [1]}},
            {**CALL, "toolCallId": "c2", "state": "output-available", "output": "é\n"},
            {"type": "step-start"},
            {"type": "file", "url": "data:,x", "mediaType": "text/plain"},
            {"type": "source-url", "sourceId": "s", "url": "https://example.com"},
            {"type": "data-progress", "id": "p", "data": {"done": 3}},
        ],
    ],
)
@pytest.mark.parametrize("head", [{}, {"metadata": {"usage": {"totalTokens": 3}}}])
def test_a_message_is_rebuilt_as_it_is(parts: list[dict[str, Any]], head: dict[str, Any]) -> None:
    message = {"id": "m1", "role": "assistant", **head, "parts": parts}
    assert built(rebuild_chunks(message)) == message


def test_no_chunk_of_a_rebuilt_call_has_it_executed_again() -> None:
    part = {**CALL, "state": "output-available", "output": 1}
    kinds = [json.loads(chunk)["type"] for chunk in rebuild_chunks({"id": "m", "parts": [part]})]
    assert "tool-input-available" not in kinds


def test_only_the_calls_that_were_answered_now_are_told_to_be_denied() -> None:
    parts = [
        {**CALL, "toolCallId": "now", "state": "output-denied"},
        {**CALL, "toolCallId": "before", "state": "output-denied"},
        {**CALL, "toolCallId": "ran", "state": "output-available", "output": 1},
    ]
    found = denied({"id": "m", "parts": parts}, ["now", "ran"])
    assert [json.loads(chunk) for chunk in found] == [
        {"type": "tool-output-denied", "toolCallId": "now"}
    ]


def encoded(*chunks: dict[str, Any]) -> list[str]:
    return [json.dumps(chunk) for chunk in chunks]


@pytest.mark.parametrize("until", range(1, 13))
def test_a_stream_that_broke_off_anywhere_is_closed_as_its_message_is_stored(until: int) -> None:
    chunks = encoded(
        {"type": "start", "messageId": "m1"},
        {"type": "start-step"},
        {"type": "reasoning-start", "id": "r"},
        {"type": "reasoning-delta", "id": "r", "delta": "Hm"},
        {"type": "reasoning-end", "id": "r"},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": "Hello"},
        {"type": "text-end", "id": "t"},
        {"type": "tool-input-available", "toolCallId": "c1", "toolName": "f", "input": {}},
        {"type": "tool-output-available", "toolCallId": "c1", "output": 1},
        {"type": "tool-input-available", "toolCallId": "c2", "toolName": "f", "input": {}},
        {"type": "tool-output-error", "toolCallId": "c2", "errorText": "no"},
    )[:until]
    stored = cleaned(built(chunks), error="It was interrupted.")
    after = built([*chunks, *closing(chunks, stored)])
    assert shown(after["parts"]) == shown([] if stored is None else stored["parts"])


def shown(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a user sees of them."""
    hidden = ("providerMetadata", "resultProviderMetadata")
    seen = [part for part in parts if part["type"] != "step-start" and part.get("text") != ""]
    return [{name: part[name] for name in part if name not in hidden} for part in seen]


def test_half_a_call_that_was_not_kept_is_closed_too() -> None:
    chunks = encoded(
        {"type": "start", "messageId": "m1"},
        {"type": "tool-input-start", "toolCallId": "c1", "toolName": "f"},
    )
    (part,) = built([*chunks, *closing(chunks, None)])["parts"]
    assert part["state"] == "output-error"


def test_what_waits_for_somebody_stays_open() -> None:
    chunks = encoded(
        {"type": "start", "messageId": "m1"},
        {"type": "tool-input-available", "toolCallId": "c1", "toolName": "f", "input": {}},
        {"type": "tool-approval-request", "toolCallId": "c1", "approvalId": "a1"},
    )
    assert closing(chunks, built(chunks)) == []
