"""Who starts together, and who alone: a crash then says who caused it.

A *suspect* is work that was running at two crashes in a row without making progress: it may be what kills the
process. Its starts are seconds apart, so that its neighbours get on meanwhile, and it starts alone, as far as
starting agents and other suspects go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import Context

SUSPECT_FROM = 2  # crashes in a row without progress
SLOWEST = 5.0  # seconds, at most, between two starts of a suspect
ALONE_FOR = 2.0  # seconds for which no agent starts beside a suspect
LONGEST_ALONE = 32.0  # seconds, at most, for which no other suspect runs beside one


def delay_before(crashes: int, elapsed: int) -> float:
    """Seconds that work waits before it begins again, after so many crashes in a row.

    `elapsed`: milliseconds since it began last. Crashes while it waited do not make it wait longer.
    """
    if crashes < SUSPECT_FROM:
        return 0.0
    apart = min(SLOWEST, 2.0 ** min(crashes - SUSPECT_FROM, 10))
    return apart if elapsed < 0 else max(0.0, apart - elapsed / 1000)  # below 0: the clock was set


def alone_for(crashes: int) -> float:
    """Seconds that a suspect has to itself. They double, so that one that kills late is found, too."""
    return min(LONGEST_ALONE, ALONE_FOR * 2.0 ** min(max(0, crashes - SUSPECT_FROM), 10))


class BootOrder:
    """Of one host. Whoever starts alone waits for those who start together, and they wait for it."""

    def __init__(self) -> None:
        self._suspects = asyncio.Lock()
        self._together = 0
        self._alone: object | None = None
        self._waiting: deque[tuple[asyncio.Future[None], object | None]] = deque()

    async def enter(self, alone: object | None = None) -> None:
        """Begin, once that is possible; `alone` is who wants to be so."""
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
                with suppress(ValueError):  # passed over by somebody who left in the same tick
                    self._waiting.remove((ready, alone))
                self._admit()
            raise

    def leave(self, alone: object | None = None) -> None:
        """It has come to an end. Somebody who is not alone any more has nothing to leave."""
        if alone is None:
            self._together -= 1
        elif self._alone is alone:
            self._alone = None
        else:
            return
        self._admit()

    @asynccontextmanager
    async def alone(self, window: float = ALONE_FOR) -> AsyncIterator[Callable[[], None]]:
        """For a suspect: no agent starts beside it for `ALONE_FOR`, no other suspect for `window`.

        What is given ends that sooner: it has made progress.
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
        """Those who wait, in their order, as far as they can begin."""
        while self._waiting and self._is_free(self._waiting[0][1]):
            ready, alone = self._waiting.popleft()
            if not ready.done():
                self._begin(alone)
                ready.set_result(None)
