"""A server that goes away, politely or not, and clients that come back."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tabs import (
    LONG,
    MESSAGES,
    NONE,
    PENDING,
    RESPONSE,
    RESUMING,
    UPDATED,
    Frame,
    Tab,
    said,
    served,
    text_of,
    words,
)

FIXTURE = Path(__file__).parent.parent / "conformance" / "fixture_agent.py"
PROBE = "cf_agent_stream_resume_request"
ACK = "cf_agent_stream_resume_ack"


async def caught_up(tab: Tab, id: str, seen: str) -> tuple[Frame, list[Frame]]:
    """Probe and resume as the hook does, until the request is over; the end, and what is shown then."""
    await tab.send(PROBE, probeId="again")

    def answer() -> Frame | None:
        kinds = (RESUMING, PENDING, NONE)
        return next((each for each in tab.frames if each["type"] in kinds), None)

    await tab.until(answer)
    done = None
    async with asyncio.timeout(LONG):
        acked: set[str] = set()
        while True:
            for frame in tab.all(RESUMING):
                if frame["id"] not in acked:
                    acked.add(frame["id"])
                    await tab.send(ACK, id=frame["id"])
            done = next(iter(tab.all(RESPONSE, id=id, done=True)), None)
            shown = tab.all(MESSAGES)
            if shown and len(shown[-1]["messages"]) > 1:
                idle = [each for each in tab.all(NONE) if each.get("reason") == "idle"]
                if done is not None or idle:
                    break
            await asyncio.sleep(0.01)
    return done or {}, tab.all(MESSAGES)[-1]["messages"]


async def test_a_server_that_stops_says_come_back(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server:
        idle = await server.tab("idle").open()
        busy = await server.tab("busy").open()
        await busy.say("r1", "say 500 words every 10ms")
        await busy.until(lambda: len(busy.text("r1")) > 20)
    assert (await idle.until_closed())[0] == 1012
    assert (await busy.until_closed())[0] in (1012, 1013)


async def test_what_was_said_before_a_stop_is_there_after_it(store_url: str) -> None:
    async with served(url=store_url) as server:
        tab = await server.tab(pk="t").open()
        await tab.say("r1", "say 300 words every 10ms")
        await tab.until(lambda: len(tab.text("r1")) > 20)
    await tab.until_closed()
    seen = tab.text("r1")
    async with served(url=store_url) as server, server.tab(pk="t") as tab:
        done, messages = await caught_up(tab, "r1", seen)
        assert said(messages)[0] == "user: say 300 words every 10ms"
        assert text_of(messages[1]).startswith(seen.rstrip())
        assert words(300).startswith(text_of(messages[1]).rstrip())
        answered = await tab.answered("r2", "say 2 words")
        assert answered.get("outcome", "completed") == "completed"
        assert tab.text("r2") == "w1 w2"


# --- killed --------------------------------------------------------------------------------------


class Process:
    """`outlast serve`, for real, in one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.ws = f"ws://127.0.0.1:{self.port}/agents/fixture-agent/a"
        self.http = f"http://127.0.0.1:{self.port}"

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "outlast.cli.main", "serve", str(FIXTURE)]
        command += ["--no-supervisor", "--port", str(self.port), "--log-level", "error"]
        command += ["--store", f"sqlite:///{self.folder}/store.db"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    async def start(self) -> None:
        self.process = self._spawn()
        async with asyncio.timeout(30), httpx.AsyncClient() as http:
            while True:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                try:
                    if (await http.get(f"{self.http}/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    await asyncio.sleep(0.05)

    async def end(self, how: int) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return await asyncio.to_thread(self.process.wait, 20)


@asynccontextmanager
async def process(folder: Path) -> AsyncIterator[Process]:
    made = Process(folder)
    await made.start()
    try:
        yield made
    finally:
        assert made.process is not None
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait()


def once(text: str, whole: str) -> bool:
    """Whether it is the beginning of the whole: every word in its place, none twice."""
    return whole.startswith(text.rstrip())


@pytest.mark.parametrize("seed", range(3))
async def test_every_word_that_was_seen_is_there_once_after_a_kill(
    tmp_path: Path, seed: int
) -> None:
    moment = random.Random(seed).randrange(3, 60)
    prompt = "say 200 words every 10ms"
    async with process(tmp_path) as server:
        tabs = [await Tab(f"{server.ws}?_pk=t{n}").open() for n in range(2)]
        await tabs[0].say("r1", prompt)
        for tab in tabs:
            await tab.until(lambda tab=tab: len(tab.text("r1").split()) >= moment)
        await server.end(signal.SIGKILL)
        seen = []
        for tab in tabs:
            await tab.until_closed()
            seen.append(tab.text("r1"))
            assert once(seen[-1], words(200))
        await server.start()
        longest = max(seen, key=len)
        finals = []
        for n in range(2):
            async with Tab(f"{server.ws}?_pk=t{n}") as tab:
                done, messages = await caught_up(tab, "r1", longest)
                finals.append(messages)
                assert done, tab.shape()
                kinds = [chunk["type"] for chunk in tab.chunks("r1")]
                assert kinds.count("text-start") == kinds.count("text-end")
                if not kinds:  # it came before the turn was over; nothing is left open there either
                    assert (await tab.wait(UPDATED))["message"] == messages[1]
                for id in {each["id"] for each in tab.all(RESPONSE)}:
                    assert len(tab.all(RESPONSE, id=id, done=True)) == 1, tab.shape()
        assert finals[0] == finals[1]
        assert [each["role"] for each in finals[0]] == ["user", "assistant"]
        answer = text_of(finals[0][1])
        assert answer.startswith(longest.rstrip())
        assert once(answer, words(200))
        streaming = [part for part in finals[0][1]["parts"] if part.get("state") == "streaming"]
        assert not streaming
        async with Tab(f"{server.ws}?_pk=t0") as tab:
            await tab.answered("r2", "say 2 words")
            assert tab.text("r2") == "w1 w2"


async def test_a_polite_end_of_the_process_is_quick_and_clean(tmp_path: Path) -> None:
    async with process(tmp_path) as server:
        tab = await Tab(f"{server.ws}?_pk=t").open()
        await tab.say("r1", "say 20 words every 5ms")
        await tab.until(lambda: tab.text("r1"))
        code = await server.end(signal.SIGTERM)
        assert code == 0
        assert (await tab.until_closed())[0] in (1012, 1013)
        assert "Traceback" not in (tmp_path / "log").read_text()
        await server.start()
        async with httpx.AsyncClient() as http:
            found: list[Any] = (
                await http.get(f"{server.http}/agents/fixture-agent/a/get-messages")
            ).json()
            assert text_of(found[1]).startswith(tab.text("r1").rstrip())


@pytest.mark.parametrize("more", [(), ("--no-supervisor",)], ids=["supervised", "alone"])
@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("nothing.py", "there is no file"),
        ("outlast.nothing", "there is no module"),
        ("json", "neither"),
    ],
)
def test_what_cannot_be_served_says_why(target: str, text: str, more: tuple[str, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "outlast.cli.main", "serve", target, "--port", port, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
