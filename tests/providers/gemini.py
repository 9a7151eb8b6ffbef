"""Google's Gemini: `streamGenerateContent`."""

from __future__ import annotations

from typing import Any

from pydantic_ai.models import Model

from providers.dialect import Answer
from providers.server import Reply, refuse, sse

ERRORS = {
    "rate_limit": (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted"),
    "overloaded": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    "context_overflow": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    "rejected": (400, "INVALID_ARGUMENT", "temperature is out of range"),
}


def _error_body(kind: str) -> dict[str, Any]:
    status, name, message = ERRORS[kind]
    return {"error": {"code": status, "message": message, "status": name}}


class Gemini:
    name = "google"

    def model(self, url: str) -> Model:
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(api_key="key", base_url=url)
        return GoogleModel("gemini-2.5-flash", provider=provider)

    def events(self, answer: Answer, *, finished: bool = True) -> list[bytes]:
        chunks = [_chunk([{"text": thought, "thought": True}]) for thought in answer.thoughts]
        chunks += [_chunk([{"text": text}]) for text in answer.text]
        for number, call in enumerate(answer.calls):
            function = {"name": call.tool, "args": call.arguments, "id": call.id}
            part: dict[str, Any] = {"functionCall": function}
            if answer.thoughts and number == 0:
                part["thoughtSignature"] = answer.signature
            chunks.append(_chunk([part]))
        if finished:
            last: list[dict[str, Any]] = [{"text": ""}]
            if answer.thoughts and not answer.calls:
                last = [{"text": "", "thoughtSignature": answer.signature}]
            chunks.append(_chunk(last, "STOP"))
        return [sse(chunk) for chunk in chunks]

    def error(self, kind: str) -> Reply | None:
        return refuse(ERRORS[kind][0], _error_body(kind)) if kind in ERRORS else None

    def error_event(self) -> bytes:
        return sse(_error_body("overloaded"))

    def check(self, body: Any) -> None:
        contents = body["contents"]
        assert contents[0]["role"] == contents[-1]["role"] == "user"
        assert contents[0]["parts"] != [{"text": ""}], "nothing to answer"
        open_calls = 0
        before = None
        for content in contents:
            calls = sum("functionCall" in part for part in content["parts"])
            assert not calls or before == "user", "a call that answers nothing"
            before = content["role"]
            results = sum("functionResponse" in part for part in content["parts"])
            assert results == open_calls, "as many results as calls"
            open_calls = sum("functionCall" in part for part in content["parts"])
        assert not open_calls, "a call without its result"

    def signatures(self, body: Any) -> list[str]:
        parts = [part for content in body["contents"] for part in content["parts"]]
        return [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]


def _chunk(parts: list[dict[str, Any]], finish_reason: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish_reason:
        candidate["finishReason"] = finish_reason
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": 11,
            "candidatesTokenCount": 7,
            "totalTokenCount": 18,
        },
        "modelVersion": "gemini-2.5-flash",
        "responseId": "response-1",
    }
