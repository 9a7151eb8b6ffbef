"""The server that is killed: `outlast serve`, its worker, and the ways in which they die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.cli.serving.settings import Settings
from outlast.testing.torture.server.memory import Group

KILL = "SIGKILL, worker"
TERM = "SIGTERM, worker"
OOM = "out of memory, worker"
RELOAD = "SIGHUP, supervisor"
KILL_ALL = "SIGKILL, supervisor"
STOP = "SIGTERM, supervisor"
KINDS = {KILL: 78, TERM: 7, OOM: 5, RELOAD: 4, KILL_ALL: 3, STOP: 3}

DRAIN = 1.5  # seconds
DIES_WITHIN = 4.0  # seconds, for a worker that has no memory
PATIENCE = 60.0  # seconds for a process to come or to go, on a machine that is busy
PORTS = (20_000, 32_000)  # below those that connections get by themselves
_DEATH = re.compile(r"worker (\d+) (ended with exit status|was killed by|failed to start)")


@dataclass(frozen=True, slots=True)
class Kill:
    kind: str
    after: float  # seconds: since somebody has heard something new, or since there is a worker
    is_early: bool  # the latter: it may be starting


def kills(seed: int, count: int, more: Mapping[str, int] | None = None) -> list[Kill]:
    """How and when: while it starts, soon, or later. The first of each kind come early.

    `more`: other misfortunes than those of the server, with their weights."""
    chance = random.Random(f"{seed} kills")
    weights = {**KINDS, **(more or {})}
    made = [
        Kill(kind, *_moment(chance))
        for kind in chance.choices(list(weights), weights=list(weights.values()), k=count)
    ]
    kinds = [*(more or {}), *(kind for kind in KINDS if kind != KILL)]
    for place, kind in enumerate(kinds, 1):  # also a short run has some of them
        if 2 * place < count:
            made[2 * place] = replace(made[2 * place], kind=kind)
    return made


def _moment(chance: random.Random) -> tuple[float, bool]:
    when = chance.choices(("starting", "soon", "later"), weights=(2, 4, 4))[0]
    latest = {"starting": 0.5, "soon": 0.3, "later": 1.2}[when]
    return chance.uniform(0, latest), when == "starting"


def free_port() -> int:
    """One that nobody gets by chance while the server is away."""
    while True:
        port = random.randint(*PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class TorturedServer:
    """A supervisor, its worker, and whoever comes after them."""

    def __init__(
        self,
        folder: Path,
        store: str,
        *,
        target: str = "outlast.testing.torture.server.application:app",
        environment: Mapping[str, str] | None = None,
        group: Group | None = None,
        drain: float = DRAIN,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        self._settings = Settings(
            target, port=self.port, store=store, log_level="error", drain=drain
        )
        self._environment = {**os.environ, **(environment or {})}
        self._group = group
        self._process: subprocess.Popen[bytes] | None = None
        self._hit: set[int] = set()  # workers that did not die by themselves
        self.may_miss_store = False  # one that starts may find its database away

    # --- who is there ----------------------------------------------------------------------------

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "outlast.testing.torture.server.launch",
            self._settings.encode(),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                preexec_fn=None if self._group is None else self._group.enter,
                start_new_session=True,
            )

    def worker(self) -> int | None:
        """Its process id; None while there is none."""
        if self._process is None:
            return None
        pid = self._process.pid
        try:
            found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        return next((int(each) for each in found if _is_alive(int(each))), None)

    async def until_worker(self) -> int:
        """Wait for one to be there. The supervisor is started again if it has gone by itself."""
        async with asyncio.timeout(PATIENCE):
            while (found := self.worker()) is None:
                if self._process is None or self._process.poll() is not None:
                    self.start()
                await asyncio.sleep(0.005)
        return found

    # --- deaths ----------------------------------------------------------------------------------

    async def strike(self, kind: str) -> float:
        """Kill it in one of the ways. When, on the monotonic clock."""
        worker = await self.until_worker()
        assert self._process is not None
        self._hit.add(worker)
        at = time.monotonic()
        match kind:
            case "SIGKILL, worker":
                _send(worker, signal.SIGKILL)
            case "SIGTERM, worker":
                _send(worker, signal.SIGTERM)
            case "out of memory, worker":
                at = await self._exhaust(worker)
            case "SIGHUP, supervisor":
                _send(self._process.pid, signal.SIGHUP)
            case _:
                is_rude = kind == KILL_ALL
                _send(self._process.pid, signal.SIGKILL if is_rude else signal.SIGTERM)
                await asyncio.to_thread(self._process.wait, PATIENCE)
                await _until(lambda: not _is_alive(worker))
                self.start()
        return at

    async def _exhaust(self, worker: int) -> float:
        """Have it take all memory. One that lives on without any is killed, as by a kernel."""
        try:
            await _until(
                lambda: not _is_alive(worker) or _listens_to(worker, signal.SIGUSR1), DIES_WITHIN
            )
            _send(worker, signal.SIGUSR1)
            await _until(lambda: not _is_alive(worker), DIES_WITHIN)
        except TimeoutError:
            _send(worker, signal.SIGKILL)
        return time.monotonic()

    def died_by_themselves(self) -> list[str]:
        """What the supervisor has said of workers that nobody had touched."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            death = _DEATH.search(line)
            if self.may_miss_store and "failed to start: StoreUnavailable" in line:
                continue
            if death is not None and int(death[1]) not in self._hit:
                found.append(line)
        return found

    def complaints(self) -> list[str]:
        """Exceptions that stand in its log."""
        return exceptions_in(self.log.read_text(errors="replace"))

    async def stop(self) -> None:
        """The end, politely and then not."""
        process, worker = self._process, self.worker()
        if process is None:
            return
        if worker is not None:
            self._hit.add(worker)
        _send(process.pid, signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, PATIENCE)
        except subprocess.TimeoutExpired:
            _send(process.pid, signal.SIGKILL)
            if worker is not None:
                _send(worker, signal.SIGKILL)
            process.wait()
        if worker is not None:
            await _until(lambda: not _is_alive(worker))


def exceptions_in(log: str) -> list[str]:
    """The last lines of tracebacks; not of what was cancelled because it took too long to stop."""
    found, is_inside = [], False
    for line in log.splitlines():
        if line.startswith("Traceback "):
            is_inside = True
        elif is_inside and line and not line.startswith(" "):
            is_inside = False
            name = line.partition(":")[0]
            if name.isupper() or name == "outlast":  # it was cut off by a death
                continue
            if not name.endswith(("CancelledError", "MemoryError")):
                found.append(line)
    return found


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _listens_to(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; without one it would just die of it."""
    try:
        found = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


async def _until(condition: Callable[[], bool], within: float = PATIENCE) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)
