"""Leases that keep an agent in memory. They write nothing and wake nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from outlast.host.life.activation import Activation

T = TypeVar("T")


class Lease:
    """Keeps the agent in memory until it is released; use it with `with`, `async with` or `release()`."""

    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        self._released = False
        activation.hold()

    def release(self) -> None:
        """Release the lease. Idempotent."""
        if not self._released:
            self._released = True
            self._activation.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


async def keep_alive_while(
    activation: Activation, work: Awaitable[T] | Callable[[], Awaitable[T]]
) -> T:
    """Await `work` under a lease, and return its value."""
    with Lease(activation):
        return await (work() if callable(work) else work)
