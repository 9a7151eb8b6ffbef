"""The plain values of the views. Times are in milliseconds, as stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from outlast.core.errors import OutlastError
from outlast.inspect.timeline import Moment

AgentState = Literal["stuck", "recovering", "answering", "waiting", "working", "idle"]


class NotFound(OutlastError, LookupError):
    """The store contains nothing with that name."""


class Ambiguous(OutlastError, LookupError):
    """More than one id starts with the given text."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent, from its rows."""

    address: str
    kind: str
    name: str
    state: AgentState
    last_activity_at: int | None
    turns: int
    open_turns: int
    running: str | None  # the running request, or the one that ran when its process ended
    messages: int
    fibers: int  # unfinished
    schedules: int
    next_schedule_at: int | None
    incidents: int  # turns that are being recovered
    given_up: int
    strikes: int  # consecutive boots on its own that did not complete


@dataclass(frozen=True, slots=True)
class TurnView:
    """A request to an agent, and its outcome."""

    agent: str
    id: str
    seq: int
    kind: str
    origin: str
    state: str
    outcome: str | None
    error: str | None
    cancelled: str | None
    attempt: int
    key: str | None
    message_id: str | None
    accepted_at: int
    started_at: int | None
    ended_at: int | None
    asked: str  # its first line
    metadata: Any = None


@dataclass(frozen=True, slots=True)
class IncidentView:
    """An interrupted turn: it is being resumed (`open`), was `recovered`, or given up (`exhausted`).

    `continued_ms` is the longest time that its reader waited for the answer to resume.
    """

    agent: str
    turn: str
    state: str
    cause: str
    reason: str | None
    row: int
    attempt: int
    attempts: int
    work: int
    first_seen_at: int
    last_attempt_at: int
    continued_ms: int | None = None
    ended_at: int | None = None


@dataclass(frozen=True, slots=True)
class FiberView:
    id: str
    name: str
    is_managed: bool
    status: str
    error: str | None
    created_at: int
    started_at: int | None
    interrupted_at: int | None
    settled_at: int | None
    tries: int
    retry_at: int | None
    stashes: int
    snapshot: Any


@dataclass(frozen=True, slots=True)
class ScheduleView:
    id: str
    kind: str
    callback: str
    payload: Any
    cron: str | None
    timezone: str | None
    interval: int | None
    created_at: int
    run_at: int
    claimed_at: int | None
    defers: int


@dataclass(frozen=True, slots=True)
class CallView:
    """A row of the ledger."""

    turn: str
    id: str
    name: str
    effect: str
    state: str
    input: Any
    started_at: int
    ended_at: int | None
    key: str | None


@dataclass(frozen=True, slots=True)
class MessageView:
    id: str
    parent: str | None
    number: int
    role: str
    status: str
    turn: str | None
    size: int
    created_at: int
    text: str
    summary: int | None = None  # the number of the newest one in which the model sees the message


@dataclass(frozen=True, slots=True)
class SizeView:
    """The size of a table: rows, and bytes in its large columns."""

    table: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommitView:
    """Chunks that became durable together."""

    seq: int  # of the first chunk
    chunks: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TurnDetails:
    """A turn with its timeline."""

    turn: TurnView
    moments: Sequence[Moment]
    calls: Sequence[CallView]
    incident: IncidentView | None
    chunks: int
    commits: Sequence[CommitView]  # of the stream, in order
    said: str


def as_json(view: Any) -> Any:
    """Convert a view for sending and printing: names in camel case, as everywhere on the wire."""
    if is_dataclass(view) and not isinstance(view, type):
        return {_camel(each.name): as_json(getattr(view, each.name)) for each in fields(view)}
    if isinstance(view, dict):
        return {name: as_json(each) for name, each in view.items()}
    if isinstance(view, list | tuple):
        return [as_json(each) for each in view]
    return view


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
