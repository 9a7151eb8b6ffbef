"""Whether a server can do what it is for: it has started, and its store answers."""

from __future__ import annotations

import asyncio

from outlast.core.errors import StoreError
from outlast.store.base import Store
from outlast.store.operations import Query

WITHIN = 3.0  # seconds that a store may be silent for
AWAY = "the store does not answer"

_PING = Query.same("SELECT 1")


class Readiness:
    """Of one server. However many ask at once, the store is asked once."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[bool] | None = None

    async def problem(self, store: Store) -> str | None:
        """Why nobody should be sent here; None: nothing is in the way."""
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(_answers(store), name="ready")
            self._asking.add_done_callback(self._asked)
        answers = await asyncio.shield(self._asking)
        silent = store.statistics().unavailable_for
        return None if answers and (silent is None or silent < WITHIN) else AWAY

    def _asked(self, _: asyncio.Task[bool]) -> None:
        self._asking = None


async def _answers(store: Store) -> bool:
    try:
        async with asyncio.timeout(WITHIN):
            await store.fetch(_PING)
    except (StoreError, TimeoutError):
        return False
    return True
