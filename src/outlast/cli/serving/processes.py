"""Starts workers, and detects that they ended.

A worker holds one end of a *lifeline*, a pair of sockets. It reports there that it is ready, that it served
a client, that it wants to be replaced, or why it failed to start, and it detects there that its supervisor
died. It leads its own process group: Ctrl-C reaches the supervisor only, and processes that a worker
started end with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from outlast.cli.serving.settings import Settings
from outlast.host.causes import DIED_AT, VARIABLE

RELOAD = signal.SIGUSR2  # SIGHUP reloads only where no terminal can send it
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, RELOAD)
READY = b"r"
SERVED = b"s"
UPGRADE = b"u"
FAILED = b"f"  # followed by a `Failure`


@dataclass(frozen=True, slots=True)
class PreviousExit:
    """When and why the previous worker ended."""

    cause: str
    at: int  # milliseconds since 1970


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """A worker, as its supervisor knows it."""

    pid: int
    lifeline: socket.socket
    how: str


@dataclass(frozen=True, slots=True)
class ForkedWorker:
    """Returned in the forked child: this process is a worker now."""

    lifeline: socket.socket


def fork(
    last: PreviousExit | None, private: Iterable[socket.socket]
) -> WorkerHandle | ForkedWorker:
    """Fork a worker, without the sockets `private` to the supervisor. Returns in both processes."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, SIGNALS
    )  # none may reach a half-initialized child
    try:
        pid = os.fork()
        if pid == 0:
            _become_worker(last, (ours, *private))
            return ForkedWorker(theirs)
    except OSError:
        ours.close()
        theirs.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    with contextlib.suppress(OSError):  # parent and child both try
        os.setpgid(pid, pid)
    return WorkerHandle(pid, ours, "forked")


def _become_worker(last: PreviousExit | None, private: Iterable[socket.socket]) -> None:
    """Drop the state of the parent."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for each in private:
        each.close()
    environment = _with(last, os.environ)
    os.environ.clear()
    os.environ.update(environment)


def _with(last: PreviousExit | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the next worker."""
    kept = {name: value for name, value in environment.items() if name not in (VARIABLE, DIED_AT)}
    return kept if last is None else {**kept, VARIABLE: last.cause, DIED_AT: str(last.at)}


def spawn(
    settings: Settings, last: PreviousExit | None, sockets: Sequence[socket.socket]
) -> WorkerHandle:
    """Start a worker as a new process, where a fork would not be safe."""
    ours, theirs = socket.socketpair()
    environment = _with(last, os.environ)
    numbers = [each.fileno() for each in (theirs, *sockets)]
    module = "outlast.cli.serving.worker"
    command = [sys.executable, "-P", "-m", module, settings.encode(), *map(str, numbers)]
    try:
        for number in numbers:
            os.set_inheritable(number, True)
        pid = os.posix_spawn(
            sys.executable, command, environment, setpgroup=0, setsigmask=(), setsigdef=SIGNALS
        )
    except OSError:
        ours.close()
        raise
    finally:
        for number in numbers:
            os.set_inheritable(number, False)
        theirs.close()
    return WorkerHandle(pid, ours, "spawned")


def reap(workers: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the children that ended, each with its exit status, or the negative number of its signal.

    They need not be workers: the first process of a container adopts every orphan. Processes that a worker
    left behind are killed before its pid can be reused.
    """
    while True:
        pid = -1
        try:
            if hasattr(os, "waitid"):  # missing on macOS before Python 3.13
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None:
                    return
                pid = found.si_pid
                if pid in workers:
                    kill(pid)
            pid, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def kill(pid: int) -> None:
    """Send SIGKILL to a worker and to every process it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def ask_to_stop(pid: int) -> None:
    """Send SIGTERM to a worker."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def received(lifeline: socket.socket) -> bytes | None:
    """Return the bytes that the worker sent since; None if it closed its end."""
    try:
        return lifeline.recv(65536, socket.MSG_DONTWAIT) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None
