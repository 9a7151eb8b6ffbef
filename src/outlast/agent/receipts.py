"""Receipts: a record that some work was done, with its result, in the same commit as its effect.

A tool of a battery that runs again after a crash finds its receipt, and returns the recorded result:

```python
from outlast import Agent, Host
from outlast.agent.agent import parts_of
from outlast.agent.receipts import Receipts

class Counter(Agent):
    async def count(self, key: str) -> int:
        async with parts_of(self)[Receipts].once("count", key) as receipt:
            if not receipt.found:
                total = await self.storage.get("total", 0) + 1
                await self.storage.put("total", total)      # the same commit
                receipt.value = total
        return receipt.value

async with Host(agents=[Counter], store="sqlite:///counter.db") as host:
    counter = host.get(Counter, "c")
    assert [await counter.count(key) for key in ("a", "b", "a")] == [1, 2, 1]
```
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from outlast.agent.commit import Block, Commit
from outlast.agent.part import Part, Parts
from outlast.core import json
from outlast.store.operations import BulkStatement, Query, Statement

KEEP = 30 * 24 * 3600 * 1000  # milliseconds

_WRITE = Statement.same(
    "receipts write",
    "agent text, scope text, key text, value text, at bigint",
    "INSERT INTO receipts (agent, scope, key, value, at) VALUES (:agent, :scope, :key, :value, :at)",
    key=3,
    expect=True,
)
_FIND = Query.same("SELECT value FROM receipts WHERE agent = ? AND scope = ? AND key = ?")
# An unfinished turn may run its tools again, however long ago they first ran.
_EXPIRE = BulkStatement.same(
    "receipts expire",
    """
        DELETE FROM receipts WHERE agent = ? AND at <= ? AND NOT EXISTS (
            SELECT 1 FROM inbox WHERE inbox.agent = receipts.agent AND inbox.ended_at IS NULL
                AND inbox.accepted_at <= receipts.at)
    """,
)


class Receipt:
    """The receipt of one piece of work. Set `value` to its result, which must be JSON."""

    __slots__ = ("found", "value")

    def __init__(self, *, found: bool, value: Any = None) -> None:
        self.found = found  # the work was done before
        self.value = value


class Receipts(Part):
    """The receipts of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._blocks: dict[tuple[str, str], Block] = {}  # open blocks, by scope and key

    @asynccontextmanager
    async def once(self, scope: str, key: str) -> AsyncIterator[Receipt]:
        """Do the work of a key at most once: the writes inside and the receipt are one commit.

        Joins the open `commit()` block, if there is one. If the code inside raises, the block is rolled
        back. A second caller with the same key waits for the end of the block.
        """
        async with self.commits.block():
            block = self.commits.current()
            assert block is not None
            written = block.view(self, dict[tuple[str, str], Any])
            if (scope, key) in written:
                yield Receipt(found=True, value=written[scope, key])
                return
            await self._begin(block, (scope, key))
            stored = await self.activation.store.fetch(_FIND, self.address, scope, key)
            if stored:
                yield Receipt(found=True, value=json.decode(stored[0][0]))
                return
            receipt = Receipt(found=False)
            yield receipt
            value = json.encode(receipt.value, "value")
            written[scope, key] = json.decode(value)
            now = self.activation.clock.now()
            block.write((_WRITE, (self.address, scope, key, value, now)))

    async def _begin(self, block: Block, work: tuple[str, str]) -> None:
        """Wait until no other block does this work, then make later callers wait for this block."""
        while (other := self._blocks.get(work)) is not None and other is not block:
            await asyncio.wait({other.submit()})

        def done() -> None:
            self._blocks.pop(work, None)

        self._blocks[work] = block
        block.then(done)
        block.undo(done)

    def expire(self, commit: Commit, now: int) -> None:
        commit.write((_EXPIRE, (self.address, now - KEEP)))
