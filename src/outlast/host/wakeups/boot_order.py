"""Which agents start together and which start alone, so that a crash identifies its cause.

A *suspect* is work that was running at two consecutive crashes without making progress: it may be what
crashes the process. Starts of a suspect are seconds apart, so that other agents progress in between, and
while it starts, no other agent or suspect does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import Context

SUSPECT_FROM = 2  # crashes in a row without progress
SLOWEST = 5.0  # seconds, at most, between two starts of a suspect
ALONE_FOR = 2.0  # seconds in which no agent starts next to a suspect
LONGEST_ALONE = 32.0  # seconds, at most, in which no other suspect runs next to one


def delay_before(crashes: int, elapsed: int) -> float:
    """Return how many seconds work waits before it restarts, after this many consecutive crashes.

    `elapsed`: milliseconds since it last started. A crash while it waits does not extend the wait.
    """
    if crashes < SUSPECT_FROM:
        return 0.0
    apart = min(SLOWEST, 2.0 ** min(crashes - SUSPECT_FROM, 10))
    return apart if elapsed < 0 else max(0.0, apart - elapsed / 1000)  # below 0: the clock was set


def alone_for(crashes: int) -> float:
    """Return how many seconds a suspect runs alone. They double, to find work that crashes late, too."""
    return min(LONGEST_ALONE, ALONE_FOR * 2.0 ** min(max(0, crashes - SUSPECT_FROM), 10))


class BootOrder:
    """The start order of one host.

    Agents that start together and a suspect that starts alone exclude each other.
    """

    def __init__(self) -> None:
        self._suspects = asyncio.Lock()
        self._together = 0
        self._alone: object | None = None
        self._waiting: deque[tuple[asyncio.Future[None], object | None]] = deque()

    async def enter(self, alone: object | None = None) -> None:
        """Wait for permission to start; `alone` identifies a suspect."""
        if not self._waiting and self._is_free(alone):
            self._begin(alone)
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ready, alone))
        try:
            await ready
        except asyncio.CancelledError:
            if ready.done() and not ready.cancelled():
                self.leave(alone)
            else:
                with suppress(ValueError):  # already removed in the same tick
                    self._waiting.remove((ready, alone))
                self._admit()
            raise

    def leave(self, alone: object | None = None) -> None:
        """End the start. Has no effect for a suspect that is no longer alone."""
        if alone is None:
            self._together -= 1
        elif self._alone is alone:
            self._alone = None
        else:
            return
        self._admit()

    @asynccontextmanager
    async def alone(self, window: float = ALONE_FOR) -> AsyncIterator[Callable[[], None]]:
        """Run a suspect: no agent starts for `ALONE_FOR`, and no other suspect for `window`.

        Yields a function that ends both early, to be called when the suspect makes progress.
        """
        place, loop = object(), asyncio.get_running_loop()
        await self._suspects.acquire()
        is_held = True

        def free() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._suspects.release()

        def leave() -> None:
            self.leave(place)
            free()

        try:
            await self.enter(place)
            timers = [
                loop.call_later(min(window, ALONE_FOR), self.leave, place, context=Context()),
                loop.call_later(window, free, context=Context()),
            ]
            try:
                yield leave
            finally:
                for timer in timers:
                    timer.cancel()
                self.leave(place)
        finally:
            free()

    def _is_free(self, alone: object | None) -> bool:
        return self._alone is None and (alone is None or not self._together)

    def _begin(self, alone: object | None) -> None:
        if alone is None:
            self._together += 1
        else:
            self._alone = alone

    def _admit(self) -> None:
        """Admit those who wait, in order, as far as possible."""
        while self._waiting and self._is_free(self._waiting[0][1]):
            ready, alone = self._waiting.popleft()
            if not ready.done():
                self._begin(alone)
                ready.set_result(None)
