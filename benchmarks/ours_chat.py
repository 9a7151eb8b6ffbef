"""outlast's chat agents. With `ours`, all of this folder that knows its API."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.catalogue import Job
from benchmarks.deltas import (
    AT_ONCE,
    DELTAS,
    QUESTION,
    TURNS_EACH,
    Hear,
    Talk,
    conversation,
    model,
    noise,
    now,
    streams,
    turns,
)
from benchmarks.drive import in_loop

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place

AFTER_RETENTION = 11 * 60 * 1000  # milliseconds: streams are kept for ten minutes
FEW_TURNS, OVER_TURNS = 10, 10  # W3s: after how many turns, and over how many it takes the mean


@cache
def chat_class(deltas: int, say: Any = now) -> Any:
    """The agent under test; made on demand, since planning needs no installed package."""
    from outlast import Think

    class Chat(Think):
        pass

    Chat.model = model(deltas, say)
    return Chat


def host(place: Place, kind: str, *chats: Any, **options: Any) -> Any:
    """A host over the job's store: `full` or `normal` (SQLite's synchronous), or `postgres`."""
    from outlast import Host

    path = place.directory / "chat.db"
    store = place.postgres if kind == "postgres" else f"sqlite:///{path}?synchronous={kind}"
    return Host(agents=chats, store=store, **options)


def talking(opened: Any, chat: Any) -> Talk:
    """A turn, followed from its first chunk to its durable end."""

    async def talk(agent: str, hear: Hear) -> None:
        async for chunk in opened.get(chat, agent).stream(QUESTION):
            if chunk["type"] == "text-delta":
                hear(chunk["delta"])

    return talk


async def stream(kind: str, at_once: int, place: Place, n: int) -> Metrics:
    """W3: answers of `DELTAS` deltas by agents that are awake, durable before they are heard."""
    chat = chat_class(DELTAS)
    async with host(place, kind, chat) as opened:
        for i in range(n):
            await opened.get(chat, conversation(i)).get_messages()
        return await streams(talking(opened, chat), at_once, n, place.meter())


async def turn(kind: str, place: Place, n: int) -> Metrics:
    """W3t: turns with one delta."""
    chat = chat_class(1)
    async with host(place, kind, chat) as opened:
        return await turns(talking(opened, chat), n, place.meter())


async def turn_cpu(kind: str, at_once: int, place: Place, n: int) -> Metrics:
    """turncpu: what warm turns cost, so many at a time, the host's share and the database's.

    The second to eleventh turns of conversations: long ones cost more, and not because of the store."""
    chat = chat_class(1)
    agents = [conversation(i) for i in range(n // TURNS_EACH)]
    async with host(place, kind, chat) as opened:
        talk = talking(opened, chat)

        async def all_turns(each: int) -> None:
            waiting = iter(agents)

            async def worker() -> None:
                for agent in waiting:
                    for _ in range(each):
                        await talk(agent, lambda _: None)

            await asyncio.gather(*(worker() for _ in range(at_once)))

        await all_turns(1)
        with place.meter() as meter:
            await all_turns(TURNS_EACH)
    turns = len(agents) * TURNS_EACH
    return {
        "host_ms": meter.own_cpu / turns * 1e3,
        "database_ms": (meter.cpu - meter.own_cpu) / turns * 1e3,
        "cpu_ms": meter.cpu / turns * 1e3,
        "per_s": turns / meter.wall,
    }


def used_bytes(path: Path) -> int:
    """The pages of an SQLite file that hold something."""
    db = sqlite3.connect(path)
    pages, free, size = (
        db.execute(f"pragma {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    db.close()
    return int((pages - free) * size)


class Later:
    """A clock that is ahead."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead

    def now(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead


async def stored(answer_bytes: int, place: Place, n: int) -> Metrics:
    """W3b: what n turns of one conversation leave in the store, as a multiple of what was said."""
    deltas = answer_bytes // len(noise())
    chat = chat_class(deltas, noise)
    path = place.directory / "chat.db"
    async with host(place, "normal", chat) as opened:
        await opened.get(chat, "chat").get_messages()
    empty = used_bytes(path)
    async with host(place, "normal", chat) as opened:
        for _ in range(n):
            await opened.get(chat, "chat").save_messages(QUESTION)
    ended = used_bytes(path)
    async with host(place, "normal", chat, clock=Later(AFTER_RETENTION)) as opened:
        await opened.until_settled()
    kept = used_bytes(path)
    content = n * (deltas * len(noise()) + len(QUESTION))
    return {"ended_x": (ended - empty) / content, "kept_x": (kept - empty) / content}


class Counter:
    """Counts what a store is asked to do."""

    def __init__(self, store: Any) -> None:
        self.commits = self.statements = 0
        submit, fetch = store.submit, store.fetch

        def counting_submit(fence: Any, operations: Any) -> Any:
            self.commits += 1
            self.statements += len(operations)
            return submit(fence, operations)

        def counting_fetch(*arguments: Any) -> Any:
            self.statements += 1
            return fetch(*arguments)

        store.submit, store.fetch = counting_submit, counting_fetch


async def statements(place: Place, n: int) -> Metrics:
    """W3s: what a turn asks of the store when its conversation is short, and when it is long."""
    chat = chat_class(1)
    metrics: Metrics = {}
    async with host(place, "normal", chat) as opened:
        counter = Counter(opened.store)
        talk = opened.get(chat, "chat").save_messages

        async def measure(suffix: str) -> None:
            counter.commits = counter.statements = 0
            with place.meter() as meter:
                for _ in range(OVER_TURNS):
                    await talk(QUESTION)
            metrics[f"commits_{suffix}"] = counter.commits / OVER_TURNS
            metrics[f"statements_{suffix}"] = counter.statements / OVER_TURNS
            metrics[f"cpu_ms_{suffix}"] = meter.cpu / OVER_TURNS * 1e3

        for _ in range(FEW_TURNS):
            await talk(QUESTION)
        await measure("few")
        for _ in range(n - FEW_TURNS - OVER_TURNS):
            await talk(QUESTION)
        await measure("many")
    return metrics


async def paced(flush: int, place: Place, n: int) -> Metrics:
    """W3f: what an answer costs that comes a word every 10 ms, with a floor of `flush` milliseconds."""
    from outlast import Think
    from outlast.testing import ScriptedModel, Step

    class Chat(Think):
        model = ScriptedModel(Step.text("word " * 200, delay=0.01), repeat=True)

    async with host(place, "full", Chat, flush=flush / 1000) as opened:
        talk = opened.get(Chat, "chat").save_messages
        await talk(QUESTION)
        before = opened.store.statistics().commits
        with place.meter() as meter:
            for _ in range(n):
                await talk(QUESTION)
        commits = opened.store.statistics().commits - before
    return {"commits": commits / n, "cpu_ms": meter.cpu / n * 1e3}


LABELS = {
    "full": "outlast SQLite, FULL",
    "normal": "outlast SQLite, NORMAL",
    "postgres": "outlast PostgreSQL",
}

JOBS = [
    *(
        Job(workload, f"ours-{kind}", LABELS[kind], kind, in_loop(stream, kind, at_once), size)
        for workload, at_once, size in (("w3", 1, 40), ("w3c", AT_ONCE, 200))
        for kind in LABELS
    ),
    *(Job("w3t", f"ours-{kind}", LABELS[kind], kind, in_loop(turn, kind), 300) for kind in LABELS),
    *(
        Job(workload, f"ours-{kind}", LABELS[kind], kind, in_loop(turn_cpu, kind, at_once), 1000)
        for workload, at_once in (("turncpu", 1), ("turncpuc", 20))
        for kind in ("full", "postgres")
    ),
    Job("w3b", "ours-20k", "outlast, answers of 20 KB", "20k", in_loop(stored, 20_000), 50),
    Job("w3b", "ours-200k", "outlast, answers of 200 KB", "200k", in_loop(stored, 200_000), 20),
    Job("w3s", "ours-turns", "outlast", "turns", in_loop(statements), 500),
    *(
        Job("w3f", f"ours-{ms}", f"outlast, {ms} ms", f"{ms}", in_loop(paced, ms), 5)
        for ms in (0, 20, 50)
    ),
]
