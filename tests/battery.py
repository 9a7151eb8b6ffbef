"""A battery's tables, as the tests of schemas have them: two versions, and another battery beside it."""

from __future__ import annotations

from outlast.store.operations import Operation, Query, Statement
from outlast.store.schema import Schema

FIRST = {
    "0001_notes.sql": """
        CREATE TABLE notes (
            owner TEXT NOT NULL,
            id    TEXT NOT NULL,
            body  BLOB,
            at    INTEGER NOT NULL,
            PRIMARY KEY (owner, id)
        ) WITHOUT ROWID;

        CREATE TABLE notes_shared (word TEXT NOT NULL PRIMARY KEY);
    """
}
SECOND = FIRST | {
    "0002_tags.sqlite.sql": """
        CREATE TABLE notes_tags (agent TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (agent, tag));
        ALTER TABLE notes ADD COLUMN title TEXT NOT NULL DEFAULT '';
        CREATE INDEX notes_at ON notes (owner, at);
    """,
    "0002_tags.postgres.sql": """
        CREATE TABLE notes_tags (
            agent TEXT COLLATE "C" NOT NULL, tag TEXT COLLATE "C" NOT NULL, PRIMARY KEY (agent, tag)
        );
        ALTER TABLE notes ADD COLUMN title TEXT NOT NULL DEFAULT '';
        CREATE INDEX notes_at ON notes (owner, at);
    """,
}
NOTES = Schema("notes", FIRST, owned={"notes": "owner"})
NEWER_NOTES = Schema("notes", SECOND, owned={"notes": "owner", "notes_tags": "agent"})
TASKS = Schema(
    "tasks",
    {"0001_tasks.sql": "CREATE TABLE tasks (agent TEXT NOT NULL PRIMARY KEY, n INTEGER NOT NULL);"},
    owned={"tasks": "agent"},
)

NOTE = Statement(
    "notes write",
    sqlite="INSERT INTO notes (owner, id, body, at) VALUES (?, ?, ?, ?)",
    postgres="INSERT INTO notes (owner, id, body, at) SELECT u.owner, u.id, u.body, u.at FROM {rows}",
    columns=[("owner", "text"), ("id", "text"), ("body", "bytea"), ("at", "bigint")],
    key=2,
)
ALL_NOTES = Query.same("SELECT owner, id, body FROM notes ORDER BY owner, id")
WORDS = Query.same("SELECT word FROM notes_shared")


def note(agent: str, id: str, body: bytes = b"\0note\xff") -> Operation:
    return NOTE, (agent, id, body, 1)
