"""The host: its life from start to stop, and what wakes agents by itself."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from outlast.core import json
from outlast.core.clock import Clock, SystemClock, seconds
from outlast.core.errors import (
    AgentAborted,
    AgentDestroyed,
    HostStopped,
    OutlastError,
    OwnershipLost,
)
from outlast.core.events import Events
from outlast.core.ids import Ids, RandomIds
from outlast.host.address import Address
from outlast.host.causes import checked
from outlast.host.hosted import Hosted
from outlast.host.life.activations import UNWIND_FOR, Activations, check_known
from outlast.host.life.stub import Stub
from outlast.host.notices import Audience
from outlast.host.wakeups.alarms import Alarms
from outlast.host.wakeups.boot import unfinished
from outlast.host.wakeups.sleepers import ClockWatch, Sleepers
from outlast.store import fencing
from outlast.store.base import Store, StoreOptions
from outlast.store.operations import Fence
from outlast.store.schema import Schema
from outlast.store.url import open_store

if TYPE_CHECKING:
    from outlast.host.admin.operators import Operators

logger = logging.getLogger("outlast.host")

A = TypeVar("A")

FIRST_REBOOT = 1.0  # seconds
LAST_REBOOT = 300.0
BOOT_SLOT = 10.0  # seconds after which an agent that is still starting makes way for the next
CLOSE_WITHIN = 5.0  # seconds for the store to find out what became of the last commits
LONGEST_FLUSH = 10.0  # seconds
MARK_WITHIN = 2.0  # seconds to note why the host stops

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
    a stopping host waits for running work before it leaves it for the next one. `flush` is how long the
    chunks of an answer may wait for more before they are stored and shown: 0, the default, is one commit
    for each, and 0.05 at most twenty a second. All three in seconds or as a `timedelta`.
    `cause` is why the host before this one ended ("crashed", "oom" or "deploy"), where somebody knows.
    `on_upgrade` replaces this process by one with newer code, when an agent calls `request_upgrade()`.
    `admin` opens a socket through which commands on this machine reach it; `outlast serve` does.
    """

    def __init__(
        self,
        agents: Sequence[type[Any]],
        store: str | Store | None = None,
        *,
        idle_timeout: float | timedelta = 60.0,
        shutdown_timeout: float | timedelta = 10.0,
        flush: float | timedelta = 0.0,
        boot_concurrency: int = 32,
        clock: Clock | None = None,
        ids: Ids | None = None,
        cause: str | None = None,
        on_upgrade: Callable[[], None] | None = None,
        admin: bool = False,
    ) -> None:
        self._classes = _by_name(agents)
        self._store_url = store
        self._idle_timeout = seconds(idle_timeout, "idle_timeout")
        self._shutdown_timeout = seconds(shutdown_timeout, "shutdown_timeout")
        self._flush = _floor(flush)
        self._boot_concurrency = boot_concurrency
        self.clock = clock or SystemClock()
        self.ids = ids or RandomIds()
        self.cause = checked(cause)
        self.died_at: int | None = None  # when the host before this one ended, in milliseconds
        self.events = Events(self.clock)
        self.audience: Audience | None = None  # who serves connections; to be set before the start
        self.on_upgrade = on_upgrade
        self.admin = admin  # to be set before the start, too
        self.server: str | None = None  # and this: what the workers of one server have in common
        self._operators: Operators | None = None
        self._state = "new"
        self._is_marked = False  # what runs knows that it may not end here
        self._activations: Activations | None = None  # once it is started
        self._reboots: dict[Address, tuple[int, float]] = {}  # how often in a row; when last
        self._background: set[asyncio.Task[Any]] = set()
        self._boot_task: asyncio.Task[None] | None = None
        self._settled: list[asyncio.Future[None]] = []

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, and begin to wake every agent with unfinished work."""
        if self._state != "new":
            raise HostStopped("a host starts once; make a new Host")
        self._state = "starting"
        json.prepare()
        self._loop = asyncio.get_running_loop()
        try:
            self.store = await self._opened(self._store_url)
        except BaseException:
            self._state = "stopped"
            raise
        if self._state != "starting":
            await self.store.close()
            raise HostStopped("the host was stopped while it was starting")
        self.owner = self.ids.new("owner")
        self._sleepers = Sleepers(
            self.store, self._classes, self.clock, self._set_right, self._in_background
        )
        self._alarms = Alarms(
            self.store,
            self.clock,
            self._fire,
            watch=ClockWatch(self.clock, self._loop),
            on_clock_back=self._sleepers.look,
            on_quiet=self._poke,
        )
        self._activations = Activations(
            self._classes,
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            events=self.events,
            owner=self.owner,
            idle_timeout=self._idle_timeout,
            on_alarm_set=self._alarms.heard,
            on_quiet=self._poke,
            on_discarded=self._reboot_later,
            rests_until=self._rests_until,
            new_context=self._new_context,
            make_stub=lambda agent_class, address: Stub(self, agent_class, address),
        )
        self._activations.audience = self.audience
        self._activations.cause = self.cause
        self._activations.died_at = self.died_at
        self._activations.flush = self._flush
        self._activations.on_upgrade = self.on_upgrade
        self._state = "running"
        if self.admin:
            from outlast.host.admin.operators import operators  # most hosts are started without

            self._operators = await operators(self)
        self._boot_task = self._in_background(self._boot(), "outlast-boot")

    async def _opened(self, source: str | Store | None) -> Store:
        """The store, with the tables that its agents need."""
        schemas = _schemas_of(self._classes.values())
        if isinstance(source, Store):
            await source.add_schemas(schemas)
            return source
        return await open_store(source, StoreOptions(server=self.server), schemas=schemas)

    async def stop(self, timeout: float | timedelta | None = None) -> None:
        """Let running work finish for `timeout` (`shutdown_timeout`), leave the rest for the next host."""
        within = self._shutdown_timeout if timeout is None else seconds(timeout, "timeout")
        if self._state == "stopping":
            await self._until(lambda: self._state == "stopped")
        if self._state != "running":
            self._state = "stopped"
            return
        self._state = "stopping"
        if self._operators is not None:
            await self._operators.close()
        try:
            await self.mark_interruptions("deploy")
            await self._drain(within)
        finally:
            try:
                async with asyncio.timeout(CLOSE_WITHIN):
                    await self.store.close()
            except TimeoutError:
                logger.error(
                    "the store does not answer; the outcome of the last commits is not known"
                )
                self.store.give_up("the host was stopped while the store did not answer")
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

    async def mark_interruptions(self, cause: str) -> None:
        """Note with all that runs why it will not end here, if it does not. The first time counts."""
        if self._is_marked or self._activations is None:
            return
        self._is_marked = True
        try:
            async with asyncio.timeout(MARK_WITHIN):
                await self._activations.mark(cause)
        except TimeoutError:  # then the next host knows no cause
            logger.error("it could not be noted why the host stops: the store does not answer")
        except Exception:
            logger.exception("it could not be noted why the host stops")

    async def _drain(self, timeout: float) -> None:
        if self._boot_task is not None:
            self._boot_task.cancel()
        assert self._activations is not None
        self._activations.stop_evicting()
        firing = self._alarms.stop()
        self._sleepers.stop()
        deadline = self._loop.time() + timeout
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._until(self._is_quiet)
        finally:  # whoever cancels a stopping host wants it sooner, not half stopped
            await self._leave(firing)

    async def _leave(self, firing: list[asyncio.Task[None]]) -> None:
        """Stop what still runs, and keep its rows for the next host."""
        assert self._activations is not None
        tasks = self._activations.end_all(HostStopped("the host was stopped"))
        for task in (*self._background, *firing):
            task.cancel()
        tasks |= {*self._background, *firing}
        if tasks:
            await asyncio.wait(tasks, timeout=UNWIND_FOR)

    # --- reaching agents -------------------------------------------------------------------------

    @property
    def classes(self) -> Mapping[str, type[Hosted]]:
        """The classes that it runs, those of sub-agents too, by their names."""
        return self._classes

    def get(self, agent_class: type[A], name: str) -> A:
        """A stub of the agent `name`: call its public async methods. Does no I/O.

        It is typed as the agent itself, so that the types of its methods are known. What is not async
        raises all the same: use `get_messages()`, `get_state()` and `get_configuration()`, or a method of
        your own, instead of `messages`, `state` and `get_config()`.
        """
        check_known(agent_class, self._classes)
        return cast(A, Stub(self, agent_class, Address.of(agent_class.__name__, name)))

    @contextlib.asynccontextmanager
    async def using(
        self, address: Address, *, is_wake: bool = False, may_make: bool = False
    ) -> AsyncIterator[Hosted]:
        """The agent at `address`, activated, and kept in memory inside the block.

        A wake makes no agent where nothing is stored. `may_make`: a sub-agent need not be made before; its
        first commit makes it, as that of a root does.
        """
        if self._state != "running" and not (
            self._state == "stopping" and _inside.get() is self  # work that is being finished
        ):
            raise HostStopped(
                f"{address} cannot be called: the host is {self._state}."
                + (" Use `async with Host(...)`." if self._state == "new" else "")
            )
        token = _inside.set(self)
        try:
            assert self._activations is not None
            using = self._activations.using(address, is_wake=is_wake, may_make=may_make)
            async with using as agent:
                yield agent
        finally:
            with contextlib.suppress(ValueError):  # a generator that is closed somewhere else
                _inside.reset(token)

    # --- taking up what was discarded ------------------------------------------------------------

    def _new_context(self) -> Context:
        """A fresh context for work inside this host."""
        context = Context()
        context.run(_inside.set, self)
        return context

    def _reboot_later(
        self, address: Address, reason: Exception, fence: Fence | None = None
    ) -> None:
        """Take up the work of a discarded agent again, later and later if it goes on failing."""
        if self._state != "running":
            return
        now = self._loop.time()
        count, last = self._reboots.get(address, (0, now))
        count = 1 if now - last > 2 * LAST_REBOOT else count + 1
        self._reboots[address] = (count, now)
        delay = _pause_after(count)

        def reboot() -> None:
            if self._state == "running":
                self._in_background(self._reboot(address, reason, fence), f"reboot {address}")

        self._loop.call_later(delay, reboot, context=Context())

    def _rests_until(self, address: Address) -> float:
        """Until when an agent that has failed more than once rests, also if somebody calls it."""
        count, last = self._reboots.get(address, (0, 0.0))
        return last + _pause_after(count) if count > 1 else 0.0

    async def _reboot(self, address: Address, reason: Exception, fence: Fence | None) -> None:
        try:
            rows = await self.store.fetch(fencing.READ, address.root.text)
        except OutlastError:
            self._reboot_later(address, reason, fence)
            return
        if rows and isinstance(reason, OwnershipLost) and fence is not None:
            epoch, owner, _ = rows[0]
            # An older epoch is no other host: a last commit of a dead process, or an older store.
            if owner != self.owner and epoch >= fence.epoch:
                return
        await self._wake(address)

    # --- waking ----------------------------------------------------------------------------------

    async def _boot(self) -> None:
        """Wake every agent with unfinished work, a few at a time, then look at the alarms."""
        limit = asyncio.Semaphore(self._boot_concurrency)

        async def wake(address: Address) -> None:
            waking = self._in_background(self._wake(address), f"wake {address}")
            await asyncio.wait({waking}, timeout=BOOT_SLOT)  # one that hangs holds up no others
            limit.release()

        try:
            async for address in unfinished(self.store, self._classes):
                await limit.acquire()
                self._in_background(wake(address), f"wake {address} in its turn")
            self._alarms.look()  # an `on_start` that hangs must not hold up alarms
            self._sleepers.look()
            for _ in range(self._boot_concurrency):
                await limit.acquire()
        finally:
            self._boot_task = None
            self._alarms.look()
            self._poke()

    async def _wake(self, address: Address) -> None:
        """Activate an agent: that takes up its unfinished work. A failure is logged and tried again."""
        try:
            async with self.using(address, is_wake=True):
                pass
        except (HostStopped, AgentAborted, AgentDestroyed):
            pass
        except OutlastError as error:
            logger.error("%s could not be woken: %s", address, error)
            self._reboot_later(address, error)

    async def _fire(self, text: str, source: str) -> None:
        """An alarm of an agent is due."""
        address = Address.parse(text)
        try:
            async with self.using(address, is_wake=True) as agent:
                await agent._wake(source)
        except AgentDestroyed:
            assert self._activations is not None
            await self._activations.until_removed(address)  # its alarm goes with it

    async def _set_right(self, address: Address) -> None:
        """The clock may have gone back since this agent went to sleep."""
        async with self.using(address, is_wake=True) as agent:
            await agent._set_right()

    def _in_background(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._loop.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[Any]) -> None:
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
        return self._activations is None or self._activations.is_quiet

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
            active=len(self._activations) if self._activations else 0,
            held=self._activations.held if self._activations else 0,
            booting=self._boot_task is not None and not self._boot_task.done(),
            next_alarm_at=self._alarms.next_at if self._state == "running" else None,
        )


def _floor(flush: float | timedelta) -> float:
    found = seconds(flush, "flush")
    if not 0 <= found <= LONGEST_FLUSH:
        raise ValueError(
            f"flush must be from 0 to {LONGEST_FLUSH:g} seconds, got {flush!r}: what waits is not shown"
        )
    return found


def _by_name(agents: Sequence[type[Any]]) -> dict[str, type[Hosted]]:
    """The classes and, wherever they are declared, those of their sub-agents."""
    classes: dict[str, type[Hosted]] = {}
    waiting: list[Any] = list(agents)
    while waiting:
        agent_class = waiting.pop(0)
        if not inspect.isclass(agent_class) or not hasattr(agent_class, "_unfinished_work"):
            raise TypeError(
                f"Host(agents=[...]) and `sub_agents` take subclasses of Agent, not {agent_class!r}"
            )
        known = cast(type[Hosted], agent_class)
        name = known.__name__
        if name not in classes:
            waiting += known.sub_agents
        if classes.setdefault(name, known) is not known:
            raise ValueError(
                f"two agent classes are called {name!r}; rename one, since the name is part of the"
                f" address under which its agents are stored"
            )
    return classes


def _schemas_of(classes: Iterable[type[Hosted]]) -> list[Schema]:
    """The tables that these classes need besides those of the foundation."""
    found = [schema for each in classes for schema in getattr(each, "_schemas", ())]
    return list(dict.fromkeys(found))


def _pause_after(failures: int) -> float:
    """Seconds until an agent that has failed so often in a row boots again."""
    return min(LAST_REBOOT, FIRST_REBOOT * 2.0 ** min(failures - 1, 20))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
