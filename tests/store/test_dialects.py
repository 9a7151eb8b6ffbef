"""SQL that is written once: what each engine is given of it."""

from __future__ import annotations

import pytest

from outlast.store.dialects import for_many_rows, for_one_row, numbered
from outlast.store.operations import BulkStatement, Query, Statement


@pytest.mark.parametrize(
    ("sqlite", "postgres"),
    [
        ("SELECT 1", "SELECT 1"),
        ("a = ? AND b = ?", "a = $1 AND b = $2"),
        ("a = ?1 AND b = ?2 OR c = ?1", "a = $1 AND b = $2 OR c = $1"),
        ("a = '?' AND b = ? AND c = 'it''s ?1'", "a = '?' AND b = $1 AND c = 'it''s ?1'"),
        (", ".join("?" * 12), ", ".join(f"${n}" for n in range(1, 13))),
    ],
)
def test_placeholders_are_numbered(sqlite: str, postgres: str) -> None:
    assert numbered(sqlite) == postgres
    assert (Query.same(sqlite).sqlite, Query.same(sqlite).postgres) == (sqlite, postgres)
    bulk = BulkStatement.same("t change", sqlite)
    assert (bulk.sqlite, bulk.postgres) == (sqlite, postgres)


@pytest.mark.parametrize(
    ("sql", "sqlite", "postgres"),
    [
        (
            "INSERT INTO t (a, s, b) VALUES (:a, 'it: :c', coalesce(:b, 0)) ON CONFLICT DO NOTHING",
            "INSERT INTO t (a, s, b) VALUES (?, 'it: :c', coalesce(?, 0)) ON CONFLICT DO NOTHING",
            "INSERT INTO t (a, s, b) SELECT u.a, 'it: :c', coalesce(u.b, 0) FROM {rows}"
            " ON CONFLICT DO NOTHING",
        ),
        (
            "INSERT INTO t (a, b)\n VALUES (:a, :b)\n",
            "INSERT INTO t (a, b)\n VALUES (?, ?)\n",
            "INSERT INTO t (a, b)\n SELECT u.a, u.b FROM {rows}\n",
        ),
        (
            "INSERT INTO t (a) SELECT :a WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.b = :b)",
            "INSERT INTO t (a) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.b = ?)",
            "INSERT INTO t (a) SELECT u.a FROM {rows}"
            " WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.b = u.b)",
        ),
        (
            "UPDATE t SET b = :b, n = t.n + 1 WHERE t.a = :a AND t.b <> :b",
            "UPDATE t SET b = ?2, n = t.n + 1 WHERE t.a = ?1 AND t.b <> ?2",
            "UPDATE t SET b = u.b, n = t.n + 1 FROM {rows} WHERE t.a = u.a AND t.b <> u.b",
        ),
        (
            "DELETE FROM t WHERE t.a = :a AND t.b = CAST(:b AS text)",
            "DELETE FROM t WHERE t.a = ? AND t.b = CAST(? AS text)",
            "DELETE FROM t USING {rows} WHERE t.a = u.a AND t.b = CAST(u.b AS text)",
        ),
    ],
)
def test_a_statement_about_one_row_becomes_one_about_many(
    sql: str, sqlite: str, postgres: str
) -> None:
    assert for_one_row(sql, ["a", "b"]) == sqlite
    assert for_many_rows(sql, ["a", "b"]) == postgres
    made = Statement.same("t change", "a text, b bigint", sql, key=1, expect=True)
    assert (made.sqlite, made.postgres) == (sqlite, postgres)
    assert made.columns == [("a", "text"), ("b", "bigint")]
    assert (made.key, made.expect, made.table) == (1, True, "t")


@pytest.mark.parametrize(
    ("columns", "sql", "words"),
    [
        ("a text", "DELETE FROM t WHERE a = :a AND b = :b", "must be one of a, got :b"),
        ("a text, b text", "DELETE FROM t WHERE a = :a", "must be used, but :b is missing"),
        ("a text", "SELECT :a", "an INSERT, UPDATE or DELETE"),
        ("a integer", "DELETE FROM t WHERE a = :a", "got a integer"),
    ],
)
def test_what_would_fail_later_is_refused_at_once(columns: str, sql: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Statement.same("t change", columns, sql, key=1)
