"""How frames reach the kernel: serialised once for all connections, and watched until they are read.

A server that is ours (`gathering`) takes a frame as the bytes that go over the wire, so a hundred sockets
share one copy. Any other ASGI server gets the text, and is watched as far as it shows its transport.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Sequence
from typing import Any

from starlette.websockets import WebSocket

_TEXT = 0x81  # the first byte of a frame: the last of its message, which is a text


class Frame:
    """One frame for any number of connections."""

    __slots__ = ("_wire", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._wire: bytes | None = None

    def __len__(self) -> int:
        return len(self.text)

    @property
    def wire(self) -> bytes:
        """The bytes of the frame, header included: one text frame, whole and not masked."""
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


class Line:
    """The way to one client."""

    def __init__(self, socket: WebSocket, send: Any) -> None:
        self._socket = socket
        self._protocol = getattr(send, "__self__", None)  # of uvicorn, unless middleware hides it
        self._send_frame = getattr(self._protocol, "send_frame", None)

    @property
    def transport(self) -> asyncio.Transport | None:
        return getattr(self._protocol, "transport", None)

    @property
    def unread(self) -> int:
        """Bytes that were written and that the client has not taken yet, as far as that is known."""
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    @property
    def unacknowledged(self) -> int:
        """The same of what the kernel holds, which takes a lot before it asks for more."""
        transport = self.transport
        socket = None if transport is None else transport.get_extra_info("socket")
        if socket is None:
            return 0
        try:
            found = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:  # closed, or not on this system
            return 0
        return int.from_bytes(found, sys.byteorder)

    async def send(self, frames: Sequence[Frame]) -> None:
        """Wait until the client has read what came before, and write these."""
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
