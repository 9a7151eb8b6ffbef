"""The host: the map of activations, and what makes them come and go."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from outlast.core.clock import Clock, SystemClock, seconds
from outlast.core.errors import (
    ActivationFailed,
    CommitFailed,
    HostStopped,
    OutlastError,
    OwnershipLost,
    UnknownAgent,
)
from outlast.core.events import Events
from outlast.core.ids import Ids, RandomIds
from outlast.host.activation import Activation
from outlast.host.address import Address
from outlast.host.alarms import Alarms
from outlast.host.boot import unfinished
from outlast.host.hosted import Hosted
from outlast.host.stub import Stub
from outlast.store import fencing
from outlast.store.base import Store
from outlast.store.operations import Fence
from outlast.store.url import open_store

logger = logging.getLogger("outlast.host")

A = TypeVar("A")

UNWIND_FOR = 5.0  # seconds that a new activation waits for the work of a discarded one to stop
FIRST_REBOOT = 1.0  # seconds
LAST_REBOOT = 300.0

_inside: ContextVar[Host | None] = ContextVar("outlast_inside", default=None)


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """How the host is doing."""

    active: int  # agents in memory
    held: int  # of these, at work
    booting: bool  # still waking agents with unfinished work
    next_alarm_at: int | None  # milliseconds


class Host:
    """Runs agents on one store.

    ```python
    from outlast import Agent, Host

    class Counter(Agent):
        async def add(self, n: int) -> int:
            total = (await self.storage.get("total") or 0) + n
            await self.storage.put("total", total)
            return total

    async with Host(agents=[Counter], store="sqlite:///counters.db") as host:
        alice = host.get(Counter, "alice")
        assert await alice.add(2) == 2

    async with Host(agents=[Counter], store="sqlite:///counters.db") as host:
        assert await host.get(Counter, "alice").add(3) == 5
    ```

    `store` is a URL (none: `./.outlast/store.db`) or a store that is open already; the host closes it.
    `idle_timeout` is how long an agent with nothing to do stays in memory; `shutdown_timeout` how long
    a stopping host waits for running work before it leaves it for the next one. Both in seconds.
    """

    def __init__(
        self,
        agents: Sequence[type[Any]],
        store: str | Store | None = None,
        *,
        idle_timeout: float | timedelta = 60.0,
        shutdown_timeout: float | timedelta = 10.0,
        boot_concurrency: int = 32,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._classes = _by_name(agents)
        self._store_url = store
        self._idle_timeout = seconds(idle_timeout)
        self._shutdown_timeout = seconds(shutdown_timeout)
        self._boot_concurrency = boot_concurrency
        self.clock = clock or SystemClock()
        self.ids = ids or RandomIds()
        self.events = Events()
        self._state = "new"
        self._activations: dict[Address, Activation] = {}
        self._idle: OrderedDict[Activation, float] = OrderedDict()  # since when, oldest first
        self._leaving: dict[Address, set[asyncio.Task[Any]]] = {}
        self._reboots: dict[Address, int] = {}  # how often in a row
        self._background: set[asyncio.Task[Any]] = set()
        self._boot_task: asyncio.Task[None] | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._settled: list[asyncio.Future[None]] = []

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, and begin to wake every agent with unfinished work."""
        if self._state != "new":
            raise HostStopped("a host starts once; make a new Host")
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        try:
            source = self._store_url
            self.store = source if isinstance(source, Store) else await open_store(source)
        except BaseException:
            self._state = "stopped"
            raise
        if self._state != "starting":
            await self.store.close()
            raise HostStopped("the host was stopped while it was starting")
        self.owner = self.ids.new("owner")
        self._alarms = Alarms(self.store, self.clock, self._fire, on_quiet=self._poke)
        self._state = "running"
        self._boot_task = self._in_background(self._boot(), "outlast-boot")

    async def stop(self, timeout: float | timedelta | None = None) -> None:
        """Let running work finish for `timeout` seconds, leave the rest for the next host, close."""
        if self._state == "stopping":
            await self._until(lambda: self._state == "stopped")
        if self._state != "running":
            self._state = "stopped"
            return
        self._state = "stopping"
        try:
            await self._drain(self._shutdown_timeout if timeout is None else seconds(timeout))
        finally:
            try:
                await self.store.close()
            finally:
                self._state = "stopped"
                self._poke()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _drain(self, timeout: float) -> None:
        if self._boot_task is not None:
            self._boot_task.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        firing = self._alarms.stop()
        deadline = self._loop.time() + timeout
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._until(self._is_quiet)
        finally:  # whoever cancels a stopping host wants it sooner, not half stopped
            await self._leave(firing)

    async def _leave(self, firing: list[asyncio.Task[None]]) -> None:
        """Stop what still runs, and keep its rows for the next host."""
        reason = HostStopped("the host was stopped")
        for activation in list(self._activations.values()):
            self._end(activation, reason)
        tasks = {task for tasks in self._leaving.values() for task in tasks}
        for task in (*self._background, *firing):
            task.cancel()
        tasks |= {*self._background, *firing}
        if tasks:
            await asyncio.wait(tasks, timeout=UNWIND_FOR)

    # --- reaching agents -------------------------------------------------------------------------

    def get(self, agent_class: type[A], name: str) -> A:
        """A stub of the agent `name`: call its public async methods. Does no I/O."""
        if not inspect.isclass(agent_class):
            raise TypeError(f"get() takes an agent class and a name, not {agent_class!r}")
        known = self._classes.get(agent_class.__name__)
        if known is None:
            raise self._unknown(agent_class.__name__)
        if known is not agent_class:
            raise UnknownAgent(
                f"this host runs another class called {known.__name__!r}: {known!r}, not"
                f" {agent_class!r}"
            )
        return cast(A, Stub(self, agent_class, Address.of(agent_class.__name__, name)))

    @contextlib.asynccontextmanager
    async def using(self, address: Address) -> AsyncIterator[Hosted]:
        """The agent at `address`, activated, and kept in memory inside the block."""
        if self._state != "running" and not (
            self._state == "stopping" and _inside.get() is self  # work that is being finished
        ):
            raise HostStopped(
                f"{address} cannot be called: the host is {self._state}."
                + (" Use `async with Host(...)`." if self._state == "new" else "")
            )
        activation = self._activations.get(address)
        if activation is None:
            activation = self._activate(address)
        activation.hold()
        token = _inside.set(self)
        try:
            ready = activation.ready
            if ready is not None and ready is asyncio.current_task():
                raise RuntimeError(
                    f"{address}: on_start calls its own agent through a stub, which would wait for"
                    f" on_start to end; call the method on self"
                )
            if ready is not None:
                await asyncio.wait({ready})
                if ready.cancelled() and activation.ended is not None:
                    raise type(activation.ended)(*activation.ended.args)
                ready.result()
            assert activation.agent is not None
            yield activation.agent
        finally:
            _inside.reset(token)
            activation.release()

    def _activate(self, address: Address) -> Activation:
        if address.kind not in self._classes:
            raise self._unknown(address.kind)
        activation = Activation(
            address,
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            events=self.events,
            on_idle=self._became_idle,
            on_alarm_set=self._alarms.heard,
        )
        self._activations[address] = activation
        activation.ready = activation.spawn(self._prepare(activation), f"activate {address}")
        activation.ready.add_done_callback(_retrieved)
        return activation

    async def _prepare(self, activation: Activation) -> None:
        """Everything between the wish to reach an agent and its being there."""
        address = activation.address
        doing = "__init__"
        _inside.set(self)
        try:
            unwinding = self._leaving.get(address)
            if unwinding:
                await asyncio.wait(unwinding, timeout=UNWIND_FOR)
            rows = await self.store.fetch(fencing.READ, address.root.text)
            known = rows[0] if rows else None
            fence = Fence.after(address.root.text, self.owner, known)
            fence.on_closed = lambda reason: self._fence_closed(activation, reason)
            activation.fence = fence
            activation.is_continued = known is not None and known[1] == self.owner
            activation.agent = self._classes[address.kind]._make(activation)
            doing = "on_start"
            await activation.agent._start()
            activation.ready = None
        except OutlastError as error:
            self._end(activation, error)
            raise
        except Exception as error:
            failure = ActivationFailed(f"{address}: {doing} raised {type(error).__name__}: {error}")
            self._end(activation, failure)
            raise failure from error
        except BaseException:
            self._end(activation, HostStopped("the host was stopped"))
            raise

    def _unknown(self, kind: str) -> UnknownAgent:
        known = ", ".join(sorted(self._classes)) or "none"
        return UnknownAgent(
            f"this host runs no agent class {kind!r} (it runs: {known})."
            f" Add the class to Host(agents=[...])."
        )

    # --- letting agents go -----------------------------------------------------------------------

    def _became_idle(self, activation: Activation) -> None:
        if activation.ended is None:
            self._idle[activation] = self._loop.time()
            self._idle.move_to_end(activation)
            if self._sweep is None and self._state == "running":
                self._sweep = self._loop.call_later(self._idle_timeout, self._evict)
        if self._settled:
            self._poke()

    def _evict(self) -> None:
        """Let go of what has been idle for long enough, and come back for the next."""
        self._sweep = None
        now = self._loop.time()
        while self._idle:
            activation, since = next(iter(self._idle.items()))
            if activation.held or activation.ended is not None:
                del self._idle[activation]
            elif since + self._idle_timeout <= now:
                del self._idle[activation]
                del self._activations[activation.address]
                self._reboots.pop(activation.address, None)
                self._close(
                    activation,
                    CommitFailed(
                        f"{activation.address} was evicted because nothing held it; work of its own"
                        f" belongs in a fiber, or under keep_alive()"
                    ),
                )
                self.events.emit("lifecycle:evicted", activation.address.text)
            else:
                self._sweep = self._loop.call_later(since + self._idle_timeout - now, self._evict)
                return

    def _fence_closed(self, activation: Activation, reason: Exception) -> None:
        """Its writes are refused from now on: discard the object; boot again if that is ours to do."""
        unfinished = any(task is not activation.ready for task in activation.tasks)
        if isinstance(reason, OwnershipLost):
            logger.warning("%s", reason)
            self.events.emit("fence:lost", activation.address.text, reason=str(reason))
        self._end(activation, reason)
        if unfinished:
            self._reboot_later(activation.address, reason)

    def _end(self, activation: Activation, reason: Exception) -> None:
        """This activation is over. Its work stops; its rows stay for the next one."""
        if activation.ended is not None:
            return
        self._close(activation, reason)
        address = activation.address
        if self._activations.get(address) is activation:
            del self._activations[address]
        self._idle.pop(activation, None)
        this = asyncio.current_task()
        if activation.agent is not None:
            activation.agent._leave(reason)
        elif activation.ready is not None and activation.ready is not this:
            activation.ready.cancel()
        unwinding = {task for task in activation.tasks if task is not this}
        if unwinding:
            self._leaving.setdefault(address, set()).update(unwinding)
            for task in unwinding:
                task.add_done_callback(lambda task: self._unwound(address, task))

    def _close(self, activation: Activation, reason: Exception) -> None:
        activation.ended = reason
        if activation.fence is not None:
            activation.fence.on_closed = None
            activation.fence.close(reason)

    def _unwound(self, address: Address, task: asyncio.Task[Any]) -> None:
        tasks = self._leaving.get(address, set())
        tasks.discard(task)
        if not tasks:
            self._leaving.pop(address, None)

    def _reboot_later(self, address: Address, reason: Exception) -> None:
        """Take up the work of a discarded agent again, later and later if it goes on failing."""
        if self._state != "running":
            return
        count = self._reboots[address] = self._reboots.get(address, 0) + 1
        delay = min(LAST_REBOOT, FIRST_REBOOT * 2 ** min(count - 1, 20))

        def reboot() -> None:
            if self._state == "running":
                self._in_background(self._reboot(address, reason), f"reboot {address}")

        self._loop.call_later(delay, reboot)

    async def _reboot(self, address: Address, reason: Exception) -> None:
        if isinstance(reason, OwnershipLost):
            rows = await self.store.fetch(fencing.READ, address.root.text)
            if rows and rows[0][1] != self.owner:
                return  # another host has it now
        await self._wake(address)

    # --- waking ----------------------------------------------------------------------------------

    async def _boot(self) -> None:
        """Wake every agent with unfinished work, a few at a time, then look at the alarms."""
        limit = asyncio.Semaphore(self._boot_concurrency)

        async def wake(address: Address) -> None:
            try:
                await self._wake(address)
            finally:
                limit.release()

        try:
            async for address in unfinished(self.store, self._classes):
                await limit.acquire()
                self._in_background(wake(address), f"wake {address}")
            self._alarms.look()  # an `on_start` that hangs must not hold up alarms
            for _ in range(self._boot_concurrency):
                await limit.acquire()
        finally:
            self._boot_task = None
            self._alarms.look()
            self._poke()

    async def _wake(self, address: Address) -> None:
        """Activate an agent: that takes up its unfinished work. A failure is logged and tried again."""
        try:
            async with self.using(address):
                pass
        except HostStopped:
            pass
        except OutlastError as error:
            logger.error("%s could not be woken: %s", address, error)
            self._reboot_later(address, error)

    async def _fire(self, text: str, source: str) -> None:
        """An alarm of an agent is due."""
        async with self.using(Address.parse(text)) as agent:
            await agent._wake(source)

    def _in_background(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s failed", task.get_name(), exc_info=task.exception())
        self._poke()

    # --- being done ------------------------------------------------------------------------------

    async def until_settled(self) -> None:
        """Wait until there is nothing left to do: no call, fiber or recovery runs, nothing is due."""
        if self._state in ("new", "starting"):
            raise HostStopped(f"the host is {self._state}; use `async with Host(...)`")
        while True:
            await self._until(self._is_settled)
            if not self.store.busy:
                return
            await self.store.drained()
            await asyncio.sleep(0)

    def _is_quiet(self) -> bool:
        return not any(activation.held for activation in self._activations.values())

    def _is_settled(self) -> bool:
        return self._is_quiet() and not (self._background or self._alarms.busy)

    async def _until(self, condition: Any) -> None:
        while not condition():
            changed = self._loop.create_future()
            self._settled.append(changed)
            await changed

    def _poke(self) -> None:
        """Something ended: let those who wait for an end look again, once all is told."""
        waiting, self._settled = self._settled, []
        for future in waiting:
            if not future.done():
                self._loop.call_soon(_resolve, future)

    def statistics(self) -> HostStatistics:
        """A cheap snapshot of how the host is doing."""
        return HostStatistics(
            active=len(self._activations),
            held=sum(activation.held for activation in self._activations.values()),
            booting=self._boot_task is not None and not self._boot_task.done(),
            next_alarm_at=self._alarms.next_at if self._state == "running" else None,
        )


def _by_name(agents: Sequence[type[Any]]) -> dict[str, type[Hosted]]:
    classes: dict[str, type[Hosted]] = {}
    for agent_class in agents:
        if not inspect.isclass(agent_class) or not hasattr(agent_class, "unfinished_work"):
            raise TypeError(f"Host(agents=[...]) takes subclasses of Agent, not {agent_class!r}")
        name = agent_class.__name__
        if classes.setdefault(name, cast(type[Hosted], agent_class)) is not agent_class:
            raise ValueError(
                f"two agent classes are called {name!r}; rename one, since the name is part of the"
                f" address under which its agents are stored"
            )
    return classes


def _retrieved(task: asyncio.Task[None]) -> None:
    """Whoever called is told; if nobody waits any more, that is no news."""
    if not task.cancelled():
        task.exception()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
