"""The events of a turn's beginning and end."""

from __future__ import annotations

from outlast.agent.part import Parts
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.results import TurnEnd
from outlast.chat.types import events


def tell_start(parts: Parts, entry: EntryRow, parent: str | None = None) -> None:
    """Emit the events of a claimed turn; `parent` is the trace of its first attempt."""
    emit, agent = parts.activation.events.emit, parts.activation.address.text
    emit(events.InboxClaimed, agent, entry.id, entry.kind)
    if parts[Inbox].origins[entry.origin].is_listed:
        emit(events.SubmissionChanged, agent, entry.id, "running")
    emit(
        events.TurnStarted,
        agent,
        entry.id,
        trigger=entry.kind,
        admission=entry.origin,
        continuation=entry.kind == "continue",
        attempt=entry.attempt,
        parent=parent,
    )


def tell_end(parts: Parts, entry: EntryRow, end: TurnEnd) -> None:
    """Emit the events of an ended entry, with or without a turn."""
    emit, agent, status = parts.activation.events.emit, parts.activation.address.text, end.status
    error = entry.detail or end.error  # events are for operators
    if entry.started_at is not None:
        took = parts.activation.clock.now() - entry.started_at
        emit(events.TurnFinished, agent, entry.id, status, took, error)
    if end.message is not None:
        emit(events.MessageResponse, agent, entry.id, end.message.id)
    if status == "aborted":
        emit(events.MessageCancelled, agent, entry.id)
    if parts[Inbox].origins[entry.origin].is_listed:
        emit(events.SubmissionChanged, agent, entry.id, status)
        if status == "error":
            emit(events.SubmissionFailed, agent, entry.id, error or "")
    emit(events.InboxAcked, agent, entry.id, entry.kind, status)
