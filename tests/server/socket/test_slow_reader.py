"""A client that does not read is let go, and holds up nobody."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import suppress
from typing import Any

import httpx2 as httpx
import pytest
from tabs import LONG, RESPONSE, Served, body_of, served, user

from outlast import Agent, Think, rpc
from outlast.server.limits import Limits
from outlast.testing import ScriptedModel


class Flood(Agent):
    @rpc
    async def flood(self, count: int, size: int) -> int:
        text = json.dumps({"type": "drop", "text": "x" * size})
        for n in range(count):
            self.broadcast(text)
            if n % 10 == 9:
                await asyncio.sleep(0)
        return count


class Filled(Think):
    model = ScriptedModel("Hi.")

    @rpc
    async def fill(self, size: int) -> None:
        for at in range(0, size, 500_000):
            await self.add_messages("x" * min(500_000, size - at))


PATH: dict[str, Any] = {"path": "/agents/flood/f"}
FILLED: dict[str, Any] = {"path": "/agents/filled/f"}
LIMITS = Limits(buffer=1_000_000, unsent=1_000_000)
TOO_SLOW = b"\x88\x0a\x03\xf5too slow"  # a close frame with 1013


class Deaf:
    """A client that opens a socket and reads only when it is told to."""

    def __init__(self, server: Served, path: str = PATH["path"]) -> None:
        self.path = path
        self.line = socket.socket()
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
        self.line.connect(("127.0.0.1", server.port))
        self.line.setblocking(False)
        self.data = b""

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        head = f"GET {self.path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        await loop.sock_sendall(self.line, f"{head}{key}\r\n".encode())
        while b"cf_agent_mcp_servers" not in self.data:
            assert await self.read(), self.data

    async def read(self, most: int = 1_000_000) -> bool:
        """False at the end."""
        try:
            async with asyncio.timeout(LONG):
                found = await asyncio.get_running_loop().sock_recv(self.line, most)
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
            for _ in range(
                50
            ):  # while the deaf one reads nothing: whoever waits for it, waits for ever
                await fast.call("flood", 1, 10)
            rooms = server.app.rooms._rooms.values()
            waiting = [each.waiting for room in rooms for each in room.connections]
            assert sum(waiting) <= LIMITS.buffer + 60_000  # and one frame
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


class Long(Think):
    model = ScriptedModel("n" * 9_000_000)


async def test_one_frame_larger_than_the_buffer_is_sent(sqlite_url: str) -> None:
    """It was taken for lag, at each new connection: the conversation could not be opened any more."""
    async with served(Long, url=sqlite_url, limits=LIMITS) as server:
        await server.app.host.get(Long, "l").save_messages("Hello")
        for _ in range(2):
            async with server.tab(path="/agents/long/l") as tab:
                told = await tab.wait("cf_agent_chat_messages", connect=True)
                assert told["messages"][-1]["parts"][-1]["text"] == "n" * 9_000_000
                assert tab.closed is None


async def test_a_reader_that_never_reads_is_dropped_after_the_deadline(sqlite_url: str) -> None:
    limits = Limits(stall=0.5)
    async with served(Long, url=sqlite_url, limits=limits) as server:
        await server.app.host.get(Long, "l").save_messages("Hello")
        deaf = Deaf(server, "/agents/long/l")
        await deaf.open()
        async with asyncio.timeout(LONG):
            while len(server.app.rooms):
                await asyncio.sleep(0.01)
        assert server.app.unread.held == 0
        async with asyncio.timeout(LONG):  # the kernel had some of it; the rest never comes
            while await deaf.read():
                pass
        assert len(deaf.data) < 9_000_000
        deaf.line.close()


async def test_a_reader_that_is_slow_and_reads_is_not_dropped(sqlite_url: str) -> None:
    limits = Limits(stall=1.0)
    async with served(Long, url=sqlite_url, limits=limits) as server:
        await server.app.host.get(Long, "l").save_messages("Hello")
        slow = Deaf(server, "/agents/long/l")
        await slow.open()
        began = time.monotonic()
        while time.monotonic() - began < 3 * limits.stall:
            assert await slow.read(200_000)
            await asyncio.sleep(0.08)
        assert len(slow.data) < 9_000_000, "the first frame is still under way"
        assert len(server.app.rooms) == 1
        slow.line.close()


async def test_memory_for_unread_frames_goes_to_those_who_read(sqlite_url: str) -> None:
    """Clients that do not read have used it up; they are dropped long before their deadline."""
    limits = Limits(stall=3600, unsent=20_000_000)
    async with served(Long, url=sqlite_url, limits=limits) as server:
        await server.app.host.get(Long, "l").save_messages("Hello")
        deaf = [Deaf(server, "/agents/long/l") for _ in range(6)]
        for each in deaf:
            await each.open()
        async with server.tab(path="/agents/long/l") as tab:
            await tab.wait("cf_agent_chat_messages", connect=True)
            assert server.app.unread.held <= limits.unsent
        for each in deaf:
            each.line.close()


async def test_sockets_and_event_streams_count_together(sqlite_url: str) -> None:
    limits = Limits(connections=2)
    async with served(url=sqlite_url, limits=limits) as server, httpx.AsyncClient() as http:
        async with (
            server.tab() as one,
            http.stream(
                "POST",
                server.at("b", "chat"),
                json=body_of(user("u1", "say 2 words, held after 1 words")),
            ) as stream,
        ):
            await one.wait("cf_agent_mcp_servers")
            assert stream.status_code == 200
            async with server.tab() as more:
                assert await more.until_closed() == (1013, "too many connections")
            full = await http.post(server.at("c", "chat"), json=body_of(user("u2", "Hi")))
            assert full.status_code == 503
            assert (await http.get(server.at("c", "get-messages"))).json() == []
        async with asyncio.timeout(LONG):
            while server.app.readers.count:
                await asyncio.sleep(0.01)
        async with server.tab() as again:
            await again.wait("cf_agent_mcp_servers")


async def test_an_event_stream_that_is_not_read_is_dropped(sqlite_url: str) -> None:
    limits = Limits(stall=0.5)
    async with served(Long, url=sqlite_url, limits=limits) as server:
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
        line.connect(("127.0.0.1", server.port))
        body = json.dumps(body_of(user("u1", "Hi"))).encode()
        head = f"POST /agents/long/l/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        line.sendall(head.encode() + body)
        async with asyncio.timeout(LONG):
            while not server.app.readers.count:
                await asyncio.sleep(0.01)
            while server.app.readers.count:
                await asyncio.sleep(0.01)
        line.close()


async def test_an_answer_larger_than_the_buffer_throws_nobody_out(sqlite_url: str) -> None:
    """Its last frames come in one tick with a transcript that nobody has had time to read."""

    class Large(Think):
        model = ScriptedModel("Done.")

        def before_turn(self, context: Any) -> None:
            for n in range(10):
                self.emit_data("part", "x" * 100_000, id=str(n))

    limits = Limits(buffer=300_000)
    path = {"path": "/agents/large/a"}
    async with served(Large, url=sqlite_url, limits=limits) as server:
        async with server.tab(**path) as tab, server.tab(**path) as other:
            await tab.say("r1", "Hi")
            for each in (tab, other):
                await each.done("r1")
                assert each.closed is None


async def test_one_replay_of_a_request_at_a_time_waits_for_a_client(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.answered("r1", "say 3000 words every 0ms")
        for _ in range(50):
            await tab.send("cf_agent_stream_resume_ack", id="r1")
        await tab.call("echo", 1)
        await tab.until(lambda: len(tab.all(RESPONSE, id="r1", done=True)) >= 2)
        await tab.call("echo", 2)
        assert len(tab.all(RESPONSE, id="r1", done=True)) < 50


async def test_slow_readers_do_not_keep_others_from_their_transcript(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlast.server.socket import unread

    monkeypatch.setattr(unread, "LONGEST_WAIT", 0.3)
    limits = Limits(unsent=3 * 1024 * 1024, transcript=2 * 1024 * 1024)
    async with served(Filled, url=sqlite_url, limits=limits) as server:
        await server.app.host.get(Filled, "f").fill(1_500_000)
        slow = [Deaf(server, FILLED["path"]) for _ in range(3)]
        reading = True

        async def dawdle(deaf: Deaf) -> None:
            await deaf.open()
            while reading and await deaf.read(2000):
                await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(dawdle(each)) for each in slow]
        await asyncio.sleep(0.5)
        async with server.tab(**FILLED) as healthy:
            await healthy.wait("cf_agent_chat_messages", connect=True)
        reading = False
        await asyncio.gather(*tasks)
        for each in slow:
            each.line.close()


async def test_a_download_that_is_not_read_is_dropped(sqlite_url: str) -> None:
    limits = Limits(stall=0.5, transcript=64 * 1024 * 1024)
    async with served(Filled, url=sqlite_url, limits=limits) as server:
        await server.app.host.get(Filled, "f").fill(20_000_000)
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
        deaf.connect(("127.0.0.1", server.port))
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        path = f"{FILLED['path']}/get-messages"
        await loop.sock_sendall(deaf, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await asyncio.sleep(2)
        got = b""
        with suppress(ConnectionError):
            while found := await loop.sock_recv(deaf, 1_000_000):
                got += found
        assert len(got) < 20_000_000
        deaf.close()
