"""The incidents table: records of interrupted turns; and the table of unfinished boots.

| column | meaning |
| --- | --- |
| `turn` | the request that was interrupted, or stored a note in case it will be |
| `state` | `noted` (no interruption yet), `open`, `exhausted` |
| `cause` | why the process ended, if that was recorded before |
| `stash` | the value stashed by the turn, JSON |
| `held` | an answer that the provider generates in the background, JSON: it can be fetched |
| `body` | the record, JSON: see `outlast.chat.recovery.budget.Incident` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.recovery.budget import Incident, incident_of
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settlement import Settlement
from outlast.core import json
from outlast.store.operations import BulkStatement, Operation, Query, Statement

State = Literal["noted", "open", "exhausted"]

KEEP = 3600 * 1000  # milliseconds to keep the record of a turn that was given up

_RECORD = Statement.same(
    "incidents record",
    "agent text, turn text, state text, body text, at bigint",
    """
        INSERT INTO incidents (agent, turn, state, body, at)
        VALUES (:agent, :turn, :state, :body, :at)
        ON CONFLICT (agent, turn) DO UPDATE SET state = excluded.state, body = excluded.body,
            at = excluded.at, cause = NULL
    """,
    key=2,
)


def _note_statement(column: str) -> Statement:
    return Statement.same(
        f"incidents note {column}",
        f"agent text, turn text, {column} text, at bigint",
        f"""
            INSERT INTO incidents (agent, turn, state, body, {column}, at)
            VALUES (:agent, :turn, 'noted', '{{}}', :{column}, :at)
            ON CONFLICT (agent, turn) DO UPDATE SET {column} = excluded.{column}
        """,
        key=2,
    )


_CAUSE = _note_statement("cause")
_STASH = _note_statement("stash")
_HELD = _note_statement("held")

_CLOSE = Statement.same(
    "incidents close",
    "agent text, turn text",
    """
        DELETE FROM incidents
        WHERE incidents.agent = :agent AND incidents.turn = :turn
    """,
    key=2,
)

_ONE = Query.same(
    "SELECT state, cause, stash, held, body FROM incidents WHERE agent = ? AND turn = ?"
)
_ALL = Query.same(
    "SELECT turn, state, body, at FROM incidents"
    " WHERE agent = ? AND (state = 'open' OR (state = 'exhausted' AND at > ?)) ORDER BY at"
)
# Deletes the records of ended turns; those that were given up are kept for a while.
EXPIRE = BulkStatement.same(
    "incidents expire",
    """
        DELETE FROM incidents WHERE agent = ?1 AND (state <> 'exhausted' OR at <= ?2)
            AND turn NOT IN (SELECT id FROM inbox WHERE agent = ?1 AND ended_at IS NULL)
    """,
)
CLEAR = BulkStatement.same("incidents clear", "DELETE FROM incidents WHERE agent = ?")

_STRIKE = Statement.same(
    "boots strike",
    "agent text, at bigint",
    """
        INSERT INTO boots (agent, strikes, at) VALUES (:agent, 1, :at)
        ON CONFLICT (agent) DO UPDATE SET strikes = boots.strikes + 1, at = excluded.at
    """,
    key=1,
)
_UP = Statement.same(
    "boots up",
    "agent text",
    "DELETE FROM boots WHERE boots.agent = :agent",
    key=1,
)
_STRIKES = Query.same("SELECT strikes FROM boots WHERE agent = ?")


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """A stored record; unreadable fields are None."""

    state: State
    cause: str | None
    stash: Any
    held: Any
    incident: Incident | None


class Incidents(ChatPart):
    """The incidents of one agent. Their operations are part of the commits of turns."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._noted: dict[str, None] = {}  # requests that may have a row

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        id = settlement.entry.id
        is_without_turn = settlement.was_running and settlement.turn is None
        if settlement.is_sealed or not (is_without_turn or id in self._noted):
            return
        commit.write((_CLOSE, (self.address, id)))
        commit.then(lambda: self._noted.pop(id, None))

    def cleared(self, commit: Commit) -> None:
        commit.write((CLEAR, (self.address,)))

    def expire(self, commit: Commit, now: int) -> None:
        commit.write((EXPIRE, (self.address, now - KEEP)))

    def noted(self, id: str) -> None:
        """Record that a request may have a row, which its end deletes."""
        self._noted[id] = None

    async def get(self, turn: str) -> IncidentRow | None:
        found = await self.activation.store.fetch(_ONE, self.address, turn)
        if not found:
            return None
        state, cause, stash, held, body = found[0]
        incident = None if state == "noted" else incident_of(_read(body))
        return IncidentRow(state, cause, _read(stash), _read(held), incident)

    async def all(self) -> list[tuple[str, State, Incident, int]]:
        """Return the interrupted turns that have not ended, or were given up."""
        since = self.activation.clock.now() - KEEP
        found = await self.activation.store.fetch(_ALL, self.address, since)
        return [
            (turn, state, incident_of(_read(body)) or Incident(), at)
            for turn, state, body, at in found
        ]

    def record(self, turn: str, incident: Incident, state: State = "open") -> Operation:
        body = json.encode(incident.body)
        return _RECORD, (self.address, turn, state, body, self.activation.clock.now())

    def note_cause(self, turn: str, cause: str) -> Operation:
        self.noted(turn)
        return _CAUSE, (self.address, turn, cause, self.activation.clock.now())

    def note_stash(self, turn: str, data: Any) -> Operation:
        self.noted(turn)
        stash = json.encode(data, "data")
        return _STASH, (self.address, turn, stash, self.activation.clock.now())

    def note_held(self, turn: str, held: str) -> Operation:
        self.noted(turn)
        return _HELD, (self.address, turn, held, self.activation.clock.now())

    # --- boots -----------------------------------------------------------------------------------

    async def unfinished_boots(self) -> int:
        """Return the number of unfinished boots in a row."""
        found = await self.activation.store.fetch(_STRIKES, self.address)
        strikes = found[0][0] if found else 0
        return strikes if isinstance(strikes, int) else 0

    def boot(self) -> Operation:
        """Return the operation that counts a boot."""
        return _STRIKE, (self.address, self.activation.clock.now())

    def up(self) -> Operation:
        """Return the operation that resets the count."""
        return reset_boots(self.address)


def reset_boots(agent: str) -> Operation:
    """Return the operation that resets the count of an agent's unfinished boots."""
    return _UP, (agent,)


def _read(text: str | None) -> Any:
    try:
        return None if text is None else json.decode(text)
    except ValueError:
        return None
