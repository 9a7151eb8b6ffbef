"""W3: a model that talks without a pause, and listeners who note how late they hear it.

A delta's text is the time at which it left the model: whoever hears it knows how long it took.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.meter import Meter, Metrics

DELTAS = 500
AT_ONCE = 50
TURNS_EACH = 10
QUESTION = "Tell me something."

Hear = Callable[[str], None]
Talk = Callable[[str, Hear], Awaitable[None]]
"""One turn of the conversation of this name; every delta of the answer is heard."""
Pace = Callable[[int], Awaitable[None]]
"""Waits until the i-th delta may be said."""


def now(_: int = 0) -> str:
    """A delta of 13 characters or so that says when it was made."""
    return f"{time.perf_counter():.6f} "


def numbered(i: int) -> str:
    """The same with its place in the answer, so that a listener knows whether one is missing."""
    return f"{i} {time.perf_counter():.6f} "


def conversation(i: int) -> str:
    """The name of the i-th."""
    return f"chat-{i}"


def noise(_: int = 0) -> str:
    """A delta of 40 characters that no store can make smaller than it is."""
    return random.randbytes(20).hex()


@cache
def model(
    deltas: int = DELTAS, say: Callable[[int], str] = now, pace: Callable[[], Pace] | None = None
) -> Any:
    """A model of Pydantic AI: the same one for outlast, for Pydantic AI's agent and for the floor.

    Each answer has a pace of its own, which is awaited before each delta and after the last.
    """
    from dataclasses import dataclass
    from datetime import UTC, datetime

    from pydantic_ai.models import Model, StreamedResponse

    @dataclass
    class Answer(StreamedResponse):
        model_name = "talker"
        provider_name = "talker"
        provider_url = None
        timestamp = datetime.now(UTC)

        async def _get_event_iterator(self) -> Any:
            said = self._parts_manager.handle_text_delta
            paced = pace() if pace is not None else None
            for i in range(deltas):
                if paced is not None:
                    await paced(i)
                for event in said(vendor_part_id=None, content=say(i)):
                    yield event
            if paced is not None:
                await paced(deltas)
            self.finish_reason = "stop"

        async def close_stream(self) -> None:
            pass

    class Talker(Model[None]):
        model_name = system = "talker"

        async def request(self, *_: Any) -> Any:
            raise NotImplementedError("it streams, and nothing else")

        def request_stream(self, _messages: Any, _settings: Any, parameters: Any, *_: Any) -> Any:
            return opened(Answer(parameters))

    return Talker()


class opened:
    """An answer as the context manager that a request is."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def __aenter__(self) -> Any:
        return self._answer

    async def __aexit__(self, *_: object) -> None:
        pass


class Listener:
    """Hears deltas, and remembers how late each was."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def hear(self, delta: str) -> None:
        self.delays.append(time.perf_counter() - float(delta))

    def metrics(self) -> Metrics:
        """Percentiles in milliseconds."""
        delays = sorted(self.delays)
        n = len(delays)
        return {"p50_ms": delays[n // 2] * 1e3, "p99_ms": delays[n * 99 // 100] * 1e3}


async def streams(talk: Talk, at_once: int, n: int, meter: Meter) -> Metrics:
    """n answers of `DELTAS` deltas, each in a conversation of its own, so many at once."""
    await asyncio.gather(*(talk(f"warm-{i}", Listener().hear) for i in range(at_once)))
    listener = Listener()
    keys = iter(range(n))

    async def worker() -> None:
        for i in keys:
            await talk(conversation(i), listener.hear)

    with meter:
        await asyncio.gather(*(worker() for _ in range(at_once)))
    assert len(listener.delays) == n * DELTAS, "a delta was not heard"
    return {**meter.each(n * DELTAS), **listener.metrics()}


async def turns(talk: Talk, n: int, meter: Meter) -> Metrics:
    """n turns with one delta each, one after another: the second to eleventh of conversations."""
    for i in range(0, n, TURNS_EACH):
        await talk(conversation(i // TURNS_EACH), Listener().hear)
    listener = Listener()
    with meter:
        for i in range(n):
            await talk(conversation(i // TURNS_EACH), listener.hear)
    assert len(listener.delays) == n, "a delta was not heard"
    return {"wall_ms": meter.wall / n * 1e3, "cpu_ms": meter.cpu / n * 1e3}
