"""The table of notes, and every statement on it: written once for SQLite and PostgreSQL."""

from __future__ import annotations

from outlast.store.operations import Query, Statement
from outlast.store.schema import Schema

SCHEMA = Schema(
    "notes",
    {
        "0001_notes.sql": """
            CREATE TABLE notes_kept (
                agent  TEXT NOT NULL,
                id     TEXT NOT NULL,
                text   TEXT NOT NULL,
                vector BLOB NOT NULL,
                turn   TEXT,
                at     INTEGER NOT NULL,
                PRIMARY KEY (agent, id)
            );
        """
    },
    owned={"notes_kept": "agent"},  # deleted, measured and copied with their agent
)

KEEP = Statement.same(
    "notes_kept keep",
    "agent text, id text, text text, vector bytea, turn text, at bigint",
    """
        INSERT INTO notes_kept (agent, id, text, vector, turn, at)
        VALUES (:agent, :id, :text, :vector, :turn, :at)
    """,
    key=2,
    expect=True,
)
FORGET = Statement.same(
    "notes_kept forget",
    "agent text, id text",
    "DELETE FROM notes_kept WHERE notes_kept.agent = :agent AND notes_kept.id = :id",
    key=2,
)
COUNT = Query.same("SELECT count(*) FROM notes_kept WHERE agent = ?")
ONE = Query.same("SELECT id, text, at FROM notes_kept WHERE agent = ? AND id = ?")
NEWEST = Query.same(
    "SELECT id, text, at FROM notes_kept WHERE agent = ? ORDER BY at DESC, id DESC LIMIT ?"
)
VECTORS = Query.same("SELECT id, text, at, vector FROM notes_kept WHERE agent = ?", bulk=True)
