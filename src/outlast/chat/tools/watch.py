"""Waiting for a tool, with a timeout, until the turn is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

from outlast.core.abort import Abort
from outlast.core.text import described

logger = logging.getLogger("outlast.chat")

GRACE = 0.5  # seconds that a cancelled tool has to stop; then it is left running

Cut = Literal["stopped", "timeout"]


async def watched(
    work: asyncio.Task[Any],
    abort: Abort,
    timeout: float | None,
    on_cut: Callable[[], None],
    name: str,
) -> Cut | None:
    """Wait for a tool. Returns None if it finished, or else why it was cut short.

    If the waiting task is cancelled, it stops the tool first.
    """
    try:
        await _wait(work, abort, timeout)
    except asyncio.CancelledError:
        on_cut()
        await _stop(work, name)
        raise
    if work.done():
        return None
    on_cut()
    await _stop(work, name)
    if work.done() and not work.cancelled() and work.exception() is None:
        return None  # it finished nevertheless
    return "stopped" if abort.is_set else "timeout"


async def _stop(work: asyncio.Task[Any], name: str) -> None:
    """Cancel a tool, and wait briefly for its end."""
    work.cancel()
    try:
        await asyncio.wait({work}, timeout=GRACE)
    finally:
        if not work.done():
            logger.warning("%s did not stop when it was cancelled; it is left running", name)
            work.add_done_callback(_log_failure)


async def _wait(work: asyncio.Task[Any], abort: Abort, timeout: float | None) -> None:
    """Wait until the work is done, the turn is stopped, or the time is up."""
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


def _log_failure(task: asyncio.Task[Any]) -> None:
    """Log the error of a tool whose result is no longer awaited."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a tool that was left running failed: %s", described(error))
