"""Agents, turns, incidents and the rest, as plain values: for the command line, HTTP and the inspector.

Each function reads what it needs from an open store or a reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.reducer import text_of
from outlast.chat.recovery import sql as decision_rows
from outlast.chat.recovery.boot import MAX_STRIKES, strikes_of
from outlast.chat.recovery.budget import Incident, incident_of
from outlast.chat.stream import sql as stream_rows
from outlast.chat.stream.stream import chunks_of
from outlast.core import json
from outlast.host.address import Address
from outlast.inspect import rows
from outlast.inspect.summaries import summaries
from outlast.inspect.timeline import (
    CallFacts,
    DecisionFacts,
    IncidentFacts,
    Piece,
    TurnRows,
    timeline,
)
from outlast.inspect.values import (
    AgentState,
    AgentView,
    Ambiguous,
    CallView,
    CommitView,
    FiberView,
    IncidentView,
    MessageView,
    NotFound,
    ScheduleView,
    SizeView,
    TurnDetails,
    TurnView,
)
from outlast.inspect.words import short
from outlast.store.catalogue import Reader, columns_of, owned_tables
from outlast.store.schema import FOUNDATION

PAGE = 100
DECISIONS_READ = 20_000  # the newest decisions about interruptions
LATEST = 1 << 62  # larger than any time or number
LARGE_TYPES = ("text", "blob", "bytea")  # column types of both engines


# --- agents --------------------------------------------------------------------------------------


async def kinds(reader: Reader) -> list[str]:
    """Return the classes of the stored agents."""
    return [kind for (kind,) in await reader.fetch(rows.KINDS)]


async def agents(reader: Reader, *, after: str = "", limit: int = PAGE) -> list[AgentView]:
    """Return the agents after a root's address, in order of their addresses, each with its sub-agents.

    `limit` counts roots.
    """
    roots = [text for text, _, _ in await reader.fetch(rows.ROOTS, after, limit)]
    if not roots:
        return []
    known = {text: [text] for text in roots}
    for parent, kind, name in await reader.fetch(rows.CHILDREN, roots[0], f"{roots[-1]}0"):
        root = "/".join(parent.split("/")[:2])
        if root in known:
            known[root].append(f"{parent}/{quote(kind, safe='')}/{name}")
    everyone = [text for texts in known.values() for text in sorted(texts)]
    found: list[AgentView] = []
    for place in range(0, len(everyone), PAGE):
        found += await _viewed(reader, everyone[place : place + PAGE])
    return found


async def agent(reader: Reader, address: Address) -> AgentView:
    """Return one agent; `NotFound` if nothing of it is stored."""
    if not await exists(reader, address):
        raise NotFound(f"no agent {address} in this store")
    return (await _viewed(reader, [address.text]))[0]


async def exists(reader: Reader, address: Address) -> bool:
    """Return whether anything of an agent is stored."""
    if not await reader.fetch(rows.ROOT, address.root.text):
        return False
    if address.parent is None:
        return True
    low, high = address.parent.text, f"{address.parent.text}0"
    children = await reader.fetch(rows.CHILDREN, low, high)
    return any(f"{p}/{quote(kind, safe='')}/{name}" == address.text for p, kind, name in children)


async def _viewed(reader: Reader, texts: Sequence[str]) -> list[AgentView]:
    count = len(texts)

    async def by_agent(query: Any) -> dict[str, tuple[Any, ...]]:
        return {row[0]: row[1:] for row in await reader.fetch(query, *texts)}

    turns_of = await by_agent(rows.turns_of(count))
    messages_of = await by_agent(rows.messages_of(count))
    fibers_of = await by_agent(rows.fibers_of(count))
    schedules_of = await by_agent(rows.schedules_of(count))
    boots = await by_agent(rows.boots_of(count))
    opened: dict[str, list[tuple[str, str]]] = {}
    for text, id, state in await reader.fetch(rows.open_entries(count), *texts):
        opened.setdefault(text, []).append((id, state))
    incidents_of = {
        (text, state): number
        for text, state, number in await reader.fetch(rows.incidents_of(count), *texts)
    }
    found = []
    for text in texts:
        path = Address.parse(text)
        turns, turned_at = turns_of.get(text, (0, None))
        messages, said_at = messages_of.get(text, (0, None))
        fibers, worked_at = fibers_of.get(text, (0, None))
        schedules, next_at = schedules_of.get(text, (0, None))
        (unfinished,) = boots.get(text, (0,))
        strikes = strikes_of(unfinished)
        is_open = opened.get(text, [])
        running = next((id for id, state in is_open if state == "running"), None)
        recovering = incidents_of.get((text, "open"), 0)
        found.append(
            AgentView(
                address=text,
                kind=path.kind,
                name=path.name,
                state=_state(strikes, recovering, running, len(is_open), fibers),
                last_activity_at=max(filter(None, (turned_at, said_at, worked_at)), default=None),
                turns=turns,
                open_turns=len(is_open),
                running=running,
                messages=messages,
                fibers=fibers,
                schedules=schedules,
                next_schedule_at=next_at,
                incidents=recovering,
                given_up=incidents_of.get((text, "exhausted"), 0),
                strikes=strikes,
            )
        )
    return found


def _state(
    strikes: int, recovering: int, running: str | None, is_open: int, fibers: int
) -> AgentState:
    if strikes >= MAX_STRIKES:
        return "stuck"
    if recovering:
        return "recovering"
    if running is not None:
        return "answering"
    if is_open:
        return "waiting"
    return "working" if fibers else "idle"


# --- turns ---------------------------------------------------------------------------------------


async def turns(
    reader: Reader,
    address: Address | None = None,
    *,
    only_open: bool = False,
    only_submissions: bool = False,
    before: int = LATEST,
    limit: int = 50,
) -> list[TurnView]:
    """Return turns, newest first, of one agent or of all. `before` is a time of acceptance."""
    query = rows.turns(
        of_agent=address is not None, only_open=only_open, only_submissions=only_submissions
    )
    given = [] if address is None else [address.text]
    found = [
        (row[0], EntryRow(*row[1:])) for row in await reader.fetch(query, *given, before, limit)
    ]
    asked = await _asked(reader, found)
    return [_turn(text, entry, asked.get((text, entry.id), "")) for text, entry in found]


async def find_turn(reader: Reader, id: str) -> tuple[Address, str]:
    """Find a turn by its id, or by a unique beginning of it. Returns its agent and its whole id."""
    found = await reader.fetch(rows.FIND_TURN, len(id), id)
    exact = [(text, each) for text, each in found if each == id]
    candidates = exact or found
    if not candidates:
        raise NotFound(f"no turn {id!r} in this store; entries are kept for thirty days")
    if len(candidates) > 1:
        some = ", ".join(f"{each} of {text}" for text, each in candidates[:5])
        raise Ambiguous(f"more than one turn starts with {id!r}: {some}")
    text, whole = candidates[0]
    return Address.parse(text), whole


async def turn_rows(
    reader: Reader, address: Address, id: str, *, is_hosted: bool | None = None
) -> TurnRows:
    """Read everything that is stored about a turn."""
    text = address.text
    found = await reader.fetch(rows.TURN, text, id)
    if not found:
        raise NotFound(f"{address} has no turn {id!r}; entries are kept for thirty days")
    entry = EntryRow(*found[0])
    pieces = [
        Piece(seq, attempt, body.split("\n"))
        for seq, attempt, body in await reader.fetch(stream_rows.OF_TURN, text, id)
    ]
    calls = [CallFacts(*row) for row in await reader.fetch(rows.CALLS, text, id)]
    decisions = [_decision(*row) for row in await reader.fetch(decision_rows.OF_TURN, text, id)]
    incident = None
    for state, cause, body, at in await reader.fetch(rows.INCIDENT, text, id):
        incident = IncidentFacts(state, cause, incident_of(_read(body)) or Incident(), at)
    asked = await _asked(reader, [(text, entry)], most=None)
    said = ""
    if entry.message_id is not None:
        for _, body in await reader.fetch(rows.bodies(1), text, entry.message_id):
            said = _text(_read(body))
    ((before,),) = await reader.fetch(rows.OPEN_BEFORE, text, entry.seq)
    return TurnRows(
        agent=text,
        entry=entry,
        pieces=pieces,
        calls=calls,
        decisions=decisions,
        incident=incident,
        asked=asked.get((text, id), ""),
        said=said,
        is_hosted=is_hosted,
        before=before,
    )


async def turn(
    reader: Reader, address: Address, id: str, *, is_hosted: bool | None = None
) -> TurnDetails:
    """Return a turn with its timeline."""
    found = await turn_rows(reader, address, id, is_hosted=is_hosted)
    known = found.incident
    return TurnDetails(
        turn=_turn(found.agent, found.entry, found.asked),
        moments=timeline(found),
        calls=[_call(id, call) for call in found.calls],
        incident=(
            None
            if known is None or known.state == "noted"
            else _incident(found.agent, id, known.state, known.incident, known.at)
        ),
        chunks=sum(len(piece.chunks) for piece in found.pieces),
        commits=[CommitView(each.seq, len(each.chunks), each.attempt) for each in found.pieces],
        said=found.said,
    )


async def chunks(reader: Reader, address: Address, id: str) -> list[dict[str, Any]]:
    """Return the raw chunks of a turn, each with its seq, while they are kept."""
    found = await reader.fetch(stream_rows.OF_TURN, address.text, id)
    return [
        {"seq": seq, "attempt": attempt, "chunk": _read(text) if text else None}
        for first, attempt, body in found
        for seq, text in enumerate(chunks_of([(0, body)]), first)
    ]


async def _asked(
    reader: Reader, found: Sequence[tuple[str, EntryRow]], most: int | None = 200
) -> dict[tuple[str, str], str]:
    """Return the text of the requests, from the entry or from the transcript."""
    texts: dict[tuple[str, str], str] = {}
    wanted: dict[str, dict[str, list[str]]] = {}
    for agent, entry in found:
        if entry.messages is not None:
            said = [_text(message) for message in _listed(_read(entry.messages))]
            texts[agent, entry.id] = " ".join(said)
        elif entry.target is not None:
            wanted.setdefault(agent, {}).setdefault(entry.target, []).append(entry.id)
    for agent, targets in wanted.items():
        ids = list(targets)
        for place in range(0, len(ids), PAGE):
            some = ids[place : place + PAGE]
            for id, body in await reader.fetch(rows.bodies(len(some)), agent, *some):
                for turn_id in targets[id]:
                    texts[agent, turn_id] = _text(_read(body))
    return texts if most is None else {key: short(text, most) for key, text in texts.items()}


def _turn(text: str, entry: EntryRow, asked: str) -> TurnView:
    return TurnView(
        agent=text,
        id=entry.id,
        seq=entry.seq,
        kind=entry.kind,
        origin=entry.origin,
        state=entry.state,
        outcome=entry.outcome,
        error=entry.detail or entry.error,
        cancelled=entry.cancelled,
        attempt=entry.attempt,
        key=entry.key,
        message_id=entry.message_id,
        accepted_at=entry.accepted_at,
        started_at=entry.started_at,
        ended_at=entry.ended_at,
        asked=asked,
        metadata=_read(entry.metadata),
    )


def _decision(attempt: int, body: str, at: int) -> DecisionFacts:
    known = _read(body)
    known = known if isinstance(known, dict) else {}
    waited, seam = known.get("continued_ms"), known.get("seam")
    return DecisionFacts(
        attempt=attempt,
        row=int(known.get("row", 0)),
        action=str(known.get("action", "")),
        why=str(known.get("why", "")),
        cause=str(known.get("cause", "unknown")),
        produced=int(known.get("produced", 0)),
        at=at,
        continued_ms=waited if isinstance(waited, int) else None,
        seam=seam if isinstance(seam, dict) else None,
    )


# --- incidents, and the rest of one agent --------------------------------------------------------


async def incidents(
    reader: Reader, address: Address | None = None, *, limit: int = 500
) -> list[IncidentView]:
    """Return the turns that were interrupted and have not ended, or were given up; oldest first."""
    given = [] if address is None else [address.text]
    found = await reader.fetch(rows.incidents(of_agent=address is not None), *given, limit)
    return [
        _incident(text, id, state, incident_of(_read(body)) or Incident(), at)
        for text, id, state, _, body, at in found
    ]


async def interruptions(
    reader: Reader, address: Address | None = None, *, limit: int = 500
) -> list[IncidentView]:
    """Return every interrupted turn, including recovered ones, while their entries are kept.

    Oldest first. Turns that have not ended come from the incidents, the others from the decisions.
    """
    given = [] if address is None else [address.text]
    query = rows.decisions(of_agent=address is not None)
    decided: dict[tuple[str, str], list[tuple[DecisionFacts, str | None, int | None]]] = {}
    for text, id, attempt, body, at, outcome, ended_at in await reader.fetch(
        query, *given, DECISIONS_READ
    ):
        fact = _decision(attempt, body, at)
        decided.setdefault((text, id), []).append((fact, outcome, ended_at))
    found = {(each.agent, each.turn): each for each in await incidents(reader, address)}
    for (text, id), facts in decided.items():
        known = found.get((text, id))
        waits = [fact.continued_ms for fact, _, _ in facts if fact.continued_ms is not None]
        waited = max(waits, default=None)
        last, outcome, ended_at = facts[0]
        if known is not None:
            found[text, id] = replace(known, continued_ms=waited, ended_at=ended_at)
            continue
        state = "open" if ended_at is None else ended_as(last.action, outcome)
        found[text, id] = IncidentView(
            agent=text,
            turn=id,
            state=state,
            cause=last.cause,
            reason=last.why if state == "exhausted" else None,
            row=last.row,
            attempt=len(facts),
            attempts=len(facts),
            work=max(0, last.produced - facts[-1][0].produced),
            first_seen_at=facts[-1][0].at,
            last_attempt_at=last.at,
            continued_ms=waited,
            ended_at=ended_at,
        )
    oldest_first = sorted(found.values(), key=lambda each: (each.last_attempt_at, each.agent))
    return oldest_first[-limit:]


def ended_as(action: str, outcome: str | None) -> str:
    """Return whether an interrupted turn that ended was `recovered`, or given up: `exhausted`.

    ```python
    from outlast.inspect.views import ended_as
    assert ended_as("continue", "completed") == "recovered"
    assert ended_as("continue", "error") == "exhausted"
    ```
    """
    is_lost = action in ("seal", "stop") or outcome in ("error", "interrupted")
    return "exhausted" if is_lost else "recovered"


def _incident(text: str, id: str, state: str, known: Incident, at: int) -> IncidentView:
    return IncidentView(
        agent=text,
        turn=id,
        state=state,
        cause=known.cause,
        reason=known.reason,
        row=known.row,
        attempt=known.attempt,
        attempts=known.attempts,
        work=known.work,
        first_seen_at=known.first_seen_at or at,
        last_attempt_at=known.last_attempt_at or at,
    )


async def fibers(reader: Reader, address: Address, *, limit: int = PAGE) -> list[FiberView]:
    """Return the fibers of an agent, newest first."""
    found = await reader.fetch(rows.FIBERS, address.text, limit)
    made: list[FiberView] = []
    for id, name, managed, *rest, snapshot in found:
        values = (id, name, bool(managed), *rest, _read(snapshot))
        made.append(FiberView(*values))
    return made


async def schedules(reader: Reader, address: Address, *, limit: int = PAGE) -> list[ScheduleView]:
    """Return the schedules of an agent, the next one first."""
    found = await reader.fetch(rows.SCHEDULES, address.text, limit)
    return [
        ScheduleView(id, kind, callback, _read(payload), *rest)
        for id, kind, callback, payload, *rest in found
    ]


async def ledger(reader: Reader, address: Address, *, limit: int = PAGE) -> list[CallView]:
    """Return the tool calls of an agent, newest first, while they are kept."""
    found = await reader.fetch(rows.LEDGER, address.text, limit)
    return [_call(row[0], CallFacts(*row[1:])) for row in found]


def _call(turn: str, call: CallFacts) -> CallView:
    return CallView(
        turn=turn,
        id=call.id,
        name=call.name,
        effect=call.effect,
        state=call.state,
        input=_read(call.input),
        started_at=call.started_at,
        ended_at=call.ended_at,
        key=call.key,
    )


async def messages(
    reader: Reader, address: Address, *, before: int = LATEST, limit: int = 50
) -> list[MessageView]:
    """Return the messages of all branches, newest first. `before` is a number."""
    found = await reader.fetch(rows.MESSAGES, address.text, before, limit)
    known = await summaries(reader, address, {id: parent for id, parent, *_ in found})
    made: list[MessageView] = []
    for *stored, body in found:
        values = (*stored, short(_text(_read(body)), 500), known.get(stored[0]))
        made.append(MessageView(*values))
    return made


async def sizes(reader: Reader, address: Address | None = None) -> list[SizeView]:
    """Return how much is stored, by table: of one agent, or of all."""
    given = [] if address is None else [address.text]
    owned = await owned_tables(reader)
    found = []
    for table, columns in (rows.LARGE | await _large_of_batteries(reader, owned)).items():
        query = rows.size_of(table, columns, of_agent=owned[table] if given else None)
        ((count, size),) = await reader.fetch(query, *given)
        found.append(SizeView(table, count, size))
    return found


async def _large_of_batteries(reader: Reader, owned: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the tables of batteries that contain rows of agents, with their columns that can be large."""
    theirs = [table for table in owned if table not in FOUNDATION.owned]
    columns = await columns_of(reader) if theirs else {}
    return {
        table: [f'"{name}"' for name, kind in columns[table].items() if kind in LARGE_TYPES]
        for table in theirs
    }


def _read(text: str | None) -> Any:
    try:
        return None if text is None else json.decode(text)
    except ValueError:
        return None


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def _text(message: Any) -> str:
    return text_of(message) if isinstance(message, dict) else ""
