"""Tracks the frames that clients have not read yet: how much memory they hold, and for how long.

A slow client is served as long as it reads. A client that reads nothing for `Limits.stall` seconds is
dropped, and sooner when the memory for unread frames is used up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from outlast.core.clock import seconds
from outlast.server.limits import Limits

if TYPE_CHECKING:
    from outlast.server.socket.connection import Connection

logger = logging.getLogger("outlast.server")

LARGE = 64 * 1024  # characters; only larger frames reserve memory
PATIENCE = 2.0  # seconds without progress until a client is dropped when memory is needed
LONGEST_WAIT = (
    3.0  # seconds to wait for memory; then the clients that held theirs for longest are dropped
)


class UnreadFrames:
    """The unread frames of one server."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.unsent
        self._stall = seconds(limits.stall)
        self._tick = min(1.0, self._stall / 4)
        self._watched: dict[
            Connection, tuple[tuple[int, ...], float]
        ] = {}  # progress, and when it was made
        self._held: dict[Connection, int] = {}  # bytes of large frames, oldest first
        self._task: asyncio.Task[None] | None = None
        self.waiting = 0  # queued characters of all connections

    @property
    def is_full(self) -> bool:
        """Whether the queues exceed what the server may hold."""
        return self.waiting > self._most

    @property
    def held(self) -> int:
        """Bytes of large frames that clients have not read yet."""
        return sum(self._held.values())

    def watch(self, connection: Connection) -> None:
        """Start to watch a connection: a frame is about to be written."""
        if connection not in self._watched:
            self._watched[connection] = (connection.progress, self._now())
            if self._task is None:
                loop = asyncio.get_running_loop()
                self._task = loop.create_task(self._watch(), name="unread frames")

    async def room_for(self, connection: Connection, size: int) -> None:
        """Wait until there is memory for a large frame, then watch the connection."""
        self._held.pop(connection, None)  # it waits until the previous one was read
        since = self._now()
        while self._held and self.held + size > self._most:
            self._drop_idle(PATIENCE)
            if self._held and self.held + size > self._most:
                if self._now() - since > LONGEST_WAIT:
                    self._drop(next(iter(self._held)), "that holds memory others wait for")
                    continue
                await asyncio.sleep(self._tick / 4)
                self._release()
        self._held[connection] = size
        self.watch(connection)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _watch(self) -> None:
        """Check the clients while any has something to read."""
        try:
            while self._watched:
                await asyncio.sleep(self._tick)
                self._release()
                self._drop_idle(self._stall)
        finally:
            self._task = None

    def _release(self) -> None:
        """Record the progress of each client, and forget those that read everything."""
        for connection, (progress, _) in tuple(self._watched.items()):
            if not connection.has_unread:
                self.forget(connection)
            elif connection.progress != progress:
                self._watched[connection] = (connection.progress, self._now())

    def _drop_idle(self, seconds: float) -> None:
        self._release()
        for connection, (_, since) in tuple(self._watched.items()):
            if self._now() - since >= seconds:
                self._drop(connection, f"that read nothing for {seconds:.0f} s")

    def _drop(self, connection: Connection, why: str) -> None:
        logger.warning("dropping a client %s", why)
        self.forget(connection)
        connection.abort()

    def close(self) -> None:
        """Stop watching: the server stops."""
        self._watched.clear()
        self._held.clear()
        if self._task is not None:
            self._task.cancel()

    def forget(self, connection: Connection) -> None:
        self._watched.pop(connection, None)
        self._held.pop(connection, None)
