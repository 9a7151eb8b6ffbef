"""An answer as server-sent events, each with the seq of its chunk, up to the end marker of the AI SDK.

A stopping server ends the events early, without that marker, and the client resumes where it was. A client
that reads nothing for `Limits.stall` seconds is dropped.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from outlast.chat.stream.stream import Stream, Transient
from outlast.core import json
from outlast.core.clock import seconds
from outlast.host.address import Address
from outlast.host.life.host import Host
from outlast.server.http.paced_response import PIECE, write
from outlast.server.limits import Limits
from outlast.server.room.client_view import ClientView

HEADERS = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
KEEP_ALIVE = 15.0  # seconds between comments on an idle stream


class Readers:
    """The clients that read event streams; `others` counts the other connections of the server."""

    def __init__(self, limits: Limits, others: Callable[[], int]) -> None:
        self._most = limits.connections
        self._others = others
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether the server has reached its limit of connections."""
        return self.count + self._others() >= self._most

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


class EventStream(StreamingResponse):
    """The events of one answer, from a position in its stream."""

    def __init__(
        self,
        host: Host,
        address: Address,
        request: Request,
        limits: Limits,
        stream: Stream,
        *,
        id: str,
        after: int = 0,
        before: Sequence[str] = (),
        continues: str = "",
    ) -> None:
        """`before`: chunks that precede the stream. `continues`: the id of the message that it extends."""
        self._host = host
        self._address = address
        self._leaving: asyncio.Event = request.state.leaving
        self._readers: Readers = request.state.readers
        self._view = ClientView(request.state.base, limits)
        self._stall = seconds(limits.stall)
        self._stream = stream
        self._after = after
        self._before = before
        self._continues = continues
        super().__init__(
            iter(()),
            media_type="text/event-stream",
            headers={**HEADERS, "x-outlast-request-id": id},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._readers.one_more():
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Write the events while the client reads them."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        pieces = self._pieces()
        try:
            async for piece in pieces:
                if not await write(send, piece, self._stall):
                    return
        finally:
            await pieces.aclose()  # at once, because it holds the agent
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        async with self._host.using(
            self._address
        ):  # the agent stays in memory while a client reads
            for piece in _joined(f"data: {self._public(chunk)}\n\n" for chunk in self._before):
                yield piece
            async for found in self._batches():
                if found is None:
                    yield b": \n\n"
                    continue
                seq, chunks = found
                events = (
                    f"{_place(seq + n, chunk)}data: {self._public(chunk)}\n\n"
                    for n, chunk in enumerate(chunks)
                    if chunk
                )
                for piece in _joined(events):
                    yield piece
            if self._stream.end is not None:
                yield b"data: [DONE]\n\n"

    async def _batches(self) -> AsyncIterator[tuple[int, list[str]] | None]:
        """Yield batches as they arrive; None after a while without one."""
        reader = self._stream.batches(self._after)
        leaving = asyncio.ensure_future(self._leaving.wait())
        following: asyncio.Future[Any] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(anext(reader, None))
                either = {following, leaving}
                await asyncio.wait(either, timeout=KEEP_ALIVE, return_when=FIRST_COMPLETED)
                if following.done():
                    found, following = following.result(), None
                    if found is None:
                        return
                    yield found
                elif leaving.done():
                    return
                else:
                    yield None
        finally:
            leaving.cancel()
            if following is not None:
                following.cancel()  # a running generator cannot be closed
                await asyncio.wait({following})
            await reader.aclose()  # type: ignore[attr-defined]

    def _public(self, chunk: str) -> str:
        return self._view.chunk(chunk, self._message_id)

    def _message_id(self) -> str:
        """Return the id of the message that the chunks build or extend."""
        first = json.decode(self._stream.chunks[0]) if self._stream.chunks else {}
        return str(first.get("messageId") or self._continues)


def _place(seq: int, chunk: str) -> str:
    """Return the event id from which a client resumes; transient chunks have none."""
    return "" if isinstance(chunk, Transient) else f"id: {seq}\n"


def _joined(texts: Iterable[str]) -> Iterator[bytes]:
    """Join the texts into pieces that are neither tiny nor huge."""
    waiting: list[str] = []
    size = 0
    for text in texts:
        waiting.append(text)
        size += len(text)
        if size >= PIECE:
            yield "".join(waiting).encode()
            waiting, size = [], 0
    if waiting:
        yield "".join(waiting).encode()
