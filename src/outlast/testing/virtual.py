"""Virtual time: an event loop whose clock moves only when nothing else can happen.

It covers everything that waits on the loop: `asyncio.sleep`, timeouts, alarms, eviction. Time stands still
while anything real is under way: a commit or a read of a watched store, a job in a thread, a socket.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from outlast.core.clock import Clock
from outlast.store.base import Store

STUCK_AFTER = 60.0  # real seconds: a commit on a busy machine may take several
START = 1_750_000_000_000  # what a virtual clock shows at first, in milliseconds


class TimeStandsStill(RuntimeError):
    """Nothing can ever happen, or something real has been under way for very long."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time. `asyncio.Runner(loop_factory=VirtualLoop)` runs on it.

    ```python
    import asyncio, time
    from outlast.testing import VirtualLoop

    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    def run() -> None:
        started = time.monotonic()
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            assert runner.run(main()) == 3600
        assert time.monotonic() - started < 5

    await asyncio.to_thread(run)
    ```
    """

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._jobs = 0
        self._watched: list[Store] = []
        super().__init__(_VirtualSelector(self))

    def time(self) -> float:
        return self._virtual_now

    def watch(self, store: Store) -> None:
        """Let time stand still while this store is busy (and ignore its idle connections)."""
        self._watched.append(store)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        self._jobs += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, _: asyncio.Future[Any]) -> None:
        self._jobs -= 1

    def _what_is_real(self, registered: Mapping[Any, selectors.SelectorKey]) -> str | None:
        """What keeps time from moving, in words; None: nothing does."""
        if self._jobs:
            return f"{self._jobs} thread job(s)"
        for store in self._watched:
            if store.busy:
                return f"a commit or a read of the {store.engine} store"
        ours = {self._ssock.fileno()}  # type: ignore[attr-defined]
        for store in self._watched:
            ours |= _idle_sockets(store)
        for key in registered.values():
            if key.fd not in ours and not _is_listening(key.fd):
                return f"a socket (file descriptor {key.fd})"
        return None


class _VirtualSelector(selectors.DefaultSelector):
    """Waits for real events only; instead of waiting for a timer, it moves the clock to it."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        started = time.monotonic()
        while True:
            real = self._loop._what_is_real(self.get_map())
            if real is None and timeout is not None:
                self._loop._virtual_now += timeout
                return []
            events = super().select(0.02)
            if events:
                return events
            if time.monotonic() - started > STUCK_AFTER:
                raise TimeStandsStill(
                    f"virtual time has stood still for {STUCK_AFTER:.0f} s because of {real}"
                    if real
                    else "nothing can ever happen: every task waits, and there is no timer"
                )


class VirtualClock:
    """Wall time that follows a virtual loop; `set` moves it, as an administrator might."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: int = START) -> None:
        self._loop = loop
        self._start = start

    def now(self) -> int:
        return self._start + round(self._loop.time() * 1000)

    def set(self, milliseconds: int) -> None:
        self._start += milliseconds - self.now()


class CountingIds:
    """Ids that are the same in every run: kind, life, number."""

    def __init__(self, life: str = "1") -> None:
        self._life = life
        self._count = 0

    def new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._life}_{self._count}"


def _is_listening(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=socket.dup(descriptor)) as probe:
            return bool(probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _idle_sockets(store: Store) -> set[int]:
    """The sockets of a PostgreSQL store. While the store is idle, nothing is expected on them."""
    connections = [getattr(store, "_writer", None)]
    pool = getattr(store, "_readers", None)
    connections += [holder._con for holder in getattr(pool, "_holders", ())]
    found = set()
    for connection in connections:
        transport = getattr(connection, "_transport", None)
        if transport is not None:
            found.add(transport.get_extra_info("socket").fileno())
    return found


_: type[Clock] = VirtualClock
