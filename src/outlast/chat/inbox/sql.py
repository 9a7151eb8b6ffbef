"""The inbox table: its rows, and every statement about it.

One row is the record of one request to the agent, and of the turn that answers it.

| column | meaning |
| --- | --- |
| `seq` | the order in which entries were accepted; turns run in it |
| `id` | the request id: of the entry, of its turn and of its stream |
| `kind` | `message`, `regenerate` (another answer), `continue` (the last one), `add` (messages, no turn) |
| `origin` | the source of the request: `chat`, `save`, `submission`, … |
| `policy` | how it is handled when others wait: `queue`, `latest`, `merge` or `debounce:<ms>` |
| `key` | the idempotency key: a second request with it joins the first |
| `state` | `accepted`, `running` (claimed and applied), `ended` |
| `outcome` | how it ended: `completed`, `error`, `aborted`, `skipped`, `interrupted` |
| `error` | the message for clients and callers, if it failed |
| `detail` | the original error, for operators only; null if it is the same as `error` |
| `messages` | the messages to apply, JSON; null once they are in the transcript |
| `options` | the options of the request, JSON |
| `target` | the message that the answer is stored under (`regenerate`), or that is continued (`continue`) |
| `message_id` | the answer |
| `cancelled` | the reason, once it is cancelled |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from outlast.store.operations import BulkStatement, Query, Statement

Kind = Literal["message", "regenerate", "continue", "add"]
State = Literal["accepted", "running", "ended"]
KEEP_STREAMS = 10 * 60 * 1000  # milliseconds after the end: the chunks and calls of a turn
KEEP_ENTRIES = 30 * 24 * 3600 * 1000  # the entry itself, and its keys

Outcome = Literal["completed", "error", "aborted", "skipped", "interrupted"]

_COLUMNS = (
    "seq, id, kind, origin, policy, key, state, outcome, error, messages, options, metadata, target,"
    " message_id, attempt, cancelled, accepted_at, started_at, ended_at, detail"
)


@dataclass(frozen=True, slots=True)
class EntryRow:
    """A row as it is stored; `messages`, `options` and `metadata` are JSON text."""

    seq: int
    id: str
    kind: Kind
    origin: str
    policy: str
    key: str | None
    state: State
    outcome: Outcome | None
    error: str | None
    messages: str | None
    options: str
    metadata: str | None
    target: str | None
    message_id: str | None
    attempt: int
    cancelled: str | None
    accepted_at: int
    started_at: int | None
    ended_at: int | None
    detail: str | None = None


ACCEPT = Statement.same(
    "inbox accept",
    "agent text, seq bigint, id text, kind text, origin text, policy text, key text,"
    " messages text, options text, metadata text, target text, cancelled text,"
    " accepted_at bigint",
    """
        INSERT INTO inbox
            (agent, seq, id, kind, origin, policy, key, state, messages, options, metadata, target,
             cancelled, attempt, accepted_at)
        VALUES (:agent, :seq, :id, :kind, :origin, :policy, :key, 'accepted', :messages,
            :options, :metadata, :target, :cancelled, 0, :accepted_at)
        ON CONFLICT DO NOTHING
    """,
    key=2,
    expect=True,
)

# The same commit adds the messages to the transcript.
CLAIM = Statement.same(
    "inbox claim",
    "agent text, seq bigint, target text, message_id text, started_at bigint",
    """
        UPDATE inbox SET state = 'running', messages = NULL, target = :target,
            message_id = :message_id, attempt = inbox.attempt + 1, started_at = :started_at
        WHERE inbox.agent = :agent AND inbox.seq = :seq AND inbox.state = 'accepted'
    """,
    key=2,
    expect=True,
)

# Nothing was streamed: the next process claims it again. A continued message is its target again.
PUT_BACK = Statement.same(
    "inbox put back",
    "agent text, seq bigint",
    """
        UPDATE inbox SET state = 'accepted', message_id = NULL, started_at = NULL,
            target = CASE inbox.kind WHEN 'continue' THEN inbox.message_id ELSE inbox.target END
        WHERE inbox.agent = :agent AND inbox.seq = :seq AND inbox.state = 'running'
    """,
    key=2,
    expect=True,
)

# The partial answer becomes a message of its own, and another continues under it.
MOVE_ON = Statement.same(
    "inbox move on",
    "agent text, seq bigint, target text, message_id text",
    """
        UPDATE inbox SET target = :target, message_id = :message_id
        WHERE inbox.agent = :agent AND inbox.seq = :seq AND inbox.state = 'running'
    """,
    key=2,
    expect=True,
)

RESUME = Statement.same(
    "inbox resume",
    "agent text, seq bigint",
    """
        UPDATE inbox SET attempt = inbox.attempt + 1
        WHERE inbox.agent = :agent AND inbox.seq = :seq AND inbox.state = 'running'
    """,
    key=2,
    expect=True,
)

CANCEL = Statement.same(
    "inbox cancel",
    "agent text, seq bigint, cancelled text",
    """
        UPDATE inbox SET cancelled = :cancelled
        WHERE inbox.agent = :agent AND inbox.seq = :seq AND inbox.ended_at IS NULL
          AND inbox.cancelled IS NULL
    """,
    key=2,
)

# The only transition from open to ended; a second one is refused with its whole commit.
END = Statement.same(
    "inbox end",
    "agent text, seq bigint, outcome text, error text, message_id text, ended_at bigint,"
    " detail text",
    """
        UPDATE inbox SET state = 'ended', outcome = :outcome, error = :error,
            message_id = :message_id, messages = NULL, ended_at = :ended_at,
            detail = :detail
        WHERE inbox.agent = :agent AND inbox.seq = :seq AND inbox.ended_at IS NULL
    """,
    key=2,
    expect=True,
)

NEXT_TO_EXPIRE = Query.same(
    "SELECT min(ended_at) FROM inbox WHERE agent = ? AND ended_at > ?", bulk=True
)


@lru_cache(maxsize=64)
def expiry(listed: tuple[str, ...]) -> BulkStatement:
    """Delete entries that ended before a time, except those of listed origins."""
    names = ", ".join(f"'{name}'" for name in listed)
    return BulkStatement.same(
        "inbox forget",
        f"DELETE FROM inbox WHERE agent = ? AND ended_at <= ? AND origin NOT IN ({names})",
    )


# In a damaged SQLite file, a text may be in the place of a number: such rows come last.
LAST_SEQ = Query(
    "SELECT seq FROM inbox WHERE agent = ? AND typeof(seq) = 'integer' ORDER BY seq DESC LIMIT 1",
    "SELECT seq FROM inbox WHERE agent = $1 ORDER BY seq DESC LIMIT 1",
)
LAST_ENDED = Query(
    "SELECT id, seq, outcome FROM inbox WHERE agent = ? AND ended_at IS NOT NULL"
    " AND typeof(seq) = 'integer' ORDER BY seq DESC LIMIT 1",
    "SELECT id, seq, outcome FROM inbox WHERE agent = $1 AND ended_at IS NOT NULL"
    " ORDER BY seq DESC LIMIT 1",
)
OPEN = Query.same(
    f"SELECT {_COLUMNS} FROM inbox WHERE agent = ? AND ended_at IS NULL ORDER BY seq", bulk=True
)
OPEN_AGENTS = Query.same(
    "SELECT DISTINCT agent FROM inbox WHERE ended_at IS NULL AND agent > ? ORDER BY agent LIMIT ?",
    bulk=True,
)
BY_ID = Query.same(f"SELECT {_COLUMNS} FROM inbox WHERE agent = ? AND id = ?")
BY_KEY = Query.same(f"SELECT {_COLUMNS} FROM inbox WHERE agent = ? AND key = ?")


def listing(outcomes: int, *, pending: bool, running: bool) -> Query:
    """Return the query for submissions, newest first. Arguments: agent, outcomes, limit."""
    conditions = []
    if outcomes:
        conditions.append(f"outcome IN ({', '.join('?' * outcomes)})")
    if pending:
        conditions.append("state = 'accepted'")
    if running:
        conditions.append("state = 'running'")
    where = f" AND ({' OR '.join(conditions)})" if conditions else ""
    return Query.same(
        f"SELECT {_COLUMNS} FROM inbox WHERE agent = ? AND origin = 'submission'{where}"
        f" ORDER BY seq DESC LIMIT ?",
        bulk=True,
    )


def deletion(outcomes: int, before: bool) -> BulkStatement:
    """Delete ended submissions, oldest first. Arguments: agent, outcomes, before if any, limit."""
    condition = (
        f"agent = ? AND origin = 'submission' AND ended_at IS NOT NULL"
        f" AND outcome IN ({', '.join('?' * outcomes)})"
    )
    if before:
        condition += " AND ended_at < ?"
    return BulkStatement.same(
        "inbox delete",
        f"DELETE FROM inbox WHERE (agent, seq) IN (SELECT agent, seq FROM inbox WHERE {condition}"
        f" ORDER BY ended_at, seq LIMIT ?)",
    )
