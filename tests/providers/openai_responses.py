"""OpenAI's responses."""

from __future__ import annotations

import json
from typing import Any

from pydantic_ai.models import Model

from providers.dialect import Answer
from providers.openai_chat import error_body
from providers.server import Reply, refuse, sse


class OpenAIResponses:
    name = "openai"

    def model(self, url: str) -> Model:
        from pydantic_ai.models.openai import OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(f"{url}/v1", api_key="key"))

    def events(
        self,
        answer: Answer,
        *,
        finished: bool = True,
        background: bool = False,
        cut_short: bool = False,
    ) -> list[bytes]:
        log = _Log(background)
        log.add("response.created", response=log.response("in_progress"))
        log.add("response.in_progress", response=log.response("in_progress"))
        if answer.thoughts:
            _reasoning(log, answer)
        if answer.text:
            _message(log, answer, finished)
        for call in answer.calls:
            text = json.dumps(call.arguments)
            item = {
                "type": "function_call",
                "id": f"fc_{call.id}",
                "call_id": call.id,
                "name": call.tool,
            }
            log.start(item | {"arguments": "", "status": "in_progress"})
            for piece in (text[:5], text[5:]):
                log.add_to_item("response.function_call_arguments.delta", delta=piece)
            log.add_to_item("response.function_call_arguments.done", arguments=text, name=call.tool)
            log.end(item | {"arguments": text, "status": "completed"})
        if cut_short:  # by the limit for tokens
            reason = {"incomplete_details": {"reason": "max_output_tokens"}}
            log.add("response.incomplete", response=log.response("incomplete") | reason)
        elif finished:
            log.add("response.completed", response=log.response("completed"))
        return log.events

    def error(self, kind: str) -> Reply | None:
        status, body = error_body(kind)
        return refuse(status, body)

    def error_event(self) -> bytes:
        error = {"code": "server_is_overloaded", "message": "overloaded", "param": None}
        return sse({"type": "error", "sequence_number": 99} | error, "error")

    def check(self, body: Any) -> None:
        items = body["input"]
        assert items, "nothing to answer"
        assert items[-1].get("role") != "assistant"
        assert items[-1].get("type") not in ("function_call", "reasoning")
        called = [item["call_id"] for item in items if item.get("type") == "function_call"]
        answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
        assert sorted(called) == sorted(answered), "a call without its result"

    def signatures(self, body: Any) -> list[str]:
        return [
            item["encrypted_content"] for item in body["input"] if item.get("type") == "reasoning"
        ]

    def whole(self, status: str, text: str, *, background: bool = True) -> Reply:
        """A response that is fetched rather than streamed."""
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
        log = _Log(background)
        log.output = [item | {"status": "completed" if status == "completed" else "in_progress"}]
        return Reply(body=log.response(status))


class _Log:
    """Events with their numbers, and the response that they lead to."""

    def __init__(self, background: bool) -> None:
        self.events: list[bytes] = []
        self.output: list[dict[str, Any]] = []
        self._background = background
        self._item: dict[str, Any] = {}

    def add(self, type_: str, **fields: Any) -> None:
        event = {"type": type_, "sequence_number": len(self.events), **fields}
        self.events.append(sse(event, type_))

    def add_to_item(self, type_: str, **fields: Any) -> None:
        self.add(type_, item_id=self._item["id"], output_index=len(self.output), **fields)

    def start(self, item: dict[str, Any]) -> None:
        self._item = item
        self.add("response.output_item.added", output_index=len(self.output), item=item)

    def end(self, item: dict[str, Any]) -> None:
        self.add("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)

    def response(self, status: str) -> dict[str, Any]:
        usage = {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 18,
        }
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_750_000_000,
            "status": status,
            "background": self._background,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": "gpt-5",
            "output": list(self.output),
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage if status == "completed" else None,
        }


def _reasoning(log: _Log, answer: Answer) -> None:
    item = {"type": "reasoning", "id": "rs_1"}
    log.start(item | {"summary": []})
    part = {"type": "summary_text", "text": ""}
    log.add_to_item("response.reasoning_summary_part.added", summary_index=0, part=part)
    for thought in answer.thoughts:
        log.add_to_item("response.reasoning_summary_text.delta", summary_index=0, delta=thought)
    text = "".join(answer.thoughts)
    log.add_to_item("response.reasoning_summary_text.done", summary_index=0, text=text)
    done = part | {"text": text}
    log.add_to_item("response.reasoning_summary_part.done", summary_index=0, part=done)
    log.end(item | {"summary": [done], "encrypted_content": answer.signature})


def _message(log: _Log, answer: Answer, finished: bool) -> None:
    item = {"type": "message", "id": "msg_1", "role": "assistant"}
    log.start(item | {"status": "in_progress", "content": []})
    part = {"type": "output_text", "text": "", "annotations": []}
    log.add_to_item("response.content_part.added", content_index=0, part=part)
    for text in answer.text:
        log.add_to_item("response.output_text.delta", content_index=0, delta=text, logprobs=[])
    if not finished:
        return
    text = "".join(answer.text)
    log.add_to_item("response.output_text.done", content_index=0, text=text, logprobs=[])
    done = part | {"text": text}
    log.add_to_item("response.content_part.done", content_index=0, part=done)
    log.end(item | {"status": "completed", "content": [done]})
