"""A server that goes away, politely or not, and clients that come back."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from processes import Process, process
from tabs import (
    ACK,
    LONG,
    MESSAGES,
    NONE,
    PENDING,
    PROBE,
    RESPONSE,
    RESUMING,
    Frame,
    Page,
    Tab,
    said,
    served,
    text_of,
    until,
    words,
)

import forked
from outlast.client import Client


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


async def told_to_all(
    server: Process, name: str, request: str, chance: random.Random, count: int = 40
) -> None:
    """One answer, two tabs and a client in Python, and a server that dies in the middle of it."""
    prompt, moment = f"say {count} words every 10ms", chance.randrange(count - 5)
    asker = chance.randrange(3)
    heard = ""

    async def listen(client: Client) -> None:
        nonlocal heard
        chunks = client.send(prompt, request_id=request) if asker == 2 else client.resume(request)
        async for chunk in chunks:
            heard += chunk["delta"] if chunk["type"] == "text-delta" else ""

    url = f"{server.ws}/{name}"
    async with (
        Page(f"{url}?_pk=t0") as one,
        Page(f"{url}?_pk=t1") as other,
        Client(server.http, "fixture-agent", name) as client,
        asyncio.TaskGroup() as group,
    ):
        pages = (one, other)
        if asker == 2:
            listening = group.create_task(listen(client))
        else:
            await pages[asker].tab.say(request, prompt)
        watching = pages[asker - 1]
        await until(lambda: watching.messages, *pages)  # it was accepted
        if asker != 2:
            listening = group.create_task(listen(client))
        await until(lambda: len(watching.text(request).split()) >= moment, *pages)
        await server.die()

        def is_over() -> bool:
            return listening.done() and all(
                page.tab.closed is None
                and not page.streaming
                and page.messages == client.messages
                and page.at == len(page.tab.frames)  # it has followed all that has come
                for page in pages
            )

        await until(is_over, *pages)
        situation = (name, moment, asker)
        assert said(client.messages) == [f"user: {prompt}", f"assistant: {words(count)}"], situation
        assert heard == words(count), situation
        assert not any(part.get("state") == "streaming" for part in client.messages[1]["parts"])
        for page in pages:
            # What has come in pieces is the same. Who came back after the end was shown the message, and
            # who was about to ask for the stream when it ended gets the end, and then the stream.
            text, ends = page.text(request), page.tab.all(RESPONSE, id=request, done=True)
            assert words(count).startswith(text), situation
            replayed = [end for end in ends if end.get("replay")]
            assert text == words(count) or not replayed, situation
            assert len(replayed) <= 1, situation
            assert len(ends) - len(replayed) <= 1, situation
            assert not any(end.get("error") for end in ends)
        async with httpx.AsyncClient() as http:
            found = await http.get(f"{server.http}/agents/fixture-agent/{name}/get-messages")
        assert found.json() == client.messages


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not wait for long before it tries again."""
    monkeypatch.setattr("outlast.client.connection.LAST_RETRY", 0.1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.invariant("E14", "K1")
@pytest.mark.parametrize("seed", [1, 2])
async def test_all_clients_come_back_after_a_kill_and_show_every_word_once(
    tmp_path: Path, seed: int
) -> None:
    """Five of ten moments."""
    chance = random.Random(seed)
    async with process(tmp_path) as server:
        for n in range(5):
            await told_to_all(server, f"a{n}", f"r{n}", chance)
        async with Tab(f"{server.ws}/a0?_pk=t0") as tab:
            await tab.answered("more", "say 2 words")
            assert tab.text("more") == "w1 w2"
        assert "Traceback" not in server.log


@pytest.mark.usefixtures("impatient")
async def test_all_clients_come_back_after_the_worker_of_a_supervisor_was_killed(
    tmp_path: Path,
) -> None:
    chance = random.Random(3)
    async with process(tmp_path, supervised=True) as server:
        for n in range(3):
            await told_to_all(server, f"a{n}", f"r{n}", chance)
        assert server.log.count("was killed by SIGKILL") == 3


async def test_a_polite_end_of_the_process_is_quick_and_clean(tmp_path: Path) -> None:
    async with process(tmp_path) as server:
        tab = await Tab(f"{server.ws}/a?_pk=t").open()
        await tab.say("r1", "say 20 words every 5ms")
        await tab.until(lambda: tab.text("r1"))
        code = await server.end(signal.SIGTERM)
        assert code == 0
        assert (await tab.until_closed())[0] in (1012, 1013)
        assert "Traceback" not in server.log
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
        ("nothing.py", "not found"),
        ("outlast.nothing", "not found"),
        ("json", "neither"),
    ],
)
def test_what_cannot_be_served_says_why(target: str, text: str, more: tuple[str, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = ["-m", "outlast.cli.main", "serve", target, "--port", port, *more]
    done = forked.run(*command, timeout=60)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
