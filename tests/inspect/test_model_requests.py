"""The requests that the inspector keeps: bounded, and as they were when they were sent."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models import ModelRequestParameters

from outlast.chat.types.events import ModelAsked
from outlast.chat.types.model_ask import ModelAsk
from outlast.core.events import Events
from outlast.inspect import model_requests
from outlast.inspect.model_requests import ModelRequests
from outlast.observe.log import line


def request(messages: list[ModelMessage]) -> ModelAsk:
    return ModelAsk(
        messages, {"timeout": 3, "extra": object()}, ModelRequestParameters(), "Be kind."
    )


def test_what_is_kept_does_not_change_with_the_conversation() -> None:
    events, kept = Events(), ModelRequests()
    end = kept.attach(events)
    messages: list[ModelMessage] = [ModelRequest.user_text_prompt("Hi")]
    events.emit(ModelAsked, "A/a", "r1", step=1, model="m", request=request(messages))
    messages.append(ModelRequest.user_text_prompt("And?"))
    events.emit(ModelAsked, "A/a", "r1", step=2, model="m", request=request(messages))
    events.emit(ModelAsked, "A/b", "r1", step=1, model="m", request=request(messages))
    end()
    events.emit(ModelAsked, "A/a", "r1", step=3, model="m", request=request(messages))
    found = kept.of_turn("A/a", "r1")
    assert [len(each["messages"]) for each in found] == [1, 2]
    assert found[0]["settings"]["timeout"] == 3


def test_the_oldest_go_first_and_the_newest_stays_however_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_requests, "MOST", 3)
    events, kept = Events(), ModelRequests()
    kept.attach(events)
    for step in range(5):
        events.emit(ModelAsked, "A/a", "r1", step=step, model="m", request=request([]))
    assert [each["step"] for each in kept.of_turn("A/a", "r1")] == [2, 3, 4]
    monkeypatch.setattr(model_requests, "MOST_BYTES", 10)
    events.emit(ModelAsked, "A/a", "r1", step=9, model="m", request=request([]))
    assert [each["step"] for each in kept.of_turn("A/a", "r1")] == [9]


def test_a_conversation_is_not_for_the_log() -> None:
    messages: list[ModelMessage] = [ModelRequest.user_text_prompt("my secret")]
    event = ModelAsked(0, "A/a", "r1", step=1, model="m", request=request(messages))
    assert line(event) == (
        "model:asked A/a request_id='r1' step=1 model='m' request=<1 messages, 0 tools>"
    )
