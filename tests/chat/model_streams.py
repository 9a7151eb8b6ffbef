"""Scripted streams of models: the events that Pydantic AI makes, and the response they come to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    Citation,
    FilePart,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    WebCitationSource,
)

WITH_ENDS = (TextPart, ThinkingPart, ToolCallPart, NativeToolCallPart)


def events(script: list[Any]) -> tuple[list[Any], list[Any]]:
    """The events of a script of (index, part or delta), ends included, and the parts at the end.

    As Pydantic AI does it, a part is ended when the next one begins, though more of it may come.
    """
    made: list[Any] = []
    parts: dict[int, Any] = {}
    last: int | None = None

    def end() -> Iterator[Any]:
        if last is not None and isinstance(parts[last], WITH_ENDS):
            yield PartEndEvent(index=last, part=parts[last])

    for index, what in script:
        if hasattr(what, "part_kind"):
            made += end()
            parts[index], last = what, index
            made.append(PartStartEvent(index=index, part=what))
        else:
            parts[index] = what.apply(parts[index])
            made.append(PartDeltaEvent(index=index, delta=what))
    made += end()
    return made, [parts[index] for index in sorted(parts)]


def call(name: str = "add", call_id: str = "c1", args: Any = None, **details: Any) -> ToolCallPart:
    return ToolCallPart(name, args, call_id, **details)


def arguments(text: Any) -> ToolCallPartDelta:
    return ToolCallPartDelta(args_delta=text)


CITATION = Citation(sources=[WebCitationSource(url="https://example.org", title="E")])

SCRIPTS: dict[str, list[Any]] = {
    "text": [(0, TextPart("Hel")), (0, TextPartDelta("lo"))],
    "text with an id and details": [
        (0, TextPart("", id="msg_1", provider_name="openai", provider_details={"phase": "final"})),
        (0, TextPartDelta("Hello", provider_name="openai", provider_details={"n": 1})),
    ],
    "thinking with a signature": [
        (0, ThinkingPart("", provider_name="anthropic")),
        (0, ThinkingPartDelta(content_delta="Hm", provider_name="anthropic")),
        (0, ThinkingPartDelta(content_delta=", yes")),
        (0, ThinkingPartDelta(signature_delta="c2ln", provider_name="anthropic")),
        (1, TextPart("Yes.")),
    ],
    "redacted thinking": [
        (
            0,
            ThinkingPart("", id="redacted_thinking", signature="x", provider_name="anthropic"),
        ),
        (1, TextPart("Yes.")),
    ],
    "details made by a function": [
        (0, ThinkingPart("a", id="rs_1", provider_name="openai")),
        (
            0,
            ThinkingPartDelta(
                content_delta="b",
                provider_name="openai",
                provider_details=lambda old: {**(old or {}), "raw": ["b"]},
            ),
        ),
        (0, ThinkingPartDelta(signature_delta="enc", provider_name="openai")),
    ],
    "plain thinking": [(0, ThinkingPart("Hm")), (1, TextPart("Yes."))],
    "a call in pieces": [
        (0, TextPart("Let me see.")),
        (1, call(args="")),
        (1, arguments('{"a": ')),
        (1, arguments("1}")),
    ],
    "a call at once": [
        (0, call(args={"a": 1}, provider_name="google", provider_details={"thought": "sig"}))
    ],
    "arguments as dicts": [(0, call(args={"a": 1})), (0, arguments({"b": 2}))],
    "a call without arguments": [(0, call(args=None)), (1, call("now", "c2", args=""))],
    "calls that interleave": [
        (0, call(args="")),
        (1, call("sub", "c2", args='{"x"')),
        (0, arguments('{"a"')),
        (1, arguments(":1}")),
        (0, arguments(":1}")),
    ],
    "malformed arguments": [(0, call(args='{"a": ')), (0, arguments("oops"))],
    "a text that goes on after a call": [
        (0, TextPart("One ")),
        (1, call(args='{"a":1}')),
        (0, TextPartDelta("two")),
        (0, TextPartDelta(" three")),
    ],
    "citations that come late": [
        (0, TextPart("Cited.")),
        (1, call(args='{"a":1}')),
        (
            0,
            TextPartDelta(
                "",
                provider_name="google",
                provider_details={"citations": [1]},
                citations_delta=[CITATION],
            ),
        ),
    ],
    "native tools": [
        (0, NativeToolCallPart("web_search", {"q": "x"}, "n1", provider_name="anthropic")),
        (1, NativeToolReturnPart("web_search", {"r": [1]}, "n1", provider_name="anthropic")),
        (2, TextPart("Found.")),
    ],
    "native tools whose returns come together": [
        (0, NativeToolCallPart("web_search", '{"q":"x"}', "n1", provider_name="anthropic")),
        (1, NativeToolCallPart("web_search", '{"q":"y"}', "n2", provider_name="anthropic")),
        (2, NativeToolReturnPart("web_search", ["r1"], "n1", provider_name="anthropic")),
        (
            3,
            NativeToolReturnPart(
                "web_search", ["r2"], "n2", provider_name="anthropic", provider_details={"d": 1}
            ),
        ),
        (4, TextPart("Found.")),
    ],
    "a file": [
        (0, FilePart(BinaryContent(b"\x89PNG", media_type="image/png"), id="f", provider_name="x")),
        (1, TextPart("Look.")),
    ],
}


def comparable(response: ModelResponse) -> list[Any]:
    """The parts as a request is made of them: arguments are compared as what they say."""
    parts = []
    for part in response.parts:
        if isinstance(part, ToolCallPart | NativeToolCallPart):
            part = replace(part, args=part.args_as_dict())
        if isinstance(part, NativeToolReturnPart):
            part = replace(part, timestamp=datetime.fromtimestamp(0, UTC))
        if isinstance(part, FilePart):
            part = replace(part, content=BinaryContent.narrow_type(part.content))
        parts.append(part)
    return parts
