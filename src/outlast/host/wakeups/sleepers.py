"""Agents that would oversleep: the wall clock was ahead when they set their alarms, and is not any more.

Looked for when a host starts, and when it sees the clock go back. Each is asked to set its alarms anew.
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
SLOT = 10.0  # seconds after which one that does not answer makes way for the next
FIRST_RETRY = 1.0  # seconds
LAST_RETRY = 300.0


class ClockWatch:
    """Notices when wall time falls behind the time of an event loop, which never goes back."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._most_ahead = self._ahead()

    def went_back(self) -> bool:
        """True when it has gone back since the last time that this was asked, or little by little."""
        ahead = self._ahead()
        has_gone_back = ahead <= self._most_ahead - TOLERANCE
        self._most_ahead = ahead if has_gone_back else max(ahead, self._most_ahead)
        return has_gone_back

    def _ahead(self) -> int:
        return self._clock.now() - round(self._loop.time() * 1000)


class Sleepers:
    """Finds them, and has each set right; what fails is tried again, later and later."""

    def __init__(
        self,
        store: Store,
        classes: Mapping[str, type[Hosted]],
        clock: Clock,
        set_right: Callable[[Address], Coroutine[Any, Any, None]],
        in_background: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]],
    ) -> None:
        self._store = store
        self._classes = classes
        self._clock = clock
        self._set_right = set_right
        self._in_background = in_background
        self._round: asyncio.Task[None] | None = None
        self._again = False
        self._failures = 0  # rounds in a row
        self._stopped = False

    def look(self) -> None:
        """Look for all of them; if that is under way, again after it."""
        if self._stopped:
            return
        if self._round is None:
            self._round = self._in_background(self._look(), "outlast-sleepers")
        else:
            self._again = True

    def stop(self) -> None:
        self._stopped = True

    async def _look(self) -> None:
        try:
            is_done = await self._set_all_right()
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

    async def _set_all_right(self) -> bool:
        """False: not all of them."""
        is_done = True
        try:
            async for address in self._found():
                setting = self._in_background(self._set_one_right(address), f"set {address} right")
                await asyncio.wait({setting}, timeout=SLOT)
                is_done &= setting.done() and not setting.cancelled() and setting.result()
        except StoreClosed:
            pass
        except OutlastError as error:
            logger.error("agents that would oversleep cannot be looked up: %s", error)
            is_done = False
        return is_done

    async def _set_one_right(self, address: Address) -> bool:
        try:
            await self._set_right(address)
        except (HostStopped, AgentDestroyed):
            pass
        except OutlastError as error:
            logger.error("%s may oversleep: %s", address, error)
            return False
        return True

    async def _found(self) -> AsyncIterator[Address]:
        now = self._clock.now()
        for find in dict.fromkeys(kind._sleepers for kind in self._classes.values()):
            async for text in find(self._store, now):
                try:
                    address = Address.parse(text)
                except OutlastError as error:
                    logger.error("%r may oversleep, and is left alone: %s", text, error)
                    continue
                if address.kind in self._classes:
                    yield address
