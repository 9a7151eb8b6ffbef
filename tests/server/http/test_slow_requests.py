"""Requests that arrive slowly, or not at all: they hold neither an agent nor a connection for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tabs import LONG, served, serving

from loops import skip
from outlast import Agent, App, Think
from outlast.server.http.deadlines import SLOWEST, TimedReceive, TooSlow, protocol
from outlast.server.limits import Limits
from outlast.testing import ScriptedModel


class Talker(Think):
    model = ScriptedModel("Hello.", repeat=True)


class Taker(Agent):
    """Takes uploads of any size."""

    taken = 0

    async def on_request(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        async for piece in request.stream():
            Taker.taken += len(piece)
        return PlainTextResponse("taken")


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(server: Any, text: str = "") -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(text.encode())
    await writer.drain()
    return reader, writer


async def answer(connection: Connection) -> tuple[int, str]:
    """The status of the answer, and all of it; the connection is closed after it."""
    reader, writer = connection
    async with asyncio.timeout(LONG * 100):  # the clock is moved on
        text = (await reader.read()).decode()
    writer.close()
    return int(text.split(" ")[1]) if text else 0, text


def post(path: str, length: int, body: str = "") -> str:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"


async def arrived(server: Any) -> None:
    """Everything that was sent before this has been read: the server has answered what came after it."""
    reader, writer = await opened(
        server, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    assert b"200 OK" in await reader.read()
    writer.close()


ROUTES = ["chat", "submissions", "chat/tool-result", "chat/stop", "rpc/x", "whatever"]


@pytest.mark.parametrize("route", ROUTES)
async def test_an_agent_is_not_in_memory_while_the_body_of_a_request_arrives(
    sqlite_url: str, route: str
) -> None:
    async with served(Talker, url=sqlite_url) as server:
        connection = await opened(server, post(f"/agents/talker/a/{route}", 1000, '{"mess'))
        await arrived(server)
        assert server.app.host.statistics().active == 0
        connection[1].write(b"x" * 994)
        status, _ = await answer(connection)
        assert status in (400, 404)
        assert server.app.host.statistics().active == 1


async def test_a_body_that_arrives_in_pieces_is_read_like_any_other(sqlite_url: str) -> None:
    async with served(Talker, url=sqlite_url) as server:
        body = '{"message": "Hi"}'
        connection = await opened(server, post("/agents/talker/a/submissions", len(body)))
        for letter in body:
            connection[1].write(letter.encode())
            await arrived(server)
        assert (await answer(connection))[0] == 202


@pytest.mark.skipped_time
@pytest.mark.parametrize("route", ROUTES)
async def test_a_body_that_does_not_arrive_in_time_is_answered_with_408(
    sqlite_url: str, route: str
) -> None:
    async with served(Talker, url=sqlite_url, limits=Limits(body_within=20)) as server:
        connection = await opened(server, post(f"/agents/talker/a/{route}", 1000))
        for _ in range(19):  # a byte now and then does not help
            connection[1].write(b" ")
            await arrived(server)
            skip(1)
        await arrived(server)
        assert not connection[0].at_eof()
        skip(2)
        status, text = await answer(connection)
        assert (status, "did not arrive in time" in text) == (408, True)
        assert server.app.host.statistics().active == 0


@pytest.mark.skipped_time
async def test_a_large_upload_has_time_as_long_as_it_keeps_coming(sqlite_url: str) -> None:
    Taker.taken = 0
    size = 6 * 1024 * 1024
    async with served(Taker, url=sqlite_url, limits=Limits(body_within=20)) as server:
        connection = await opened(server, post("/agents/taker/a/x", size))
        for _ in range(6):
            connection[1].write(b"x" * (size // 6))
            await connection[1].drain()
            await arrived(server)
            skip(15)
        status, text = await answer(connection)
        assert (status, text.endswith("taken")) == (200, True)
    assert Taker.taken == size


@pytest.mark.virtual_time
async def test_the_time_for_a_body_grows_with_what_has_come() -> None:
    messages = [{"type": "http.request", "body": b"x" * SLOWEST, "more_body": True}] * 5

    async def receive() -> Any:
        await asyncio.sleep(2 if messages else 100)
        return messages.pop()

    arriving = TimedReceive(receive, 10)
    with pytest.raises(TooSlow):
        await arriving.read_ahead(10**9)
    assert not messages
    assert asyncio.get_running_loop().time() == pytest.approx(15)


@pytest.mark.skipped_time
@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_headers_that_do_not_arrive_in_time_close_the_connection(
    sqlite_url: str, http: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with headers_within(20, sqlite_url, http, monkeypatch) as server:
        half = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
        handshake = f"{half}upgrade: websocket\r\nconnection: upgrade\r\n"
        silent = await opened(server)
        slow, upgrading = await opened(server, half), await opened(server, handshake)
        used = await opened(server, f"{half}\r\n{half}")  # one request, and half of another
        assert b"200 OK" in await used[0].readuntil(b"ok")
        for n in range(4):
            for each in (slow, upgrading, used):
                each[1].write(f"x-{n}: 1\r\n".encode())
            await arrived(server)
            skip(4.5)
        await arrived(server)
        assert not any(each[0].at_eof() for each in (silent, slow, upgrading, used))
        skip(3)
        assert await answer(silent) == (0, ""), "no answer: nothing was asked"
        assert (await answer(slow))[0] == (await answer(upgrading))[0] == 408
        assert (await answer(used))[0] == 408


@pytest.mark.skipped_time
@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_a_request_whose_headers_have_come_is_not_bound_by_their_deadline(
    sqlite_url: str, http: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with headers_within(20, sqlite_url, http, monkeypatch) as server:
        body = '{"message": "Hi"}'
        posting = await opened(server, post("/agents/talker/a/submissions", len(body)))
        async with server.tab(path="/agents/talker/a") as tab:
            await tab.wait("cf_agent_identity")
            await arrived(server)
            skip(25)
            await arrived(server)
            posting[1].write(body.encode())
            assert (await answer(posting))[0] == 202
            await tab.say("r1", "Hi")
            assert "error" not in await tab.done("r1")


def headers_within(seconds: float, url: str, http: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server whose connections are read by one parser or the other."""
    from uvicorn.protocols.http import auto
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    kind = {"h11": H11Protocol, "httptools": HttpToolsProtocol}[http]
    monkeypatch.setattr(auto, "AutoHTTPProtocol", kind)
    app = App(agents=[Talker], store=url, shutdown_timeout=0.2, limits=Limits(body_within=60))
    return serving(app, http=protocol(seconds))


def test_outlast_serve_has_a_deadline_for_headers(sqlite_url: str) -> None:
    from outlast.server.uvicorn_server import Server

    app = App(agents=[Talker], store=sqlite_url, limits=Limits(headers_within=7))
    assert Server(app).config.http.__name__ == "DeadlineProtocol"
