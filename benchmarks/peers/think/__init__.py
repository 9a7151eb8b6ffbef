"""Cloudflare's Think in workerd, with its own wire protocol, which is the one that outlast speaks.

`worker.js` is the agent, `workerd.capnp` how it is run, both without miniflare. `script/bench` installs
what `package-lock.json` names and bundles the worker into `dist/`.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.catalogue import Job
from benchmarks.deltas import AT_ONCE, DELTAS
from benchmarks.processes import free_port, process, request_when_ready
from benchmarks.recovery.workloads import System, cold, run, supervised
from benchmarks.seam.models import MODELS
from benchmarks.seam.sockets import served_and_killed
from benchmarks.servers import workerd
from benchmarks.wire.jobs import measured
from benchmarks.wire.workloads import Serving, streams, turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.place import Place

HERE = Path(__file__).parent


def command(directory: Path, port: int) -> list[str]:
    """workerd with its SQLite files there."""
    return [
        str(workerd()),
        "serve",
        str(HERE / "workerd.capnp"),
        f"--socket-addr=http=127.0.0.1:{port}",
        f"--directory-path=disk={directory}",
    ]


@contextmanager
def serving(place: Place, deltas: int) -> Iterator[Serving]:
    """A server in the job's directory."""
    port = free_port()
    log = str(place.directory / "server.log")
    with process(command(place.directory, port), os.environ | {"DELTAS": str(deltas)}, log) as pid:
        request_when_ready(f"http://127.0.0.1:{port}/healthz")
        yield Serving(port, pid)


def recovering() -> System:
    """The same for the recovery benchmark, which starts and kills it itself."""
    return System(command)


LABEL = "Cloudflare's Think in workerd"

JOBS = [
    Job("wire", "think", LABEL, "full", measured(streams, serving, 1, DELTAS), 20),
    Job("wirec", "think", LABEL, "full", measured(streams, serving, AT_ONCE, DELTAS), 50),
    Job("wiret", "think", LABEL, "full", measured(turns, serving), 100),
    Job("w4", "think", LABEL, "full", run(supervised, recovering()), 5),
    Job("w4cold", "think", LABEL, "full", run(cold, recovering()), 5),
    *(
        Job("seam", f"think-{name}", f"{LABEL}: {what}", "", served_and_killed(command, behave), 20)
        for name, what, behave in MODELS
    ),
]
