"""The connection to the server: made, lost and made again, less and less often while it comes to nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from outlast.client.errors import Refused
from outlast.client.sending import Limits, Outgoing, closed_for, condemned

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    Hear = Callable[[ClientConnection, str | bytes], Awaitable[None]]

logger = logging.getLogger("outlast.client")

FIRST_RETRY, LAST_RETRY = 0.1, 5.0  # seconds
CLOSING = 2.0  # seconds that a server has to say goodbye
TOO_LARGE = 1009  # the close code of a server that does not read a frame to its end
TERMINAL = {1008, *range(4000, 5000)}  # close codes after which nobody comes back
NOT_NOW = {408, 425, 429}  # of the answers to a handshake that begin with 4, those that may change
NOT_YOU = {401, 403}  # those that mean this client, also when it was let in before


class Line:
    """One WebSocket at a time. `hear` is given each frame; `lost` is called when a connection has ended."""

    def __init__(
        self, url: str, headers: Mapping[str, str], hear: Hear, lost: Callable[[], None]
    ) -> None:
        self.socket: ClientConnection | None = None  # from the end of its greeting on
        self.limits = Limits()
        self.refusal: Exception | None = None
        self._url = url
        self._headers = dict(headers)
        self._hear = hear
        self._on_lost = lost
        self._opened, self._lost = asyncio.Event(), asyncio.Event()
        self._in_flight: dict[str, Outgoing] = {}  # what this connection has sent, unanswered
        self._failures = 0  # connections in a row that have come to nothing

    # --- sending ---------------------------------------------------------------------------------

    async def connected(self) -> ClientConnection:
        """Wait for a connection. Raises when there will be none."""
        while True:
            if self.refusal is not None:
                raise self.refusal
            if self.socket is not None:
                return self.socket
            await self._opened.wait()

    async def put(self, socket: ClientConnection, out: Outgoing) -> None:
        """Send a frame on this connection, unless it is too large for the server."""
        refusal = self.limits.refusal(out)
        if refusal is not None:
            out.refuse(refusal)
            return
        self._in_flight[out.about] = out
        await socket.send(out.text)

    async def transmit(self, out: Outgoing) -> None:
        """Send a frame, now or when the connection is back. Raises when it is too large."""
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
        """The server has answered: the connection is of use, and what was sent was not too large."""
        self._in_flight.pop(about, None)
        self.progress()

    def progress(self) -> None:
        """A connection is of use when something has come of it; being greeted is not enough."""
        self._failures = 0

    # --- the life of a connection ----------------------------------------------------------------

    def open(self, socket: ClientConnection) -> None:
        """The greeting is over."""
        self.socket = socket
        self._lost.clear()
        self._opened.set()

    def end(self, error: Exception) -> bool:
        """It is over for good. False: it was before."""
        if self.refusal is not None:
            return False
        self.refusal = error
        self._opened.set()
        return True

    async def run(self) -> Exception:
        """Connect again and again; returns why it is over for good."""
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
            except Exception as error:  # a URL that is none, say: trying again does not help
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
        out = condemned(self._in_flight.values())
        if out is not None:
            error = closed_for(out)
            logger.warning("not sent again: %s", error)
            out.refuse(error)

    def _lose(self) -> None:
        self.socket = None
        self._in_flight.clear()
        self._opened.clear()
        self._lost.set()
        self._on_lost()


def pause_after(failures: int) -> float:
    """Seconds before the next try, at most."""
    return min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(failures - 1, 20))


def _close_code(error: Exception) -> int | None:
    code: int | None = getattr(getattr(error, "rcvd", None), "code", None)
    return code


def _is_final(error: Exception, *, was_here: bool) -> bool:
    """Whether the server does not want this client. A proxy whose server is away says less than that."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return _close_code(error) in TERMINAL
    return status in NOT_YOU or (not was_here and 400 <= status < 500 and status not in NOT_NOW)
