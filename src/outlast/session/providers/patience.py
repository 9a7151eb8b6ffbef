"""Waiting for a provider, for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work, or cancel it and raise `TimeoutError`.

    Unlike `asyncio.timeout`, this does not wait for the work to end: a provider may ignore its cancellation.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(retrieve)
    if not task.done():
        raise TimeoutError(f"no answer within {seconds:g} s")
    if task.cancelled():
        raise RuntimeError("the provider was cancelled by its own code")
    return task.result()


def retrieve(work: asyncio.Future[Any]) -> None:
    """Look at the exception of work that nobody waits for, so that asyncio does not log it."""
    if not work.cancelled():
        work.exception()
