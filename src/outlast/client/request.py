"""A request that a caller follows: its chunks, each once and in order, across connections."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.client.errors import MessageTooLarge, TurnFailed
from outlast.client.outgoing import OutgoingFrame
from outlast.core import json

OVERSIZED = "The message is too large"  # the beginning of the server's error


class RetryLater(Exception):
    """The server could not store the request: send it again after some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"retry after {seconds:g} s")
        self.seconds = seconds


class Request:
    """A request, and the state of its answer."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.asks: OutgoingFrame | None = None  # the request frame, until the server responds
        self.chunks: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()
        self.is_refused = False
        self.awaits_replay = False  # live chunks that arrive before the replay are ignored
        self._next = 0  # the seq of the next new chunk

    def refuse(self, error: MessageTooLarge) -> None:
        """Fail it: it is not sent again."""
        self.is_refused = True
        self.chunks.put_nowait(error)

    def hear(self, frame: dict[str, Any]) -> bool:
        """Handle a response frame. Returns whether it contains anything new."""
        wait = frame.get("retryAfter")
        if self.asks is not None and isinstance(wait, int | float):
            self.chunks.put_nowait(RetryLater(wait))
            return True
        was_asked, self.asks = self.asks is not None, None  # accepted or refused
        seq, body = frame.get("seq"), frame.get("body")
        if frame.get("error"):
            self.chunks.put_nowait(_failure(str(body)))
        elif self.awaits_replay and not frame.get("replay"):
            return False  # the replay is about to send everything
        elif frame.get("done"):
            self.chunks.put_nowait(None)
        elif isinstance(body, str) and body and self._is_news(seq):
            self.chunks.put_nowait(json.decode(body))
        else:
            self.awaits_replay = False
            return was_asked
        self.awaits_replay = False
        return True

    def _is_news(self, seq: Any) -> bool:
        """Return whether this chunk is new; a transient one has no seq and is sent once."""
        if seq is None:
            return True
        if not isinstance(seq, int) or seq < self._next:
            return False
        self._next = seq + 1
        return True


def _failure(text: str) -> TurnFailed:
    return MessageTooLarge(text) if text.startswith(OVERSIZED) else TurnFailed(text)
