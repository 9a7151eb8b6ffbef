"""One fiber: as it runs (`Fiber`), for its function (`FiberContext`) and for its caller (`FiberHandle`)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from outlast.agent.admission import Origin, fiber_origin, fiber_scope, forget
from outlast.agent.fibers import sql as rows
from outlast.agent.fibers.sql import FiberRow
from outlast.core import json
from outlast.core.errors import CommitRefused, NotInFiber
from outlast.store.operations import Operation

if TYPE_CHECKING:
    from outlast.agent.fibers.fibers import Fibers

T = TypeVar("T")


class Fiber:
    """A fiber that runs in this process."""

    def __init__(self, row: FiberRow, fibers: Fibers, accepted: asyncio.Future[Any]) -> None:
        self.accepted = accepted  # resolved when its row is durable
        self.block = fibers.commits.current()  # the commit() block that starts it
        self.id = row.id
        self.root_id = row.root_id
        self.name = row.name
        self.managed = bool(row.managed)
        self.snapshot = row.snapshot
        self.tries = row.tries
        self.stashes = row.stashes
        self._origin: Origin | None = None  # of its admissions since the last stash
        self._has_admitted = row.interrupted_at is not None  # an earlier run may have admitted work
        self.fibers = fibers
        self.running = True
        self.begun = False  # its task has taken its first step
        self.cancelled = False  # by the user; any other stop is an interruption
        self.awaited = False
        self.task: asyncio.Task[None] | None = None
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.result.add_done_callback(retrieve)

    def cancel(self) -> None:
        """Cancel on behalf of the user. A task that has not begun is left to begin, and ends its row."""
        self.cancelled = True
        if self.running and self.begun and self.task is not None:
            self.task.cancel()

    async def stash(self, data: Any) -> None:
        text = json.encode(data, "snapshot")
        if not self.running:
            raise NotInFiber(f"the fiber {self.name!r} ({self.id}) has ended; nothing was stashed")
        fibers = self.fibers
        operations: list[Operation] = [(rows.STASH, (fibers.address, self.id, text))]
        if self.tries:
            operations.append((rows.PROGRESS, (fibers.address, self.id)))

        try:
            await fibers.commits.write(operations, lambda: self._stashed(text))
        except CommitRefused:
            raise NotInFiber(
                f"the fiber {self.name!r} ({self.id}) was cancelled or removed; nothing was stashed"
            ) from None

    def _stashed(self, text: str) -> None:
        self.snapshot = text
        self.tries = 0
        self.stashes += 1
        self._origin = None

    @property
    def origin(self) -> Origin:
        if self._origin is None:
            self._origin = fiber_origin(self.fibers.address, self.id, self.root_id, self.stashes)
            self._has_admitted = True
        return self._origin

    def forget_admissions(self) -> list[Operation]:
        """Return the operations for the commit of its end; empty if no run admitted any work."""
        if not self._has_admitted:
            return []
        return [forget(self.fibers.address, fiber_scope(self.root_id))]


class FiberContext:
    """The argument of a fiber's function."""

    __slots__ = ("_fiber",)

    def __init__(self, fiber: Fiber) -> None:
        self._fiber = fiber

    @property
    def id(self) -> str:
        return self._fiber.id

    @property
    def name(self) -> str:
        return self._fiber.name

    @property
    def snapshot(self) -> Any:
        """The value stashed last; until then the input, or None."""
        text = self._fiber.snapshot
        return None if text is None else json.decode(text)

    def stash(self, data: Any) -> Coroutine[Any, Any, None]:
        """Replace the snapshot. Durable when awaited; inside `commit()`, when the block ends."""
        return self._fiber.stash(data)


class FiberHandle(Generic[T]):
    """A running fiber: await it for its result. Not awaiting it is fire-and-forget.

    Cancelling the awaiting task does not cancel the fiber; `cancel()` does."""

    __slots__ = ("_fiber",)

    def __init__(self, fiber: Fiber) -> None:
        self._fiber = fiber

    @property
    def id(self) -> str:
        return self._fiber.id

    @property
    def name(self) -> str:
        return self._fiber.name

    def done(self) -> bool:
        """Return whether the fiber has ended and its row is deleted."""
        return self._fiber.result.done()

    def cancel(self) -> bool:
        """Stop the fiber: its row is deleted, and awaiting it raises `FiberCancelled`."""
        if not self._fiber.running:
            return False
        self._fiber.cancel()
        return True

    def __await__(self) -> Generator[Any, None, T]:
        block = self._fiber.block
        if block is not None and block.is_open and self._fiber.fibers.commits.current() is block:
            raise RuntimeError(
                f"the fiber {self.name!r} starts when the surrounding commit() block ends;"
                f" await it after the block"
            )
        self._fiber.awaited = True
        return asyncio.shield(self._fiber.result).__await__()

    def __repr__(self) -> str:
        return f"<fiber {self.name!r} {self.id}>"


def retrieve(future: asyncio.Future[Any]) -> None:
    """Mark an exception as retrieved: it is logged where it happens, so asyncio must not log it again."""
    if not future.cancelled():
        future.exception()
