"""Writes frames to the kernel: serialized once for all connections, and tracked until they are read.

Our own protocol (`batching`) accepts a frame as wire bytes, so a hundred sockets share one copy. Any other
ASGI server receives the text, and is tracked as far as it exposes its transport.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Sequence
from typing import Any

from starlette.websockets import WebSocket

_TEXT = 0x81  # the first byte of an unfragmented text frame


class Frame:
    """One frame for any number of connections."""

    __slots__ = ("_wire", "size", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.size = len(text)
        self._wire: bytes | None = None

    @property
    def wire(self) -> bytes:
        """The bytes of the frame, including the header: one unfragmented, unmasked text frame."""
        if self._wire is None:
            payload = self.text.encode(errors="replace")
            size = len(payload)
            if size < 126:
                head = bytes((_TEXT, size))
            elif size < 1 << 16:
                head = bytes((_TEXT, 126)) + size.to_bytes(2)
            else:
                head = bytes((_TEXT, 127)) + size.to_bytes(8)
            self._wire = head + payload
        return self._wire


class FrameTransport:
    """The transport of one client."""

    def __init__(self, socket: WebSocket, send: Any) -> None:
        self._socket = socket
        self._protocol = getattr(send, "__self__", None)  # uvicorn's, unless middleware hides it
        self._send_frame = getattr(self._protocol, "send_frame", None)

    @property
    def transport(self) -> asyncio.Transport | None:
        return getattr(self._protocol, "transport", None)

    @property
    def unread(self) -> int:
        """Bytes written that the client has not received yet, as far as known."""
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    @property
    def unacknowledged(self) -> int:
        """The same for the kernel's buffer, which accepts a lot before it blocks."""
        transport = self.transport
        socket = None if transport is None else transport.get_extra_info("socket")
        if socket is None:
            return 0
        try:
            found = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:  # closed, or unsupported on this system
            return 0
        return int.from_bytes(found, sys.byteorder)

    async def send(self, frames: Sequence[Frame]) -> None:
        """Wait until the client has read the earlier frames, then write these."""
        if self._send_frame is not None:
            await self._send_frame(b"".join([frame.wire for frame in frames]))
        else:
            for frame in frames:
                await self._socket.send_text(frame.text)

    def abort(self) -> None:
        """Drop the client without waiting for it to read."""
        transport = self.transport
        if transport is not None:
            transport.abort()
