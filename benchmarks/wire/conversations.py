"""What is measured of a large conversation: opening it, sockets that idle in it, and many tabs on it."""

from __future__ import annotations

import asyncio
import statistics
import time
import urllib.request
from typing import TYPE_CHECKING

from benchmarks.deltas import QUESTION
from benchmarks.wire.client import Answer, Tab, open_tab
from benchmarks.wire.histories import NAME, write
from benchmarks.wire.server import raise_limits
from benchmarks.wire.workloads import IDLE_SECONDS, WARM_SOCKETS, Serve, ServerMeter

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place

TRANSCRIPT = b'{"type":"cf_agent_chat_messages"'
DELTA_QUERY = "?_delta=1"
TABS = 100
OPENING = 10  # at a time: each may be told a whole conversation
SETTLED = 1.0  # seconds


async def open_some(port: int, n: int, query: str = "") -> list[Tab]:
    """So many sockets on the conversation, each of which has its transcript."""
    tabs: list[Tab] = []
    while len(tabs) < n:
        some = range(min(OPENING, n - len(tabs)))
        tabs += await asyncio.gather(
            *(open_tab(port, NAME, query=query, until=TRANSCRIPT) for _ in some)
        )
    return tabs


def get_messages(port: int) -> float:
    """Seconds of `GET get-messages`."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/agents/chat/{NAME}/get-messages") as got:
        got.read()
    return time.perf_counter() - began


async def opening(serve: Serve, history: str, place: Place, n: int) -> Metrics:
    """From the handshake to the transcript, and `GET get-messages`: the first time, and then n times."""
    await write(place.directory / "chat.db", history)
    took: list[float] = []
    fetched: list[float] = []
    with serve(place, 1) as server:
        for _ in range(n + 1):
            began = time.perf_counter()
            tab = await open_tab(server.port, NAME, until=TRANSCRIPT)
            took.append(time.perf_counter() - began)
            told = tab.received
            tab.close()
            fetched.append(await asyncio.to_thread(get_messages, server.port))
    return {
        "first_ms": took[0] * 1e3,
        "wall_ms": statistics.median(took[1:]) * 1e3,
        "get_ms": statistics.median(fetched) * 1e3,
        "max_ms": max(*took, *fetched) * 1e3,
        "told_mb": told / 1e6,
    }


async def idle_in(serve: Serve, history: str, place: Place, n: int) -> Metrics:
    """What n sockets on a large conversation cost that say nothing, once it is in memory."""
    raise_limits()
    await write(place.directory / "chat.db", history)
    with serve(place, 1) as server:
        warm = await open_some(server.port, min(WARM_SOCKETS, n))
        await asyncio.sleep(SETTLED)
        before = server.resident_kb()
        tabs = await open_some(server.port, n)
        with ServerMeter(server) as meter:
            await asyncio.sleep(IDLE_SECONDS)
        after = server.resident_kb()
        for tab in (*warm, *tabs):
            tab.close()
    return {"each_kb": (after - before) / n, "idle_cpu_pct": meter.cpu / meter.wall * 100}


async def many_tabs(serve: Serve, query: str, place: Place, n: int) -> Metrics:
    """n small turns on a conversation of 5 MB that a hundred tabs show."""
    raise_limits()
    await write(place.directory / "chat.db", "middling")
    lags: list[float] = []
    with serve(place, 1) as server:
        tabs = await open_some(server.port, TABS, query)
        await turn(tabs, "warm")
        received = sum(tab.received for tab in tabs)
        with ServerMeter(server) as meter:
            for i in range(n):
                lags.append(await turn(tabs, f"r{i}"))
        received = sum(tab.received for tab in tabs) - received
        for tab in tabs:
            tab.close()
    return {
        "cpu_ms": meter.cpu / n * 1e3,
        "told_mb": received / n / 1e6,
        "wall_ms": statistics.median(lags) * 1e3,
        "max_ms": max(lags) * 1e3,
    }


async def turn(tabs: list[Tab], id: str) -> float:
    """The first tab asks. Seconds from the end of the turn at the first one told to that at the last one."""
    ends: list[float] = []
    others = [tab.listen(Answer()) for tab in tabs[1:]]
    for each in others:
        each.add_done_callback(lambda _: ends.append(time.perf_counter()))
    await tabs[0].ask(id, QUESTION, 1)
    ends.append(time.perf_counter())
    await asyncio.gather(*others)
    return max(ends) - min(ends)
