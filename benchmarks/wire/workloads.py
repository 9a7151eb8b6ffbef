"""What is measured of a server: streams, turns, sockets that stream or idle, and catching up."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from benchmarks.deltas import QUESTION, TURNS_EACH
from benchmarks.meter import cpu_seconds
from benchmarks.processes import free_port, process, request_when_ready
from benchmarks.wire.client import DONE, REPLAYED, Answer, Lost, Tab, open_tab
from benchmarks.wire.server import A_SECOND, Settings, raise_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.meter import Metrics
    from benchmarks.place import Place

SOCKETS = 1000
STREAMING = 100
RAMP_SECONDS = 2  # in which they begin, one after another; what is measured begins later
OPENING = 50  # connections that are being opened at a time
WARM_SOCKETS = 50
IDLE_SECONDS = 5.0


@dataclass(frozen=True)
class Serving:
    """A running server."""

    port: int
    pid: int

    def resident_kb(self) -> float:
        """Memory of all of its processes."""
        import psutil

        root = psutil.Process(self.pid)
        found = [root, *root.children(recursive=True)]
        return float(sum(each.memory_info().rss for each in found)) / 1024


Serve = Callable[["Place", int], AbstractContextManager[Serving]]
"""Starts a server whose model says so many deltas."""


@contextmanager
def serving(settings: Settings) -> Iterator[Serving]:
    """One of `benchmarks.wire.server`, in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.wire.server", str(port), settings.to_json()]
    with process(command, dict(os.environ), f"{settings.directory}/server.log") as pid:
        request_when_ready(f"http://127.0.0.1:{port}/healthz")
        yield Serving(port, pid)


def python(system: str, durability: str = "full", pace: str = "") -> Serve:
    """How such a server is started."""

    def start(place: Place, deltas: int) -> AbstractContextManager[Serving]:
        return serving(Settings(system, str(place.directory), durability, deltas, pace))

    return start


class ServerMeter:
    """Wall time of a block, and the server's CPU: the client is what measures."""

    def __init__(self, server: Serving) -> None:
        self._pid = server.pid
        self.wall = self.cpu = 0.0

    def __enter__(self) -> Self:
        self._cpu = cpu_seconds(self._pid)
        self._wall = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._wall
        self.cpu = cpu_seconds(self._pid) - self._cpu


async def open_tabs(server: Serving, names: list[str]) -> list[Tab]:
    """Connections to these agents, opened some at a time."""
    tabs: list[Tab] = []
    for at in range(0, len(names), OPENING):
        some = names[at : at + OPENING]
        tabs += await asyncio.gather(*(open_tab(server.port, name) for name in some))
    return tabs


async def streams(serve: Serve, at_once: int, deltas: int, place: Place, n: int) -> Metrics:
    """n answers, each in a conversation of its own, so many at once."""
    raise_limits()
    with serve(place, deltas) as server:
        warm = await open_tabs(server, [f"warm-{i}" for i in range(at_once)])
        await asyncio.gather(*(tab.ask(f"w{i}", QUESTION, deltas) for i, tab in enumerate(warm)))
        tabs = iter(enumerate(await open_tabs(server, [f"chat-{i}" for i in range(n)])))

        async def worker() -> None:
            for i, tab in tabs:
                await tab.ask(f"r{i}", QUESTION, deltas)

        with ServerMeter(server) as meter:
            await asyncio.gather(*(worker() for _ in range(at_once)))
    each = n * deltas
    return {"per_s": each / meter.wall, "cpu_us": meter.cpu / each * 1e6}


async def turns(serve: Serve, place: Place, n: int) -> Metrics:
    """n turns with one delta, one after another: the second to eleventh of conversations."""
    with serve(place, 1) as server:
        tabs = await open_tabs(server, [f"chat-{i}" for i in range(0, n, TURNS_EACH)])
        for i, tab in enumerate(tabs):
            await tab.ask(f"w{i}", QUESTION, 1)
        with ServerMeter(server) as meter:
            for i in range(n):
                await tabs[i // TURNS_EACH].ask(f"r{i}", QUESTION, 1)
    return {"wall_ms": meter.wall / n * 1e3, "cpu_ms": meter.cpu / n * 1e3}


async def load(serve: Serve, place: Place, seconds: int) -> Metrics:
    """A thousand sockets to as many agents, a hundred of which stream 50 deltas a second."""
    raise_limits()
    deltas = (seconds + RAMP_SECONDS + 2) * A_SECOND
    with serve(place, deltas) as server:
        tabs = await open_tabs(server, [f"chat-{i}" for i in range(SOCKETS)])

        async def stream(i: int) -> Answer:
            await asyncio.sleep(i / STREAMING * RAMP_SECONDS)  # people do not speak in unison
            return await tabs[i].ask(f"r{i}", QUESTION, deltas, is_timed=True)

        streaming = [asyncio.create_task(stream(i)) for i in range(STREAMING)]
        await asyncio.sleep(RAMP_SECONDS + 1)
        with ServerMeter(server) as meter:
            began = time.perf_counter()
            await asyncio.sleep(seconds)
            ended = time.perf_counter()
        resident = server.resident_kb()
        answers = await asyncio.gather(*streaming)  # to the last delta, for none may be lost
    heard = [each for answer in answers for each in answer.times]
    delays = sorted(delay for at, delay in heard if began <= at < ended)
    n = len(delays)
    return {
        "per_s": n / meter.wall,
        "p50_ms": delays[n // 2] * 1e3,
        "p99_ms": delays[n * 99 // 100] * 1e3,
        "max_ms": delays[-1] * 1e3,
        "cpu_pct": meter.cpu / meter.wall * 100,
        "rss_mb": resident / 1024,
    }


async def idle(serve: Serve, place: Place, n: int) -> Metrics:
    """What n sockets to as many agents cost that say nothing."""
    raise_limits()
    with serve(place, 1) as server:
        warm = await open_tabs(server, [f"warm-{i}" for i in range(WARM_SOCKETS)])
        await asyncio.sleep(1)
        before = server.resident_kb()
        tabs = await open_tabs(server, [f"chat-{i}" for i in range(n)])
        with ServerMeter(server) as meter:
            await asyncio.sleep(IDLE_SECONDS)
        after = server.resident_kb()
        for tab in (*warm, *tabs):
            tab.close()
    return {"each_kb": (after - before) / n, "idle_cpu_pct": meter.cpu / meter.wall * 100}


CATCH_UPS = 11


async def catch_up(serve: Serve, is_live: bool, place: Place, deltas: int) -> Metrics:
    """A tab that comes late: from the handshake to the last delta of what is stored."""
    ack = '{"type":"cf_agent_stream_resume_ack","id":"r"}'
    took: list[float] = []
    with serve(place, deltas) as server:
        first = await open_tab(server.port, "chat")
        if is_live:
            await started(first, deltas)
        else:
            await first.ask("r", QUESTION, deltas)
        for _ in range(CATCH_UPS):
            answer = Answer()
            began = time.perf_counter()
            tab = await open_tab(server.port, "chat")
            await tab.send(ack, answer, REPLAYED if is_live else DONE)
            took.append(time.perf_counter() - began)
            tab.close()
            if answer.heard != deltas:
                raise Lost(f"caught up with {answer.heard} of {deltas} deltas")
    return {"wall_ms": statistics.median(took) * 1e3, "max_ms": max(took) * 1e3}


async def started(tab: Tab, deltas: int) -> None:
    """Ask, and wait until all deltas have come of an answer that does not end."""
    asking = asyncio.create_task(tab.ask("r", QUESTION, deltas))
    while tab.heard < deltas:
        await asyncio.sleep(0.01)
        if asking.done():
            asking.result()
    asking.cancel()
