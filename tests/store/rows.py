"""What the store's tests write, how they wait, and how they look at it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg

from outlast.agent.state.storage import _DELETE as DELETE
from outlast.agent.state.storage import _PUT as PUT
from outlast.store.base import Store, StoreOptions
from outlast.store.operations import Batch, BulkStatement, Fence, Operation, Query, Statement
from outlast.store.postgres.engine import parse
from outlast.store.schema import Schema
from outlast.store.url import open_store
from support import ONE_SERVER

PATIENCE = 60.0  # seconds: only a test that fails waits that long

_COLUMNS = PUT.columns
_INSERT = (
    "INSERT INTO storage (agent, key, size, value) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
    "INSERT INTO storage (agent, key, size, value) SELECT u.agent, u.key, u.size, u.value"
    " FROM {rows} ON CONFLICT DO NOTHING",
)
INSERT = Statement("storage insert", *_INSERT, columns=_COLUMNS, key=2)
CREATE = Statement("storage create", *_INSERT, columns=_COLUMNS, key=2, expect=True)
UPDATE = Statement(
    "storage update",
    sqlite="UPDATE storage SET size = ?3, value = ?4 WHERE agent = ?1 AND key = ?2",
    postgres="UPDATE storage SET size = u.size, value = u.value FROM {rows}"
    " WHERE storage.agent = u.agent AND storage.key = u.key",
    columns=_COLUMNS,
    key=2,
)
APPEND = Statement(  # shows how often it was executed
    "storage append",
    sqlite=PUT.sqlite.replace("value = excluded.value", "value = storage.value || excluded.value"),
    postgres=PUT.postgres.replace(
        "value = excluded.value", "value = storage.value || excluded.value"
    ),
    columns=_COLUMNS,
    key=2,
)
CLEAR = BulkStatement(
    "storage clear",
    sqlite="DELETE FROM storage WHERE agent = ?",
    postgres="DELETE FROM storage WHERE agent = $1",
)
READ = Query.same("SELECT key, value FROM storage WHERE agent = ? ORDER BY key")
READ_ON_THREAD = Query.same("SELECT key, value FROM storage WHERE agent = ?", bulk=True)


def write(statement: Statement, agent: str, key: str, value: str | None = "v") -> Operation:
    """An operation on a row of the storage table; `value=None` breaks its NOT NULL."""
    if statement is DELETE:
        return statement, (agent, key)
    return statement, (agent, key, len(value or ""), value)


def put(agent: str, key: str, value: str | None = "v") -> Operation:
    return write(PUT, agent, key, value)


def fence(root: str = "A/x", owner: str = "host") -> Fence:
    """The fence of an activation that found no row of its agent."""
    return Fence.after(root, owner, None)


async def stored(store: Store, agent: str = "A/x") -> dict[str, str]:
    return dict(await store.fetch(READ, agent))


@contextlib.asynccontextmanager
async def opened(
    url: str, options: StoreOptions | None = None, schemas: Iterable[Schema] = ()
) -> AsyncIterator[Store]:
    """A store that is closed at the end, or abandoned if the test failed: it must not wait then.

    Several may be open at once: they pass for one server."""
    options = replace(options or StoreOptions(), server=ONE_SERVER.server)
    store = await open_store(url, options, schemas=schemas)
    try:
        yield store
    except BaseException:
        store.abandon()
        raise
    await asyncio.wait_for(store.close(), PATIENCE)


async def settled(outcomes: Sequence[asyncio.Future[Any]]) -> list[Any]:
    """How each outcome ended: its value, or the exception. Fails if one of them never ends."""
    _, pending = await asyncio.wait(outcomes, timeout=PATIENCE)
    assert not pending, f"{len(pending)} of {len(outcomes)} outcomes never became known"
    return [outcome.exception() or outcome.result() for outcome in outcomes]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Let the loop run until `condition` holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None


# --- from outside --------------------------------------------------------------------------------


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def log_of(url: str) -> Path:
    return Path(f"{path_of(url)}-wal")


@contextlib.asynccontextmanager
async def other_connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection of somebody else to the same PostgreSQL schema."""
    dsn, schema = parse(postgres_url)
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        yield connection
    finally:
        await connection.close()


async def look(url: str, sql: str) -> list[tuple[Any, ...]]:
    """What somebody else reads from the store, whatever its engine."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(path_of(url))) as db:
            return db.execute(sql).fetchall()
    async with other_connection(url) as connection:
        return [tuple(row) for row in await connection.fetch(sql)]


async def execute(url: str, *statements: str) -> None:
    """Meddle with a store from outside."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(path_of(url), isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)
    else:
        async with other_connection(url) as connection:
            for statement in statements:
                await connection.execute(statement)


@contextlib.asynccontextmanager
async def writes_held_up(url: str) -> AsyncIterator[None]:
    """Somebody else holds a lock that commits have to wait for."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(path_of(url), isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("ROLLBACK")
    else:
        async with other_connection(url) as connection, connection.transaction():
            await connection.execute("LOCK TABLE agents IN EXCLUSIVE MODE")
            yield


class Seen:
    """A probe that keeps, for each commit, what `look_at` says of its batches at both moments."""

    def __init__(self, look_at: Callable[[Batch], Any]) -> None:
        self._look_at = look_at
        self.before: list[list[Any]] = []
        self.after: list[list[Any]] = []

    def before_commit(self, batches: Sequence[Batch]) -> None:
        self.before.append([self._look_at(batch) for batch in batches])

    def after_commit(self, batches: Sequence[Batch]) -> None:
        self.after.append([self._look_at(batch) for batch in batches])
