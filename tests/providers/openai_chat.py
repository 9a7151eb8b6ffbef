"""OpenAI's chat completions, which many others speak too."""

from __future__ import annotations

import json
from typing import Any

from pydantic_ai.models import Model

from providers.dialect import Answer
from providers.server import Reply, refuse, sse

ERRORS = {
    "rate_limit": (429, "rate_limit_exceeded", "requests", "Rate limit reached"),
    "quota": (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota"),
    "overloaded": (503, None, "server_error", "The engine is currently overloaded"),
    "context_overflow": (
        400,
        "context_length_exceeded",
        "invalid_request_error",
        "This model's maximum context length is 128000 tokens.",
    ),
    "rejected": (400, None, "invalid_request_error", "Invalid value for 'temperature'"),
}


def error_body(kind: str) -> tuple[int, dict[str, Any]]:
    status, code, type_, message = ERRORS[kind]
    return status, {"error": {"message": message, "type": type_, "param": None, "code": code}}


class OpenAIChat:
    name = "openai-chat"

    def model(self, url: str) -> Model:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel("gpt-4o", provider=OpenAIProvider(f"{url}/v1", api_key="key"))

    def events(self, answer: Answer, *, finished: bool = True) -> list[bytes]:
        chunks = [_chunk({"role": "assistant", "content": ""})]
        chunks += [_chunk({"reasoning_content": thought}) for thought in answer.thoughts]
        chunks += [_chunk({"content": text}) for text in answer.text]
        for index, call in enumerate(answer.calls):
            function = {"name": call.tool, "arguments": ""}
            start = {"index": index, "id": call.id, "type": "function", "function": function}
            chunks.append(_chunk({"tool_calls": [start]}))
            text = json.dumps(call.arguments)
            for piece in (text[:5], text[5:]):
                more = {"index": index, "function": {"arguments": piece}}
                chunks.append(_chunk({"tool_calls": [more]}))
        if finished:
            chunks.append(_chunk({}, "tool_calls" if answer.calls else "stop"))
            usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
            chunks.append({**_chunk({}), "choices": [], "usage": usage})
        return [sse(chunk) for chunk in chunks] + ([sse("[DONE]")] if finished else [])

    def error(self, kind: str) -> Reply | None:
        status, body = error_body(kind)
        return refuse(status, body)

    def error_event(self) -> bytes:
        return sse({"error": {"message": "overloaded", "type": "overloaded", "code": None}})

    def check(self, body: Any) -> None:
        messages = body["messages"]
        assert messages, "nothing to answer"
        assert messages[-1]["role"] in ("user", "tool")
        open_calls: set[str] = set()
        for message in messages:
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
            else:
                assert not open_calls, "a call without its result"
                open_calls = {call["id"] for call in message.get("tool_calls") or ()}
        assert not open_calls, "a call without its result"

    def signatures(self, body: Any) -> list[str]:
        return []


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_750_000_000,
        "model": "gpt-4o",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }
