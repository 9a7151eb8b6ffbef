"""The connection to the server, which is restored with growing pauses while attempts fail."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from outlast.client.errors import Refused
from outlast.client.outgoing import Limits, OutgoingFrame, oversized_frame, unknown_limit_error

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    Hear = Callable[[ClientConnection, str | bytes], Awaitable[None]]

logger = logging.getLogger("outlast.client")

FIRST_RETRY, LAST_RETRY = 0.1, 5.0  # seconds
CLOSING = 2.0  # seconds for the closing handshake
TOO_LARGE = 1009  # the close code for a frame that is too large
TERMINAL = {1008, *range(4000, 5000)}  # close codes after which a client does not reconnect
NOT_NOW = {408, 425, 429}  # 4xx responses to a handshake that are temporary
NOT_YOU = {401, 403}  # those that refuse this client even if it was connected before


class Connection:
    """One WebSocket at a time. `hear` receives each frame; `lost` is called when a connection ended."""

    def __init__(
        self, url: str, headers: Mapping[str, str], hear: Hear, lost: Callable[[], None]
    ) -> None:
        self.socket: ClientConnection | None = None  # set after its greeting
        self.limits = Limits()
        self.refusal: Exception | None = None
        self._url = url
        self._headers = dict(headers)
        self._hear = hear
        self._on_lost = lost
        self._opened, self._lost = asyncio.Event(), asyncio.Event()
        self._in_flight: dict[
            str, OutgoingFrame
        ] = {}  # sent on this connection, without a response
        self._failures = 0  # consecutive connections without progress

    # --- sending ---------------------------------------------------------------------------------

    async def connected(self) -> ClientConnection:
        """Wait for a connection. Raises if there will be none."""
        while True:
            if self.refusal is not None:
                raise self.refusal
            if self.socket is not None:
                return self.socket
            await self._opened.wait()

    async def put(self, socket: ClientConnection, out: OutgoingFrame) -> None:
        """Send a frame on this connection, unless it is too large for the server."""
        refusal = self.limits.refusal(out)
        if refusal is not None:
            out.refuse(refusal)
            return
        self._in_flight[out.about] = out
        await socket.send(out.text)

    async def transmit(self, out: OutgoingFrame) -> None:
        """Send a frame now, or after reconnecting. Raises if it is too large."""
        from websockets.exceptions import ConnectionClosed

        while out.refused is None:
            socket = await self.connected()
            try:
                await self.put(socket, out)
                break
            except ConnectionClosed:
                while self.socket is socket:
                    await self._lost.wait()
        if out.refused is not None:
            raise out.refused

    def answered(self, about: str) -> None:
        """The server responded: the connection works, and the frame was not too large."""
        self._in_flight.pop(about, None)
        self.progress()

    def progress(self) -> None:
        """Record progress: a connection that is only greeted does not count as working."""
        self._failures = 0

    # --- connecting ------------------------------------------------------------------------------

    def open(self, socket: ClientConnection) -> None:
        """The greeting is complete."""
        self.socket = socket
        self._lost.clear()
        self._opened.set()

    def end(self, error: Exception) -> bool:
        """End for good. False if it had already ended."""
        if self.refusal is not None:
            return False
        self.refusal = error
        self._opened.set()
        return True

    async def run(self) -> Exception:
        """Connect repeatedly; returns why it ended for good."""
        from websockets.exceptions import ConnectionClosed, InvalidHandshake

        was_here = False
        while True:
            try:
                await self._connect()
            except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError) as error:
                was_here = was_here or self.socket is not None
                if _is_final(error, was_here=was_here):
                    return Refused(f"the server refuses this client: {error}")
                if _close_code(error) == TOO_LARGE:
                    self._refuse_largest()
            except Exception as error:  # an invalid URL, for example: a retry would not help
                return error
            finally:
                was_here = was_here or self.socket is not None
                self._lose()
            self._failures += 1
            await asyncio.sleep(pause_after(self._failures) * random.uniform(0.5, 1))

    async def _connect(self) -> None:
        from websockets.asyncio.client import connect

        async with connect(
            self._url, additional_headers=self._headers, max_size=None, close_timeout=CLOSING
        ) as socket:
            async for text in socket:
                await self._hear(socket, text)

    def _refuse_largest(self) -> None:
        out = oversized_frame(self._in_flight.values())
        if out is not None:
            error = unknown_limit_error(out)
            logger.warning("not sent again: %s", error)
            out.refuse(error)

    def _lose(self) -> None:
        self.socket = None
        self._in_flight.clear()
        self._opened.clear()
        self._lost.set()
        self._on_lost()


def pause_after(failures: int) -> float:
    """Return the maximum number of seconds before the next attempt."""
    return min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(failures - 1, 20))


def _close_code(error: Exception) -> int | None:
    code: int | None = getattr(getattr(error, "rcvd", None), "code", None)
    return code


def _is_final(error: Exception, *, was_here: bool) -> bool:
    """Return whether the server refuses this client. A proxy without its server is not a refusal."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return _close_code(error) in TERMINAL
    return status in NOT_YOU or (not was_here and 400 <= status < 500 and status not in NOT_NOW)
