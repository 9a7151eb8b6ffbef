"""Migrations in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from outlast.store.catalogue import COLUMNS, grouped
from outlast.store.schema import FOUNDATION, Schema
from outlast.store.upgrade import FORGET, META, PUT, READ_META, check_owned, upgrade


def migrate(db: sqlite3.Connection, schemas: Sequence[Schema], where: str) -> None:
    """Run one transaction per schema, the foundation first.

    If the store is newer than one of the schemas, nothing is changed.
    """
    with _transaction(db):
        db.execute(META)
        db.execute(
            "DELETE FROM meta WHERE key = ''"
        )  # deletes no row; fails if the file is read-only
        meta = dict(db.execute(READ_META.sqlite))
        needy = [each for each in schemas if upgrade(each, "sqlite", meta, where)]
        _apply(db, FOUNDATION, where)
    for each in needy:
        with _transaction(db):
            _apply(db, each, where)
            check_owned(each, grouped(db.execute(COLUMNS.sqlite).fetchall()))


def _apply(db: sqlite3.Connection, schema: Schema, where: str) -> None:
    found = upgrade(schema, "sqlite", dict(db.execute(READ_META.sqlite)), where)
    for statement in found.statements:
        db.execute(statement)
    for key in found.outdated:
        db.execute(FORGET.sqlite, (key,))
    for note in found.notes.items():
        db.execute(PUT.sqlite, note)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
