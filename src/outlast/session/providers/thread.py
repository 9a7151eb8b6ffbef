"""Work of a provider in a thread, so that nothing blocks the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from outlast.session.providers.patience import retrieve

T = TypeVar("T")


class OneThread:
    """Runs functions in a thread, one at a time.

    A thread cannot be cancelled. A caller that gives up leaves it running, and later callers wait for its
    end: a disk that hangs costs one thread, not one a turn.
    """

    def __init__(self) -> None:
        self._busy: asyncio.Future[Any] | None = None

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function once the earlier ones have ended, and return its result."""
        loop = asyncio.get_running_loop()
        while (busy := self._busy) is not None and busy.get_loop() is loop and not busy.done():
            await asyncio.wait({busy})
        work = self._busy = loop.run_in_executor(None, function, *arguments)
        work.add_done_callback(retrieve)  # its caller may have given up
        return await asyncio.shield(work)
