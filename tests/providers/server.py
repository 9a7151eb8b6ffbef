"""A small HTTP server that plays a provider of models: it says what a test tells it to, and listens."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from loops import skip

TURNS = 50  # of the loop, in which a client in this process handles what it has read
End = Literal["whole", "drop", "hang"]


@dataclass
class Request:
    """What came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    """What goes out: a body at once, or events one by one."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    events: list[bytes] | None = None
    end: End = "whole"  # "drop": the connection breaks; "hang": nothing more comes
    gap: float = 0.0  # seconds before each event, which are skipped


def refuse(status: int, body: Any, **headers: str) -> Reply:
    return Reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def stream(events: list[bytes], end: End = "whole", gap: float = 0.0) -> Reply:
    return Reply(events=events, end=end, gap=gap)


class Server:
    """Gives its replies in order, the last one again and again."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[Request] = []
        self.hung_up = asyncio.Event()  # the client has left in the middle of an answer
        self.is_streaming = asyncio.Event()
        self.is_hanging = asyncio.Event()  # the client has read all that there is, and waits
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bodies(self) -> list[Any]:
        return [request.body for request in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                if not self.replies:
                    raise AssertionError("the test has no reply for this request")
                reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                if not await self._answer(reply, reader, writer):
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _answer(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection can be used again."""
        if reply.events is None:
            body = json.dumps(reply.body).encode()
            headers = {"content-type": "application/json", "content-length": str(len(body))}
            writer.write(_head(reply.status, headers | reply.headers) + body)
            await writer.drain()
            return True
        headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        writer.write(_head(reply.status, headers | reply.headers))
        watcher = asyncio.create_task(self._watch(reader))
        try:
            for event in reply.events:
                if reply.gap:
                    await _read_by_peer(writer)
                    skip(reply.gap)
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
            self.is_streaming.set()
            if reply.end == "drop":
                await _read_by_peer(writer)
                writer.transport.abort()
                return False
            if reply.end == "hang":
                await _read_by_peer(writer)
                self.is_hanging.set()
                await self.hung_up.wait()
                return False
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        try:
            while not reader.at_eof():
                if not await _peek(reader):
                    break
                return  # the next request, already
        except ConnectionError:
            pass
        self.hung_up.set()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _peek(reader: asyncio.StreamReader) -> bool:
    """Wait until there is something to read, without reading it; False: the other side is gone."""
    while not reader._buffer and not reader.at_eof():  # type: ignore[attr-defined]
        await reader._wait_for_data("peek")  # type: ignore[attr-defined]
    return bool(reader._buffer)  # type: ignore[attr-defined]


async def _read(reader: asyncio.StreamReader) -> Request | None:
    line = await reader.readline()
    if not line:
        return None
    method, path, _ = line.decode().split(" ", 2)
    headers = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, json.loads(raw) if raw else None)


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@asynccontextmanager
async def running() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        listener.close()
        await server.close()


def sse(data: Any, event: str | None = None) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {text}\n\n".encode()


async def _read_by_peer(writer: asyncio.StreamWriter) -> None:
    """Wait until the client, in this event loop, has read and handled all that was sent."""
    while _unread(writer):
        await asyncio.sleep(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _unread(writer: asyncio.StreamWriter) -> bool:
    """Whether anything is in the kernel's buffers, on this side or on that of the client."""
    here, there = (_in_proc(writer.get_extra_info(name)) for name in ("sockname", "peername"))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        sent, received = (int(each, 16) for each in queues.split(":"))
        if ((local, remote) == (here, there) and sent) or (
            (local, remote) == (there, here) and received
        ):
            return True
    return False


def _in_proc(address: tuple[str, int]) -> str:
    """An address as it stands in /proc/net/tcp."""
    return f"{socket.inet_aton(address[0])[::-1].hex().upper()}:{address[1]:04X}"
