"""Example programs in processes that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx2 as httpx

import forked

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LONG = 60.0  # seconds: only a test that fails waits that long
STORY = "Tell me a long story."


def until(condition: Callable[[], Any], what: str, log: Callable[[], str] = str) -> Any:
    end = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}\n{log()[-3000:]}"
        time.sleep(0.02)
    return found


def story() -> str:
    """What the embedded model says to the question for a story, from the first word to the last."""
    from outlast.demo.script import answer

    return answer(STORY, {}, 0).text


def python(*arguments: str, folder: Path, said: str = "", **environment: str) -> str:
    """What a program prints that runs to its end."""
    given = {**os.environ, **environment}
    done = forked.run(*arguments, cwd=folder, input=said, env=given, timeout=2 * LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Served:
    """A server on a port and in a folder that stay the same, however often it is killed."""

    def __init__(
        self, folder: Path, arguments: list[str], program: Path | None = None, **environment: str
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._program = program
        self._arguments = [*arguments, "--port", str(self.port)]
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(base_url=self.url, timeout=LONG)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = self._spawn(log)
        until(self._is_ready, "the server to be ready", lambda: self.log)

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        given: dict[str, Any] = {"cwd": self._folder, "env": self._environment}
        given |= {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        if self._program is None:
            return forked.start(*self._arguments, **given)
        return subprocess.Popen([self._program, *self._arguments], **given)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/readyz").status_code == 200
        return False

    def kill(self) -> None:
        """SIGKILL, and to a supervisor's worker as well: nobody is left who could do anything."""
        if self._process is None:
            return
        pid = self._process.pid
        is_alive = self._process.poll() is None
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text() if is_alive else ""
        self._process.kill()
        for child in children.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), 9)
        self._process.wait()
        self._process = None


@contextmanager
def serving(
    folder: Path, *arguments: str, program: Path | None = None, **environment: str
) -> Iterator[Served]:
    """Serve as `python ARGUMENTS` does, or as another program does with these arguments."""
    server = Served(folder, [*arguments], program, **environment)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        server.http.close()


def uvicorn(folder: Path, app: str, place: Path, **environment: str) -> Any:
    """An example that is an ASGI application of its own."""
    arguments = ["-m", "uvicorn", app, "--app-dir", str(place)]
    return serving(folder, *arguments, "--log-level", "warning", **environment)
