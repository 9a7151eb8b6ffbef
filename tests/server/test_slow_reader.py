"""A client that does not read is let go, and holds up nobody."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

from tabs import LONG, Served, served

from outlast import Agent, rpc
from outlast.server.limits import Limits


class Flood(Agent):
    @rpc
    async def flood(self, count: int, size: int) -> int:
        text = json.dumps({"type": "drop", "text": "x" * size})
        for n in range(count):
            self.broadcast(text)
            if n % 10 == 9:
                await asyncio.sleep(0)
        return count


PATH: dict[str, Any] = {"path": "/agents/flood/f"}
LIMITS = Limits(buffer=1_000_000)
TOO_SLOW = b"\x88\x0a\x03\xf5too slow"  # a close frame with 1013


class Deaf:
    """A client that opens a socket and reads only when it is told to."""

    def __init__(self, server: Served) -> None:
        self.line = socket.socket()
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
        self.line.connect(("127.0.0.1", server.port))
        self.line.setblocking(False)
        self.data = b""

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        head = f"GET {PATH['path']} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        await loop.sock_sendall(self.line, f"{head}{key}\r\n".encode())
        while b"cf_agent_mcp_servers" not in self.data:
            await self.read()

    async def read(self) -> bool:
        """False at the end."""
        try:
            async with asyncio.timeout(LONG):
                found = await asyncio.get_running_loop().sock_recv(self.line, 1_000_000)
        except ConnectionError:
            return False
        self.data += found
        return bool(found)


async def test_a_reader_that_stops_is_let_go_and_others_hear_everything(sqlite_url: str) -> None:
    async with served(Flood, url=sqlite_url, limits=LIMITS) as server:
        deaf = Deaf(server)
        await deaf.open()
        async with server.tab(**PATH) as fast:
            await fast.wait("cf_agent_mcp_servers")
            for n in range(1, 21):
                await fast.call("flood", 20, 50_000)
                await fast.until(lambda n=n: len(fast.all("drop")) == 20 * n)
            async with asyncio.timeout(LONG):
                while len(server.app.rooms) > 1:
                    await asyncio.sleep(0.01)
            await fast.call("flood", 1, 10)
        deaf.line.close()


async def test_a_reader_that_was_too_slow_is_told_to_come_back(sqlite_url: str) -> None:
    """It has missed some frames, so it must not go on as if nothing had been."""
    async with served(Flood, url=sqlite_url, limits=LIMITS) as server:
        deaf = Deaf(server)
        await deaf.open()
        async with server.tab(**PATH) as fast:
            for _ in range(20):
                await fast.call("flood", 20, 50_000)
            while TOO_SLOW not in deaf.data[-100:] and await deaf.read():
                pass
            assert TOO_SLOW in deaf.data[-100:]
            assert len(deaf.data) < 19_000_000
        deaf.line.close()


async def test_a_slow_reader_does_not_slow_others_down(sqlite_url: str) -> None:
    async with served(Flood, url=sqlite_url, limits=LIMITS) as server:
        deaf = Deaf(server)
        await deaf.open()
        async with server.tab(**PATH) as fast:
            for _ in range(20):
                await fast.call("flood", 20, 50_000)
            began = time.monotonic()
            for _ in range(50):
                await fast.call("flood", 1, 10)
            assert time.monotonic() - began < 5
            rooms = server.app.rooms._rooms.values()
            waiting = [sum(map(len, each._waiting)) for room in rooms for each in room.connections]
            assert sum(waiting) <= LIMITS.buffer
        deaf.line.close()


async def test_a_server_with_a_deaf_reader_stops_in_time(sqlite_url: str) -> None:
    async with served(Flood, url=sqlite_url, limits=LIMITS) as server:
        deaf = Deaf(server)
        await deaf.open()
        async with server.tab(**PATH) as fast:
            for _ in range(20):
                await fast.call("flood", 20, 50_000)
        began = time.monotonic()
    assert time.monotonic() - began < LONG
    deaf.line.close()


async def test_a_reader_that_is_merely_behind_gets_everything(sqlite_url: str) -> None:
    async with served(Flood, url=sqlite_url) as server:
        deaf = Deaf(server)
        await deaf.open()
        async with server.tab(**PATH) as fast:
            await fast.call("flood", 100, 50_000)
            while deaf.data.count(b'"type": "drop"') < 100:
                assert await deaf.read()
        deaf.line.close()
