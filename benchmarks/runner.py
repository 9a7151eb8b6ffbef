"""Runs the plan: systems in turn, each job in a fresh process with its own empty store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import servers
from benchmarks.place import Place

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from benchmarks.catalogue import Job
    from benchmarks.meter import Metrics
    from benchmarks.options import Options

TIMEOUT = 600.0
QUIET = {
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "SCARF_ANALYTICS": "false",
}


@dataclass
class Outcome:
    """One run of one job."""

    job: Job
    rep: int
    metrics: Metrics = field(default_factory=dict)
    problem: str = ""
    """Why there are no metrics."""
    calibration_ms: float = 0.0
    """How long a fixed loop took just before: how disturbed the machine was."""


def calibrate() -> float:
    """Milliseconds of a fixed loop."""
    started = time.perf_counter()
    total = 0
    for i in range(500_000):
        total += i
    return (time.perf_counter() - started) * 1e3


def last_line(text: str) -> str:
    """The last line with something on it."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


def in_fresh_process(job: Job, size: int, place: Place) -> tuple[Metrics, str]:
    """The job's metrics, or what went wrong. Nothing of its process tree is left behind."""
    command = [sys.executable, "-m", "benchmarks.job", job.workload, job.system, str(size)]
    process = subprocess.Popen(
        [*command, place.to_json()],
        env=os.environ | QUIET,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return {}, f"failed: took more than {TIMEOUT:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        return {}, f"failed: {last_line(errors)}"
    return json.loads(last_line(output)), ""


def in_turn(options: Options) -> Iterator[tuple[Job, int]]:
    """Workload by workload; in each, all systems once, then all again: noise hits all alike."""
    for workload in dict.fromkeys(job.workload for job in options.plan):
        for rep in range(options.reps):
            yield from ((job, rep) for job in options.plan if job.workload == workload)


@dataclass(frozen=True)
class Bench:
    """The servers and directories of a run."""

    scratch: Path
    shared: Path
    postgres: servers.Postgres | None
    restate: Path | None

    @contextmanager
    def place(self, job: Job) -> Iterator[Place]:
        """Where this job may work, and what it needs."""
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=self.scratch))
            place = Place(Path(directory), self.shared)
            if job.needs_postgres and self.postgres:
                uri = stack.enter_context(self.postgres.database())
                place = replace(place, postgres=uri, postmaster=self.postgres.postmaster)
            if job.needs_restate:
                place = replace(place, restate=str(self.restate))
            yield place

    def outcome(self, job: Job, rep: int, size: int) -> Outcome:
        """Runs the job once."""
        if job.needs_restate and not self.restate:
            return Outcome(job, rep, problem=f"not run: {servers.why_no_restate()}")
        if job.needs_workerd and not servers.workerd():
            return Outcome(job, rep, problem=f"not run: {servers.why_no_workerd()}")
        calibration = calibrate()
        with self.place(job) as place:
            metrics, problem = in_fresh_process(job, size, place)
        return Outcome(job, rep, metrics, problem, calibration)


def run(options: Options, results: Path) -> Generator[Outcome]:
    """Yields outcomes as they come. Everything it started or wrote is gone at its end."""
    with ExitStack() as stack:
        # Beside the results and not in /tmp, which may be in memory, where fsync costs nothing.
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=results)))
        shared = scratch / "shared"
        shared.mkdir()
        postgres = None
        if any(job.needs_postgres for job in options.plan):
            postgres = stack.enter_context(servers.postgres(scratch / "postgres"))
        bench = Bench(scratch, shared, postgres, servers.restate_server())
        for job, rep in in_turn(options):
            yield bench.outcome(job, rep, options.size(job))
