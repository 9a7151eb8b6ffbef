"""The interface for operators: interrupted turns, and the calls that end, retry or release them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from outlast.chat.recovery.budget import Incident
from outlast.chat.recovery.incidents import State
from outlast.core.clock import to_datetime

SEALED = "An operator ended this turn."
CALLS = frozenset({"list_incidents", "seal_incident", "retry_incident", "release", "cancel_chat"})
"""The methods that may be called through the admin socket of a host."""


@dataclass(frozen=True, slots=True)
class RecoveryIncident:
    """An interrupted turn: it continues (`open`), or was given up (`exhausted`)."""

    request_id: str
    state: Literal["open", "exhausted"]
    cause: str
    reason: str | None  # why it was given up
    attempt: int  # in a row without progress
    attempts: int
    work: int  # chunks since the first interruption
    row: int  # of the decision table
    first_seen_at: datetime
    last_attempt_at: datetime


def to_incidents(found: Iterable[tuple[str, State, Incident, int]]) -> list[RecoveryIncident]:
    """Convert rows for operators, oldest first."""
    return [
        RecoveryIncident(
            request_id=turn,
            state="exhausted" if state == "exhausted" else "open",
            cause=incident.cause,
            reason=incident.reason,
            attempt=incident.attempt,
            attempts=incident.attempts,
            work=incident.work,
            row=incident.row,
            first_seen_at=to_datetime(incident.first_seen_at or at),
            last_attempt_at=to_datetime(incident.last_attempt_at or at),
        )
        for turn, state, incident, at in found
    ]
