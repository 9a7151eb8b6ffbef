"""Frames that are sent in one tick of the event loop leave in one piece.

A commit makes many chunks durable at once, and each is a frame of its own. uvicorn hands every frame to the
kernel by itself, which costs more than everything else that happens to it.
"""

from __future__ import annotations

import asyncio
from typing import Any

MOST_WAITING = 64 * 1024  # bytes; then the transport decides whether its reader keeps up


class Gathered:
    """A transport whose writes wait for the end of the tick."""

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


def protocol() -> Any:
    """uvicorn's WebSocket protocol over such a transport: `uvicorn.run(app, ws=protocol())`."""
    try:
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
        from websockets.exceptions import InvalidState
    except ImportError:  # an older uvicorn, or one without websockets: its own choice
        return "auto"

    class GatheringProtocol(WebSocketsSansIOProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(Gathered(transport, asyncio.get_running_loop()))  # type: ignore[arg-type]

        def shutdown(self) -> None:
            """One whose client is just leaving by itself must not keep the server from stopping in order."""
            try:
                super().shutdown()
            except InvalidState:  # uvicorn closes it a second time
                self.transport.close()

    return GatheringProtocol
