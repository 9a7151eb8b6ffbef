"""The queries of the views, in both dialects."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.chat.inbox.sql import EntryRow
from outlast.store.dialects import numbered
from outlast.store.operations import Query

ENTRY_COLUMNS = ", ".join(EntryRow.__dataclass_fields__)


def _bulk(sql: str) -> Query:
    return Query.same(sql, bulk=True)


def marks(count: int) -> str:
    """Return placeholders for `IN (…)`."""
    return ", ".join("?" * count)


# --- addresses -----------------------------------------------------------------------------------

ROOTS = _bulk("SELECT root, epoch, commit_no FROM agents WHERE root > ? ORDER BY root LIMIT ?")
ROOT = Query.same("SELECT epoch, commit_no FROM agents WHERE root = ?")
CHILDREN = _bulk(
    "SELECT agent, kind, name FROM sub_agents WHERE agent >= ? AND agent < ? ORDER BY agent, number"
)
NAMES = _bulk("SELECT root FROM agents WHERE root > ? AND root < ? ORDER BY root LIMIT ?")
KINDS = Query(
    """
    SELECT substr(root, 1, instr(root, '/') - 1) FROM agents
    UNION SELECT kind FROM sub_agents ORDER BY 1
    """,
    """
    SELECT split_part(root, '/', 1) FROM agents
    UNION SELECT kind FROM sub_agents ORDER BY 1
    """,
    bulk=True,
)


# --- a page of agents ----------------------------------------------------------------------------


def open_entries(agents: int) -> Query:
    return _bulk(
        f"SELECT agent, id, state FROM inbox WHERE ended_at IS NULL AND agent IN ({marks(agents)})"
        f" ORDER BY agent, seq"
    )


def turns_of(agents: int) -> Query:
    return _bulk(
        f"SELECT agent, count(*), max(coalesce(ended_at, started_at, accepted_at)) FROM inbox"
        f" WHERE agent IN ({marks(agents)}) GROUP BY agent"
    )


def messages_of(agents: int) -> Query:
    return _bulk(
        f"SELECT agent, count(*), max(created_at) FROM messages"
        f" WHERE agent IN ({marks(agents)}) GROUP BY agent"
    )


def fibers_of(agents: int) -> Query:
    return _bulk(
        f"SELECT agent, count(*) - count(settled_at),"
        f" max(coalesce(settled_at, started_at, created_at))"
        f" FROM fibers WHERE agent IN ({marks(agents)}) GROUP BY agent"
    )


def schedules_of(agents: int) -> Query:
    return _bulk(
        f"SELECT agent, count(*), min(run_at) FROM schedules WHERE agent IN ({marks(agents)})"
        f" GROUP BY agent"
    )


def incidents_of(agents: int) -> Query:
    return _bulk(
        f"SELECT agent, state, count(*) FROM incidents WHERE agent IN ({marks(agents)})"
        f" GROUP BY agent, state"
    )


def boots_of(agents: int) -> Query:
    return _bulk(f"SELECT agent, strikes FROM boots WHERE agent IN ({marks(agents)})")


# --- turns ---------------------------------------------------------------------------------------


def turns(*, of_agent: bool, only_open: bool, only_submissions: bool) -> Query:
    """Newest first. Arguments: the agent if given, an upper time limit, the number of rows."""
    conditions = ["accepted_at < ?"]
    if of_agent:
        conditions.insert(0, "agent = ?")
    if only_open:
        conditions.append("ended_at IS NULL")
    if only_submissions:
        conditions.append("origin = 'submission'")
    order = "seq DESC" if of_agent else "accepted_at DESC, agent, seq DESC"
    return _bulk(
        f"SELECT agent, {ENTRY_COLUMNS} FROM inbox WHERE {' AND '.join(conditions)}"
        f" ORDER BY {order} LIMIT ?"
    )


# Finds an id by its beginning, if that is unique. Arguments: the length, then the same text twice.
FIND_TURN = _bulk("SELECT agent, id FROM inbox WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT 10")
TURN = Query.same(f"SELECT {ENTRY_COLUMNS} FROM inbox WHERE agent = ? AND id = ?")
OPEN_BEFORE = Query.same(
    "SELECT count(*) FROM inbox WHERE agent = ? AND ended_at IS NULL AND seq < ?"
)
CALLS = _bulk(
    "SELECT id, name, effect, state, input, started_at, ended_at, key FROM calls"
    " WHERE agent = ? AND turn = ? ORDER BY started_at, id"
)
LEDGER = _bulk(
    "SELECT turn, id, name, effect, state, input, started_at, ended_at, key FROM calls"
    " WHERE agent = ? ORDER BY started_at DESC, id LIMIT ?"
)
INCIDENT = Query.same("SELECT state, cause, body, at FROM incidents WHERE agent = ? AND turn = ?")


def incidents(*, of_agent: bool) -> Query:
    agent = "agent = ? AND " if of_agent else ""
    return _bulk(
        f"SELECT agent, turn, state, cause, body, at FROM incidents"
        f" WHERE {agent}state IN ('open', 'exhausted') ORDER BY at, agent LIMIT ?"
    )


def decisions(*, of_agent: bool) -> Query:
    """Decisions about interruptions, newest first, with the state of their turns."""
    agent = "WHERE decisions.agent = ? " if of_agent else ""
    return _bulk(
        "SELECT decisions.agent, turn, decisions.attempt, body, at, outcome, ended_at FROM decisions"
        " JOIN inbox ON inbox.agent = decisions.agent AND inbox.id = decisions.turn"
        f" {agent}ORDER BY at DESC, decisions.agent, turn, decisions.attempt DESC LIMIT ?"
    )


# --- messages, and the rest of one agent ---------------------------------------------------------


def bodies(count: int) -> Query:
    """The bodies of messages that are small enough for an excerpt. Arguments: agent, ids."""
    return _bulk(
        f"SELECT id, body FROM messages WHERE agent = ? AND size < 100000 AND id IN ({marks(count)})"
    )


def places(count: int) -> Query:
    """The numbers and turns of messages. Arguments: agent, ids."""
    return _bulk(
        f"SELECT id, number, turn FROM messages WHERE agent = ? AND id IN ({marks(count)})"
    )


LAST_TO_TALK = _bulk(
    "SELECT agent, max(created_at) FROM messages GROUP BY agent ORDER BY 2 DESC, 1 LIMIT ?"
)
MESSAGES = _bulk(
    "SELECT id, parent, number, role, status, turn, size, created_at, body FROM messages"
    " WHERE agent = ? AND number < ? ORDER BY number DESC LIMIT ?"
)
FIBERS = _bulk(
    "SELECT id, name, managed, status, error, created_at, started_at, interrupted_at, settled_at,"
    " tries, retry_at, stashes, snapshot FROM fibers WHERE agent = ?"
    " ORDER BY created_at DESC, id LIMIT ?"
)
SCHEDULES = _bulk(
    "SELECT id, kind, callback, payload, cron, timezone, interval, created_at, run_at, claimed_at,"
    " defers FROM schedules WHERE agent = ? ORDER BY run_at, id LIMIT ?"
)
ALARMS = Query.same("SELECT source, wake_at FROM alarms WHERE agent = ? ORDER BY wake_at")
STORAGE = _bulk("SELECT key, size FROM storage WHERE agent = ? ORDER BY key LIMIT ?")

# The tables of the foundation, with their columns that can be large.
LARGE = {
    "storage": ("value",),
    "messages": ("body",),
    "streams": ("body",),
    "inbox": ("messages", "options", "metadata"),
    "calls": ("input", "output"),
    "fibers": ("snapshot", "metadata"),
    "schedules": ("payload",),
    "facts": ("value",),
    "incidents": ("stash", "held", "body"),
    "decisions": ("body",),
    "receipts": ("value",),
}


def size_of(table: str, columns: Sequence[str], *, of_agent: str | None) -> Query:
    """Rows, and bytes in these columns. `of_agent`: the column of the address that is the argument."""
    where = "" if of_agent is None else f' WHERE "{of_agent}" = ?'

    def sql(length: str) -> str:
        parts = [f"coalesce({length.format(column=column)}, 0)" for column in columns]
        return (
            f"SELECT count(*), CAST(coalesce(sum({' + '.join(parts) or 0}), 0) AS bigint)"
            f" FROM {table}{where}"
        )

    return Query(
        sql("length(CAST({column} AS BLOB))"),
        numbered(sql("octet_length({column})")),
        bulk=True,
    )
