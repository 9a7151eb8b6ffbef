"""A proxy between a store and PostgreSQL that cuts a connection at a chosen statement."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Literal
from urllib.parse import parse_qs, urlsplit

# What is lost at the statement: itself; its answer, once the server has sent it; or the connection at
# once, while the server goes on executing; or, without a word, all that is sent from then on ("silence").
Loss = Literal["statement", "answer", "connection", "silence"]


class Proxy:
    """Forwards messages, and understands just enough of them to know which SQL is executed."""

    def __init__(self, server_socket: str) -> None:
        self._server_socket = server_socket
        self._plan: tuple[str, Loss] | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.has_cut = asyncio.Event()
        self.refused = 0
        self.opened = 0  # connections that were let through
        self.without: tuple[str, ...] = ()  # start-up parameters that are dropped on the way
        self.down: str | None = None  # "" : new connections are dropped; or refused with this code

    def cut_at(self, sql: str, lose: Loss, *, stay_down: str | None = None) -> None:
        """Cut the next connection that executes a statement that starts with `sql`."""
        self._plan = (sql, lose)
        self._stay_down = stay_down
        self.has_cut.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        self._clients.add(writer)
        try:
            if self.down is None:
                self.opened += 1
                await _Link(self, reader, writer).run(self._server_socket)
            else:
                self.refused += 1
                if self.down:
                    await _message(reader, typed=False)
                    writer.write(_refusal(self.down))
        finally:
            self._links.discard(task)
            self._clients.discard(writer)
            writer.close()

    def is_time_to_cut(self, sql: str) -> Loss | None:
        if self._plan is None or not sql.strip().startswith(self._plan[0]):
            return None
        (_, lose), self._plan = self._plan, None
        self.down = self._stay_down
        return lose

    def cut_all(self) -> None:
        """Lose every connection that there is."""
        for writer in self._clients:
            writer.transport.abort()

    def stop(self) -> None:
        for task in self._links:
            task.cancel()


class _Link:
    """One client connection, and the server connection behind it."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client, self._to_client = reader, writer
        self._lost: Loss | None = None
        self._prepared: dict[bytes, str] = {}
        self._bound = ""

    async def run(self, server_socket: str) -> None:
        server, to_server = await asyncio.open_unix_connection(server_socket)
        upward = asyncio.create_task(self._upward(to_server))
        downward = asyncio.create_task(self._downward(server))
        try:
            await asyncio.wait([upward, downward], return_when=asyncio.FIRST_COMPLETED)
            if self._lost:
                self._to_client.close()
                self._proxy.has_cut.set()
            if self._lost == "connection":
                await asyncio.wait([downward])
        finally:
            upward.cancel()
            downward.cancel()
            to_server.close()

    async def _upward(self, to_server: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            start = await _message(self._client, typed=False)
            to_server.write(_without(start, self._proxy.without))
            while True:
                message = await _message(self._client)
                self._lost = self._lost or self._proxy.is_time_to_cut(self._executed(message))
                if self._lost == "silence":
                    self._proxy.has_cut.set()
                    continue
                if self._lost == "statement":
                    return
                to_server.write(message)
                if self._lost == "connection" and message[:1] in b"SQ":
                    return

    async def _downward(self, server: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                message = await _message(server)
                if self._lost is None:
                    self._to_client.write(message)
                elif self._lost == "silence":
                    continue
                elif message[:1] == b"Z":  # the server has answered, and is ready for the next
                    return

    def _executed(self, message: bytes) -> str:
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return body[:-1].decode()
        if kind == b"P":
            name, sql, *_ = body.split(b"\0")
            self._prepared[name] = sql.decode()
        elif kind == b"B":
            self._bound = self._prepared.get(body.split(b"\0")[1], "")
        elif kind == b"E":
            return self._bound
        return ""


async def _message(reader: asyncio.StreamReader, *, typed: bool = True) -> bytes:
    head = await reader.readexactly(5 if typed else 4)
    (length,) = struct.unpack("!i", head[-4:])
    return head + await reader.readexactly(length - 4)


def _without(start: bytes, names: tuple[str, ...]) -> bytes:
    """A start-up message, less some of its parameters."""
    if not names:
        return start
    fields = start[8:].rstrip(b"\0").split(b"\0")
    pairs = zip(fields[::2], fields[1::2], strict=True)
    kept = b"".join(b"%s\0%s\0" % pair for pair in pairs if pair[0].decode() not in names) + b"\0"
    return struct.pack("!i", len(kept) + 8) + start[4:8] + kept


def _refusal(sqlstate: str) -> bytes:
    fields = f"SFATAL\0VFATAL\0C{sqlstate}\0Mnot now\0\0".encode()
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


@contextlib.asynccontextmanager
async def proxied(postgres_url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy in front of the test's server, and the URL of the same store through it."""
    query = parse_qs(urlsplit(postgres_url).query)
    proxy = Proxy(f"{query['host'][0]}/.s.PGSQL.5432")
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield (
            proxy,
            f"postgresql://postgres@127.0.0.1:{port}/postgres"
            f"?sslmode=disable&schema={query['schema'][0]}",
        )
    finally:
        listener.close()
        proxy.stop()
        await asyncio.sleep(0)


# --- a pooler -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def pooled(postgres_url: str) -> AsyncIterator[str]:
    """The URL of the same store through a pooler that gives each transaction another session."""
    query = parse_qs(urlsplit(postgres_url).query)
    links: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.get_running_loop().create_task(serve(reader, writer))
        links.add(link)
        link.add_done_callback(links.discard)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = f"{query['host'][0]}/.s.PGSQL.5432"
        sessions = [await asyncio.open_unix_connection(path) for _ in range(2)]
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                await _Switch(reader, writer, sessions).run()
        finally:
            for each in (writer, *(session[1] for session in sessions)):
                each.close()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield (
            f"postgresql://postgres@127.0.0.1:{port}/postgres"
            f"?sslmode=disable&schema={query['schema'][0]}"
        )
    finally:
        listener.close()
        for link in list(links):
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        await asyncio.sleep(0)


class _Switch:
    """One client, whose transactions go to two sessions in turn."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sessions: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    ) -> None:
        self._client, self._to_client = reader, writer
        self._sessions = sessions
        self._current = 0

    async def run(self) -> None:
        start = await _message(self._client, typed=False)
        for number, (server, to_server) in enumerate(self._sessions):
            to_server.write(start)
            kind = b""
            while kind != b"Z":
                message = await _message(server)
                kind = message[:1]
                if number == 0:
                    self._to_client.write(message)
        self._current = 1
        ways = [asyncio.create_task(self._downward(server)) for server, _ in self._sessions]
        try:
            while True:
                message = await _message(self._client)
                self._sessions[self._current][1].write(message)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _downward(self, server: asyncio.StreamReader) -> None:
        while True:
            message = await _message(server)
            if message[:1] == b"Z" and message[5:] == b"I":  # outside of a transaction
                self._current = 1 - self._current
            self._to_client.write(message)
