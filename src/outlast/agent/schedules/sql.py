"""The schedules table: its rows, and every statement about it.

| column | meaning |
| --- | --- |
| `identity` | identifies an idempotent schedule; null while a one-shot runs |
| `occurrence` | identifies the next or running occurrence: its intended time |
| `run_at` | when to run it: the occurrence, or later if it was deferred |
| `claimed_at` | when it started; if it does not run in this activation, its process crashed |
| `defers` | the number of deferrals |
| `crashes` | unfinished executions of this occurrence: crashes, and the running one |

The past of a cron schedule, if it has more than one span (`occurrences`), is a fact of the agent.

The agent's alarm is the earliest `run_at` of unclaimed schedules. Every change recomputes it in the same
commit (`rearm`), so that the two always agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.agent.schedules.timetable import ScheduleKind
from outlast.store.operations import BulkStatement, Operation, Query, Statement

ALARM = "schedules"

_COLUMNS = (
    "id, identity, kind, callback, payload, cron, timezone, interval, retry, created_at,"
    " occurrence, run_at, claimed_at, defers, crashes"
)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A row as it is stored; `payload` and `retry` are JSON text."""

    id: str
    identity: str | None
    kind: ScheduleKind
    callback: str
    payload: str
    cron: str | None
    timezone: str | None
    interval: int | None
    retry: str | None
    created_at: int
    occurrence: int
    run_at: int
    claimed_at: int | None
    defers: int
    crashes: int

    @property
    def is_recurring(self) -> bool:
        return self.kind in ("cron", "interval")


# Durable work creates a schedule once (`origin` and `key`, otherwise null), even after it has run.
INSERT = Statement.same(
    "schedules insert",
    "agent text, id text, identity text, kind text, callback text, payload text, cron text,"
    " timezone text, interval_ms bigint, retry text, created_at bigint, occurrence bigint,"
    " run_at bigint, origin text, key text",
    """
        INSERT INTO schedules
            (agent, id, identity, kind, callback, payload, cron, timezone, interval, retry,
             created_at, occurrence, run_at, defers)
        SELECT :agent, :id, :identity, :kind, :callback, :payload, :cron, :timezone,
               :interval_ms, :retry, :created_at, :occurrence, :run_at, 0
        WHERE NOT EXISTS (
            SELECT 1 FROM admissions AS noted
            WHERE noted.agent = :agent AND noted.origin = :origin AND noted.key = :key
        )
        ON CONFLICT DO NOTHING
    """,
    key=2,
    expect=True,
)

# An execution claims one occurrence. Clearing the identity lets a one-shot schedule itself again.
CLAIM = Statement.same(
    "schedules claim",
    "agent text, id text, occurrence bigint, claimed_at bigint, crashes bigint",
    """
        UPDATE schedules SET claimed_at = :claimed_at, crashes = :crashes,
            identity = CASE WHEN kind IN ('cron', 'interval') THEN identity END
        WHERE schedules.agent = :agent AND schedules.id = :id
          AND schedules.occurrence = :occurrence
    """,
    key=2,
    expect=True,
)

# A process that was asked to stop did not crash.
SPARE = Statement.same(
    "schedules spare",
    "agent text, id text",
    """
        UPDATE schedules SET crashes = schedules.crashes - 1
        WHERE schedules.agent = :agent AND schedules.id = :id
          AND schedules.claimed_at IS NOT NULL AND schedules.crashes > 0
    """,
    key=2,
)

# The end of an execution: the next occurrence, or the same one deferred.
RELEASE = Statement.same(
    "schedules release",
    "agent text, id text, occurrence bigint, next_occurrence bigint, run_at bigint, defers bigint",
    """
        UPDATE schedules SET claimed_at = NULL, occurrence = :next_occurrence,
            run_at = :run_at, defers = :defers, crashes = 0
        WHERE schedules.agent = :agent AND schedules.id = :id
          AND schedules.occurrence = :occurrence
    """,
    key=2,
)

# Moves a waiting occurrence after the clock was set back.
MOVE = Statement.same(
    "schedules move",
    "agent text, id text, occurrence bigint, next_occurrence bigint, run_at bigint",
    """
        UPDATE schedules SET occurrence = :next_occurrence, run_at = :run_at
        WHERE schedules.agent = :agent AND schedules.id = :id
          AND schedules.occurrence = :occurrence AND schedules.claimed_at IS NULL
    """,
    key=2,
    expect=True,
)

DELETE = Statement.same(
    "schedules delete",
    "agent text, id text",
    """
        DELETE FROM schedules
        WHERE schedules.agent = :agent AND schedules.id = :id
    """,
    key=2,
)

DISARM = BulkStatement.same(
    "alarms clear", "DELETE FROM alarms WHERE agent = ? AND source = 'schedules'"
)
ARM = BulkStatement.same(
    "alarms set",
    """
        INSERT INTO alarms (agent, source, wake_at)
        SELECT CAST(?1 AS text), 'schedules', earliest.run_at FROM (
            SELECT min(run_at) AS run_at FROM schedules WHERE agent = ?1 AND claimed_at IS NULL
        ) AS earliest
        WHERE earliest.run_at IS NOT NULL
    """,
)


def rearm(agent: str) -> list[Operation]:
    """Return the operations that recompute the agent's alarm from its schedules."""
    return [(DISARM, (agent,)), (ARM, (agent,))]


REMEMBER = BulkStatement.same(
    "facts set",
    """
        INSERT INTO facts (agent, name, value)
        SELECT CAST(? AS text), CAST(? AS text), CAST(? AS text)
        WHERE EXISTS (SELECT 1 FROM schedules WHERE agent = ? AND id = ?)
        ON CONFLICT (agent, name) DO UPDATE SET value = excluded.value
    """,
)
FORGET = BulkStatement.same("facts clear", "DELETE FROM facts WHERE agent = ? AND name = ?")


def fact_of(id: str) -> str:
    """Return the name of the fact that holds the past of a cron schedule."""
    return f"schedule:{id}"


def remember(agent: str, id: str, past: str) -> Operation:
    """Store the past of a schedule, unless it was cancelled in the meantime."""
    return REMEMBER, (agent, fact_of(id), past, agent, id)


DUE = Query.same(
    f"SELECT {_COLUMNS} FROM schedules WHERE agent = ? AND"
    f" (claimed_at IS NOT NULL OR run_at <= ?) ORDER BY run_at, id LIMIT ?",
    bulk=True,
)
BY_ID = Query.same(f"SELECT {_COLUMNS} FROM schedules WHERE agent = ? AND id = ?")
BY_IDENTITY = Query.same(f"SELECT {_COLUMNS} FROM schedules WHERE agent = ? AND identity = ?")
OF_AGENT = Query.same(
    f"SELECT {_COLUMNS} FROM schedules WHERE agent = ? ORDER BY run_at, id", bulk=True
)
WAITING = Query.same(
    f"SELECT {_COLUMNS} FROM schedules WHERE agent = ? AND claimed_at IS NULL AND run_at > ?"
    f" AND (kind <> 'scheduled' OR defers > 0) ORDER BY run_at, id",
    bulk=True,
)
IS_ANY_CLAIMED = Query.same(
    "SELECT 1 FROM schedules WHERE agent = ? AND claimed_at IS NOT NULL LIMIT 1"
)
CLAIMED_AGENTS = Query.same(
    "SELECT DISTINCT agent FROM schedules WHERE claimed_at IS NOT NULL AND agent > ?"
    " ORDER BY agent LIMIT ?",
    bulk=True,
)
