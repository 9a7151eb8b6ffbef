"""The notices that a chat agent sends to its connections."""

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
    """A request was accepted. Clients see its messages from now on."""

    request_id: str
    kind: str
    shown: Show


@dataclass(frozen=True, slots=True)
class Started(Notice):
    """The turn of a request has begun."""

    request_id: str
    stream: Stream
    continuation: bool
    message_ids: tuple[str, ...]  # of what it answers
    message_id: str  # of the answer
    shown: Show


@dataclass(frozen=True, slots=True)
class Ended(Notice):
    """A request has ended; if its turn had begun, its stream has ended, too."""

    request_id: str
    end: TurnEnd
    started: bool
    shown: Show
    continuation: bool = False
    message_ids: tuple[str, ...] = ()  # of what it answers
    chunks: Sequence[str] = ()  # all chunks of its stream


@dataclass(frozen=True, slots=True)
class MessageUpdated(Notice):
    """A stored message has changed."""

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
    """An interrupted turn is about to continue, or that is over."""

    recovering: bool
    request_id: str | None = None
