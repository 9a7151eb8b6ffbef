"""A turn that somebody follows: its chunks, each once and in order, whatever the connection does."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.client.errors import MessageTooLarge, TurnFailed
from outlast.client.sending import Outgoing
from outlast.core import json

OVERSIZED = "The message is too large"  # how a server refuses one


class Later(Exception):
    """The server could not store the request: it is to be sent again after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"to be sent again after {seconds:g} s")
        self.seconds = seconds


class Request:
    """What was asked for, and what has come of it."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.asks: Outgoing | None = None  # what asks for it, until the server has answered
        self.chunks: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()
        self.is_refused = False
        self.awaits_replay = False  # what is live by then comes too early
        self._next = 0  # the seq of the next chunk that is news

    def refuse(self, error: MessageTooLarge) -> None:
        """It is not sent again."""
        self.is_refused = True
        self.chunks.put_nowait(error)

    def hear(self, frame: dict[str, Any]) -> bool:
        """A response frame. Whether it brings anything new."""
        wait = frame.get("retryAfter")
        if self.asks is not None and isinstance(wait, int | float):
            self.chunks.put_nowait(Later(wait))
            return True
        was_asked, self.asks = self.asks is not None, None  # it was accepted, or refused
        seq, body = frame.get("seq"), frame.get("body")
        if frame.get("error"):
            self.chunks.put_nowait(_failure(str(body)))
        elif self.awaits_replay and not frame.get("replay"):
            return False  # all of it is about to come, from the first chunk on
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
        """Whether this chunk has not come before; a transient one has no place and comes once."""
        if seq is None:
            return True
        if not isinstance(seq, int) or seq < self._next:
            return False
        self._next = seq + 1
        return True


def _failure(text: str) -> TurnFailed:
    return MessageTooLarge(text) if text.startswith(OVERSIZED) else TurnFailed(text)
