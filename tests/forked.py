"""Processes that need not import outlast: they are forks of one that has (`fork_server.py`).

They are real processes, and children of this one: they can be killed, and leave a status. For tests that
start outlast in order to see what it does then; what a fresh interpreter imports is tested with one.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

SERVER = Path(__file__).parent / "fork_server.py"
PR_SET_CHILD_SUBREAPER = 36
FRESH = subprocess.Popen
EXECUTE = inspect.signature(FRESH._execute_child)  # type: ignore[attr-defined]


def start(*arguments: str, **options: Any) -> Popen:
    """What `python ARGUMENTS` starts: `-m MODULE …` or `FILE …`. With options of `Popen`."""
    options.setdefault("stdin", subprocess.DEVNULL)
    return Popen([sys.executable, *arguments], **options)


def run(
    *arguments: str, timeout: float, input: str = "", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to its end, and keep what it writes."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start(*arguments, **pipes, text=True, **options) as process:
        try:
            out, error = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A `subprocess.Popen` that forks what would be a new Python; other programs it starts as usual.

    With a `terminal`, `stdin` becomes the controlling terminal of a new session.
    """

    def __init__(
        self, *arguments: Any, terminal: bool = False, ignores_hangup: bool = False, **options: Any
    ) -> None:
        self._terminal = {"terminal": terminal, "ignores_hangup": ignores_hangup}
        super().__init__(*arguments, **options)

    def _execute_child(self, *given: Any) -> None:
        options = EXECUTE.bind(self, *given).arguments
        if not _is_python(options["args"]) or options["preexec_fn"] is not None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        request = {
            "arguments": [os.fspath(each) for each in options["args"][1:]],
            "cwd": os.fspath(options["cwd"] or os.getcwd()),
            "env": dict(os.environ if options["env"] is None else options["env"]),
            "new_session": options["start_new_session"],
            **self._terminal,
        }
        ends = [options[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = [number if end == -1 else end for number, end in enumerate(ends)]
        self.pid = _server().fork(request, files)
        self._child_created = True
        self._close_pipe_fds(*(options[name] for name in pipes))  # type: ignore[attr-defined]


def _is_python(command: Sequence[str]) -> bool:
    """Whether a fork can be this; not with options of Python, or a program as a text."""
    if sys.platform != "linux" or isinstance(command, str) or len(command) < 2:
        return False
    return command[0] == sys.executable and (command[1] == "-m" or str(command[1]).endswith(".py"))


class _Server:
    """The process that forks."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, str(SERVER), str(number)]
            self._process = FRESH(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[number]
            )

    def fork(self, request: dict[str, Any], files: list[int]) -> int:
        """Ask for a process. For that time orphans become children of this one: it is the orphan."""
        with self._lock:
            _reap_orphans(True)
            try:
                socket.send_fds(self._requests, [json.dumps(request).encode()], files)
                answers = [self._requests.recv(100) for _ in range(2)]
            finally:
                _reap_orphans(False)
        assert answers[1] == b"orphaned", f"{SERVER.name} has ended: {self._process.poll()}"
        return int(answers[0])

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


@cache
def _server() -> _Server:
    started = _Server()
    atexit.register(started.close)
    return started


def _reap_orphans(wanted: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
