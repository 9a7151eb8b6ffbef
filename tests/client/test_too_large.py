"""What is too large for the server is refused once, and the client goes on with the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from standin import StandIn, playing
from starlette.websockets import WebSocket
from tabs import LONG, served, serving, stored, until
from websockets.asyncio.server import ServerConnection, serve

from conformance.fixture_agent import FixtureAgent
from loops import skip
from outlast import App
from outlast.client import CallFailed, Client, MessageTooLarge, TurnFailed
from outlast.client.connection import pause_after
from outlast.client.outgoing import Limits, OutgoingFrame, oversized_frame
from outlast.server import Limits as ServerLimits

HUGE = "x" * 200_000
GREETING = '{"type":"cf_agent_identity","name":"a","agent":"x"}'


async def all_of(chunks: Any) -> list[Any]:
    async with asyncio.timeout(LONG):
        return [chunk async for chunk in chunks]


def text_in(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


# --- a real server ---------------------------------------------------------------------------------


async def test_a_message_over_the_limit_raises_and_the_client_stays_usable(sqlite_url: str) -> None:
    limits = ServerLimits(message=1000)
    async with served(url=sqlite_url, limits=limits) as server:
        async with Client(server.http, "fixture-agent", "a") as client:
            socket = client._socket
            with pytest.raises(MessageTooLarge):
                await all_of(client.send("x" * 2000))
            assert issubclass(MessageTooLarge, TurnFailed)
            assert text_in(await all_of(client.send("say 2 words"))) == "w1 w2"
            assert client._socket is socket
        assert len(await stored(server)) == 2, "nothing of it is stored"


async def test_a_frame_that_a_server_does_not_read_is_final_for_its_message(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn closes with 1009 by itself, before the application has seen anything."""
    monkeypatch.setattr("outlast.client.connection.FIRST_RETRY", 0.01)
    monkeypatch.setattr("outlast.server.socket.batching.DISCARDING", 0.5)
    app = App(agents=[FixtureAgent], store=sqlite_url, shutdown_timeout=0.2)
    async with serving(app, ws_max_size=100_000) as server:
        async with Client(server.http, "fixture-agent", "a") as client:
            long = asyncio.create_task(all_of(client.send("say 20 words every 5ms")))
            await until(lambda: client.messages or client._offered or client._requests)
            with pytest.raises(MessageTooLarge, match=r"1009.*got 2\d{5} bytes"):
                await all_of(client.send(HUGE))
            assert text_in(await long).endswith("w20"), "others are sent again, and answered once"
            with pytest.raises(CallFailed, match="got 2"):
                await client.call("echo", HUGE)
            assert await client.call("echo", "x") == "x"
        assert [each["role"] for each in await stored(server)] == ["user", "assistant"]


# --- limits that are known -------------------------------------------------------------------------


async def deaf(server: StandIn, socket: WebSocket) -> None:
    """Reads, and says nothing."""
    while True:
        await server.hear(socket)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"message": 1000}, r"The message must be at most 1000 bytes, got 20\d\d"),
        ({"body": 1000}, r"The new content of a request must be at most 1000 bytes, got 2\d{3}"),
        ({"frame": 1000}, r"A frame must be at most 1000 bytes, got 2\d{3}"),
    ],
)
async def test_what_is_known_to_be_too_large_is_not_sent(limits: Any, text: str) -> None:
    async with playing(deaf, limits=limits) as server:
        async with Client(server.url, "x", "a") as client:
            with pytest.raises(MessageTooLarge, match=text):
                await all_of(client.send("é" * 1000))  # bytes, not letters
            if "message" not in limits:
                with pytest.raises(MessageTooLarge):
                    await client.add_tool_output("c1", "x" * 2000)
            if "frame" in limits:
                with pytest.raises(MessageTooLarge):
                    await client.set_state("x" * 2000)
                with pytest.raises(CallFailed, match="at most 1000 bytes"):
                    await client.call("echo", "x" * 2000)
            assert not client._answers_given
            sending = asyncio.create_task(all_of(client.send("Hi")))
            await until(lambda: server.heard)
            assert len(server.heard) == 1, "only what fits was sent"
            sending.cancel()


async def test_a_server_that_comes_back_with_smaller_limits_is_not_sent_what_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outlast.client.connection.FIRST_RETRY", 0.01)

    async def restart(server: StandIn, socket: WebSocket) -> None:
        if len(server.connects) == 1:
            await server.hear(socket)
            server.identity["limits"] = {"message": 1000}
            await socket.close(1012)
        else:
            await deaf(server, socket)

    async with playing(restart) as server, Client(server.url, "x", "a") as client:
        with pytest.raises(MessageTooLarge, match="at most 1000 bytes"):
            await all_of(client.send("x" * 2000))
        assert len(server.heard) == 1


async def test_a_refusal_by_the_server_is_a_message_that_is_too_large() -> None:
    async def refuse(server: StandIn, socket: WebSocket) -> None:
        asked = await server.hear(socket)
        told = {"id": asked["id"], "body": "The message is too large: 9 bytes, at most 5."}
        await server.tell(socket, type="cf_agent_use_chat_response", **told, done=True, error=True)
        await deaf(server, socket)

    async with playing(refuse) as server, Client(server.url, "x", "a") as client:
        with pytest.raises(MessageTooLarge, match="9 bytes, at most 5"):
            await all_of(client.send("Hi"))


def test_limits_that_make_no_sense_are_none() -> None:
    for limits in (None, 5, [], {}, {"frame": "big", "body": None}):
        assert Limits.of({"limits": limits}) == Limits()
    assert Limits.of({"limits": {"frame": 1, "body": 2, "message": 3, "x": 4}}) == Limits(1, 2, 3)


def test_a_close_for_size_is_about_the_largest_frame() -> None:
    small, large = OutgoingFrame("a", "x"), OutgoingFrame("b", "éé")
    assert oversized_frame([small, large, OutgoingFrame("c", "xxx")]) is large
    assert oversized_frame([]) is None


# --- coming back -----------------------------------------------------------------------------------


def test_pauses_double_up_to_five_seconds() -> None:
    assert [pause_after(n) for n in (1, 2, 3, 6, 7, 1000)] == [0.1, 0.2, 0.4, 3.2, 5.0, 5.0]


@pytest.mark.skipped_time
@pytest.mark.parametrize("code", [1009, 1011, 1012, 1013])
async def test_a_server_that_closes_after_its_greeting_is_left_in_peace(code: int) -> None:
    """In ten seconds it is asked some ten times, and not sixty: a greeting is no progress."""
    connects: list[float] = []
    loop = asyncio.get_running_loop()

    async def greet(socket: ServerConnection) -> None:
        connects.append(loop.time())
        await socket.send(GREETING)
        await socket.close(code)

    async with serve(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", "x", "a"):
            while loop.time() < connects[0] + 10:
                skip(0.01)
                await asyncio.sleep(0)
    gaps = [after - before for before, after in zip(connects, connects[1:], strict=False)]
    assert all(gap >= 0.5 * pause_after(n) for n, gap in enumerate(gaps, 1))
    assert 2 <= len(connects) <= 10


@pytest.mark.skipped_time
async def test_a_message_that_is_condemned_is_sent_once_and_the_others_again() -> None:
    """A server without limits, which closes with 1009 as soon as anything large has come."""
    asked: list[list[int]] = []

    async def greet(socket: ServerConnection) -> None:
        asked.append([])
        await socket.send(GREETING)
        async for text in socket:
            asked[-1].append(len(text))
            if len(text) > 5000:
                await socket.close(1009)
                return

    async with serve(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", "x", "a") as client:
            small = asyncio.create_task(all_of(client.send("Hi")))
            await until(lambda: asked[0])
            for _ in range(3):
                with pytest.raises(MessageTooLarge, match="which is unknown"):
                    await all_of(client.send("x" * 10_000))
                known = len(asked)
                while len(asked) == known or not asked[-1]:
                    skip(0.1)
                    await asyncio.sleep(0)
            assert not small.done()
            small.cancel()
    assert [[size > 5000 for size in sizes] for sizes in asked] == [
        [False, True],
        [False, True],
        [False, True],
        [False],
    ]


async def test_an_answer_is_progress_and_a_greeting_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outlast.client.connection.FIRST_RETRY", 0.01)

    async def fail_thrice(server: StandIn, socket: WebSocket) -> None:
        if len(server.connects) < 4:
            await socket.close(1012)
        while True:
            asked = await server.hear(socket)
            await server.tell(socket, type="rpc", id=asked["id"], success=True, result=1)

    async with playing(fail_thrice) as server, Client(server.url, "x", "a") as client:
        await until(lambda: len(server.connects) == 4 and client.is_connected)
        assert client._connection._failures == 3
        assert await client.call("x") == 1
        assert client._connection._failures == 0
