"""The fibers table: its rows, and every statement about it.

One row is both the record of a fiber and the proof that it runs: it is unfinished while `settled_at` is
null. A plain fiber's row is deleted when it ends; a managed one is kept, with its status.

| column | meaning |
| --- | --- |
| `id` | its own id, which its user may have chosen, and may choose again when this row is gone |
| `root_id` | what it has in common with the fibers that it continues, and with no other, ever |
| `managed` | 1: started with `start_fiber`, kept after its end |
| `status` | `pending`, `running`, then one of `completed`, `error`, `aborted`, `interrupted` |
| `snapshot` | what was stashed last; until then the input |
| `interrupted_at` | when it was first found left behind since it last got anywhere |
| `tries` | how often it was handed to the recovery hook since it last got anywhere |
| `waits` | the same since any fiber of the agent got anywhere; how long to wait follows from it |
| `retry_at` | when it will be handed over again, if that failed |
| `stashes` | how often it has stashed |
| `crashes` | how often its process has crashed after it was handed over, since it last got anywhere |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.store.operations import BulkStatement, Query, Statement

_COLUMNS = (
    "id, root_id, name, managed, status, idempotency_key, snapshot, metadata, error, created_at,"
    " started_at, interrupted_at, settled_at, tries, waits, retry_at, stashes, crashes"
)


@dataclass(frozen=True, slots=True)
class FiberRow:
    """A row as it is stored; `snapshot` and `metadata` are JSON text."""

    id: str
    root_id: str
    name: str
    managed: int
    status: str
    idempotency_key: str | None
    snapshot: str | None
    metadata: str | None
    error: str | None
    created_at: int
    started_at: int | None
    interrupted_at: int | None
    settled_at: int | None
    tries: int
    waits: int
    retry_at: int | None
    stashes: int
    crashes: int


INSERT = Statement(
    "fibers insert",
    sqlite="""
        INSERT INTO fibers
            (agent, id, root_id, name, managed, status, idempotency_key, snapshot, metadata,
             created_at, started_at, interrupted_at, tries, waits, retry_at, stashes, crashes)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT DO NOTHING
    """,
    postgres="""
        INSERT INTO fibers
            (agent, id, root_id, name, managed, status, idempotency_key, snapshot, metadata,
             created_at, started_at, interrupted_at, tries, waits, retry_at, stashes, crashes)
        SELECT u.agent, u.id, u.root_id, u.name, u.managed, u.status, u.idempotency_key,
               u.snapshot, u.metadata, u.created_at, u.started_at, u.interrupted_at, u.tries,
               u.waits, u.retry_at, u.stashes, u.crashes
        FROM {rows}
        ON CONFLICT DO NOTHING
    """,
    columns=[
        ("agent", "text"),
        ("id", "text"),
        ("root_id", "text"),
        ("name", "text"),
        ("managed", "bigint"),
        ("status", "text"),
        ("idempotency_key", "text"),
        ("snapshot", "text"),
        ("metadata", "text"),
        ("created_at", "bigint"),
        ("started_at", "bigint"),
        ("interrupted_at", "bigint"),
        ("tries", "bigint"),
        ("waits", "bigint"),
        ("retry_at", "bigint"),
        ("stashes", "bigint"),
        ("crashes", "bigint"),
    ],
    key=2,
    expect=True,
)

STASH = Statement(
    "fibers stash",
    sqlite="""
        UPDATE fibers SET snapshot = ?3, stashes = stashes + 1
        WHERE agent = ?1 AND id = ?2 AND settled_at IS NULL
    """,
    postgres="""
        UPDATE fibers SET snapshot = u.snapshot, stashes = fibers.stashes + 1 FROM {rows}
        WHERE fibers.agent = u.agent AND fibers.id = u.id AND fibers.settled_at IS NULL
    """,
    columns=[("agent", "text"), ("id", "text"), ("snapshot", "text")],
    key=2,
    expect=True,
)

# It got somewhere, so that earlier recoveries no longer count against it.
PROGRESS = Statement(
    "fibers progress",
    sqlite="""
        UPDATE fibers SET tries = 0, waits = 0, retry_at = NULL, interrupted_at = NULL, crashes = 0
        WHERE agent = ? AND id = ?
    """,
    postgres="""
        UPDATE fibers SET tries = 0, waits = 0, retry_at = NULL, interrupted_at = NULL, crashes = 0
        FROM {rows}
        WHERE fibers.agent = u.agent AND fibers.id = u.id
    """,
    columns=[("agent", "text"), ("id", "text")],
    key=2,
)

DELETE = Statement(
    "fibers delete",
    sqlite="DELETE FROM fibers WHERE agent = ? AND id = ?",
    postgres="DELETE FROM fibers USING {rows} WHERE fibers.agent = u.agent AND fibers.id = u.id",
    columns=[("agent", "text"), ("id", "text")],
    key=2,
)

CLAIM = Statement(
    "fibers claim",
    sqlite="""
        UPDATE fibers SET status = 'running', started_at = ?3
        WHERE agent = ?1 AND id = ?2 AND status = 'pending'
    """,
    postgres="""
        UPDATE fibers SET status = 'running', started_at = u.started_at FROM {rows}
        WHERE fibers.agent = u.agent AND fibers.id = u.id AND fibers.status = 'pending'
    """,
    columns=[("agent", "text"), ("id", "text"), ("started_at", "bigint")],
    key=2,
    expect=True,
)

# The one way from unfinished to finished. Late comers touch no row.
SETTLE = Statement(
    "fibers settle",
    sqlite="""
        UPDATE fibers SET status = ?3, error = ?4, settled_at = ?5, retry_at = NULL,
            metadata = coalesce(?6, metadata), snapshot = coalesce(?7, snapshot)
        WHERE agent = ?1 AND id = ?2 AND settled_at IS NULL
    """,
    postgres="""
        UPDATE fibers SET status = u.status, error = u.error, settled_at = u.settled_at,
            retry_at = NULL, metadata = coalesce(u.metadata, fibers.metadata),
            snapshot = coalesce(u.snapshot, fibers.snapshot)
        FROM {rows}
        WHERE fibers.agent = u.agent AND fibers.id = u.id AND fibers.settled_at IS NULL
    """,
    columns=[
        ("agent", "text"),
        ("id", "text"),
        ("status", "text"),
        ("error", "text"),
        ("settled_at", "bigint"),
        ("metadata", "text"),
        ("snapshot", "text"),
    ],
    key=2,
)

# The same for one that was left `interrupted` by its recovery, and is resolved by hand.
RESOLVE = Statement(
    "fibers resolve",
    sqlite=SETTLE.sqlite.replace("settled_at IS NULL", "status = 'interrupted'"),
    postgres=SETTLE.postgres.replace("fibers.settled_at IS NULL", "fibers.status = 'interrupted'"),
    columns=SETTLE.columns,
    key=2,
)

# Written before the hook is called, so that a hook that kills its process is counted too.
ATTEMPT = Statement(
    "fibers attempt",
    sqlite="""
        UPDATE fibers SET status = ?3, interrupted_at = coalesce(interrupted_at, ?4), tries = ?5,
            waits = ?6, retry_at = ?7, crashes = ?8
        WHERE agent = ?1 AND id = ?2 AND settled_at IS NULL
    """,
    postgres="""
        UPDATE fibers SET status = u.status,
            interrupted_at = coalesce(fibers.interrupted_at, u.interrupted_at), tries = u.tries,
            waits = u.waits, retry_at = u.retry_at, crashes = u.crashes
        FROM {rows}
        WHERE fibers.agent = u.agent AND fibers.id = u.id AND fibers.settled_at IS NULL
    """,
    columns=[
        ("agent", "text"),
        ("id", "text"),
        ("status", "text"),
        ("interrupted_at", "bigint"),
        ("tries", "bigint"),
        ("waits", "bigint"),
        ("retry_at", "bigint"),
        ("crashes", "bigint"),
    ],
    key=2,
    expect=True,
)

# A process that was asked to stop has not crashed.
SPARE = Statement(
    "fibers spare",
    sqlite="""
        UPDATE fibers SET crashes = crashes - 1
        WHERE agent = ? AND root_id = ? AND settled_at IS NULL AND crashes > 0
    """,
    postgres="""
        UPDATE fibers SET crashes = fibers.crashes - 1 FROM {rows}
        WHERE fibers.agent = u.agent AND fibers.root_id = u.root_id
          AND fibers.settled_at IS NULL AND fibers.crashes > 0
    """,
    columns=[("agent", "text"), ("root_id", "text")],
    key=2,
)

RETRY = Statement(
    "fibers retry",
    sqlite="""
        UPDATE fibers SET waits = ?3, retry_at = ?4
        WHERE agent = ?1 AND id = ?2 AND settled_at IS NULL
    """,
    postgres="""
        UPDATE fibers SET waits = u.waits, retry_at = u.retry_at FROM {rows}
        WHERE fibers.agent = u.agent AND fibers.id = u.id AND fibers.settled_at IS NULL
    """,
    columns=[("agent", "text"), ("id", "text"), ("waits", "bigint"), ("retry_at", "bigint")],
    key=2,
)

RESUME = Statement(
    "fibers resume",
    sqlite="""
        UPDATE fibers SET status = 'running', started_at = ?3
        WHERE agent = ?1 AND id = ?2 AND settled_at IS NULL
    """,
    postgres="""
        UPDATE fibers SET status = 'running', started_at = u.started_at FROM {rows}
        WHERE fibers.agent = u.agent AND fibers.id = u.id AND fibers.settled_at IS NULL
    """,
    columns=[("agent", "text"), ("id", "text"), ("started_at", "bigint")],
    key=2,
    expect=True,
)

# The same, with other work under the same record.
REPLACE = Statement(
    "fibers replace",
    sqlite="""
        UPDATE fibers SET status = 'running', name = ?3, snapshot = ?4, started_at = ?5
        WHERE agent = ?1 AND id = ?2 AND settled_at IS NULL
    """,
    postgres="""
        UPDATE fibers SET status = 'running', name = u.name, snapshot = u.snapshot,
            started_at = u.started_at
        FROM {rows}
        WHERE fibers.agent = u.agent AND fibers.id = u.id AND fibers.settled_at IS NULL
    """,
    columns=[
        ("agent", "text"),
        ("id", "text"),
        ("name", "text"),
        ("snapshot", "text"),
        ("started_at", "bigint"),
    ],
    key=2,
    expect=True,
)

UNFINISHED_AGENTS = Query.same(
    "SELECT DISTINCT agent FROM fibers WHERE settled_at IS NULL AND agent > ?"
    " ORDER BY agent LIMIT ?",
    bulk=True,
)
UNFINISHED = Query.same(
    f"SELECT {_COLUMNS} FROM fibers WHERE agent = ? AND settled_at IS NULL"
    f" AND (created_at, id) > (?, ?) ORDER BY created_at, id LIMIT ?",
    bulk=True,
)
IS_ANY_UNFINISHED = Query.same(
    "SELECT 1 FROM fibers WHERE agent = ? AND settled_at IS NULL LIMIT 1"
)
ONE_UNFINISHED = Query.same(
    f"SELECT {_COLUMNS} FROM fibers WHERE agent = ? AND id = ? AND settled_at IS NULL"
)
BY_ID = Query.same(f"SELECT {_COLUMNS} FROM fibers WHERE agent = ? AND id = ? AND managed = 1")
BY_KEY = Query.same(f"SELECT {_COLUMNS} FROM fibers WHERE agent = ? AND idempotency_key = ?")


def listing(statuses: int, by_name: bool) -> Query:
    """Managed fibers, newest first. Arguments: agent, the statuses, the name if asked for, limit."""
    marks = ", ".join("?" * statuses)
    conditions = ["agent = ?", "managed = 1", f"status IN ({marks})"]
    if by_name:
        conditions.append("name = ?")
    return Query.same(
        f"SELECT {_COLUMNS} FROM fibers WHERE {' AND '.join(conditions)}"
        f" ORDER BY created_at DESC, id DESC LIMIT ?",
        bulk=True,
    )


def deletion(statuses: Sequence[str], before: bool) -> BulkStatement:
    """Finished managed fibers, oldest first. Arguments: agent, statuses, before if asked for, limit."""
    marks = ", ".join("?" * len(statuses))
    condition = f"agent = ? AND managed = 1 AND settled_at IS NOT NULL AND status IN ({marks})"
    if before:
        condition += " AND settled_at < ?"
    query = Query.same(
        f"DELETE FROM fibers WHERE (agent, id) IN (SELECT agent, id FROM fibers WHERE {condition}"
        f" ORDER BY settled_at, id LIMIT ?)"
    )
    return BulkStatement("fibers delete", query.sqlite, query.postgres)
