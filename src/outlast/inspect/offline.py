"""What operators may write to a store that no host has open.

Each action is one commit under the agent's fence, as a host would make it; the next host finds it and
continues from there. On SQLite the file's lock keeps hosts out meanwhile. On PostgreSQL a host on another
machine may have the agent in memory: it discards the agent and boots it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outlast.chat.inbox import sql as inbox_rows
from outlast.chat.recovery.incidents import reset_boots
from outlast.chat.recovery.operators import SEALED
from outlast.core.clock import SystemClock
from outlast.core.ids import RandomIds
from outlast.host.address import Address
from outlast.inspect.values import NotFound
from outlast.store import fencing
from outlast.store.base import Store, StoreOptions
from outlast.store.operations import Fence, Operation
from outlast.store.url import open_store


@asynccontextmanager
async def offline(url: str | None) -> AsyncIterator[Offline]:
    """Open the store for writing; `StoreLocked` if another process has a SQLite file open.

    On PostgreSQL it writes next to a host, which the fence makes safe.
    """
    store = await open_store(url, StoreOptions(is_lockless=True))
    try:
        yield Offline(store)
    finally:
        await store.close()


class Offline:
    """Writes in place of a host."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids = RandomIds()
        self._clock = SystemClock()

    async def cancel(self, address: Address, id: str, reason: str = "cancelled") -> bool:
        """Have the next host end a turn, keeping its partial answer. False if it has already ended."""
        entry = await self._entry(address, id)
        if entry.ended_at is not None or entry.cancelled is not None:
            return False
        operation = (inbox_rows.CANCEL, (address.text, entry.seq, reason))
        return await self._commit(address, [operation]) == (1,)

    async def seal(self, address: Address, id: str) -> bool:
        """Have the next host end an interrupted turn. False if it has already ended."""
        return await self.cancel(address, id, SEALED)

    async def retry(self, address: Address, id: str) -> str:
        """Accept a request for another answer, which the next host gives. Returns its id."""
        entry = await self._entry(address, id)
        if entry.ended_at is None or entry.target is None:
            raise NotFound(f"turn {id!r} has not ended, so it cannot be retried")
        found = await self._store.fetch(inbox_rows.LAST_SEQ, address.text)
        seq = (found[0][0] if found else 0) + 1
        made = self._ids.new("request")
        nothing = None
        row = (address.text, seq, made, "regenerate", "save", "queue", nothing, nothing, "{}")
        values = (*row, nothing, entry.target, nothing, self._clock.now())
        await self._commit(address, [(inbox_rows.ACCEPT, values)])
        return made

    async def release(self, address: Address) -> bool:
        """Clear the record of crashes during the start of an agent. False if there was none."""
        return await self._commit(address, [reset_boots(address.text)]) == (1,)

    async def _entry(self, address: Address, id: str) -> inbox_rows.EntryRow:
        found = await self._store.fetch(inbox_rows.BY_ID, address.text, id)
        if not found:
            raise NotFound(f"{address} has no turn {id!r}")
        return inbox_rows.EntryRow(*found[0])

    async def _commit(self, address: Address, operations: list[Operation]) -> tuple[int, ...]:
        root = address.root.text
        found = await self._store.fetch(fencing.READ, root)
        if not found:
            raise NotFound(f"no agent {root} in this store")
        fence = Fence.after(root, self._ids.new("owner"), tuple(found[0]))
        return await self._store.commit(fence, operations)
