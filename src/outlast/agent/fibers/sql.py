"""The fibers table: its rows, and every statement about it.

One row is both the record of a fiber and the proof that it runs: it is unfinished while `settled_at` is
null. A plain fiber's row is deleted when it ends; a managed one is kept, with its status.

| column | meaning |
| --- | --- |
| `id` | its own id; the user may choose it, and reuse it once this row is deleted |
| `root_id` | shared with the fibers that it continues; never reused |
| `managed` | 1: started with `start_fiber`, kept after its end |
| `status` | `pending`, `running`, then one of `completed`, `error`, `aborted`, `interrupted` |
| `snapshot` | the value stashed last; until then the input |
| `interrupted_at` | when it was first found orphaned since its last progress |
| `tries` | calls of the recovery hook since its last progress |
| `waits` | the same since the last progress of any fiber of the agent; determines the next delay |
| `retry_at` | when to call the hook again, if it fails |
| `stashes` | the number of stashes |
| `crashes` | crashes of the process after a call of the hook, since its last progress |
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


INSERT = Statement.same(
    "fibers insert",
    "agent text, id text, root_id text, name text, managed bigint, status text,"
    " idempotency_key text, snapshot text, metadata text, created_at bigint, started_at bigint,"
    " interrupted_at bigint, tries bigint, waits bigint, retry_at bigint, stashes bigint,"
    " crashes bigint",
    """
        INSERT INTO fibers
            (agent, id, root_id, name, managed, status, idempotency_key, snapshot, metadata,
             created_at, started_at, interrupted_at, tries, waits, retry_at, stashes, crashes)
        VALUES (:agent, :id, :root_id, :name, :managed, :status, :idempotency_key, :snapshot,
            :metadata, :created_at, :started_at, :interrupted_at, :tries, :waits, :retry_at,
            :stashes, :crashes)
        ON CONFLICT DO NOTHING
    """,
    key=2,
    expect=True,
)

STASH = Statement.same(
    "fibers stash",
    "agent text, id text, snapshot text",
    """
        UPDATE fibers SET snapshot = :snapshot, stashes = fibers.stashes + 1
        WHERE fibers.agent = :agent AND fibers.id = :id AND fibers.settled_at IS NULL
    """,
    key=2,
    expect=True,
)

# After progress, earlier recoveries no longer count.
PROGRESS = Statement.same(
    "fibers progress",
    "agent text, id text",
    """
        UPDATE fibers SET tries = 0, waits = 0, retry_at = NULL, interrupted_at = NULL, crashes = 0
        WHERE fibers.agent = :agent AND fibers.id = :id
    """,
    key=2,
)

DELETE = Statement.same(
    "fibers delete",
    "agent text, id text",
    "DELETE FROM fibers WHERE fibers.agent = :agent AND fibers.id = :id",
    key=2,
)

CLAIM = Statement.same(
    "fibers claim",
    "agent text, id text, started_at bigint",
    """
        UPDATE fibers SET status = 'running', started_at = :started_at
        WHERE fibers.agent = :agent AND fibers.id = :id AND fibers.status = 'pending'
    """,
    key=2,
    expect=True,
)


def _ending(name: str, state: str) -> Statement:
    return Statement.same(
        name,
        "agent text, id text, status text, error text, settled_at bigint, metadata text,"
        " snapshot text",
        f"""
            UPDATE fibers SET status = :status, error = :error, settled_at = :settled_at,
                retry_at = NULL, metadata = coalesce(:metadata, fibers.metadata),
                snapshot = coalesce(:snapshot, fibers.snapshot)
            WHERE fibers.agent = :agent AND fibers.id = :id AND {state}
        """,
        key=2,
    )


# The only transition from unfinished to finished. A second one touches no row.
SETTLE = _ending("fibers settle", "fibers.settled_at IS NULL")

# The same for a fiber that recovery settled as `interrupted`, and code resolves later.
RESOLVE = _ending("fibers resolve", "fibers.status = 'interrupted'")

# Written before the hook is called, so that a hook that kills the process is counted as well.
ATTEMPT = Statement.same(
    "fibers attempt",
    "agent text, id text, status text, interrupted_at bigint, tries bigint, waits bigint,"
    " retry_at bigint, crashes bigint",
    """
        UPDATE fibers SET status = :status,
            interrupted_at = coalesce(fibers.interrupted_at, :interrupted_at), tries = :tries,
            waits = :waits, retry_at = :retry_at, crashes = :crashes
        WHERE fibers.agent = :agent AND fibers.id = :id AND fibers.settled_at IS NULL
    """,
    key=2,
    expect=True,
)

# A process that was asked to stop did not crash.
SPARE = Statement.same(
    "fibers spare",
    "agent text, root_id text",
    """
        UPDATE fibers SET crashes = fibers.crashes - 1
        WHERE fibers.agent = :agent AND fibers.root_id = :root_id
          AND fibers.settled_at IS NULL AND fibers.crashes > 0
    """,
    key=2,
)

RETRY = Statement.same(
    "fibers retry",
    "agent text, id text, waits bigint, retry_at bigint",
    """
        UPDATE fibers SET waits = :waits, retry_at = :retry_at
        WHERE fibers.agent = :agent AND fibers.id = :id AND fibers.settled_at IS NULL
    """,
    key=2,
)

RESUME = Statement.same(
    "fibers resume",
    "agent text, id text, started_at bigint",
    """
        UPDATE fibers SET status = 'running', started_at = :started_at
        WHERE fibers.agent = :agent AND fibers.id = :id AND fibers.settled_at IS NULL
    """,
    key=2,
    expect=True,
)

# The same, with a new function under the same record.
REPLACE = Statement.same(
    "fibers replace",
    "agent text, id text, name text, snapshot text, started_at bigint",
    """
        UPDATE fibers SET status = 'running', name = :name, snapshot = :snapshot,
            started_at = :started_at
        WHERE fibers.agent = :agent AND fibers.id = :id AND fibers.settled_at IS NULL
    """,
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
    """Return the query for managed fibers, newest first. Arguments: agent, statuses, name if any, limit."""
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
    """Delete finished managed fibers, oldest first. Arguments: agent, statuses, before if any, limit."""
    marks = ", ".join("?" * len(statuses))
    condition = f"agent = ? AND managed = 1 AND settled_at IS NOT NULL AND status IN ({marks})"
    if before:
        condition += " AND settled_at < ?"
    return BulkStatement.same(
        "fibers delete",
        f"DELETE FROM fibers WHERE (agent, id) IN (SELECT agent, id FROM fibers WHERE {condition}"
        f" ORDER BY settled_at, id LIMIT ?)",
    )
