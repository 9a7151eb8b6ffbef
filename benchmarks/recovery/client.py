"""A client that is cut off, comes back as browsers do, and remembers every word that it was shown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.recovery.words import life_of
from benchmarks.wire.client import request

RESPONSE = "cf_agent_use_chat_response"
MESSAGES = "cf_agent_chat_messages"
RESUMING = "cf_agent_stream_resuming"
RESUME = '{"type":"cf_agent_stream_resume_request"}'
BROWSER = (0.0, 3.0)  # seconds before the first try to come back, and before each further one
RESTLESS = (0.0, 0.01)
ANSWER = "answer"  # the id of the request
QUESTION = "Say the words."


class Client:
    """One conversation with an agent, over as many connections as it takes."""

    def __init__(self, port: int, path: str, waits: Sequence[float] = BROWSER) -> None:
        self._url = f"ws://127.0.0.1:{port}{path}"
        self._waits = waits
        self.seen: set[str] = set()
        self.marks: dict[str, float] = {}
        self.is_over = False
        self._socket: Any = None

    async def connect(self) -> None:
        """Try until somebody is there, with the pauses that browsers make."""
        from websockets.asyncio.client import connect

        wait, later = self._waits
        while True:
            await asyncio.sleep(wait)
            wait = later
            with contextlib.suppress(Exception):  # refused, or cut off in the handshake
                self._socket = await connect(
                    self._url, open_timeout=60, ping_interval=None, compression=None
                )
                return

    async def ask(self) -> None:
        await self._socket.send(request(ANSWER, QUESTION))

    async def until_seen(self, words: int) -> None:
        """Read until so many words were shown."""
        while len(self.seen) < words:
            await self._frame()

    async def until_cut_off(self) -> None:
        """Read what is still on its way."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._frame()

    async def come_back(self) -> None:
        """Connect again, and ask for what was missed."""
        await self.connect()
        self.mark("connected")
        await self._socket.send(RESUME)

    async def until_told_more(self, lives: set[str]) -> float:
        """When the first word was shown that a process has made which is not one of these."""
        while not any(life_of(said) not in lives for said in await self._frame()):
            pass
        self.mark("continued")
        return self.marks["continued"]

    async def until_over(self) -> None:
        while not self.is_over:
            await self._frame()

    def mark(self, what: str) -> None:
        self.marks.setdefault(what, time.monotonic())

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _frame(self) -> list[str]:
        """The next frame: the words in it."""
        frame = json.loads(await self._socket.recv())
        kind = frame.get("type")
        if kind == RESUMING:
            self.mark("offered")
            ack = {"type": "cf_agent_stream_resume_ack", "id": frame["id"]}
            await self._socket.send(json.dumps(ack))
        if kind == MESSAGES:
            return self._shown(spoken_in(frame["messages"]))
        if kind != RESPONSE:
            return []
        self.is_over |= bool(frame.get("done")) and not frame.get("replayComplete")
        body = frame.get("body") or ""
        chunk = json.loads(body) if body else {}
        return self._shown(chunk["delta"].split() if chunk.get("type") == "text-delta" else [])

    def _shown(self, said: list[str]) -> list[str]:
        self.seen.update(said)
        return said


def spoken_in(messages: list[Any]) -> list[str]:
    """The words of the answer in a transcript."""
    return [
        word
        for message in messages
        if message["role"] == "assistant"
        for part in message["parts"]
        if part["type"] == "text"
        for word in part["text"].split()
    ]
