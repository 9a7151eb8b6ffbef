"""Killing servers in mid-answer: when the client is told more, and what has become of what it saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.meter import cpu_seconds
from benchmarks.processes import free_port, request, request_when_ready
from benchmarks.recovery.client import ANSWER, BROWSER, RESTLESS, Client, spoken_in
from benchmarks.recovery.words import WORDS, life_of, number_of
from benchmarks.runner import calibrate

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place

KILLED_AFTER = 100  # words that the client has seen
DEADLINE = 40.0  # seconds in which it must have gone on
OVER_WITHIN = 10.0  # seconds in which the client must have been told that the answer is over
STORED_WITHIN = 5.0  # seconds in which more of it must be stored, or no more comes
STOPPED_FOR = 0.5  # seconds for which a cold start finds nobody at work
APART = 8.0  # seconds from one death to the next, of a server that is killed again and again
QUIET_FOR, QUIET_WITHIN = 0.4, 60.0


@dataclass(frozen=True)
class System:
    """How a server is started."""

    command: Callable[[Path, int], Sequence[str]]
    environment: Callable[[Path], Mapping[str, str]] = lambda _: {}
    path: str = "/agents/words/chat"
    has_supervisor: bool = False
    """The process that is started outlives its children, and replaces them."""


@dataclass
class Server:
    """A running one, in a directory of its own."""

    system: System
    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0
    path: str = ""
    """The conversation in question; the system's own unless another is named."""

    def __post_init__(self) -> None:
        self.path = self.path or self.system.path

    def start(self) -> None:
        self.lives += 1
        more = {**self.system.environment(self.directory), "LIFE": str(self.lives)}
        caching = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        with open(self.directory / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                self.system.command(self.directory, self.port),
                env={**caching, **more},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL to whatever serves. Where nothing else does, another one is started at once."""
        if self.system.has_supervisor:
            for worker in self._workers():
                os.kill(worker, signal.SIGKILL)
        else:
            self.stop()
            self.start()

    def stop(self) -> None:
        """SIGKILL to all of it, for good."""
        assert self.process is not None
        workers = self._workers()
        self.process.kill()
        self.process.wait()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    def _workers(self) -> list[int]:
        import psutil

        try:
            return [each.pid for each in psutil.Process(self.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def until_quiet(self) -> None:
        """Until it has nothing to do: a supervisor may still import what workers may need."""
        deadline = time.monotonic() + QUIET_WITHIN
        before = -1.0
        while (now := cpu_seconds(self.pid)) > before and time.monotonic() < deadline:
            before = now
            time.sleep(QUIET_FOR)

    def stored(self) -> list[str]:
        """The words of the answer, as the store has them."""
        url = f"http://127.0.0.1:{self.port}{self.path}/get-messages?id={ANSWER}"
        return spoken_in(json.loads(request(url)))


async def all_stored(server: Server) -> list[str]:
    """The words of the whole answer; of one that does not grow any more, what there is."""
    before: list[str] = []
    deadline = time.monotonic() + STORED_WITHIN
    while time.monotonic() < deadline:
        found = await asyncio.to_thread(server.stored)
        if {number_of(word) for word in found} >= set(range(WORDS)):
            return found
        if len(found) > len(before):
            deadline = time.monotonic() + STORED_WITHIN
        before = found
        await asyncio.sleep(0.2)
    return before


@contextlib.contextmanager
def served(system: System, directory: Path) -> Iterator[Server]:
    """A server that is up."""
    directory.mkdir()
    server = Server(system, directory, free_port())
    server.start()
    try:
        request_when_ready(f"http://127.0.0.1:{server.port}/healthz")
        yield server
    finally:
        server.stop()


@dataclass
class Trial:
    """One death."""

    loop_ms: float
    took_ms: float | None = None  # None: it did not go on in time
    cpu_ms: float = 0.0
    lost: int = 0
    twice: int = 0
    marks: dict[str, float] = field(default_factory=dict)  # milliseconds since the death


def compare(trial: Trial, seen: set[str], stored: list[str]) -> None:
    """What was seen and is gone, or was never said; what is there more than once."""
    numbers = Counter(map(number_of, stored))
    trial.lost = len(seen - set(stored)) + sum(i not in numbers for i in range(WORDS))
    trial.twice = sum(count - 1 for count in numbers.values())


def read_marks(directory: Path, since: float, before: set[str]) -> dict[str, float]:
    """What the new process has noted, first of each kind, in milliseconds since then."""
    path, marks = directory / "marks", {}
    for line in path.read_text().splitlines() if path.exists() else ():
        what, at, life = line.split()
        if life not in before and float(at) >= since:
            marks.setdefault(what, (float(at) - since) * 1e3)
    return marks


async def supervised(system: System, directory: Path) -> Trial:
    """From SIGKILL to the first word that a new process has made, at a client that is connected."""
    with served(system, directory) as server:
        return await killed(server)


async def killed(server: Server) -> Trial:
    """The same of a server that is up."""
    client = await cut_off_soon(server, BROWSER)
    has_supervisor = server.system.has_supervisor
    if has_supervisor:
        await asyncio.to_thread(server.until_quiet)
    trial = Trial(calibrate())
    await client.ask()
    await client.until_seen(KILLED_AFTER)
    spent = cpu_seconds(server.pid) if has_supervisor else 0.0
    began = time.monotonic()
    server.kill()
    await client.until_cut_off()
    client.mark("closed")
    await going_on(trial, client, server, began, spent)
    return trial


async def in_a_row(system: System, directory: Path, n: int) -> list[Trial]:
    """One server that is killed n times, each time in the middle of another conversation's answer."""
    trials = []
    with served(system, directory) as server:
        for i in range(n):
            next_at = time.monotonic() + APART
            trials.append(await killed(replace(server, path=f"{system.path}-{i}")))
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
    return trials


async def cold(system: System, directory: Path) -> Trial:
    """From the start of a process, over a store with an interrupted turn, to its first word at a client."""
    with served(system, directory) as server:
        client = await cut_off_soon(server, RESTLESS)
        await client.ask()
        await client.until_seen(KILLED_AFTER)
        server.stop()
        await client.until_cut_off()
        await asyncio.sleep(STOPPED_FOR)
        trial = Trial(calibrate())
        began = time.monotonic()
        server.start()
        await going_on(trial, client, server, began, 0.0)
    return trial


async def cut_off_soon(server: Server, waits: Sequence[float]) -> Client:
    """A client that is connected."""
    client = Client(server.port, server.path, waits)
    await client.connect()
    return client


async def going_on(
    trial: Trial, client: Client, server: Server, began: float, spent: float
) -> None:
    """The client comes back, hears more, and the rest; then what it saw is compared with the store."""
    seen, lives = set(client.seen), {life_of(said) for said in client.seen}
    try:
        async with asyncio.timeout(DEADLINE):
            await client.come_back()
            trial.took_ms = (await client.until_told_more(lives) - began) * 1e3
        trial.cpu_ms = (cpu_seconds(server.pid) - spent) * 1e3
        with contextlib.suppress(TimeoutError):  # not everybody tells; then the store does
            async with asyncio.timeout(OVER_WITHIN):
                await client.until_over()
    except TimeoutError:
        return
    finally:
        await client.close()
    compare(trial, seen, await all_stored(server))
    ours = read_marks(server.directory, began, lives)
    theirs = {what: (at - began) * 1e3 for what, at in client.marks.items()}
    trial.marks = {**ours, **theirs}


async def deaths(how: Any, system: System, place: Place, n: int) -> Metrics:
    """n servers, each of which is killed once."""
    return measured([await how(system, place.directory / f"server-{i}") for i in range(n)])


def measured(trials: Sequence[Trial]) -> Metrics:
    """What became of all of them: medians of times, the worst of faults."""
    told = [trial for trial in trials if trial.took_ms is not None]
    took = [trial.took_ms or 0.0 for trial in told] or [DEADLINE * 1e3]
    metrics = {
        "wall_ms": statistics.median(took),
        "most_ms": max(took),
        "loops": statistics.median(
            (trial.took_ms or 0.0) / trial.loop_ms for trial in told or trials
        ),
        "cpu_ms": statistics.median(trial.cpu_ms for trial in told or trials),
        "lost": float(max(trial.lost for trial in trials)),
        "twice": float(max(trial.twice for trial in trials)),
        "stuck": float(len(trials) - len(told)),
    }
    for what in told[0].marks if told else ():
        at = [trial.marks[what] for trial in told if what in trial.marks]
        metrics[f"at_{what}_ms"] = statistics.median(at)
    return metrics


def run(how: Any, system: System) -> Callable[[Place, int], Metrics]:
    """A job's function."""

    def measure(place: Place, n: int) -> Metrics:
        return asyncio.run(deaths(how, system, place, n))

    return measure


def run_in_a_row(system: System) -> Callable[[Place, int], Metrics]:
    """The function of a job that kills one server again and again."""

    def measure(place: Place, n: int) -> Metrics:
        return measured(asyncio.run(in_a_row(system, place.directory / "server", n)))

    return measure


# --- how they are started ------------------------------------------------------------------------


def outlast(*options: str, has_supervisor: bool = True) -> System:
    """`outlast serve`, with these options."""

    def command(_: Path, port: int) -> Sequence[str]:
        serve = [
            sys.executable,
            "-m",
            "outlast.cli.main",
            "serve",
            "benchmarks.recovery.agents:app",
        ]
        return [*serve, "--port", str(port), "--log-level", "error", *options]

    def environment(directory: Path) -> Mapping[str, str]:
        store = f"sqlite:///{directory / 'chat.db'}"
        return {"BENCH_STORE": store, "BENCH_MARKS": str(directory / "marks")}

    return System(command, environment, has_supervisor=has_supervisor)


def shell(name: str, *, has_supervisor: bool = False) -> System:
    """One of `benchmarks.recovery.shell`."""

    def command(directory: Path, port: int) -> Sequence[str]:
        serve = [sys.executable, "-m", "benchmarks.recovery.shell", name, str(directory), str(port)]
        return [*serve, *(["supervised"] if has_supervisor else [])]

    return System(command, has_supervisor=has_supervisor)
