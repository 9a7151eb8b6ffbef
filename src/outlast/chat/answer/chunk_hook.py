"""`on_chunk`: a reader of the stream like any other. It never holds up a turn, and lags if it is slow."""

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

PATIENCE = 0.25  # seconds that a turn waits for a hook that is behind


class Told(Protocol):
    def on_chunk(self, context: ChunkContext) -> Any: ...


class ChunkHook:
    """Tells an agent of each chunk of its turn, once that is durable."""

    def __init__(self, agent: Told, turn: Turn, activation: Activation) -> None:
        self._hook = agent.on_chunk
        self._turn = turn
        self._told = 0
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
            self._told = seq + (not isinstance(chunk, Transient))
            if self._moved is not None and not self._moved.done():
                self._moved.set_result(None)

    async def caught_up(self) -> None:
        """Wait for the hook to be told of what is durable by now; not for long."""
        end = len(self._turn.stream.chunks)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self._told < end:
                    self._moved = asyncio.get_running_loop().create_future()
                    await self._moved
