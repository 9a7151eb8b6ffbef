"""`outlast serve` with the fixture agent, in a process that can be killed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx

import forked

FIXTURE = Path(__file__).parent / "fixture_agent.py"
LONG = 60.0  # seconds: only a test that fails waits that long


class Server:
    """A server on a port and a store that stay the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.host = f"127.0.0.1:{free.getsockname()[1]}"
        self._process: forked.Popen | None = None
        self.http = httpx.Client(base_url=f"http://{self.host}/agents/fixture-agent", timeout=LONG)

    def start(self) -> None:
        command = ["-m", "outlast.cli.main", "serve", str(FIXTURE)]
        command += ["--port", self.host.split(":")[1], "--log-level", "warning"]
        command += ["--store", f"sqlite:///{self._folder}/store.db"]
        with (self._folder / "log").open("ab") as log:
            self._process = forked.start(*command, stdout=log, stderr=log)
        self.until(self._is_ready, "the server to be ready")

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        try:
            return self.http.get(f"http://{self.host}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def messages(self, name: str) -> list[dict[str, Any]]:
        """What is stored, as a page that loads is told."""
        found: list[dict[str, Any]] = self.http.get(f"/{name}/get-messages").json()
        return found

    def release(self, name: str) -> None:
        """Let an answer that is held in the middle go on."""
        assert self.http.post(f"/{name}/rpc/release").json() == {"result": True}

    def is_answering(self, name: str) -> bool:
        with self.http.stream("GET", f"/{name}/chat/stream") as response:
            return response.status_code == 200

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until this holds of the server, which has to be asked again and again."""
        end = time.monotonic() + LONG
        while not (found := condition()):
            assert time.monotonic() < end, f"waited in vain for {what}\n{self.log[-2000:]}"
            time.sleep(0.02)
        return found


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        server.http.close()
