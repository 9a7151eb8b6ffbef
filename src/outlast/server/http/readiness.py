"""Readiness of a server: it has started, and its store responds."""

from __future__ import annotations

import asyncio

from outlast.core.errors import StoreError
from outlast.store.base import Store
from outlast.store.operations import Query

WITHIN = 3.0  # seconds within which the store must respond
AWAY = "the store does not respond"

_PING = Query.same("SELECT 1")


class Readiness:
    """The readiness check of one server. Concurrent requests share one query of the store."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[bool] | None = None

    async def problem(self, store: Store) -> str | None:
        """Return why the server is not ready, or None."""
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(_responds(store), name="ready")
            self._asking.add_done_callback(self._forget)
        responds = await asyncio.shield(self._asking)
        silent = store.statistics().unavailable_for
        return None if responds and (silent is None or silent < WITHIN) else AWAY

    def _forget(self, _: asyncio.Task[bool]) -> None:
        self._asking = None


async def _responds(store: Store) -> bool:
    try:
        async with asyncio.timeout(WITHIN):
            await store.fetch(_PING)
    except (StoreError, TimeoutError):
        return False
    return True
