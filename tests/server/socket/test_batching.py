"""What is sent in one tick leaves in one piece, and nothing of it is lost when the connection is closed."""

from __future__ import annotations

import asyncio
from typing import Any

from tabs import served

from outlast import Agent, rpc
from outlast.server.socket.batching import MOST_WAITING, BatchingTransport

FRAMES = 500


class Pieces:
    """Where a transport ends: every piece that it was given, in order."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.pieces.append(data)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


def gathered() -> tuple[Any, Pieces]:
    pieces = Pieces()
    return BatchingTransport(pieces, asyncio.get_running_loop()), pieces  # type: ignore[arg-type]


async def test_writes_of_one_tick_leave_in_one_piece_and_in_order() -> None:
    transport, end = gathered()
    for data in (b"one ", b"two ", b"three"):
        transport.write(data)
    assert end.pieces == []
    await asyncio.sleep(0)
    transport.write(b"four")
    await asyncio.sleep(0)
    assert end.pieces == [b"one two three", b"four"]
    assert transport.get_extra_info("peer") == "the peer"


async def test_no_more_is_held_back_than_the_transport_would_take() -> None:
    transport, end = gathered()
    half = b"x" * (MOST_WAITING // 2)
    transport.write(half)
    assert end.pieces == []
    transport.write(half)
    assert end.pieces == [half + half]
    transport.write(b"rest")
    await asyncio.sleep(0)
    assert end.pieces[1:] == [b"rest"]


async def test_closing_sends_what_waits_and_aborting_drops_it() -> None:
    transport, end = gathered()
    transport.write(b"last words")
    transport.close()
    await asyncio.sleep(0)
    assert end.pieces == [b"last words"]
    assert end.is_closed
    transport, end = gathered()
    transport.write(b"too late")
    transport.abort()
    await asyncio.sleep(0)
    assert end.pieces == []
    assert end.is_closed


class Crier(Agent):
    @rpc
    async def cry(self, count: int) -> None:
        for n in range(count):
            self.broadcast(f'{{"type":"cry","n":{n}}}')


async def test_every_frame_of_a_tick_arrives_also_before_a_close(sqlite_url: str) -> None:
    async with served(Crier, url=sqlite_url) as server:
        async with server.tab(path="/agents/crier/c") as tab:
            await tab.send("rpc", id="1", method="cry", args=[FRAMES])
            await tab.wait("cry", n=FRAMES - 1)
            server.app.rooms.each(lambda connection: connection.close(1012, "restarting"))
            assert await tab.until_closed() == (1012, "restarting")
            assert [each["n"] for each in tab.all("cry")] == list(range(FRAMES))


async def test_a_client_that_is_just_leaving_does_not_keep_a_server_from_stopping(
    sqlite_url: str,
) -> None:
    """Its goodbye was heard, and what is left to be sent to it has not been taken yet."""
    async with (
        served(Crier, url=sqlite_url) as server,
        server.tab(path="/agents/crier/c") as tab,
    ):
        [connection] = server.server.server_state.connections
        connection.conn.send_close(1000)  # type: ignore[union-attr]
        connection.shutdown()  # as uvicorn does with each, and does not expect it to raise
        assert connection.transport.is_closing(), "it is let go"  # type: ignore[union-attr]
        assert (await tab.until_closed())[0] in (1000, 1006)
