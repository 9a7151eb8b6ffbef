"""Deadlines for the headers and the body of a request.

Without them, a client that sends one byte now and then could hold a connection, and everything that waits
for its request, for as long as it likes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

SLOWEST = 16 * 1024  # bytes per second; a body at this rate may be of any size
TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TooSlow(Exception):
    """The body of a request did not arrive in time."""


class TimedReceive:
    """An ASGI `receive` with a deadline: the body may take `within` seconds, plus one per 16 KiB received."""

    def __init__(self, receive: Receive, within: float) -> None:
        self._receive = receive
        self._within = within
        self._ahead: deque[Message] = deque()
        self._began: float | None = None  # on the loop's clock
        self._size = 0
        self._is_over = False  # the body is complete

    async def __call__(self) -> Message:
        return self._ahead.popleft() if self._ahead else await self._next()

    async def read_ahead(self, most: int) -> None:
        """Wait for the body, so that nothing else has to; of a larger one, for the first `most` bytes."""
        while not self._is_over and self._size <= most:
            message = await self._next()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._ahead.append(message)

    async def _next(self) -> Message:
        if self._is_over:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        self._began = now if self._began is None else self._began
        deadline = asyncio.timeout_at(self._began + self._within + self._size / SLOWEST)
        try:
            async with deadline:
                message = await self._receive()
        except TimeoutError:
            if deadline.expired():
                raise TooSlow("The body of the request did not arrive in time.") from None
            raise
        self._size += len(message.get("body", b""))
        self._is_over = not message.get("more_body", False)
        return message


def protocol(within: float) -> Any:
    """uvicorn's HTTP protocol with a deadline of `within` seconds for request headers: pass it as `http=`.

    The handshake of a WebSocket begins as an HTTP request, so the deadline covers it, too.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class DeadlineProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _deadline: asyncio.TimerHandle | None = None
        _is_upgraded = False
        _has_begun = False  # the first bytes of a request arrived

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_headers()

        def data_received(self, data: bytes) -> None:
            self._has_begun = True
            super().data_received(data)
            if self._is_upgraded:
                return
            if self.cycle is None or self.cycle.response_complete:
                self._await_headers()
            else:
                self._have_headers()

        def handle_websocket_upgrade(self, *request: Any) -> None:
            self._is_upgraded = True
            self._have_headers()
            super().handle_websocket_upgrade(*request)

        def connection_lost(self, error: Exception | None) -> None:
            self._have_headers()
            super().connection_lost(error)

        def _await_headers(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(within, self._time_out)

        def _have_headers(self) -> None:
            self._has_begun = False
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _time_out(self) -> None:
            if self.transport.is_closing():
                return
            if self._has_begun:  # otherwise a browser opened the connection in advance
                self.transport.write(TIMED_OUT)
            self.transport.close()

    return DeadlineProtocol
