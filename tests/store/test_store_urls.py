"""Opening a store by its URL, and what a wrong one is told."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from rows import fence, opened, put, stored

from outlast.core.errors import StoreError, StoreURLError
from outlast.store.sqlite.engine import SqliteStore
from outlast.store.url import open_store

WRONG = {
    "unknown scheme": ("mysql://localhost/db", "Use sqlite:///path/to/file.db or postgresql://"),
    "no scheme": ("store.db", "'store.db' is not a store URL"),
    "one slash": ("sqlite:/store.db", "is not a store URL"),
    "no path": ("sqlite://", "write sqlite:///file.db (relative)"),
    "no path either": ("sqlite:///", "or sqlite:////folder/file.db (absolute)"),
    "the root": ("sqlite:////", "write sqlite:///file.db (relative)"),
    "two slashes": ("sqlite://store.db", "write sqlite:///file.db (relative)"),
    "memory": ("sqlite:///:memory:", "must be a file, got :memory:"),
    "unknown setting": ("sqlite:///x.db?mode=ro", "unknown setting 'mode'; use synchronous"),
    "bad synchronous": ("sqlite:///x.db?synchronous=1", "synchronous must be full, normal or off"),
    "no synchronous": ("sqlite:///x.db?synchronous=", "synchronous must be full, normal or off"),
    "fragment": ("sqlite:///x#y.db", "write # as %23"),
    "nul": ("sqlite:///x%00y.db", "must not contain # or NUL"),
    "schema with capitals": (
        "postgresql:///db?schema=Mine",
        "must be lower-case letters, digits and _",
    ),
    "schema with a digit": ("postgresql:///db?schema=1st", "not start with a digit"),
    "schema with SQL": ("postgresql:///db?schema=a;DROP SCHEMA b", "must be lower-case letters"),
    "schema too long": (f"postgresql:///db?schema={'a' * 64}", "must be lower-case letters"),
}


@pytest.mark.parametrize(("url", "said"), WRONG.values(), ids=WRONG)
async def test_a_wrong_url_is_told_what_to_write(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreURLError) as caught:
        await open_store(url)
    assert said in str(caught.value)
    assert isinstance(caught.value, StoreError)
    assert isinstance(caught.value, ValueError)
    assert os.listdir(tmp_path) == []


async def test_a_wrong_url_is_told_without_its_password() -> None:
    with pytest.raises(StoreURLError, match="is not a store URL") as caught:
        await open_store("postgresql+asyncpg://me:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


async def test_without_asyncpg_a_postgresql_store_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("outlast.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(StoreURLError, match=r"pip install 'outlast\[postgres\]'"):
        await open_store("postgresql:///db")


async def test_without_a_url_the_store_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = await open_store()
    await store.commit(fence(), [put("A/x", "k")])
    await store.close()
    assert (tmp_path / ".outlast" / "store.db").is_file()
    async with opened("sqlite:///.outlast/store.db") as store:
        assert await stored(store) == {"k": "v"}


async def test_three_slashes_are_relative_and_four_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///folder/store.db", f"sqlite:///{tmp_path}/folder/store.db"):
        async with opened(url) as store:
            assert store.path == (tmp_path / "folder" / "store.db").resolve()


@pytest.mark.parametrize(
    ("setting", "level"),
    [("", 2), ("?synchronous=full", 2), ("?synchronous=NORMAL", 1), ("?synchronous=off", 0)],
)
async def test_each_commit_is_synced_unless_the_url_says_otherwise(
    sqlite_url: str, setting: str, level: int
) -> None:
    async with opened(sqlite_url + setting) as store:
        assert isinstance(store, SqliteStore)
        assert store._db.execute("PRAGMA synchronous").fetchone() == (level,)
        assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_postgres_is_another_name_of_the_scheme(postgres_url: str) -> None:
    async with opened(postgres_url.replace("postgresql://", "postgres://", 1)) as store:
        assert await store.commit(fence(), []) == ()


async def test_stores_in_two_schemas_do_not_see_one_another(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url + "_too") as other:
        await asyncio.gather(
            one.commit(fence(), [put("A/x", "one")]), other.commit(fence(), [put("A/x", "other")])
        )
        assert await stored(one) == {"one": "v"}
        assert await stored(other) == {"other": "v"}
