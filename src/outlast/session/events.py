"""The events of a session."""

from __future__ import annotations

from outlast.core.events import Event


class SessionEvent(Event):
    """Fields of every event of a session."""

    channel = "session"


class SessionCompacted(SessionEvent):
    """The beginning of the conversation is summarised from now on, for the model."""

    name = "session:compacted"
    reason: str  # after, manual, reactive or proactive
    last: str  # the last message that the summary covers
    tokens_before: int
    tokens_after: int


class CompactionFailed(SessionEvent):
    """A compaction raised; the conversation stays as it was."""

    name = "session:compaction:failed"
    severity = "warning"
    error: str


class PromptRefreshed(SessionEvent):
    """The system prompt was rendered anew."""

    name = "session:prompt:refreshed"
    characters: int
