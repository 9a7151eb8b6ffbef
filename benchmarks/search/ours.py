"""Our search, and what the index costs a message."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.search.corpus import Corpus
from benchmarks.search.timing import addresses, timed

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place
    from outlast.store.base import Store
    from outlast.store.operations import Operation

AT_ONCE = 250  # messages per commit while the store is filled
COMMITS = 100  # of one message each, in a row
TURNS = 5  # such rows with the index, and as many without


async def search(engine: str, agents: int, messages: int, place: Place, n: int) -> Metrics:
    """Fill a store, search it, then store some more messages with the index and without."""
    from outlast.session.search.search import SearchIndex
    from outlast.store.url import open_store

    corpus, known = Corpus(), addresses(agents)
    url = place.postgres if engine == "postgres" else f"sqlite:///{place.directory}/store.db"
    store = await open_store(url, schemas=[_schema()])
    try:
        indexes = {address: SearchIndex(store, address) for address in known}
        filler = Filler(store, indexes)
        await filler.fill(corpus, messages)
        if engine == "postgres":
            await _analyse(url)

        async def one(address: str, query: str) -> object:
            return await indexes[address].search(query)

        metrics = await timed(one, known, corpus.queries(n))
        return metrics | await filler.cost(corpus, place)
    finally:
        await store.close()


def _schema() -> Any:
    import outlast.session
    from outlast.store.schema import Schema

    folder = Path(outlast.session.__file__).parent / "sql"
    scripts = {
        f"0001_search.{engine}.sql": (folder / f"0002_search.{engine}.sql").read_text("utf-8")
        for engine in ("sqlite", "postgres")
    }
    return Schema("session", scripts, {"session_texts": "agent", "session_indexed": "agent"})


async def _analyse(url: str) -> None:
    from outlast.store.copier import connected

    async with connected(url) as (connection, _):
        await connection.execute("vacuum analyze session_texts")
        await connection.execute("vacuum analyze messages")


class Filler:
    """Stores messages, round the agents."""

    def __init__(self, store: Store, indexes: dict[str, Any]) -> None:
        from outlast.store.operations import Fence

        self._store = store
        self._indexes = indexes
        self._addresses = list(indexes)
        self._fences = {address: Fence.after(address, "bench", None) for address in indexes}
        self._number = 0

    async def fill(self, corpus: Corpus, count: int) -> None:
        """Store all messages with their index rows."""
        waiting: list[Any] = []
        pending: dict[str, list[Operation]] = {}
        for text in corpus.texts(count):
            address, operations = self._stored(text, is_indexed=True)
            pending.setdefault(address, []).extend(operations)
            if self._number % AT_ONCE == 0 or self._number == count:
                for each, group in pending.items():
                    waiting.append(self._store.submit(self._fences[each], group))
                pending = {}
                for outcome in waiting:
                    await outcome
                waiting = []

    async def cost(self, corpus: Corpus, place: Place) -> Metrics:
        """The CPU that the index adds to the commit of a message, the database's included.

        With and without take turns. The wall time is left out: it is that of the disk's fsync.
        """
        spent = {False: 0.0, True: 0.0}
        for turn in range(TURNS * 2):
            is_indexed = bool(turn % 2)
            with place.meter() as meter:
                for text in corpus.texts(COMMITS):
                    address, operations = self._stored(text, is_indexed=is_indexed)
                    await self._store.commit(self._fences[address], operations)
            spent[is_indexed] += meter.cpu
        return {"index_cpu_us": (spent[True] - spent[False]) / (COMMITS * TURNS) * 1e6}

    def _stored(self, text: str, *, is_indexed: bool) -> tuple[str, list[Operation]]:
        from outlast.chat.transcript import sql

        address = self._addresses[self._number % len(self._addresses)]
        self._number += 1
        message = {
            "id": f"m{self._number}",
            "role": "user",
            "parts": [{"type": "text", "text": text}],
        }
        body = json.dumps(message)
        place = (address, message["id"], None, self._number, "user", "settled", None)
        stored: Operation = (sql.CREATE, (*place, len(body), body, int(time.time() * 1000)))
        if not is_indexed:
            return address, [stored]
        writes = self._indexes[address].writes
        first = [writes.begun(1)] if self._number <= len(self._addresses) else []
        return address, [stored, *first, *writes.stored(message, self._number, is_new=True)]
