"""Which agents start together, and which alone: a crash then says who caused it."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class BootOrder:
    """Of one host. Whoever starts alone waits for those who start together, and they wait for it."""

    def __init__(self) -> None:
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
