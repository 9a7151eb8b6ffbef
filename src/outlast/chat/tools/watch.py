"""Waiting for a tool that may be stopped, or may take too long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

from outlast.core.abort import Abort
from outlast.core.text import described

logger = logging.getLogger("outlast.chat")

GRACE = 0.5  # seconds that a cancelled tool has to stop; then it is left behind

Cut = Literal["stopped", "timeout"]


async def watched(
    work: asyncio.Task[Any],
    abort: Abort,
    timeout: float | None,
    on_cut: Callable[[], None],
    name: str,
) -> Cut | None:
    """Wait for a tool. Returns None once it is done, or else why nobody waits for it any more.

    If the task that waits is cancelled, the tool is stopped first.
    """
    try:
        await _over(work, abort, timeout)
    except asyncio.CancelledError:
        on_cut()
        await _stop(work, name)
        raise
    if work.done():
        return None
    on_cut()
    await _stop(work, name)
    if work.done() and not work.cancelled() and work.exception() is None:
        return None  # it was done all the same
    return "stopped" if abort.is_set else "timeout"


async def _stop(work: asyncio.Task[Any], name: str) -> None:
    """Cancel a tool and wait for it, but not for long."""
    work.cancel()
    try:
        await asyncio.wait({work}, timeout=GRACE)
    finally:
        if not work.done():
            logger.warning("%s does not stop; it is left behind", name)
            work.add_done_callback(_swallow)


async def _over(work: asyncio.Task[Any], abort: Abort, timeout: float | None) -> None:
    """Wait until the work is done or stopped, or the time is up."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    work.add_done_callback(end)
    forget = abort.listen(end)
    timer = None if timeout is None else loop.call_later(timeout, end)
    try:
        await over
    finally:
        forget()
        if timer is not None:
            timer.cancel()


def _swallow(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a tool that was left behind has failed: %s", described(error))
