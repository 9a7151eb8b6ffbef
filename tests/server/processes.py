"""`outlast serve` in a process of its own, which can be killed and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2 as httpx

import forked

LONG = 60.0  # seconds: only a test that fails waits that long
FIXTURE = Path(__file__).parent.parent / "conformance" / "fixture_agent.py"


class Process:
    """The fixture agent, on a port and a store that stay the same; with a supervisor or without."""

    def __init__(self, folder: Path, *, supervised: bool = False) -> None:
        self.folder = folder
        self.is_supervised = supervised
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: forked.Popen | None = None
        self.ws = f"ws://127.0.0.1:{self.port}/agents/fixture-agent"
        self.http = f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def children(self) -> list[int]:
        assert self.process is not None
        pid = self.process.pid
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def _spawn(self) -> forked.Popen:
        command = ["-m", "outlast.cli.main", "serve", str(FIXTURE)]
        command += [] if self.is_supervised else ["--no-supervisor"]
        command += ["--port", str(self.port), "--log-level", "error"]
        command += ["--store", f"sqlite:///{self.folder}/store.db"]
        with (self.folder / "log").open("ab") as log:
            return forked.start(*command, stdout=log, stderr=log)

    async def start(self) -> None:
        self.process = self._spawn()
        async with asyncio.timeout(LONG), httpx.AsyncClient() as http:
            while True:
                assert self.process.poll() is None, self.log
                try:
                    if (await http.get(f"{self.http}/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    await asyncio.sleep(0.02)

    async def end(self, how: int) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return await asyncio.to_thread(self.process.wait, LONG)

    async def die(self) -> None:
        """Whoever serves is killed, and there is another one."""
        if self.is_supervised:
            (worker,) = self.children()
            os.kill(worker, signal.SIGKILL)
        else:
            await self.end(signal.SIGKILL)
            await self.start()


@asynccontextmanager
async def process(folder: Path, *, supervised: bool = False) -> AsyncIterator[Process]:
    made = Process(folder, supervised=supervised)
    try:
        await made.start()
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            if supervised:  # a supervisor that is killed leaves its worker to end by itself
                made.process.send_signal(signal.SIGINT)
                made.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(made.process.wait, LONG)
            else:
                made.process.kill()
        if made.process is not None:
            made.process.wait()
