"""`outlast dev`, for real: a file is changed in the middle of an answer, broken, and mended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
from commands import beside

import forked
from outlast.cli.serving import watch
from outlast.client import Client
from outlast.host.address import Address
from outlast.inspect import views
from outlast.inspect.reader import reading

LONG = 60.0  # seconds that anything may take on a machine with much to do
AGENT = """
from outlast import Think
from outlast.testing import ScriptedModel, Step

ANSWER = " ".join(f"word-{n}" for n in range(40))


def tell(messages):
    # A few words, and then nothing until it is asked to go on.
    parts = [part for message in messages for part in message.parts if part.part_kind == "text"]
    told = "".join(str(part.content) for part in parts)
    return Step.text(ANSWER[len(told):]) if told else Step.text(ANSWER[:49]) + Step.stalls()


class Teller(Think):
    model = ScriptedModel.answering(tell)
"""


class Dev:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = folder / "agents" / "teller.py"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.pid = 0

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    async def until(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(LONG):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"it has not come to that:\n{self.log}") from None

    @property
    def worker(self) -> int:
        """The process that serves; its supervisor has the watcher as a child, too."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        names = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
        (found,) = [int(pid) for pid, name in names.items() if watch.__name__ not in name]
        return found

    async def until_said(self, name: str, words: int) -> None:
        """Wait until so much of the answer is stored."""
        address = Address.of("Teller", name)
        async with asyncio.timeout(LONG), reading(f"sqlite:///{self.folder}/store.db") as reader:
            while True:
                turns = await views.turns(reader, address)
                chunks = await views.chunks(reader, address, turns[0].id) if turns else []
                if len([each for each in chunks if "delta" in each["chunk"]]) >= words:
                    return
                await asyncio.sleep(0.05)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def developing(folder: Path) -> Iterator[Dev]:
    dev = Dev(folder)
    dev.agent.parent.mkdir()
    dev.agent.write_text(AGENT)
    command = ["-m", "outlast.cli.main", "dev", "--port", str(dev.port)]
    environment = {**os.environ, "OUTLAST_STORE": f"sqlite:///{folder}/store.db"}
    with (folder / "log").open("wb") as log:
        process = forked.start(*command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            dev.pid = process.pid
            yield dev
            process.send_signal(signal.SIGINT)
            assert process.wait(LONG) == 0, dev.log
        finally:
            process.kill()
            process.wait()


async def test_a_reload_in_the_middle_of_an_answer_is_recovered_and_said(tmp_path: Path) -> None:
    with developing(tmp_path) as dev:
        await dev.until(dev.is_ready)
        assert f"Teller: {dev.url}/agents/teller/NAME" in dev.log
        assert f"outlast chat teller NAME --url {dev.url}" in dev.log
        assert f"inspector: {dev.url}/inspect" in dev.log
        said = []
        async with Client(dev.url, "teller", "a") as client:
            async with asyncio.timeout(LONG):
                async for chunk in client.send("Well?", request_id="r1"):
                    said.append(chunk.get("delta", ""))
                    if len([each for each in said if each]) == 3:
                        dev.agent.write_text(AGENT + "\n# changed\n")
        assert "".join(said).split() == [f"word-{n}" for n in range(40)], "each word once"
        assert "agents/teller.py changed" in dev.log
        assert "Teller/a was interrupted by the reload in r1." in dev.log
        assert "row 17" in dev.log

        talking = asyncio.create_task(
            beside("chat", "Teller", "b", "-m", "Well?", "--url", dev.url)
        )
        await dev.until_said("b", 3)
        os.kill(dev.worker, signal.SIGKILL)
        talked = await talking
        assert (talked.code, talked.out.split("\n")[-2].split()[-1]) == (0, "word-39"), talked
        assert [word for word in talked.out.split() if word.startswith("word-")] == [
            f"word-{n}" for n in range(40)
        ]
        assert "Teller/b was interrupted by a crash in" in dev.log

        async with Client(dev.url, "teller", "c") as client:
            stalled = asyncio.create_task(anext(client.send("Well?", request_id="r3")))
            await dev.until_said("c", 3)
            await stalled
            store = f"sqlite:///{dev.folder}/store.db"
            told = await beside("cancel", "r3", "--store", store, "--json")
            assert told.json == {
                "agent": "Teller/c",
                "turn": "r3",
                "cancelled": True,
                "by_host": True,
            }, "it has reached the worker through its admin socket"

        dev.agent.write_text(AGENT + "\nraise RuntimeError('half done')\n")
        await dev.until(lambda: "RuntimeError: half done" in dev.log)
        reloads = dev.log.count("outlast: reloaded")
        dev.agent.write_text(AGENT)
        await dev.until(lambda: dev.log.count("outlast: reloaded") > reloads)
        await dev.until(dev.is_ready)
        assert "Traceback" not in dev.log
