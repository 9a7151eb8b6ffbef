"""A server with many conversations over WebSockets that is killed, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import request
from benchmarks.recovery.client import RESPONSE, RESTLESS, RESUMING, Client
from benchmarks.recovery.workloads import Server, System, served
from benchmarks.seam.judged import Reading, measured
from benchmarks.seam.provider import QUESTION, Conversation, conversations, serving
from benchmarks.wire.client import request as question

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place
    from benchmarks.seam.misbehaviours import Misbehaviour

PATH = "/agents/seam/{id}"
CUT_WITHIN, OVER_WITHIN = 60.0, 40.0  # seconds
STABLE_FOR = 5.0  # seconds in which a stored answer does not grow: it has ended


class Reader(Client):
    """Somebody who reads one conversation."""

    def __init__(self, port: int, one: Conversation) -> None:
        super().__init__(port, PATH.format(id=one.id), RESTLESS)
        self.one = one
        self.reading = Reading()

    async def ask(self) -> None:
        await self._socket.send(question("answer", QUESTION))

    async def until_cut(self) -> None:
        while self.reading.seen != self.one.seen:
            self.reading.seen += "".join(await self._frame())

    async def go_on(self) -> None:
        """Read for as long as there is something to read."""
        while True:
            said = await self._frame()
            now, new_at = time.monotonic(), self.one.new_at
            if said and self.reading.shown_at is None and new_at is not None and now >= new_at:
                self.reading.shown_at = now

    async def _frame(self) -> list[str]:
        """The next frame: the delta in it."""
        frame = json.loads(await self._socket.recv())
        if frame.get("type") == RESUMING:
            ack = {"type": "cf_agent_stream_resume_ack", "id": frame["id"]}
            await self._socket.send(json.dumps(ack))
        body = frame.get("body") if frame.get("type") == RESPONSE else None
        chunk = json.loads(body) if body else {}
        return [chunk["delta"]] if chunk.get("type") == "text-delta" else []


async def killed(
    command: Callable[[Path, int], Sequence[str]], known: Sequence[Conversation], directory: Path
) -> Metrics:
    """All these conversations, on one server that is killed."""
    async with serving(known) as url:
        system = System(command, lambda _: {"PROVIDER": url})
        with served(system, directory) as server:
            readers = [Reader(server.port, one) for one in known]
            for reader in readers:
                await reader.connect()
                await reader.ask()
            async with asyncio.timeout(CUT_WITHIN):
                await asyncio.gather(*(reader.until_cut() for reader in readers))
            server.kill()
            await asyncio.gather(*(reader.until_cut_off() for reader in readers))
            await asyncio.gather(*(until_over(server, reader) for reader in readers))
    return measured(known, [reader.reading for reader in readers])


async def until_over(server: Server, reader: Reader) -> None:
    """Come back, and read until what is stored does not grow any more."""
    await reader.come_back()
    reading = asyncio.create_task(reader.go_on())
    try:
        async with asyncio.timeout(OVER_WITHIN):
            reader.reading.final = await stored(server, reader.one)
    except TimeoutError:
        pass
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await reading
        await reader.close()


async def stored(server: Server, one: Conversation) -> str:
    """The answer as it is stored, once the model was asked again and it has ended."""
    url = f"http://127.0.0.1:{server.port}{PATH.format(id=one.id)}/get-messages"
    text, since = "", time.monotonic()
    while one.asked < 2 or time.monotonic() - since < STABLE_FOR:
        await asyncio.sleep(0.5)
        found = text_in(json.loads(await asyncio.to_thread(request, url)))
        if found != text:
            text, since = found, time.monotonic()
    return text


def text_in(messages: Sequence[Any]) -> str:
    """What the assistant has said."""
    parts = [part for each in messages if each["role"] == "assistant" for part in each["parts"]]
    return "".join(part["text"] for part in parts if part["type"] == "text")


def served_and_killed(
    command: Callable[[Path, int], Sequence[str]], behave: Misbehaviour
) -> Callable[[Place, int], Metrics]:
    """A job's function: n answers of models that behave like this."""

    def run(place: Place, n: int) -> Metrics:
        known = conversations(behave, n)
        return asyncio.run(killed(command, known, place.directory / "server"))

    return run
