"""An answer of numbered words, at a steady pace, from a model that goes on where the conversation ends.

A word is its number and the life that said it, `17.4711`: who sees one of another life knows that the answer
goes on, and a number that is stored twice was said twice.
"""

from __future__ import annotations

import asyncio
import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

WORDS = 250
A_SECOND = 100


def ignored(_: str) -> None:
    """Nobody wants to know when this happened."""


def word(i: int, life: object) -> str:
    return f"{i}.{life} "


def life_of(said: str) -> str:
    """The life that has said a word."""
    return said.strip().partition(".")[2]


def number_of(said: str) -> int:
    """A word's place in the answer."""
    return int(said.partition(".")[0])


async def spoken(after: int = 0, mark: Callable[[str], None] = ignored) -> AsyncIterator[str]:
    """The words that follow the first `after`; the next one at once, the others at their pace."""
    loop, life = asyncio.get_running_loop(), os.getpid()
    began = loop.time()
    for i in range(after, WORDS):
        await asyncio.sleep(max(0.0, began + (i - after) / A_SECOND - loop.time()))
        if i == after:
            mark("said")
        yield word(i, life)


def said_before(messages: Iterable[Any]) -> int:
    """How many words of the answer stand in a request to a model of Pydantic AI."""
    return sum(
        len(part.content.split())
        for message in messages
        if message.kind == "response"
        for part in message.parts
        if part.part_kind == "text"
    )


@cache
def model(mark: Callable[[str], None] = ignored) -> Any:
    """The same as a model of Pydantic AI, which goes on with a partial answer."""
    from dataclasses import dataclass
    from datetime import UTC, datetime

    from pydantic_ai.models import Model, StreamedResponse

    from benchmarks.deltas import opened

    @dataclass
    class Answer(StreamedResponse):
        after: int = 0
        model_name = "words"
        provider_name = "words"
        provider_url = None
        timestamp = datetime.now(UTC)

        async def _get_event_iterator(self) -> Any:
            async for said in spoken(self.after, mark):
                for event in self._parts_manager.handle_text_delta(
                    vendor_part_id=None, content=said
                ):
                    yield event
            self.finish_reason = "stop"

        async def close_stream(self) -> None:
            pass

    class Speaker(Model[None]):
        model_name = system = "words"

        async def request(self, *_: Any) -> Any:
            raise NotImplementedError("it streams, and nothing else")

        def request_stream(self, messages: Any, _settings: Any, parameters: Any, *_: Any) -> Any:
            mark("asked")
            return opened(Answer(parameters, after=said_before(messages)))

    return Speaker()
