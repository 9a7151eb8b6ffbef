"""The ledger: which calls of tools have begun, and which of them have an outcome.

A row is inserted before a tool runs, and updated in the commit that stores its outcome in the stream. If a
row is still `begun` after a crash, the call may or may not have had its effect.

| column | meaning |
| --- | --- |
| `turn`, `id` | the request and the call; `<call>/<seq>` for a nested call |
| `key` | the tool's name and the result of its `idempotency_key`, or null |
| `input` | the input of the tool, as JSON |
| `state` | `begun`, `done`, `failed`, `unknown` |
| `output` | JSON, for replays: the output of a call with a key, or the output or error of a nested call |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outlast.agent.admission import Origin, note_statement
from outlast.agent.commit import Commit
from outlast.agent.part import Part
from outlast.chat.inbox.sql import KEEP_ENTRIES, KEEP_STREAMS
from outlast.chat.tools.outcome import CallEnd
from outlast.core import json
from outlast.store.operations import BulkStatement, Operation, Query, Statement

CallState = Literal["begun", "done", "failed", "unknown"]

KEEP_KEYS = 30 * 24 * 3600 * 1000  # milliseconds after the end

_COLUMNS = "turn, id, name, effect, key, input, state, output"

_BEGIN = Statement.same(
    "calls begin",
    "agent text, turn text, id text, name text, effect text, key text, input text,"
    " started_at bigint",
    """
        INSERT INTO calls (agent, turn, id, name, effect, key, input, state, started_at)
        VALUES (:agent, :turn, :id, :name, :effect, :key, :input, 'begun', :started_at)
        ON CONFLICT (agent, turn, id) DO UPDATE SET state = 'begun', input = excluded.input,
            key = excluded.key, started_at = excluded.started_at, output = NULL, ended_at = NULL
    """,
    key=3,
)

_END = Statement.same(
    "calls end",
    "agent text, turn text, id text, state text, output text, ended_at bigint",
    """
        UPDATE calls SET state = :state, output = :output, ended_at = :ended_at
        WHERE calls.agent = :agent AND calls.turn = :turn AND calls.id = :id
    """,
    key=3,
)

_RELEASE = BulkStatement.same(
    "calls release", "UPDATE calls SET key = NULL WHERE agent = ? AND key = ?"
)

_OF_TURN = Query.same(f"SELECT {_COLUMNS} FROM calls WHERE agent = ? AND turn = ?")
_BY_KEY = Query.same(
    f"SELECT {_COLUMNS} FROM calls WHERE agent = ? AND key = ? AND coalesce(ended_at, started_at) > ?"
)

# Rows of turns that ended before a time, like the streams; rows with a key after thirty days.
EXPIRE = BulkStatement.same(
    "calls expire",
    """
        DELETE FROM calls WHERE agent = ?1 AND turn NOT IN
            (SELECT id FROM inbox WHERE agent = ?1 AND (ended_at IS NULL OR ended_at > ?2))
            AND (key IS NULL OR coalesce(ended_at, started_at) <= ?3)
    """,
)


@dataclass(frozen=True, slots=True)
class CallRow:
    """A stored row; `input` and `output` are JSON."""

    turn: str
    id: str
    name: str
    effect: str
    key: str | None
    input: str
    state: CallState
    output: str | None


class Ledger(Part):
    """The calls of one agent. It returns operations for the commits of the stream."""

    def expire(self, commit: Commit, now: int) -> None:
        commit.write((EXPIRE, (self.address, now - KEEP_STREAMS, now - KEEP_ENTRIES)))

    def begin(
        self, turn: str, id: str, name: str, effect: str, key: str | None, input: str
    ) -> Operation:
        """Return the operation for the commit before the tool runs."""
        now = self.activation.clock.now()
        return _BEGIN, (self.address, turn, id, name, effect, key, input, now)

    def end(self, turn: str, id: str, state: CallState, output: str | None = None) -> Operation:
        """Return the operation for the commit that stores the outcome."""
        return _END, (self.address, turn, id, state, output, self.activation.clock.now())

    def close(self, row: CallRow, end: CallEnd) -> Operation:
        """Return the operation that stores the outcome of a nested call of an earlier process."""
        assert end.state != "open"
        return self.end(row.turn, row.id, end.state, end.recorded())

    def release(self, key: str) -> Operation:
        """Return the operation that removes this key from its call."""
        return _RELEASE, (self.address, key)

    async def of_turn(self, turn: str) -> list[CallRow]:
        found = await self.activation.store.fetch(_OF_TURN, self.address, turn)
        return [CallRow(*values) for values in found]

    async def by_key(self, key: str) -> CallRow | None:
        since = self.activation.clock.now() - KEEP_KEYS
        found = await self.activation.store.fetch(_BY_KEY, self.address, key, since)
        return CallRow(*found[0]) if found else None


_NOTE_IN_CALL = note_statement("calls WHERE agent = ? AND turn = ? AND id = ?")


def origin_of(agent: str, turn: str, message_id: str, id: str) -> Origin:
    """Return the origin of a tool's admissions, which is the same if the call runs again."""
    return Origin(agent, f"call:{message_id}:{id}", (_NOTE_IN_CALL, (agent, turn, id)), place=0)


def input_of(row: CallRow) -> dict[str, object]:
    """Return the input of the tool; empty if the stored one is damaged."""
    try:
        found = json.decode(row.input)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
