"""PostgreSQL: what a database and the way to it must be, and what is told of those that are not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import pytest
from proxy import pooled, proxied
from rows import fence, look, opened, other_connection, put, stored

from outlast.core.errors import StoreURLError
from outlast.store.url import open_store

SNOWMAN = "\N{SNOWMAN}"


@asynccontextmanager
async def database(postgres_url: str, encoding: str) -> AsyncIterator[str]:
    """The URL of another database of the same server, with that encoding."""
    parts = urlsplit(postgres_url)
    name = f"{parts.query.rpartition('schema=')[2]}_{encoding.lower()}"
    async with other_connection(postgres_url) as other:
        await other.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        )
        try:
            yield urlunsplit(parts._replace(path=f"/{name}"))
        finally:
            await other.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_database_that_cannot_hold_every_text_is_refused(postgres_url: str) -> None:
    async with database(postgres_url, "LATIN1") as url:
        with pytest.raises(StoreURLError, match="must be UTF8, got LATIN1") as caught:
            await open_store(url)
        assert "CREATE DATABASE" in str(caught.value)
        found = await look(url, "SELECT count(*) FROM pg_tables WHERE tablename = 'agents'")
        assert found == [(0,)]


async def test_a_database_without_an_encoding_is_used_with_a_warning(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with database(postgres_url, "SQL_ASCII") as url, opened(url) as store:
        assert "SQL_ASCII" in caplog.text
        await store.commit(fence(), [put("A/x", "k", SNOWMAN)])
        assert await stored(store) == {"k": SNOWMAN}


async def test_a_default_that_loses_commits_is_told(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres_url):
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    name = urlsplit(postgres_url).query.rpartition("schema=")[2]
    async with other_connection(postgres_url) as other:
        await other.execute(f"""
            CREATE ROLE {name} LOGIN SUPERUSER;
            ALTER ROLE {name} SET synchronous_commit = off
        """)
    async with opened(postgres_url.replace("postgresql://postgres:", f"postgresql://{name}:")):
        assert "synchronous_commit is off for this user" in caplog.text


async def test_a_schema_that_is_ignored_on_the_way_is_not_taken_for_another(
    postgres_url: str,
) -> None:
    async with proxied(postgres_url) as (proxy, url):
        proxy.without = ("search_path",)
        with pytest.raises(StoreURLError, match="must be in the schema") as caught:
            await open_store(url)
        assert "ignore_startup_parameters" in str(caught.value)
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert await look(postgres_url, tables) == [(0,)]


async def test_a_schema_that_the_role_sets_is_as_good_as_one_of_the_connection(
    postgres_url: str,
) -> None:
    name = urlsplit(postgres_url).query.rpartition("schema=")[2]
    async with other_connection(postgres_url) as other:
        await other.execute(f"""
            CREATE ROLE {name} LOGIN SUPERUSER;
            ALTER ROLE {name} SET search_path = {name}, public
        """)
    async with proxied(postgres_url) as (proxy, url):
        proxy.without = ("search_path",)
        async with opened(url.replace("//postgres@", f"//{name}@")) as store:
            await store.commit(fence(), [put("A/x", "k")])
    assert await look(postgres_url, f"SELECT count(*) FROM {name}.storage") == [(1,)]


async def test_a_pooler_by_transaction_is_refused_whatever_it_is_called(postgres_url: str) -> None:
    async with pooled(postgres_url) as url:
        with pytest.raises(StoreURLError, match="gives each transaction another session"):
            await open_store(url)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    assert await look(postgres_url, locks) == [(0,)]
