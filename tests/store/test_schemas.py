"""Tables of batteries: made, kept, brought up to date each by itself, known though their code is gone."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from rows import execute, fence, look, opened, path_of, put, stored

from battery import ALL_NOTES, FIRST, NEWER_NOTES, NOTES, SECOND, TASKS, note
from outlast.core.errors import StoreError, StoreTooNew
from outlast.store import upgrade as upgrades
from outlast.store.catalogue import columns_of, meta_of, owned_tables
from outlast.store.schema import FOUNDATION, Schema, checked, postgres_of
from outlast.store.sqlite import engine as sqlite_engine
from outlast.store.url import open_store
from support import ONE_SERVER

META = "SELECT key, value FROM meta ORDER BY key"


async def versions(url: str) -> dict[str, str]:
    """The versions of all schemas, as the store notes them."""
    found = dict(await look(url, META))
    return {key: value for key, value in found.items() if key.startswith("schema")}


AT_FIRST = {"schema_version": str(FOUNDATION.version), "schema:notes": "1"}


async def test_a_store_has_the_tables_of_the_schemas_that_it_is_opened_with(store_url: str) -> None:
    async with opened(store_url, schemas=[NOTES, TASKS]) as store:
        assert await store.commit(fence(), [note("A/x", "n"), put("A/x", "k")]) == (1, 1)
        assert await store.fetch(ALL_NOTES) == [("A/x", "n", b"\0note\xff")]
        assert await versions(store_url) == AT_FIRST | {"schema:tasks": "1"}
        owned = await owned_tables(store)
        assert owned == {**FOUNDATION.owned, "notes": "owner", "tasks": "agent"}


async def test_a_schema_is_added_to_a_store_that_has_rows(store_url: str) -> None:
    async with opened(store_url) as store:
        await store.commit(fence(), [put("A/x", "k")])
        assert "notes" not in await columns_of(store)
    async with opened(store_url, schemas=[NOTES]) as store:
        assert await store.commit(fence("A/y"), [note("A/y", "n")]) == (1,)
        assert await stored(store) == {"k": "v"}


async def test_a_schema_is_added_to_a_store_that_is_open_and_at_work(store_url: str) -> None:
    async with opened(store_url) as store:
        mine, others = fence(), fence("A/y")
        await store.commit(mine, [put("A/x", "first")])
        under_way = [store.submit(mine, [put("A/x", f"k{n}")]) for n in range(20)]
        await store.add_schemas([NOTES, NOTES])
        assert await store.commit(others, [note("A/y", "n")]) == (1,)
        await asyncio.gather(*under_way)
        assert len(await stored(store)) == 21
        await store.add_schemas([NOTES, TASKS])
        assert await versions(store_url) == AT_FIRST | {"schema:tasks": "1"}


async def test_opening_without_the_schema_changes_nothing_of_it(store_url: str) -> None:
    async with opened(store_url, schemas=[NOTES]) as store:
        await store.commit(fence(), [note("A/x", "n")])
        before = await look(store_url, META)
    async with opened(store_url):
        pass
    async with opened(store_url, schemas=[NOTES]) as store:
        assert await look(store_url, META) == before
        assert await store.fetch(ALL_NOTES) == [("A/x", "n", b"\0note\xff")]


async def test_each_schema_has_a_version_of_its_own_and_keeps_its_rows(store_url: str) -> None:
    async with opened(store_url, schemas=[NOTES, TASKS]) as store:
        await store.commit(fence(), [note("A/x", "n")])
    for _ in range(2):
        async with opened(store_url, schemas=[TASKS, NEWER_NOTES]) as store:
            assert await store.fetch(ALL_NOTES) == [("A/x", "n", b"\0note\xff")]
            assert "title" in (await columns_of(store))["notes"]
            assert (await owned_tables(store))["notes_tags"] == "agent"
            assert await versions(store_url) == {
                **AT_FIRST,
                "schema:notes": "2",
                "schema:tasks": "1",
            }


async def test_a_store_with_newer_tables_of_a_battery_is_refused_and_left_alone(
    store_url: str,
) -> None:
    async with opened(store_url, schemas=[NEWER_NOTES]):
        pass
    # The foundation has something to do, too, and does not begin.
    await execute(store_url, "UPDATE meta SET value = '9' WHERE key = 'schema_version'")
    before = await look(store_url, META)
    with pytest.raises(StoreTooNew) as caught:
        await open_store(store_url, schemas=[TASKS, NOTES])
    told = str(caught.value)
    assert "has version 2 of the tables of 'notes'" in told
    assert "supports at most 1" in told
    assert "upgrade the package that provides 'notes'" in told
    assert await look(store_url, META) == before
    with pytest.raises(Exception, match=r"no such table|does not exist"):
        await look(store_url, "SELECT * FROM tasks")


async def test_a_migration_that_fails_leaves_its_schema_as_it_was(store_url: str) -> None:
    wrong = Schema(
        "notes",
        SECOND
        | {"0003_wrong.sql": "CREATE TABLE notes_new (a TEXT);\nCREATE TABLE storage (a TEXT);"},
        owned={"notes": "owner"},
    )
    async with opened(store_url, schemas=[NOTES]) as store:
        await store.commit(fence(), [note("A/x", "n"), put("A/x", "k")])
    with pytest.raises(StoreError, match="already exists"):
        await open_store(store_url, schemas=[TASKS, wrong])
    async with opened(store_url, schemas=[NOTES]) as store:
        assert await versions(store_url) == AT_FIRST | {"schema:tasks": "1"}, "it came before"
        assert not {"notes_new", "notes_tags"} & (await columns_of(store)).keys()
        assert await stored(store) == {"k": "v"}
        assert len(await store.fetch(ALL_NOTES)) == 1


async def test_stores_that_open_at_once_make_the_tables_once(postgres_url: str) -> None:
    opening = [open_store(postgres_url, ONE_SERVER, schemas=[NOTES, TASKS]) for _ in range(6)]
    stores = await asyncio.gather(*opening)
    for n, store in enumerate(stores):
        assert await store.commit(fence(f"A/{n}"), [note(f"A/{n}", "n")]) == (1,)
    assert len(await stores[0].fetch(ALL_NOTES)) == 6
    await asyncio.gather(*(store.close() for store in stores))


# --- a crash in the middle -----------------------------------------------------------------------


async def test_a_crash_at_any_statement_of_a_migration_costs_nothing_on_sqlite(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are copied before each statement, as a killed process would leave them."""
    await _with_notes(sqlite_url)
    images: list[Path] = []

    class Copying(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            image = tmp_path / f"image{len(images)}"
            image.mkdir()
            for file in path_of(sqlite_url).parent.glob("store.db*"):
                if not file.name.endswith((".lock", "-shm")):
                    shutil.copy(file, image / file.name)
            images.append(image)
            return super().execute(sql, *arguments)

    connect = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr(
            sqlite_engine.sqlite3,
            "connect",
            lambda *args, **options: connect(*args, factory=Copying, **options),
        )
        async with opened(sqlite_url, schemas=[NEWER_NOTES, TASKS]):
            pass
    assert len(images) > 20
    for image in images:
        await _see_that_all_is_well(f"sqlite:///{image}/store.db")


async def test_a_crash_at_any_statement_of_a_migration_costs_nothing_on_postgresql(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute_ = asyncpg.Connection.execute
    left = 0

    async def dying(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            self.terminate()
        return await execute_(self, *arguments, **options)

    for crash in range(1, 100):
        await execute(postgres_url, f"DROP SCHEMA IF EXISTS {_name(postgres_url)} CASCADE")
        await _with_notes(postgres_url)
        left = crash
        with monkeypatch.context() as patch:
            patch.setattr(asyncpg.Connection, "execute", dying)
            try:
                store = await open_store(postgres_url, ONE_SERVER, schemas=[NEWER_NOTES, TASKS])
            except StoreError:
                store = None
        if store is not None:
            await store.close()
            break
        await _see_that_all_is_well(postgres_url)
    assert crash > 10, "it died at each statement on the way"


def _name(url: str) -> str:
    return url.rpartition("schema=")[2]


async def _with_notes(url: str) -> None:
    async with opened(url, schemas=[NOTES]) as store:
        await store.commit(fence(), [note("A/x", "n"), put("A/x", "k")])


async def _see_that_all_is_well(url: str) -> None:
    """The next process opens it, brings it up to date, and finds everything."""
    async with opened(url, schemas=[NEWER_NOTES, TASKS]) as store:
        assert await store.fetch(ALL_NOTES) == [("A/x", "n", b"\0note\xff")]
        assert await stored(store) == {"k": "v"}
        found = upgrades.stored_schemas(await meta_of(store))
        assert [(each.name, each.version) for each in found] == [("notes", 2), ("tasks", 1)]
        columns = await columns_of(store)
        assert ["title" in columns["notes"], "notes_tags" in columns, "tasks" in columns] == [
            True
        ] * 3


# --- what the store keeps of a schema ------------------------------------------------------------


async def test_what_was_run_is_kept_as_it_was_run(store_url: str) -> None:
    async with opened(store_url, schemas=[NOTES]):
        pass
    edited = {name: script.replace("notes_shared", "notes_other") for name, script in FIRST.items()}
    renamed = {"0001_another_name.sql": edited["0001_notes.sql"]}
    more = {"0002_more.sql": "CREATE TABLE notes_more (agent TEXT);"}
    async with opened(
        store_url, schemas=[Schema("notes", renamed | more, {"notes_more": "agent"})]
    ) as store:
        (found,) = upgrades.stored_schemas(await meta_of(store))
        assert [each.name for each in found.migrations] == ["notes", "more"]
        assert found.migrations[0] == NOTES.migrations[0]
        assert found.owned == {"notes_more": "agent"}
        assert await owned_tables(store) == {**FOUNDATION.owned, "notes_more": "agent"}


async def test_an_owned_table_that_somebody_has_dropped_is_not_asked_for(store_url: str) -> None:
    async with opened(store_url, schemas=[NEWER_NOTES]):
        pass
    await execute(store_url, "DROP TABLE notes")
    async with opened(store_url) as store:
        assert await owned_tables(store) == {**FOUNDATION.owned, "notes_tags": "agent"}


@pytest.mark.parametrize("owned", [{"notes_typo": "owner"}, {"notes": "agent"}], ids=str)
async def test_an_owned_table_that_is_not_made_is_refused(
    store_url: str, owned: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="must create the tables that it owns"):
        await open_store(store_url, schemas=[Schema("notes", FIRST, owned)])
    async with opened(store_url) as store:
        assert "notes" not in await columns_of(store)


# --- what a schema is ----------------------------------------------------------------------------


def test_there_is_nothing_to_do_for_a_schema_that_is_up_to_date() -> None:
    meta: dict[str, str] = {}
    first = upgrades.upgrade(NOTES, "sqlite", meta, "here")
    assert (bool(first), len(first.statements)) == (True, 2)
    meta |= first.notes
    assert not upgrades.upgrade(NOTES, "sqlite", meta, "here")
    second = upgrades.upgrade(NEWER_NOTES, "postgres", meta, "here")
    assert (len(second.statements), second.outdated) == (3, ())
    meta |= second.notes
    fewer = Schema("notes", SECOND, owned={"notes": "owner"})
    third = upgrades.upgrade(fewer, "sqlite", meta, "here")
    assert (third.statements, third.notes, third.outdated) == ((), {}, ("owned:notes:notes_tags",))


def test_a_schema_can_be_a_folder(tmp_path: Path) -> None:
    for name, script in SECOND.items():
        (tmp_path / name).write_text(script)
    (tmp_path / "schema.sqlite.sql").write_text("CREATE TABLE shown (where_they_lead TEXT);")
    assert Schema("notes", tmp_path, {}).migrations == NEWER_NOTES.migrations


@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        ({}, "numbered from 1"),
        ({"0002_b.sql": ""}, "numbered from 1"),
        ({"0001_a.sql": "", "0003_c.sql": ""}, "numbered from 1"),
        ({"0001_a.sql": "", "0001_b.sql": ""}, "numbered from 1"),
        ({"0001_a.sqlite.sql": ""}, "one .sqlite.sql and one .postgres.sql"),
        ({"0001_a.sqlite.sql": "", "0001_a.sql": ""}, "one .sqlite.sql and one .postgres.sql"),
    ],
)
def test_migrations_are_numbered_without_gaps_for_both_engines(
    scripts: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        _ = Schema("notes", scripts, {}).migrations


@pytest.mark.parametrize("name", ["", "Notes", "no tes", "1notes", "notes;", "n" * 64])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match="lower-case letters, digits and _"):
        Schema(name, FIRST, {})
    with pytest.raises(ValueError, match="lower-case letters, digits and _"):
        Schema("notes", FIRST, {"notes": name})


def test_schemas_have_different_names_and_tables_in_their_own_name() -> None:
    assert checked([NOTES, TASKS, NOTES]) == (NOTES, TASKS)
    with pytest.raises(ValueError, match="two schemas are named 'notes'"):
        checked([NOTES, NEWER_NOTES])
    with pytest.raises(ValueError, match="two schemas are named 'foundation'"):
        checked([Schema("foundation", FIRST, {})])
    with pytest.raises(ValueError, match="must be named notes or notes_…, got 'storage'"):
        checked([Schema("notes", FIRST, {"storage": "agent"})])


@pytest.mark.parametrize(
    ("sqlite", "postgres"),
    [
        ("a TEXT NOT NULL, b integer, c BLOB", 'a TEXT COLLATE "C" NOT NULL, b BIGINT, c BYTEA'),
        ("text TEXT, PRIMARY KEY (text)", 'text TEXT COLLATE "C", PRIMARY KEY (text)'),
        ("CREATE TABLE t (a INTEGER)\n  WITHOUT ROWID;", "CREATE TABLE t (a BIGINT);"),
        ("a TEXT DEFAULT 'a TEXT' -- a TEXT", "a TEXT COLLATE \"C\" DEFAULT 'a TEXT' -- a TEXT"),
        ('"TEXT" INTEGER, texture TEXT', '"TEXT" BIGINT, texture TEXT COLLATE "C"'),
        ("a TEXT DEFAULT 'it''s INTEGER'", "a TEXT COLLATE \"C\" DEFAULT 'it''s INTEGER'"),
    ],
)
def test_a_script_for_both_engines_is_translated(sqlite: str, postgres: str) -> None:
    assert postgres_of(sqlite) == postgres
