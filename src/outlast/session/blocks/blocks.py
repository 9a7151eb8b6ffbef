"""The context blocks of one agent, by their labels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from outlast.session.block import (
    BlockSettings,
    ContextBlock,
    UnknownContextBlock,
    check_labels,
    quoted,
)
from outlast.session.blocks.live import LiveBlock
from outlast.session.blocks.stored import BlockRows
from outlast.session.providers.abilities import Abilities
from outlast.session.tokens import Estimate, estimated_tokens


class Blocks:
    """The context blocks of one agent, in the order in which the prompt shows them.

    `where` names the agent in the log. Blocks that are added here are not stored: only their content is.
    """

    def __init__(
        self,
        settings: Sequence[BlockSettings],
        rows: BlockRows,
        *,
        estimate: Estimate = estimated_tokens,
        where: str = "session",
    ) -> None:
        check_labels(settings)
        self._rows = rows
        self._estimate = estimate
        self._where = where
        self._blocks = {each.label: self._live(each) for each in settings}

    def _live(self, settings: BlockSettings) -> LiveBlock:
        return LiveBlock(settings, self._rows, self._estimate, self._where)

    @property
    def settings(self) -> tuple[BlockSettings, ...]:
        return tuple(block.settings for block in self._blocks.values())

    def labels(self, which: Callable[[Abilities], bool]) -> tuple[str, ...]:
        """Return the labels of the blocks whose provider can do something."""
        return tuple(label for label, block in self._blocks.items() if which(block.abilities))

    def __getitem__(self, label: str) -> LiveBlock:
        block = self._blocks.get(label)
        if block is None:
            has = quoted(self._blocks) or "none"
            raise UnknownContextBlock(f"there is no context block {label!r}; there are: {has}")
        return block

    async def read_all(self) -> list[ContextBlock]:
        """Return all blocks, read at the same time. Never fails: see `ContextBlock.error`."""
        return list(await asyncio.gather(*(block.read() for block in self._blocks.values())))

    async def get(self, label: str) -> ContextBlock:
        """Return a block. If it could not be read, its `error` says why."""
        return await self[label].read()

    async def replace(self, label: str, content: str) -> ContextBlock:
        """Replace the content of a block and return the block."""
        block = self[label]
        async with block.lock:
            return await block.write(content, "replace")

    async def append(self, label: str, content: str) -> ContextBlock:
        """Append to the content of a block, on a line of its own, and return the block."""
        block = self[label]
        async with block.lock:
            return await block.write(content, "append")

    async def add(self, settings: BlockSettings) -> ContextBlock:
        """Add a block behind the others, read it and return it."""
        check_labels([*self.settings, settings])
        block = self._blocks[settings.label] = self._live(settings)
        return await block.read()

    def remove(self, label: str) -> bool:
        """Remove a block. Its content stays with its provider. False if there is no such block."""
        return self._blocks.pop(label, None) is not None
