"""W3's floor: a bare group-commit writer, and listeners who are told after the commit.

It writes what a durable answer takes: the question, its deltas as JSON, one row a flush, and the
answer with the last of them. It keeps no outcome, checks nothing and goes on with nothing.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.catalogue import Job
from benchmarks.deltas import AT_ONCE, DELTAS, QUESTION, Hear, Talk, model, now, streams, turns
from benchmarks.drive import in_loop
from benchmarks.floors import GroupWriter, open_sqlite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.meter import Metrics
    from benchmarks.place import Place

A_ROW = 100  # deltas; outlast puts so many into a full row at NORMAL
SCHEMA = """
create table streams (
    agent text, turn text, seq int, body text not null, primary key (agent, turn, seq)
) without rowid;
create table messages (agent text, id text, body text not null, primary key (agent, id))
"""
APPEND = "insert into streams values (?, ?, ?, ?)"
PUT = "insert into messages values (?, ?, ?)"
PREFIX = '{"type":"text-delta","id":"s1-0","delta":'


async def said_by_model(deltas: int) -> AsyncIterator[str]:
    """What the model says, by the interface that outlast and Pydantic AI's agent use too."""
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import ModelRequest, PartDeltaEvent, PartStartEvent

    request = ModelRequest.user_text_prompt(QUESTION)
    async with model_request_stream(model(deltas), [request]) as events:
        async for event in events:
            if isinstance(event, PartDeltaEvent):
                yield event.delta.content_delta  # type: ignore[union-attr,misc]
            elif isinstance(event, PartStartEvent):
                yield event.part.content  # type: ignore[union-attr,misc]


async def said_by_nobody(deltas: int) -> AsyncIterator[str]:
    """The same deltas out of thin air: what is left is the writing alone."""
    for _ in range(deltas):
        yield now()


def talking(writer: GroupWriter, said: Any, deltas: int) -> Talk:
    """A turn: the question, the deltas in rows of `A_ROW`, the answer."""
    numbers = iter(range(10**9))

    async def talk(agent: str, hear: Hear) -> None:
        turn = f"turn-{next(numbers)}"
        rows = 0
        row: list[str] = []
        told: list[str] = []
        answer: list[str] = []

        def tell(heard: list[str], _: object) -> None:
            for delta in heard:
                hear(delta)

        def flush() -> asyncio.Future[None]:
            nonlocal rows, row, told
            stored = writer.write(agent, APPEND, (agent, turn, str(rows), "\n".join(row)))
            stored.add_done_callback(partial(tell, told))
            rows, row, told = rows + 1, [], []
            return stored

        question = json.dumps({"role": "user", "text": QUESTION})
        await writer.write(agent, PUT, (agent, f"{turn}-question", question))
        async for delta in said(deltas):
            row.append(f"{PREFIX}{json.dumps(delta)}}}")
            told.append(delta)
            answer.append(delta)
            if len(row) == A_ROW and len(answer) < deltas:
                flush()
                await asyncio.sleep(0)
        flush()
        message = json.dumps({"role": "assistant", "text": "".join(answer)})
        await writer.write(agent, PUT, (agent, f"{turn}-answer", message))

    return talk


async def talk_with(
    said: Any, synchronous: str, at_once: int, deltas: int, place: Place, n: int
) -> Metrics:
    """W3, or W3t if there is but one delta."""
    db = open_sqlite(place.directory, synchronous)
    db.executescript(SCHEMA)
    for kind, count in (("warm", at_once), ("chat", n)):
        names = [(f"{kind}-{i}",) for i in range(count)]
        db.executemany("insert into owners values (?, 1, 'token', 0)", names)
    talk = talking(GroupWriter(db), said, deltas)
    if deltas == 1:
        return await turns(talk, n, place.meter())
    return await streams(talk, at_once, n, place.meter())


def job(workload: str, family: str, said: Any, durability: str, size: int) -> Job:
    """One of W3's floors."""
    label = f"bare group commit, {durability.upper()}"
    if family == "plain":
        label += ", no model"
    at_once = AT_ONCE if workload == "w3c" else 1
    deltas = 1 if workload == "w3t" else DELTAS
    run = in_loop(talk_with, said, durability, at_once, deltas)
    return Job(workload, f"{family}-{durability}", label, durability, run, size)


JOBS = [
    *(
        job(workload, family, said, durability, size)
        for workload, size in (("w3", 40), ("w3c", 200))
        for family, said in (("plain", said_by_nobody), ("floor", said_by_model))
        for durability in ("full", "normal")
    ),
    *(job("w3t", "floor", said_by_model, durability, 300) for durability in ("full", "normal")),
]
