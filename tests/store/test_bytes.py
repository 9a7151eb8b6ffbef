"""`bytes` as values of the store: `BLOB` on SQLite, `bytea` on PostgreSQL. On both engines."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rows import Seen, execute, fence, opened, put, settled, stored

from outlast.core.errors import ValueTooLarge
from outlast.store.base import MEBIBYTE, Store, StoreOptions
from outlast.store.operations import Operation, Query, Statement

TABLE = {
    "sqlite": "CREATE TABLE files (agent TEXT NOT NULL, path TEXT NOT NULL, size INTEGER,"
    " body BLOB, PRIMARY KEY (agent, path))",
    "postgresql": "CREATE TABLE files (agent TEXT NOT NULL, path TEXT NOT NULL, size BIGINT,"
    " body BYTEA, PRIMARY KEY (agent, path))",
}
WRITE = Statement(
    "files write",
    sqlite="INSERT INTO files (agent, path, size, body) VALUES (?, ?, ?, ?)",
    postgres="INSERT INTO files (agent, path, size, body)"
    " SELECT u.agent, u.path, u.size, u.body FROM {rows}",
    columns=[("agent", "text"), ("path", "text"), ("size", "bigint"), ("body", "bytea")],
    key=2,
)
READ = Query.same("SELECT path, body FROM files WHERE agent = ? ORDER BY path")
READ_ON_THREAD = Query.same("SELECT path, body FROM files WHERE agent = ?", bulk=True)
FIND = Query.same("SELECT path FROM files WHERE agent = ? AND body = ?")

VALUES = {
    "empty": b"",
    "nul": b"\0",
    "all byte values": bytes(range(256)) * 3,
    "looks like text": "é\n'; DROP TABLE files; --".encode(),
    "looks like hex": rb"\x00ff",
    "half a character": b"\xc3",
    "a megabyte": hashlib.shake_256(b"seed").digest(MEBIBYTE),
}
LIMITED = StoreOptions(max_value_bytes=1000)


@asynccontextmanager
async def filing(url: str, options: StoreOptions | None = None) -> AsyncIterator[Store]:
    """A store with a table of files."""
    async with opened(url, options) as store:
        await execute(url, TABLE[store.engine])
        yield store


def file(agent: str, path: str, body: bytes | None) -> Operation:
    return WRITE, (agent, path, None if body is None else len(body), body)


@pytest.mark.parametrize("body", VALUES.values(), ids=VALUES)
async def test_bytes_come_back_as_they_were(store_url: str, body: bytes) -> None:
    async with filing(store_url) as store:
        assert await store.commit(fence(), [file("A/x", "f", body)]) == (1,)
        assert await store.fetch(READ, "A/x") == [("f", body)]
        assert await store.fetch(READ_ON_THREAD, "A/x") == [("f", body)]
        assert await store.fetch_all([(READ, ("A/x",)), (READ, ("A/y",))]) == [[("f", body)], []]


async def test_bytes_are_arguments_of_queries_too(store_url: str) -> None:
    async with filing(store_url) as store:
        await store.commit(fence(), [file("A/x", name, body) for name, body in VALUES.items()])
        for name, body in VALUES.items():
            assert await store.fetch(FIND, "A/x", body) == [(name,)]


async def test_bytes_of_many_agents_share_a_commit_with_text(store_url: str) -> None:
    seen = Seen(lambda batch: len(batch.operations))
    async with filing(store_url, StoreOptions(probe=seen)) as store:
        bodies = [None, *VALUES.values()]
        outcomes = [
            store.submit(fence(f"A/{n}"), [file(f"A/{n}", "f", body), put(f"A/{n}", "k", f"v{n}")])
            for n, body in enumerate(bodies)
        ]
        assert await settled(outcomes) == [(1, 1)] * len(bodies)
        assert store.statistics().largest_group == len(bodies) - 1, "the megabyte goes alone"
        assert seen.before == seen.after, "each group was written the first time it was tried"
        for n, body in enumerate(bodies):
            assert await store.fetch(READ, f"A/{n}") == [("f", body)]
            assert await stored(store, f"A/{n}") == {"k": f"v{n}"}


async def test_bytes_in_a_batch_that_is_singled_out(store_url: str) -> None:
    async with filing(store_url) as store:
        body = VALUES["all byte values"]
        twice = [file("A/bad", "f", body), file("A/bad", "f", body)]
        bad = store.submit(fence("A/bad"), twice)
        good = store.submit(fence("A/good"), [file("A/good", "f", body)])
        failed, written = await asyncio.gather(bad, good, return_exceptions=True)
        assert (type(failed).__name__, written) == ("CommitFailed", (1,))
        assert await store.fetch(READ, "A/good") == [("f", body)]
        assert await store.fetch(READ, "A/bad") == []


async def test_bytes_over_the_limit_are_refused_and_nothing_is_written(store_url: str) -> None:
    async with filing(store_url, LIMITED) as store:
        mine = fence()
        with pytest.raises(ValueTooLarge, match=r"1,001 bytes \(files write\).*1,000 bytes"):
            store.submit(mine, [put("A/x", "small"), file("A/x", "large", bytes(1001))])
        assert store.statistics().queue_bytes == 0
        assert await store.commit(mine, [file("A/x", "f", bytes(1000))]) == (1,)
        assert await store.fetch(READ, "A/x") == [("f", bytes(1000))]
        assert await stored(store) == {}


async def test_bytes_count_in_the_queue_and_large_ones_get_a_commit_of_their_own(
    store_url: str,
) -> None:
    async with filing(store_url, StoreOptions(max_group_bytes=1000)) as store:
        outcomes = [
            store.submit(fence(f"A/{n}"), [file(f"A/{n}", "f", bytes(600))]) for n in range(3)
        ]
        assert store.statistics().queue_bytes >= 1800
        await settled(outcomes)
        assert (store.statistics().largest_group, store.statistics().queue_bytes) == (1, 0)
