"""A life of a host that can end at any commit, as a killed process ends: nothing runs afterwards."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Literal

from outlast.host.life.host import Host
from outlast.store.base import Store, StoreOptions
from outlast.store.operations import Batch
from outlast.store.sqlite.engine import SqliteStore
from outlast.store.url import open_store
from outlast.testing.virtual import START, CountingIds, VirtualClock, VirtualLoop

Drive = Callable[[Host], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Death:
    """Where a host dies: at its n-th commit, before COMMIT or after it (nobody has been told yet)."""

    commit: int
    moment: Literal["before", "after"]

    def __str__(self) -> str:
        return f"{self.moment} commit {self.commit}"


class Died(BaseException):
    """Unwinds out of the store at the moment of death. Nothing else of the host ever runs."""


class Life:
    """One life of a host, on an event loop of its own, from start to stop or to death."""

    def __init__(
        self,
        agents: Sequence[type[Any]],
        url: str,
        *,
        number: int,
        death: Death | None = None,
        max_group: int = 1,
        start: int = START,
        host_options: dict[str, Any] | None = None,
    ) -> None:
        self._agents = agents
        self._url = url
        self._number = number
        self.dies_at: Callable[[Death], bool] = lambda point: point == death  # asked at each one
        self._max_group = max_group
        self._start = start
        self._host_options = host_options or {}
        self._store: Store | None = None
        self.commits = 0
        self.died = False

    def run(self, *acts: Drive) -> None:
        """Start the host, run the acts one after another, stop it; or die on the way."""
        self._loop = VirtualLoop()
        asyncio.set_event_loop(None)
        try:
            self._loop.run_until_complete(self._live(acts))
        except Died:
            pass
        except RuntimeError:
            if not self.died:  # stopping the loop under its main coroutine is how it dies
                raise
        finally:
            if self.died:
                self._bury()
            else:
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @property
    def next_start(self) -> int:
        """When a life begins that follows this one, should it end now, in milliseconds."""
        return self._start + round(self._loop.time() * 1000) + 1

    async def _live(self, acts: Sequence[Drive]) -> None:
        options = StoreOptions(probe=self, max_group=self._max_group)
        self._store = await open_store(self._url, options)
        self._loop.watch(self._store)
        if isinstance(self._store, SqliteStore):
            self._store._reader_thread = _Inline()  # how long a thread takes differs in every run
        host = Host(
            self._agents,
            self._store,
            clock=VirtualClock(self._loop, self._start),
            ids=CountingIds(str(self._number)),
            **self._host_options,
        )
        async with host:
            for act in acts:
                await act(host)

    # --- the probe -------------------------------------------------------------------------------

    def before_commit(self, batches: Sequence[Batch]) -> None:
        if self.dies_at(Death(self.commits + 1, "before")):
            self._die()

    def after_commit(self, batches: Sequence[Batch]) -> None:
        self.commits += 1
        if self.dies_at(Death(self.commits, "after")):
            self._die()

    def _die(self) -> None:
        """Drop every callback of the loop, and never run it again."""
        self.died = True
        loop = self._loop
        for task in asyncio.all_tasks(loop):
            _keep_for_ever(task)  # before the handles that refer to them are emptied
        for handle in [*loop._ready, *loop._scheduled]:  # type: ignore[attr-defined]
            handle.cancel()
        loop.set_exception_handler(lambda *_: None)
        loop.stop()
        raise Died

    def _bury(self) -> None:
        """Let go of files and sockets."""
        if self._store is not None:
            self._store.abandon("the host died")
        for transport in list(self._loop._transports.values()):  # type: ignore[attr-defined]
            if transport._sock is not None:  # one that was closed before
                transport._sock.close()
            _keep_for_ever(transport)


class _Inline(Executor):
    """Runs what it is given at once, where it is."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _keep_for_ever(thing: object) -> None:
    """Not even the end of the interpreter collects it: collecting a coroutine runs its `finally`."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
