"""Restate: `ctx.run` in a handler records a result; a call of a handler is a unit.

Three processes take part: the caller, the Restate server, and the service with the handlers.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.catalogue import Job
from benchmarks.drive import Driver, at_a_time, in_loop, one_by_one
from benchmarks.processes import free_port, process, request, request_when_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.meter import Metrics
    from benchmarks.place import Place


@dataclass(frozen=True)
class Running:
    """A server with our service registered: where to call it, and its processes."""

    ingress: str
    pids: tuple[int, ...]


@contextlib.contextmanager
def serving(place: Place) -> Iterator[Running]:
    """A single-node server with its defaults (telemetry off, on the loopback), and the service."""
    ingress, admin, node, service = (free_port() for _ in range(4))
    base = place.directory
    env = os.environ | {
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_BASE_DIR": str(base),
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_ADVERTISED_HOST": "127.0.0.1",
        "RESTATE_NODE_NAME": "bench",
        "RESTATE_BIND_PORT": str(node),
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_LOG_FILTER": "warn",
    }
    handlers = [sys.executable, "-m", "benchmarks.peers.restate_service", str(service)]
    with (
        process([place.restate, "--no-logo"], env, str(base / "server.log")) as server_pid,
        process(handlers, dict(os.environ), str(base / "service.log")) as service_pid,
    ):
        request_when_ready(f"http://127.0.0.1:{ingress}/restate/health")
        deployment = {"uri": f"http://127.0.0.1:{service}", "force": True}
        request_when_ready(f"http://127.0.0.1:{admin}/deployments", deployment)
        yield Running(f"http://127.0.0.1:{ingress}", (server_pid, service_pid))


def runs(place: Place, n: int) -> Metrics:
    """W1: n times `await ctx.run` in one handler; the whole call is timed."""
    with serving(place) as server:
        request(f"{server.ingress}/Bench/warm/runs", 20)
        with place.meter(*server.pids) as meter:
            request(f"{server.ingress}/Bench/measured/runs", n)
    return meter.each(n)


async def units(driver: Driver, place: Place, n: int) -> Metrics:
    """W2: calls of an empty handler over HTTP, each on its own key."""
    import aiohttp

    with serving(place) as server:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200)) as session:

            async def unit(key: str) -> None:
                url = f"{server.ingress}/Bench/{key}/empty"
                async with session.post(url, skip_auto_headers=["Content-Type"]) as answer:
                    answer.raise_for_status()
                    await answer.read()

            return await driver(unit, n, place.meter(*server.pids))


JOBS = [
    Job("w1", "restate", "Restate ctx.run", "full", runs, 500),
    Job("w2", "restate", "Restate", "full", in_loop(units, one_by_one), 200),
    Job("w2c", "restate", "Restate", "full", in_loop(units, at_a_time), 500),
]
