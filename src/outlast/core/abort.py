"""Ending a wait: an abort that a caller sets, and a watch over a series of waits.

Both end a wait by cancelling the waiting task, as `asyncio.timeout` does, and can distinguish their own
cancellation from any other. Nothing is allocated per wait, so watching each token of a stream is cheap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import suppress
from typing import Literal, TypeVar

T = TypeVar("T")

Cut = Literal["aborted", "stalled"]


class Abort:
    """A request to stop, which stays set. It wakes every task that awaits it.

    ```python
    from outlast.core.abort import Abort
    abort = Abort()
    abort.set("the user pressed stop")
    abort.set("too late: the first reason counts")
    assert abort.is_set
    assert await abort == "the user pressed stop"
    ```
    """

    __slots__ = ("_is_set", "_listeners", "_reason")

    def __init__(self) -> None:
        self._is_set = False
        self._reason: str | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        return self._is_set

    @property
    def reason(self) -> str | None:
        """The reason passed to `set`."""
        return self._reason

    def set(self, reason: str | None = None) -> None:
        """Request the stop. Call this on the event loop of the waiting tasks."""
        if self._is_set:
            return
        self._is_set = True
        self._reason = reason
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` once the abort is set (at once if it is). Returns a function that unsubscribes."""
        if self._is_set:
            listener()
        self._listeners.append(listener)

        def forget() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return forget

    def __await__(self) -> Generator[object, None, str | None]:
        return self._wait().__await__()

    async def _wait(self) -> str | None:
        future = asyncio.get_running_loop().create_future()
        forget = self.listen(lambda: None if future.done() else future.set_result(None))
        try:
            await future
        finally:
            forget()
        return self._reason


class Watch:
    """Interrupts waits when an abort is set, or when one takes longer than `patience` seconds."""

    __slots__ = ("_cuts", "_forget", "_loop", "_patience", "_since", "_task", "_timer")

    def __init__(self, abort: Abort | None, patience: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience or None
        self._task: asyncio.Task[object] | None = None  # the task that is waiting now
        self._since: float | None = None  # when this wait began; None: no time limit
        self._cuts: list[Cut] = []  # at most one
        self._timer: asyncio.TimerHandle | None = None
        self._forget = abort.listen(lambda: self._interrupt("aborted")) if abort else None

    async def over(
        self, items: AsyncIterator[T], cut_short: Callable[[Cut], Awaitable[None]]
    ) -> AsyncGenerator[T]:
        """Yield the items, watching the wait for each. Only one task may read them.

        When a wait is interrupted, `cut_short` is called with the reason; unless it raises, the items end.
        """
        task = asyncio.current_task(self._loop)
        assert task is not None
        while not self._cuts:
            before = task.cancelling()
            self._task = task
            if self._patience is not None:
                self.start()
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if not self._cuts or task.cancelling() != before + 1:
                    raise  # this cancellation is not ours, or not only ours
                break
            finally:
                self._task = None
                if self._cuts and task.cancelling() > before:
                    task.uncancel()
            yield item
        await cut_short(self._cuts[0])

    def start(self) -> None:
        """Measure patience from now on."""
        if self._patience is not None:
            self._since = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._patience, self._look)

    def pause(self) -> None:
        """Stop measuring patience until `start`: the coming wait is expected to be long."""
        self._since = None

    def close(self) -> None:
        if self._forget:
            self._forget()
        if self._timer:
            self._timer.cancel()

    def _look(self) -> None:
        assert self._patience is not None
        left = self._patience
        if self._task is not None and self._since is not None:
            left = self._since + self._patience - self._loop.time()
            if left <= 0:
                self._interrupt("stalled")
                return
        self._timer = self._loop.call_later(left, self._look)

    def _interrupt(self, cut: Cut) -> None:
        if not self._cuts:
            self._cuts.append(cut)
            if self._task is not None:
                self._task.cancel()
