"""A Python that has imported outlast, and forks at every request. Run by `forked.py`.

A process that serves imports for three and a half seconds of CPU time; a fork of this one begins where those
imports have ended. Apart from that it is a process like any other: it has a parent, a session, an
environment, files and signals of its own.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
from typing import Any

from outlast.cli.serving import imports

MAIN = "outlast.cli.main"
ALSO = ("outlast.cli.serving.supervisor", "outlast.server", "outlast.testing", "httpx2")


def import_all() -> None:
    for name in (MAIN, *ALSO, *imports.AT_ONCE, *imports.SOON):
        imports.load(name)
    imports.load_prices()
    del sys.modules[MAIN]  # `python -m` executes it once, as `__main__`
    gc.collect()
    gc.freeze()
    assert imports.can_fork(), "an import has started a thread"


def next_request(requests: socket.socket) -> dict[str, Any]:
    """Answer each request with the id of a new process. Returns in the new process, with its request."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not data:
            os._exit(0)  # the tests are over
        between = os.fork()
        if between == 0:
            parent, pid = os.getpid(), os.fork()
            if pid != 0:
                requests.sendall(str(pid).encode())
                os._exit(0)  # so the new process has another parent: whoever reaps orphans
            requests.close()
            while os.getppid() == parent:
                time.sleep(0.0005)
            request: dict[str, Any] = json.loads(data)
            use_files(files)
            return request
        for each in files:
            os.close(each)
        os.waitpid(between, 0)
        requests.sendall(b"orphaned")


def use_files(files: list[int]) -> None:
    """Make them standard input, output and error."""
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        is_prompt = os.isatty(number) or number == 2
        stream.reconfigure(line_buffering=is_prompt)  # type: ignore[union-attr]


def become(request: dict[str, Any]) -> None:
    """Do what a new interpreter does before it runs its program."""
    if request["new_session"]:
        os.setsid()
    if request["terminal"]:
        take_terminal(request["ignores_hangup"])
    os.chdir(request["cwd"])
    known = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(request["env"])
    path = os.environ.get("PYTHONPATH", "")
    if path != known:
        sys.path[1:1] = [each for each in path.split(os.pathsep) if each not in sys.path[1:]]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    importlib.invalidate_caches()


def take_terminal(ignores_hangup: bool) -> None:
    """Make standard input the controlling terminal, as a shell does for a foreground job."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores_hangup else signal.SIG_DFL)


def run(arguments: list[str]) -> None:
    """Run what `python ARGUMENTS` runs: `-m MODULE …` or `FILE …`."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


class QuickExit:
    """Ends the process once everything has run that runs at an exit.

    What Python does after that, it does to memory: it takes apart every module, and so copies every page
    that this process shares with the one that it was forked from.
    """

    def __init__(self) -> None:
        self.status: int | None = None  # None: as Python ends
        atexit.register(self._end)  # the first that is registered is the last that runs

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        if isinstance(error, SystemExit):
            code = 0 if error.code is None else error.code
            self.status = code if isinstance(code, int) else 1
        elif kind is None or issubclass(kind, Exception):
            self.status = 0 if kind is None else 1

    def _end(self) -> None:
        if self.status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status & 0xFF)


if __name__ == "__main__":
    quick_exit = QuickExit()
    import_all()
    request = next_request(socket.socket(fileno=int(sys.argv[1])))
    become(request)
    with quick_exit:
        run(request["arguments"])
