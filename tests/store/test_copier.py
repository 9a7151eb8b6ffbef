"""What is copied from one store to another, and in which portions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from rows import execute, opened

from outlast.store.catalogue import COLUMNS, columns_of, grouped
from outlast.store.copier import MAX_BYTES, MAX_ROWS, CopyFailed, Pace, shared_tables

NOTES = {"notes": {"agent": "text", "body": "blob"}}


def test_tables_of_the_new_store_are_copied_as_far_as_the_source_has_them() -> None:
    here = {"meta": {"key": "text"}, "mine": {"a": "text"}} | NOTES
    there = {"meta": {"key": "text"}, "search": {"agent": "text"}} | {
        "notes": {"body": "bytea", "more": "text", "agent": "text"}
    }
    assert shared_tables(here, there) == {"notes": ["agent", "body"]}
    with pytest.raises(CopyFailed, match="no column 'more' in notes"):
        shared_tables(there, here)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([100], 32),  # carefully at first
        ([100] * 10, MAX_ROWS),
        ([MAX_BYTES // 4], 3),
        ([MAX_BYTES * 8], 1),
        ([MAX_BYTES * 8, 100, 100], 4),
    ],
)
def test_rows_are_read_in_portions_that_fit_into_memory(sizes: list[int], expected: int) -> None:
    pace = Pace()
    for size in sizes:
        pace.adjust([("A/x", None, 7, bytes(size // 2), "x" * (size // 2))] * 2)
    assert pace.rows == expected


async def test_computed_columns_and_tables_behind_others_are_not_seen(store_url: str) -> None:
    async with opened(store_url) as store:
        before = await columns_of(store)
        computed = "b TEXT GENERATED ALWAYS AS (upper(a)) STORED"
        await execute(store_url, f"CREATE TABLE seen (a TEXT, {computed})")
        if store.engine == "sqlite":
            await execute(store_url, "CREATE VIRTUAL TABLE found USING fts5 (body)")
        else:
            await execute(store_url, "CREATE VIEW found AS SELECT a FROM seen")
        assert await columns_of(store) == before | {"seen": {"a": "text"}}


def test_a_table_that_is_called_like_one_behind_a_virtual_one_is_seen() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE VIRTUAL TABLE notes USING fts5 (body)")
        db.execute("CREATE TABLE notes_tags (agent TEXT)")
        db.execute("CREATE TABLE other_data (agent TEXT)")
        rows: list[Any] = db.execute(COLUMNS.sqlite).fetchall()
    assert grouped(rows).keys() == {"notes_tags", "other_data"}
