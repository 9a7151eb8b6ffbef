"""Starting workers, and finding out that they have ended.

A worker holds one end of a *lifeline*, a pair of sockets: it reports there that it is ready, that it has
served something, that it wants to be replaced, or why it could not start, and sees there that its supervisor
has died. It leads a process group of its own: Ctrl-C reaches the supervisor alone, and what a worker has
started ends with it.
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

RELOAD = signal.SIGUSR2  # always; SIGHUP only where no terminal can send it
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, RELOAD)
READY = b"r"
SERVED = b"s"
UPGRADE = b"u"
FAILED = b"f"  # everything after it is a `Failure`


@dataclass(frozen=True, slots=True)
class End:
    """How the worker before one ended."""

    cause: str
    at: int  # milliseconds since 1970


@dataclass(frozen=True, slots=True)
class Started:
    """A worker, as its supervisor knows it."""

    pid: int
    lifeline: socket.socket
    how: str


@dataclass(frozen=True, slots=True)
class Born:
    """This process is a worker, just forked."""

    lifeline: socket.socket


def fork(last: End | None, private: Iterable[socket.socket]) -> Started | Born:
    """A copy of this process, without what is `private` to the supervisor. Returns in both."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # none may reach half a child
    try:
        pid = os.fork()
        if pid == 0:
            _be_born(last, (ours, *private))
            return Born(theirs)
    except OSError:
        ours.close()
        theirs.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    with contextlib.suppress(OSError):  # whoever comes first, the child or this
        os.setpgid(pid, pid)
    return Started(pid, ours, "forked")


def _be_born(last: End | None, private: Iterable[socket.socket]) -> None:
    """Drop what was the parent's."""
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


def _with(last: End | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker that comes after this one."""
    kept = {name: value for name, value in environment.items() if name not in (VARIABLE, DIED_AT)}
    return kept if last is None else {**kept, VARIABLE: last.cause, DIED_AT: str(last.at)}


def spawn(settings: Settings, last: End | None, sockets: Sequence[socket.socket]) -> Started:
    """A fresh process, for where a fork would not be safe."""
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
    return Started(pid, ours, "spawned")


def ended(workers: Collection[int]) -> Iterator[tuple[int, int]]:
    """The children that have ended, each with its exit status, or the negative number of its signal.

    They need not be workers: the first process of a container is given every orphan. What a worker has left
    behind is killed before its number can be given to another process.
    """
    while True:
        pid = -1
        try:
            if hasattr(os, "waitid"):  # not on macOS, before Python 3.13
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
    """SIGKILL, to a worker and whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def ask_to_stop(pid: int) -> None:
    """SIGTERM, to a worker."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def heard(lifeline: socket.socket) -> bytes | None:
    """What the worker has said since; None: it says nothing more."""
    try:
        return lifeline.recv(65536, socket.MSG_DONTWAIT) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None
