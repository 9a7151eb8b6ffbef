"""Calls `on_chunk` as a reader of the stream. A slow hook lags behind; it does not delay the turn."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Protocol

from outlast.chat.stream.stream import Transient
from outlast.chat.turn.turn import Turn
from outlast.chat.types.contexts import ChunkContext
from outlast.core import json
from outlast.core.hooks import call_hook
from outlast.host.life.activation import Activation

logger = logging.getLogger("outlast.chat")

PATIENCE = 0.25  # seconds that a turn waits for a hook that lags behind


class HasChunkHook(Protocol):
    def on_chunk(self, context: ChunkContext) -> Any: ...


class ChunkHook:
    """Calls the hook with each durable chunk of one turn."""

    def __init__(self, agent: HasChunkHook, turn: Turn, activation: Activation) -> None:
        self._hook = agent.on_chunk
        self._turn = turn
        self._passed = 0  # the number of chunks that the hook has processed
        self._moved: asyncio.Future[None] | None = None
        activation.spawn(self._follow(), "on_chunk", copy_context())

    async def _follow(self) -> None:
        async for seq, chunk in self._turn.stream.read():
            try:
                await call_hook(
                    self._hook, ChunkContext(self._turn.request_id, seq, json.decode(chunk))
                )
            except Exception:
                logger.exception("%s: on_chunk raised", self._turn.agent)
            self._passed = seq + (not isinstance(chunk, Transient))
            if self._moved is not None and not self._moved.done():
                self._moved.set_result(None)

    async def caught_up(self) -> None:
        """Wait briefly until the hook has processed the chunks that are durable by now."""
        end = len(self._turn.stream.chunks)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self._passed < end:
                    self._moved = asyncio.get_running_loop().create_future()
                    await self._moved
