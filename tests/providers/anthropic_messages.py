"""Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

from pydantic_ai.models import Model

from providers.dialect import Answer
from providers.server import Reply, refuse, sse

ERRORS = {
    "rate_limit": (429, "rate_limit_error", "Number of request tokens has exceeded your limit"),
    "quota": (400, "invalid_request_error", "Your credit balance is too low to access the API."),
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "context_overflow": (
        400,
        "invalid_request_error",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ),
    "rejected": (400, "invalid_request_error", "temperature: must be at most 1"),
}


class Anthropic:
    name = "anthropic"

    def model(self, url: str) -> Model:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        provider = AnthropicProvider(api_key="key", base_url=url)
        return AnthropicModel("claude-sonnet-4-6", provider=provider)

    def events(
        self, answer: Answer, *, finished: bool = True, stop_reason: str | None = None
    ) -> list[bytes]:
        usage = {"input_tokens": 11, "output_tokens": 1}
        message = {
            "id": f"msg_{stop_reason or 1}",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-6",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        log = _Log()
        log.add("message_start", message=message)
        log.add("ping")
        if answer.thoughts:
            log.start({"type": "thinking", "thinking": "", "signature": ""})
            for thought in answer.thoughts:
                log.delta({"type": "thinking_delta", "thinking": thought})
            log.delta({"type": "signature_delta", "signature": answer.signature})
            log.stop()
        if answer.text:
            log.start({"type": "text", "text": ""})
            for text in answer.text:
                log.delta({"type": "text_delta", "text": text})
            if finished:
                log.stop()
        for call in answer.calls:
            log.start({"type": "tool_use", "id": call.id, "name": call.tool, "input": {}})
            text = json.dumps(call.arguments)
            for piece in (text[:5], text[5:]):
                log.delta({"type": "input_json_delta", "partial_json": piece})
            log.stop()
        if finished:
            reason = stop_reason or ("tool_use" if answer.calls else "end_turn")
            delta = {"stop_reason": reason, "stop_sequence": None}
            log.add("message_delta", delta=delta, usage=usage | {"output_tokens": 7})
            log.add("message_stop")
        return log.events

    def error(self, kind: str) -> Reply | None:
        status, type_, message = ERRORS[kind]
        return refuse(status, {"type": "error", "error": {"type": type_, "message": message}})

    def error_event(self) -> bytes:
        error = {"type": "overloaded_error", "message": "Overloaded"}
        return sse({"type": "error", "error": error}, "error")

    def check(self, body: Any) -> None:
        messages = body["messages"]
        assert messages, "nothing to answer"
        assert messages[0]["role"] == messages[-1]["role"] == "user"
        open_calls: set[str] = set()
        for message in messages:
            content = message["content"]
            blocks = content if isinstance(content, list) else []
            assert content, "an empty message"
            texts = [block["text"] for block in blocks if block["type"] == "text"]
            assert all(text.strip() for text in texts), "a text of white space"
            results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
            assert results == open_calls, "the results are not those of the calls before"
            open_calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
        assert not open_calls, "a call without its result"

    def signatures(self, body: Any) -> list[str]:
        return [
            block["signature"]
            for message in body["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
            if block["type"] == "thinking"
        ]


class _Log:
    """Events, and the number of the block that they are about."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self._index = -1

    def add(self, type_: str, **fields: Any) -> None:
        self.events.append(sse({"type": type_, **fields}, type_))

    def start(self, block: dict[str, Any]) -> None:
        self._index += 1
        self.add("content_block_start", index=self._index, content_block=block)

    def delta(self, delta: dict[str, Any]) -> None:
        self.add("content_block_delta", index=self._index, delta=delta)

    def stop(self) -> None:
        self.add("content_block_stop", index=self._index)
