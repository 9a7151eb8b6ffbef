"""Wall-clock changes: alarms that were set while the clock was ahead are too late once it is set back.

The host looks for such agents when it starts and when it sees the clock go back, and has each correct its
alarms.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from outlast.core.clock import Clock
from outlast.core.errors import AgentDestroyed, HostStopped, OutlastError, StoreClosed
from outlast.host.address import Address
from outlast.host.hosted import Hosted
from outlast.store.base import Store

logger = logging.getLogger("outlast.host")

TOLERANCE = 1_000  # milliseconds
SLOT = 10.0  # seconds after which a slow agent no longer delays the next
FIRST_RETRY = 1.0  # seconds
LAST_RETRY = 300.0


class ClockWatch:
    """Detects that wall time fell behind the event loop's time, which never goes back."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._most_ahead = self._ahead()

    def went_back(self) -> bool:
        """Return whether the clock went back since the last call, at once or gradually."""
        ahead = self._ahead()
        has_gone_back = ahead <= self._most_ahead - TOLERANCE
        self._most_ahead = ahead if has_gone_back else max(ahead, self._most_ahead)
        return has_gone_back

    def _ahead(self) -> int:
        return self._clock.now() - round(self._loop.time() * 1000)


class AlarmCorrection:
    """Finds agents whose alarms are too late and has each correct them; retries with growing delays."""

    def __init__(
        self,
        store: Store,
        classes: Mapping[str, type[Hosted]],
        clock: Clock,
        correct: Callable[[Address], Coroutine[Any, Any, None]],
        in_background: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]],
    ) -> None:
        self._store = store
        self._classes = classes
        self._clock = clock
        self._correct = correct
        self._in_background = in_background
        self._round: asyncio.Task[None] | None = None
        self._again = False
        self._failures = 0  # consecutive rounds
        self._stopped = False

    def look(self) -> None:
        """Start a round; if one is running, another one follows it."""
        if self._stopped:
            return
        if self._round is None:
            self._round = self._in_background(self._look(), "outlast-alarm-correction")
        else:
            self._again = True

    def stop(self) -> None:
        self._stopped = True

    async def _look(self) -> None:
        try:
            is_done = await self._correct_all()
        finally:
            self._round = None
        if is_done:
            self._failures = 0
        else:
            delay = min(LAST_RETRY, FIRST_RETRY * 2 ** min(self._failures, 20))
            self._failures += 1
            loop = asyncio.get_running_loop()
            loop.call_later(delay, self.look, context=contextvars.Context())
        if self._again:
            self._again = False
            self.look()

    async def _correct_all(self) -> bool:
        """Return whether all agents corrected their alarms."""
        is_done = True
        try:
            async for address in self._found():
                correcting = self._in_background(self._correct_one(address), f"correct {address}")
                await asyncio.wait({correcting}, timeout=SLOT)
                is_done &= correcting.done() and not correcting.cancelled() and correcting.result()
        except StoreClosed:
            pass
        except OutlastError as error:
            logger.error("cannot query agents whose alarms are too late, will retry: %s", error)
            is_done = False
        return is_done

    async def _correct_one(self, address: Address) -> bool:
        try:
            await self._correct(address)
        except (HostStopped, AgentDestroyed):
            pass
        except OutlastError as error:
            logger.error("cannot correct the alarms of %s, will retry: %s", address, error)
            return False
        return True

    async def _found(self) -> AsyncIterator[Address]:
        now = self._clock.now()
        for find in dict.fromkeys(
            kind._agents_with_distant_alarms for kind in self._classes.values()
        ):
            async for text in find(self._store, now):
                try:
                    address = Address.parse(text)
                except OutlastError as error:
                    logger.error("ignoring the alarms of %r: %s", text, error)
                    continue
                if address.kind in self._classes:
                    yield address
