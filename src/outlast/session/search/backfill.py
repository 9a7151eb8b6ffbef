"""Indexes what is not in the index yet, in the background: messages from before, and long ones.

Each step is one commit of bounded size. After a crash the next step continues where the last commit ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from outlast.session.search import sql
from outlast.session.search.scan import within
from outlast.session.search.words import Analyser
from outlast.session.search.writes import IndexWrites
from outlast.store.base import Row
from outlast.store.catalogue import Reader
from outlast.store.operations import Operation

LISTED = 1_000  # messages per listing
STEP_CHARACTERS = 200_000  # of messages per commit, unless one is longer
STEP_MESSAGES = 50
IN_THREAD = 20_000  # characters whose words are found in a thread

Submit = Callable[[list[Operation]], Awaitable[Any]]


class Backfill:
    """The background work on the index of one agent.

    `submit` commits operations under the agent's fence.
    """

    def __init__(self, reader: Reader, submit: Submit, address: str, analyser: Analyser) -> None:
        self._reader = reader
        self._submit = submit
        self._address = address
        self._analyser = analyser
        self._writes = IndexWrites(address, analyser)
        self._listed: list[Row] = []  # number, id, size of the next messages
        self._first: int | None = None  # how far back the index reaches

    async def run(self) -> None:
        """Do all steps."""
        await self.check()
        is_more = True
        while is_more:
            is_more = await self.step()

    async def check(self) -> None:
        """Have all messages looked at again if some were stored or deleted without the index."""
        ((stored, indexed),) = await self._reader.fetch(sql.COUNTS, self._address)
        if indexed and not await self._reader.fetch(sql.STATE, self._address):
            await self._submit(self._writes.revived())
        if stored == indexed or await self._reached() == sql.NOTHING:
            return
        self._first, self._listed = sql.NOTHING, []
        orphans: Operation = (sql.DROP_ORPHANS, (self._address,))
        await self._submit([orphans, self._writes.reached(sql.NOTHING)])

    async def step(self) -> bool:
        """Do a bounded part of the work, in one commit. False if nothing is left."""
        if due := await self._reader.fetch(sql.DUE, self._address, 1):
            await self._finish(*due[0])
            return True
        return await self._fill()

    async def _finish(self, id: str, due: int) -> None:
        rows = await self._messages([id])
        if rows:
            await self._submit(await asyncio.to_thread(self._writes.finished, id, due, rows[0][3]))
        else:
            await self._submit(self._writes.removed([id]))

    async def _fill(self) -> bool:
        first = await self._reached()
        if first <= sql.ALL:
            return False
        if not self._listed:
            self._listed = await self._reader.fetch(
                sql.MISSING, self._address, first, self._analyser.name, LISTED
            )
        if not self._listed:
            await self._submit([self._writes.reached(sql.ALL)])
            self._first = sql.ALL
            return True  # a message may be due
        page = within(self._listed[:STEP_MESSAGES], STEP_CHARACTERS)
        self._listed = self._listed[len(page) :]
        rows = await self._messages(id for _, id, _ in page)
        operations = await self._operations(rows)
        lowest = page[-1][0]
        await self._submit([*operations, self._writes.reached(lowest)])
        self._first = lowest
        return True

    async def _operations(self, rows: list[Row]) -> list[Operation]:
        def found() -> list[Operation]:
            return [
                operation
                for id, number, _, body, _ in rows
                for operation in self._writes.filled(id, number, body)
            ]

        is_long = sum(len(row[3]) for row in rows) > IN_THREAD
        return await asyncio.to_thread(found) if is_long else found()

    async def _messages(self, ids: Iterable[str]) -> list[Row]:
        wanted = list(ids)
        return await self._reader.fetch(sql.messages(len(wanted)), self._address, *wanted)

    async def _reached(self) -> int:
        if self._first is None:
            found = await self._reader.fetch(sql.STATE, self._address)
            is_known = bool(found) and found[0][0] == self._analyser.name
            self._first = found[0][1] if is_known else sql.NOTHING
        return self._first
