"""The quick way of a text delta: the same chunks and the same message, without decoding either."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import (
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPartDelta,
)

from outlast.chat.message.encoder import Encoder
from outlast.chat.message.reducer import MessageBuilder


def said(text: str, **details: Any) -> PartDeltaEvent:
    return PartDeltaEvent(index=0, delta=TextPartDelta(text, **details))


def thought(text: str | None, **details: Any) -> PartDeltaEvent:
    return PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta=text, **details))


BEGUN = PartStartEvent(index=0, part=TextPart("so "))
STREAMS: dict[str, list[Any]] = {
    "text": [BEGUN, said("far "), said('"quoted" \n'), said("naïve 🙂"), said("")],
    "half a surrogate pair": [BEGUN, said("\ud83d"), said("\ude42"), said("x\udc00y")],
    "details": [BEGUN, said("a", provider_details={"n": 1}), said("b", provider_name="p")],
    "after its end": [
        BEGUN,
        PartEndEvent(index=0, part=TextPart("so ")),
        said("more "),
        said("and more"),
    ],
    "reasoning": [
        PartStartEvent(index=0, part=ThinkingPart("hm ")),
        thought("well "),
        thought(None, signature_delta="signed"),
        thought("yes"),
    ],
    "another kind": [BEGUN, PartDeltaEvent(index=0, delta=ToolCallPartDelta(args_delta="{}"))],
    "nothing began": [said("lost")],
}


@pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS)
def test_the_quick_way_says_what_the_usual_one_says(events: list[Any]) -> None:
    usual, quick = Encoder(), Encoder()
    chunks, quick_chunks = [usual.start("m"), usual.start_step(1)], [quick.start("m")]
    quick_chunks.append(quick.start_step(1))
    built = MessageBuilder()
    for chunk in quick_chunks:
        built.apply(chunk)
    for event in events:
        chunks += usual.event(event)
        more = quick.more_text(event)
        if more is None:
            new = quick.event(event)
            for chunk in new:
                built.apply(chunk)
        else:
            kind, part_id, text, chunk = more
            new = [chunk]
            built.append(kind, part_id, text)
        quick_chunks += new
    decoded = MessageBuilder()
    for chunk in chunks:
        decoded.apply(chunk)
    assert quick_chunks == chunks
    assert built.message() == decoded.message()


def test_most_of_a_text_goes_the_quick_way() -> None:
    encoder = Encoder()
    encoder.start_step(1)
    encoder.event(BEGUN)
    expected = ("text", "s1-0", "far ", '{"type":"text-delta","id":"s1-0","delta":"far "}')
    assert encoder.more_text(said("far ")) == expected
