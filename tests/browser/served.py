"""The page's server, supervised, in processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx

import forked

TESTS = Path(__file__).parent.parent
LONG = 20.0  # seconds that anything may take
TOKEN = "the-token-of-the-browser-tests"


class Server:
    """`outlast serve` with the page, on a port of its own."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        bearer = {"authorization": f"Bearer {TOKEN}"}
        self.http = httpx.Client(base_url=self.url, timeout=LONG, headers=bearer)
        paths = filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))
        path = os.pathsep.join(paths)
        ours = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OUTLAST_TOKEN": TOKEN}
        environment = {**os.environ, **ours}
        with (folder / "log").open("ab") as log:
            self.process = forked.start(
                "-m",
                "outlast.cli.main",
                *command,
                "--port",
                str(self.port),
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
            )

    @property
    def link(self) -> str:
        """What lets a browser see everything."""
        return f"{self.url}/?token={TOKEN}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + LONG
        while not (found := condition()):
            assert time.monotonic() < end, f"waited in vain for {what}\n{self.log[-3000:]}"
            time.sleep(0.02)
        return found

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/readyz").status_code == 200
        return False

    def children(self) -> list[int]:
        pid = self.process.pid
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def release(self, name: str) -> None:
        """Let an answer that is held in the middle go on."""
        response = self.http.post(f"/agents/page-agent/{name}/rpc/release")
        assert response.json() == {"result": True}

    def messages(self, name: str, agent: str = "page-agent") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get(f"/agents/{agent}/{name}/get-messages").json()
        return found

    @contextmanager
    def down(self) -> Iterator[None]:
        """Nobody answers until the end of this."""
        (worker,) = self.children()
        os.kill(self.process.pid, signal.SIGSTOP)  # nobody starts another one
        try:
            os.kill(worker, signal.SIGKILL)
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def stop(self, how: int = signal.SIGINT) -> int:
        self.process.send_signal(how)
        return self.process.wait(LONG)


@contextmanager
def running(folder: Path, *command: str) -> Iterator[Server]:
    server = Server(folder, *command)
    try:
        server.until(server.is_ready, "the server to be ready")
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        server.http.close()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    target = str(TESTS / "browser" / "page_app.py")
    store = f"sqlite:///{folder}/store.db"
    with running(folder, "serve", target, "--store", store, "--log-level", "warning") as server:
        yield server
