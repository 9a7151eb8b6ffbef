"""Calling user code: hooks that may be `async def` or plain, and whether one is overridden at all."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


def hook(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T | Awaitable[T]]:
    """Declare, for type checkers, that a plain `def` may override this method."""
    return function


def defaults(cls: type[C]) -> type[C]:
    """Mark every method of a class as the default of a hook, which `is_overridden` recognises."""
    for function in vars(cls).values():
        if inspect.isfunction(function):
            function.__default__ = function  # type: ignore[attr-defined]
    return cls


def is_overridden(method: Callable[..., Any]) -> bool:
    """Return whether user code overrides a hook. The default does nothing and need not be called."""
    function = getattr(method, "__func__", method)
    return getattr(function, "__default__", None) is not function


async def call_hook(method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook and return its result, whether it is `async def` or plain.

    A hook that cancels itself has failed; only a cancellation of the surrounding task propagates.
    """
    try:
        answer = method(*arguments)
        return await answer if inspect.isawaitable(answer) else answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("a hook or tool was cancelled by its own code") from error
