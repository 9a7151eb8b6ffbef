"""One WebSocket: what it is owed, in order, and never more than it can take."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Any

from starlette.websockets import WebSocket, WebSocketState

logger = logging.getLogger("outlast.server")

MAX_BUFFER = 8 * 1024 * 1024  # characters that may wait for a slow reader before it is dropped
TRY_AGAIN = 1013  # the close code after which clients come back by themselves


class Connection:
    """A client's socket. Sending never waits; a reader that is too slow is disconnected, and can resume."""

    def __init__(
        self,
        socket: WebSocket,
        id: str,
        *,
        principal: Any = None,
        read_only: bool = False,
        max_buffer: int = MAX_BUFFER,
    ) -> None:
        self.id = id
        self.principal = principal
        self.read_only = read_only
        self.state: dict[str, Any] = {}  # for the application
        self.offered: str | None = None  # the request that it was told to resume, and has not yet
        self.parked = False  # it is to hear of a turn that has not started
        self.probing = False  # it has asked for that, and waits for an answer
        self._socket = socket
        self._max_buffer = max_buffer
        self._waiting: deque[str] = deque()
        self._size = 0
        self._wakes: asyncio.Future[None] | None = None
        self._closing: tuple[int, str] | None = None

    @property
    def url(self) -> Any:
        return self._socket.url

    @property
    def query(self) -> Any:
        return self._socket.query_params

    @property
    def is_closing(self) -> bool:
        return self._closing is not None

    def send(self, text: str) -> None:
        """Queue a frame."""
        if self._closing is not None:
            return
        self._waiting.append(text)
        self._size += len(text)
        if self._size > self._max_buffer:
            logger.warning("a client reads too slowly and is disconnected; it can resume")
            self._waiting.clear()
            self.close(TRY_AGAIN, "too slow")
        self._wake()

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close it, after what is queued."""
        if self._closing is None:
            self._closing = (code, reason)
            self._wake()

    def _wake(self) -> None:
        if self._wakes is not None and not self._wakes.done():
            self._wakes.set_result(None)

    async def write(self) -> None:
        """Send what is queued, until the socket is closed. One task per connection."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                while self._waiting:
                    text = self._waiting.popleft()
                    self._size -= len(text)
                    await self._socket.send_text(text)
                if self._closing is not None:
                    code, reason = self._closing
                    with contextlib.suppress(Exception):
                        await self._socket.close(code, reason)
                    return
                self._wakes = loop.create_future()
                await self._wakes
        except Exception:  # it is gone; whoever reads from it learns that too
            self._closing = self._closing or (1006, "")
            self._waiting.clear()

    @property
    def is_open(self) -> bool:
        return self._socket.client_state is WebSocketState.CONNECTED
