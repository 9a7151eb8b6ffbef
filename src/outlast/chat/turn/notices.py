"""What the connections of a chat agent are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.chat.message.results import TurnEnd
from outlast.chat.stream.stream import Stream
from outlast.chat.transcript.shown import Shown
from outlast.host.notices import Notice

Show = Callable[[], Shown]  # the messages that clients see


@dataclass(frozen=True, slots=True)
class Accepted(Notice):
    """Something was asked. Clients see its messages from now on."""

    request_id: str
    kind: str
    shown: Show


@dataclass(frozen=True, slots=True)
class Started(Notice):
    """Its turn has begun."""

    request_id: str
    stream: Stream
    continuation: bool
    message_ids: tuple[str, ...]  # of what it answers
    message_id: str  # of the answer
    shown: Show


@dataclass(frozen=True, slots=True)
class Ended(Notice):
    """It has ended; if it had started, its stream says so too."""

    request_id: str
    end: TurnEnd
    started: bool
    shown: Show
    continuation: bool = False
    message_ids: tuple[str, ...] = ()  # of what it answers
    chunks: Sequence[str] = ()  # all that its stream holds


@dataclass(frozen=True, slots=True)
class MessageUpdated(Notice):
    """A stored message is not what it was."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TranscriptChanged(Notice):
    """Messages were added, or another branch was selected, without a turn."""

    shown: Show


@dataclass(frozen=True, slots=True)
class Cleared(Notice):
    """The conversation was deleted."""


@dataclass(frozen=True, slots=True)
class Recovering(Notice):
    """A turn that was interrupted is about to go on, or that is over."""

    recovering: bool
    request_id: str | None = None
