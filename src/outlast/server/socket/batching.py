"""Combines the frames of one event loop tick into one write.

A commit makes many chunks durable at once, and each is a frame of its own. uvicorn passes every frame to the
kernel separately, which costs more than everything else that happens to it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.server.socket.frames import Responses
from outlast.server.socket.long_requests import request_id
from outlast.server.socket.transport import Frame

BEGINNING = 1024  # bytes to keep of a message that is too large
DISCARDING = 10.0  # seconds for a client to stop sending such a message
MOST_WAITING = 64 * 1024  # bytes; then the transport applies back pressure


class BatchingTransport:
    """A transport that delays its writes until the end of the tick."""

    __slots__ = ("_loop", "_size", "_transport", "_waiting")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= MOST_WAITING:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting:
            self._transport.write(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._waiting, self._size = [], 0
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def beginning(arrived: bytes) -> bytes:
    """Return the beginning of the last, incomplete frame that a client sent. Pure."""
    at, size = 0, len(arrived)
    while size - at >= 6:
        head = 2 + {126: 2, 127: 8}.get(arrived[at + 1] & 0x7F, 0)
        short = arrived[at + 1] & 0x7F
        length = short if head == 2 else int.from_bytes(arrived[at + 2 : at + head])
        start = at + head + 4
        mask, masked = arrived[start - 4 : start], arrived[start : start + BEGINNING]
        if start + length > size:
            return bytes(each ^ mask[place % 4] for place, each in enumerate(masked))
        at = start + length
    return b""


def protocol() -> Any:
    """uvicorn's WebSocket protocol over such a transport: `uvicorn.run(app, ws=protocol())`."""
    try:
        from uvicorn.protocols.utils import ClientDisconnected
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
        from websockets.exceptions import InvalidState, PayloadTooBig
    except ImportError:  # an older uvicorn, or one without websockets: use its own protocol
        return "auto"

    class BatchingProtocol(WebSocketsSansIOProtocol):
        _arrived = b""  # the last data received
        _is_discarding = False  # incoming data is discarded

        def connection_made(self, transport: Any) -> None:
            super().connection_made(BatchingTransport(transport, asyncio.get_running_loop()))  # type: ignore[arg-type]

        async def send_frame(self, data: bytes) -> None:
            """Send a text frame that was serialized once for all connections."""
            await self.writable.wait()
            if self.disconnected or self.close_sent:
                raise ClientDisconnected
            self.transport.write(data)

        def keepalive_timeout(self) -> None:
            """Keep a slow client: the ping waits behind frames that it is still reading.

            `unread` drops clients that stopped reading.
            """
            if self.transport.get_write_buffer_size() and self.ping_timeout is not None:
                self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            else:
                super().keepalive_timeout()

        def data_received(self, data: bytes) -> None:
            if self._is_discarding:
                return
            kept = self.conn.reader.buffer
            self._arrived = data if not kept else bytes(kept) + data if len(kept) < 1024 else b""
            super().data_received(data)

        def handle_parser_exception(self) -> None:
            """Close the connection on an oversized frame, after telling the client which one it was.

            The client continues to send, and would not receive anything if the connection were reset
            meanwhile.
            """
            if not isinstance(self.conn.parser_exc, PayloadTooBig):
                return super().handle_parser_exception()
            first = bytes(self.frames[0][:BEGINNING]) if self.frames else b""
            id = request_id((first or beginning(self._arrived)).decode(errors="replace"))
            if id is not None:
                most = self.config.ws_max_size
                text = f"The message is too large: the limit is {most:,} bytes."
                self.transport.write(Frame(Responses(id, continuation=False).error(text)).wire)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1009, "reason": ""})
            self.close_sent = self._is_discarding = True
            self.close_timer = self.loop.call_later(DISCARDING, self.transport.close)
            return None

        def shutdown(self) -> None:
            """Ignore a client that is closing at the same time, so that the server stops in order."""
            try:
                super().shutdown()
            except InvalidState:  # uvicorn closed it twice
                self.transport.close()

    return BatchingProtocol
