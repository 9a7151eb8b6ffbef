"""Pydantic AI: an agent streams an answer, and stores nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.catalogue import Job
from benchmarks.deltas import AT_ONCE, QUESTION, Hear, model, streams
from benchmarks.drive import in_loop

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place


async def stream(at_once: int, place: Place, n: int) -> Metrics:
    """W3: the deltas of `run_stream`, as they come."""
    from pydantic_ai import Agent

    agent = Agent(model())

    async def talk(_: str, hear: Hear) -> None:
        async with agent.run_stream(QUESTION) as answer:
            async for delta in answer.stream_text(delta=True, debounce_by=None):
                hear(delta)

    return await streams(talk, at_once, n, place.meter())


LABEL = "Pydantic AI's Agent, stores nothing"

JOBS = [
    Job("w3", "pydantic-ai", LABEL, "full", in_loop(stream, 1), 40),
    Job("w3c", "pydantic-ai", LABEL, "full", in_loop(stream, AT_ONCE), 200),
]
