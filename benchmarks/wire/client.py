"""A WebSocket client that costs next to nothing: it looks for a few bytes in a frame, and decodes no JSON.

It is the measuring device, so it must not be what is measured: about 1 µs a frame.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from typing import Any

RESPONSE = b'{"type":"cf_agent_use_chat_response"'
DELTA = b'\\"delta\\":\\"'  # as it stands in a frame, whose body is JSON text in a JSON text
DONE = b'"done":true'
REPLAYED = b'"replayComplete":true'
OPEN_TIMEOUT = 20.0
TIMEOUT = 300.0

TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A
KEY = bytes(4)  # a mask is asked for; nobody asks for a good one


class Lost(Exception):
    """A delta was missing or out of order, or the connection has ended."""


def request(id: str, text: str) -> str:
    """The frame with which a browser asks."""
    message = {"id": f"u-{id}", "role": "user", "parts": [{"type": "text", "text": text}]}
    body = json.dumps({"messages": [message], "trigger": "submit-message"})
    init = {"method": "POST", "body": body}
    return json.dumps({"type": "cf_agent_use_chat_request", "id": id, "init": init})


def framed(payload: bytes, opcode: int = TEXT) -> bytes:
    """A frame of a client."""
    size = len(payload)
    head = bytes((opcode, 0x80 | size)) if size < 126 else bytes((opcode, 0xFE))
    return head + (b"" if size < 126 else size.to_bytes(2)) + KEY + payload


class Answer:
    """What is heard of one answer: how many deltas, each in its place, and how late."""

    def __init__(self, *, is_timed: bool = False) -> None:
        self.heard = 0
        self.times: list[tuple[float, float]] = []  # when a delta was heard, and how late
        self._is_timed = is_timed

    def hear(self, data: bytes, at: int, stop: int) -> None:
        """The text of a delta begins there: its number, and when it was made."""
        expected = b"%d " % self.heard
        if not data.startswith(expected, at):
            raise Lost(f"expected delta {self.heard}, got {data[at : at + 20]!r}")
        self.heard += 1
        if self._is_timed:
            at += len(expected)
            made, now = float(data[at : data.index(b" ", at, stop)]), time.perf_counter()
            self.times.append((now, now - made))


class Tab(asyncio.Protocol):
    """A connection to an agent, which waits for one thing at a time."""

    def __init__(self, host: str, path: str, until: bytes = b"") -> None:
        self.received = 0  # bytes
        self._host = host
        self._path = path
        self._until = until  # how the frame begins with which it is open
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] | None = None
        self._ends = DONE
        self._answer = Answer()
        self._rest: list[bytes] = []
        self._missing = 0  # bytes of a frame that has begun
        self._is_open = False

    # --- the connection --------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:  # uvloop's has none of asyncio's types
        self._transport: asyncio.Transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            f"GET {self._path} HTTP/1.1",
            f"Host: {self._host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
            "\r\n",
        )
        transport.write("\r\n".join(lines).encode())

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(Lost(f"the connection has ended: {error}"))

    def _fail(self, lost: Lost) -> None:
        for waiting in (self._opened, self._ended):
            if waiting is not None and not waiting.done():
                waiting.set_exception(lost)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self._rest.append(data)
        self._missing -= len(data)
        if self._missing > 0:  # a large frame is put together once
            return
        data = b"".join(self._rest)
        if not self._is_open:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._rest = [head]
                return
            if b" 101 " not in head:
                self._opened.set_exception(Lost(f"refused: {head[:200]!r}"))
                return
            self._is_open = True
        try:
            self._rest = [data[self._read(data) :]]
        except Lost as lost:
            self._fail(lost)
            self._transport.abort()

    def _read(self, data: bytes) -> int:
        """Every whole frame; returns where the rest begins."""
        at, end, self._missing = 0, len(data), 0
        find = data.find
        while end - at >= 2:
            size, start = data[at + 1], at + 2
            if size >= 126:
                start += 2 if size == 126 else 8
                size = int.from_bytes(data[at + 2 : start])
            stop = start + size
            if stop > end:
                self._missing = stop - end
                break
            if data[at] != TEXT:
                self._control(data[at], data[start:stop])
            elif (delta := find(DELTA, start, stop)) >= 0:
                self._answer.hear(data, delta + len(DELTA), stop)
            else:
                self._other(data, start, stop)
            at = stop
        return at

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._transport.write(framed(payload, PONG))
        elif opcode == CLOSE:
            raise Lost(f"closed: {payload!r}")

    def _other(self, data: bytes, start: int, stop: int) -> None:
        if not self._opened.done() and data.startswith(self._until, start):
            self._opened.set_result(None)  # the server has said who it is, or what was waited for
        if self._ended is None or data.find(self._ends, start, stop) < 0:
            return
        ends_it = data.startswith(RESPONSE, start) or self._ends != DONE
        if ends_it and not self._ended.done():
            self._ended.set_result(None)

    # --- what is asked ---------------------------------------------------------------------------

    @property
    def heard(self) -> int:
        """Deltas of the answer that is being told, or was last."""
        return self._answer.heard

    async def opened(self) -> None:
        """Wait for the first frame."""
        async with asyncio.timeout(OPEN_TIMEOUT):
            await self._opened

    def listen(self, answer: Answer, ends: bytes = DONE) -> asyncio.Future[None]:
        """Hear an answer that somebody asks for; done with the frame that ends it."""
        self._answer = answer
        self._ends = ends
        self._ended = self._loop.create_future()
        return self._ended

    async def send(self, frame: str, answer: Answer, ends: bytes = DONE) -> None:
        """Ask, and hear the answer until the frame that ends it."""
        ended = self.listen(answer, ends)
        self._transport.write(framed(frame.encode()))
        async with asyncio.timeout(TIMEOUT):
            await ended

    async def ask(self, id: str, text: str, deltas: int, *, is_timed: bool = False) -> Answer:
        """One turn, of which nothing may be lost."""
        answer = Answer(is_timed=is_timed)
        await self.send(request(id, text), answer)
        if answer.heard != deltas:
            raise Lost(f"heard {answer.heard} of {deltas} deltas")
        return answer

    def close(self) -> None:
        self._transport.abort()


async def open_tab(port: int, name: str, *, query: str = "", until: bytes = b"") -> Tab:
    """A connection to the agent of this name, which has said its first word, or one that begins like that."""
    host = f"127.0.0.1:{port}"
    path = f"/agents/chat/{name}{query}"
    loop = asyncio.get_running_loop()
    _, tab = await loop.create_connection(lambda: Tab(host, path, until), "127.0.0.1", port)
    await tab.opened()
    return tab
