"""One WebSocket: a bounded queue of frames, sent in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket, WebSocketState

from outlast.server.limits import MIB, Limits
from outlast.server.socket.transport import Frame, FrameTransport
from outlast.server.socket.unread import LARGE, UnreadFrames

logger = logging.getLogger("outlast.server")

REFUSED = 1008  # the close code after which clients do not reconnect
TRY_AGAIN = 1013  # the close code after which clients reconnect
GRACE = 2.0  # seconds for which the queue may exceed the buffer, so that a client has time to read
REPLAYS = 8  # replays queued for one client


@dataclass(eq=False, slots=True)
class Replay:
    """The frames of a request, from its first on."""

    id: str
    frames: Iterator[str]


class Connection:
    """A client's socket. Sending never waits.

    A client that falls too far behind is disconnected and can resume. A frame that meets an empty queue is
    sent whatever its size, and a replay is read from its stream at the pace of the client: neither counts
    as lag.
    """

    def __init__(
        self,
        socket: WebSocket,
        id: str,
        *,
        line: FrameTransport | None = None,
        unread: UnreadFrames | None = None,
        principal: Any = None,
        read_only: bool = False,
        max_buffer: int = 8 * MIB,
    ) -> None:
        self.id = id
        self.principal = principal
        self.read_only = read_only
        self.state: dict[str, Any] = {}  # for the application
        self.takes_changes = False  # it accepts transcript frames that contain only changes
        self.offered: str | None = None  # the request that it was offered to resume
        self.parked = False  # it waits for a turn that has not started
        self.probing = False  # it probed, and waits for a response
        self._socket = socket
        self._line = line or FrameTransport(socket, None)
        self._unread = unread or UnreadFrames(Limits())
        self._max_buffer = max_buffer
        self._waiting: deque[Frame | Replay] = deque()
        self._size = 0  # of the queued frames
        self._full_since: float | None = None  # when that exceeded the buffer
        self._sent = 0  # frames
        self._is_sending = False
        self._wakes: asyncio.Future[None] | None = None
        self._closing: tuple[int, str] | None = None

    @property
    def url(self) -> Any:
        return self._socket.url

    @property
    def query(self) -> Any:
        return self._socket.query_params

    @property
    def is_closing(self) -> bool:
        return self._closing is not None

    @property
    def is_refused(self) -> bool:
        """Whether its frames are no longer read."""
        return self._closing is not None and self._closing[0] == REFUSED

    @property
    def is_open(self) -> bool:
        return self._socket.client_state is WebSocketState.CONNECTED

    @property
    def waiting(self) -> int:
        """The size of the queued frames that are not written yet."""
        return self._size

    @property
    def progress(self) -> tuple[int, ...]:
        """A value that changes whenever the client reads something."""
        return self._sent, self._line.unread, self._line.unacknowledged

    @property
    def has_unread(self) -> bool:
        """Whether the client has something to read right now."""
        return self._is_sending or self._line.unread > 0

    def send(self, text: str | Frame) -> None:
        """Queue a frame."""
        frame = text if isinstance(text, Frame) else Frame(text)
        self.send_all((frame,), frame.size)

    def send_all(self, frames: Sequence[Frame], size: int) -> None:
        """Queue frames of this total size."""
        if self._closing is not None:
            return
        if self._size > self._max_buffer and self._is_too_slow():
            logger.warning("disconnecting a client that reads too slowly; it can resume")
            self._drop_waiting()
            self.close(TRY_AGAIN, "too slow")
            return
        self._waiting.extend(frames)
        self._grow(size)
        self._wake()

    def _is_too_slow(self) -> bool:
        """Return whether too much was queued for too long; at once, if the whole server holds too much.

        Only frames that already wait count, so no single frame is too large.
        """
        now = asyncio.get_running_loop().time()
        if self._full_since is None:
            self._full_since = now
        return now - self._full_since > GRACE or self._unread.is_full

    def _grow(self, size: int) -> None:
        self._size += size
        self._unread.waiting += size
        if size < 0 and self._size <= self._max_buffer:
            self._full_since = None

    def is_replaying(self, id: str) -> bool:
        """Return whether this request is being replayed, or the maximum of other replays is queued."""
        replays = [each for each in self._waiting if isinstance(each, Replay)]
        return any(each.id == id for each in replays) or len(replays) >= REPLAYS

    def send_each(self, id: str, frames: Iterator[str]) -> None:
        """Queue the replay of a request. Its frames are produced as the client reads them, and later frames
        follow it."""
        if self._closing is None:
            self._waiting.append(Replay(id, frames))
            self._wake()

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close it after the queued frames."""
        if self._closing is None:
            self._closing = (code, reason)
            self._wake()

    def refuse(self, reason: str) -> None:
        """Close it at once: the client may not receive the queued frames."""
        if self._closing is None:
            self._drop_waiting()
            self.close(REFUSED, reason)

    def abort(self) -> None:
        """Drop a client that stopped reading."""
        self._drop_waiting()
        self._closing = self._closing or (1006, "")
        self._line.abort()
        self._wake()

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._grow(-self._size)

    def _wake(self) -> None:
        if self._wakes is not None and not self._wakes.done():
            self._wakes.set_result(None)

    async def write(self) -> None:
        """Write the queued frames until the socket is closed. Each connection has one such task."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                while frames := self._next():
                    size = sum([frame.size for frame in frames])
                    if size > LARGE:
                        await self._unread.room_for(self, size)
                    else:
                        self._unread.watch(self)
                    self._is_sending = True
                    await self._line.send(frames)
                    self._is_sending = False
                    self._sent += len(frames)
                if self._closing is not None:
                    code, reason = self._closing
                    with contextlib.suppress(Exception):
                        await self._socket.close(code, reason)
                    return
                self._wakes = loop.create_future()
                await self._wakes
        except Exception:  # the client is gone; the reading task notices that, too
            self._closing = self._closing or (1006, "")
        finally:
            self._is_sending = False
            self._drop_waiting()

    def _next(self) -> list[Frame]:
        """Return the frames of the next write: one large or several small ones; none if none waits."""
        frames: list[Frame] = []
        size, taken, waiting = 0, 0, self._waiting
        while waiting and size < LARGE:
            first = waiting[0]
            if isinstance(first, Frame):
                if frames and size + first.size > LARGE:
                    break
                waiting.popleft()
                taken += first.size
                frames.append(first)
                size += first.size
                continue
            text = next(first.frames, None)
            if text is not None:
                frames.append(Frame(text))
                size += len(text)
            elif waiting and waiting[0] is first:
                waiting.popleft()
        if taken:
            self._grow(-taken)
        return frames
