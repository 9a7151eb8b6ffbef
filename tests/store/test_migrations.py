"""Opening a store: its schema is made, kept, brought up to date, or refused if it is too new."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from importlib import resources
from typing import Any

import pytest
from rows import execute, fence, look, opened, other_connection, put, stored

from outlast.core.errors import StoreTooNew
from outlast.store import schema
from outlast.store.base import Store
from outlast.store.catalogue import COLUMNS, columns_of, grouped
from outlast.store.postgres.engine import parse
from outlast.store.schema import FOUNDATION, Dialect, Migration
from outlast.store.url import open_store
from support import ONE_SERVER

VERSION = "SELECT value FROM meta WHERE key = 'schema_version'"
NEWEST = FOUNDATION.version


async def test_a_fresh_store_has_the_newest_schema(store_url: str) -> None:
    async with opened(store_url):
        assert await look(store_url, VERSION) == [(str(NEWEST),)]
        for table in ("agents", "storage", "fibers", "alarms"):
            assert await look(store_url, f"SELECT count(*) FROM {table}") == [(0,)]


async def test_a_store_that_is_opened_again_has_kept_everything(store_url: str) -> None:
    async with opened(store_url) as store:
        await store.commit(fence(), [put("A/x", "k")])
    async with opened(store_url) as store:
        assert await stored(store) == {"k": "v"}
        assert await look(store_url, VERSION) == [(str(NEWEST),)]


async def test_a_store_of_a_newer_version_is_refused_and_left_alone(store_url: str) -> None:
    async with opened(store_url) as store:
        await store.commit(fence(), [put("A/x", "k")])
    await execute(
        store_url,
        f"UPDATE meta SET value = '{NEWEST + 7}'",
        "ALTER TABLE storage RENAME TO storage_of_the_future",
    )
    with pytest.raises(StoreTooNew) as caught:
        await open_store(store_url)
    told = str(caught.value)
    assert f"has schema version {NEWEST + 7}" in told
    assert f"supports at most {NEWEST}" in told
    assert "upgrade outlast" in told
    assert await look(store_url, VERSION) == [(str(NEWEST + 7),)]
    assert await look(store_url, "SELECT key FROM storage_of_the_future") == [("k",)]


async def test_a_store_of_an_older_version_is_brought_up_to_date(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store_url) as store:
        await store.commit(fence(), [put("A/x", "k")])
    add_migrations(
        monkeypatch,
        "CREATE TABLE more (a BIGINT);",
        "INSERT INTO more VALUES (1);",
    )
    for _ in range(2):
        async with opened(store_url) as store:
            assert await look(store_url, VERSION) == [(str(NEWEST + 2),)]
            assert await look(store_url, "SELECT a FROM more") == [(1,)]
            assert await stored(store) == {"k": "v"}


async def test_a_migration_that_fails_leaves_the_store_as_it_was(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store_url) as store:
        await store.commit(fence(), [put("A/x", "k")])
    with monkeypatch.context() as patch:
        add_migrations(
            patch,
            "CREATE TABLE more (a BIGINT);",
            "CREATE TABLE storage (a BIGINT);",
        )
        with pytest.raises(Exception, match="already exists"):
            await open_store(store_url)
    async with opened(store_url) as store:
        assert await stored(store) == {"k": "v"}
        assert await look(store_url, VERSION) == [(str(NEWEST),)]


def add_migrations(monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    more = (
        Migration(number, "more", script, script)
        for number, script in enumerate(scripts, NEWEST + 1)
    )
    monkeypatch.setitem(FOUNDATION.__dict__, "migrations", (*FOUNDATION.migrations, *more))


@pytest.mark.parametrize("number", range(1, NEWEST))
async def test_a_store_of_every_earlier_version_is_taken_over(store_url: str, number: int) -> None:
    dialect: Dialect = "sqlite" if store_url.startswith("sqlite") else "postgres"
    if dialect == "postgres":
        await execute(store_url, f"CREATE SCHEMA {parse(store_url)[1]}")
    await execute(
        store_url,
        "CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
        *migrated(dialect, number),
        f"INSERT INTO meta VALUES ('schema_version', '{number}')",
        "INSERT INTO storage (agent, key, size, value) VALUES ('A/x', 'k', 1, 'v')",
    )
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        for statement in shown("sqlite"):
            db.execute(statement)
        newest = grouped(db.execute(COLUMNS.sqlite).fetchall())
    async with opened(store_url) as store:
        assert await stored(store) == {"k": "v"}
        assert await store.commit(fence(), [put("A/x", "new")]) == (1,)
        found = await columns_of(store)
        assert {table: list(columns) for table, columns in found.items() if table != "meta"} == {
            table: list(columns) for table, columns in newest.items()
        }
        assert await look(store_url, VERSION) == [(str(NEWEST),)]


async def test_the_foundation_owns_every_table_with_a_column_for_the_agent(store_url: str) -> None:
    async with opened(store_url) as store:
        tables = await columns_of(store)
        assert {table for table in tables if "agent" in tables[table]} == {*FOUNDATION.owned}
        assert {*tables} - {*FOUNDATION.owned} == {"agents", "meta"}


async def test_hosts_that_open_a_fresh_schema_at_once_make_it_once(postgres_url: str) -> None:
    stores: list[Store] = list(
        await asyncio.gather(*(open_store(postgres_url, ONE_SERVER) for _ in range(6)))
    )
    for n, store in enumerate(stores):
        assert await store.commit(fence(f"A/{n}"), [put(f"A/{n}", "k")]) == (1,)
    assert await look(postgres_url, "SELECT count(*) FROM storage") == [(6,)]
    assert await look(postgres_url, VERSION) == [(str(NEWEST),)]
    await asyncio.gather(*(store.close() for store in stores))


# --- sql/schema.*.sql shows where the migrations lead ---------------------------------------------


def shown(dialect: Dialect) -> list[str]:
    text = resources.files("outlast.store").joinpath("sql", f"schema.{dialect}.sql").read_text()
    return schema.split(text)


def migrated(dialect: Dialect, number: int = NEWEST) -> list[str]:
    """The statements of the migrations up to one."""
    return [
        statement
        for migration in FOUNDATION.migrations[:number]
        for statement in migration.statements(dialect)
    ]


def sqlite_schema(statements: list[str]) -> dict[str, str]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        for statement in statements:
            db.execute(statement)
        rows = db.execute("SELECT type || ' ' || name, sql FROM sqlite_master").fetchall()
    return {name: re.sub(r"\s+", " ", sql or "") for name, sql in rows}


def test_the_sqlite_schema_shown_is_where_the_migrations_lead() -> None:
    assert sqlite_schema(shown("sqlite")) == sqlite_schema(migrated("sqlite"))


POSTGRES_SCHEMA = {
    "columns": """
        SELECT c.relname, a.attname, a.attnotnull, format_type(a.atttypid, a.atttypmod),
            l.collname, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
            LEFT JOIN pg_collation l ON l.oid = a.attcollation
            LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'r' ORDER BY 1, a.attnum
    """,
    "options": """
        SELECT relname, relkind::text, reloptions FROM pg_class
        WHERE relnamespace = $1::regnamespace ORDER BY 1
    """,
    "indexes": """
        SELECT indexname, replace(indexdef, $1, '') FROM pg_indexes WHERE schemaname = $1 ORDER BY 1
    """,
    "constraints": """
        SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = $1::regnamespace ORDER BY 1
    """,
}


async def postgres_schema(connection: Any, name: str, statements: list[str]) -> dict[str, Any]:
    await connection.execute(f"CREATE SCHEMA {name}; SET search_path = {name}")
    for statement in statements:
        await connection.execute(statement)
    return {
        part: [tuple(row) for row in await connection.fetch(sql, name)]
        for part, sql in POSTGRES_SCHEMA.items()
    }


async def test_the_postgresql_schema_shown_is_where_the_migrations_lead(postgres_url: str) -> None:
    async with other_connection(postgres_url) as connection:
        one = await postgres_schema(connection, "as_shown", shown("postgres"))
        other = await postgres_schema(connection, "as_migrated", migrated("postgres"))
    assert len(one["columns"]) > 20
    assert one == other


def test_a_script_is_split_at_semicolons_that_end_a_line() -> None:
    script = "CREATE TABLE a (\n  b TEXT DEFAULT 'x;y'\n);\n\nCREATE TABLE c (d TEXT);"
    assert schema.split(script) == [
        "CREATE TABLE a (\n  b TEXT DEFAULT 'x;y'\n)",
        "CREATE TABLE c (d TEXT)",
    ]
