"""The host: starting, stopping, and waking agents."""

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
from outlast.host.wakeups.clock_changes import AlarmCorrection, ClockWatch
from outlast.store import fencing
from outlast.store.base import Store, StoreOptions
from outlast.store.operations import Fence
from outlast.store.schema import Schema
from outlast.store.url import open_store

if TYPE_CHECKING:
    from outlast.host.admin.operators import AdminService

logger = logging.getLogger("outlast.host")

A = TypeVar("A")

FIRST_REBOOT = 1.0  # seconds
LAST_REBOOT = 300.0
BOOT_SLOT = 10.0  # seconds after which an agent that is still starting no longer delays the next
CLOSE_WITHIN = 5.0  # seconds for the store to determine the outcome of the last commits
LONGEST_FLUSH = 10.0  # seconds
MARK_WITHIN = 2.0  # seconds to record why the host stops

_inside: ContextVar[Host | None] = ContextVar("outlast_inside", default=None)


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """A snapshot of a host."""

    active: int  # agents in memory
    held: int  # of these, working
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

    `store` is a URL (default: `./.outlast/store.db`) or an open store, which the host closes when it stops.
    `idle_timeout` is how long an idle agent stays in memory; `shutdown_timeout` is how long a stopping host
    waits for running work before it leaves it to the next host. `flush` is how long the chunks of an answer
    may wait for more chunks before they are stored and shown: 0, the default, makes one commit per chunk,
    and 0.05 at most twenty per second. All three are seconds or a `timedelta`. `cause` is why the previous
    host ended ("crashed", "oom" or "deploy"), if known. `on_upgrade` replaces this process with one that
    runs newer code, when an agent calls `request_upgrade()`. `admin` opens a socket through which commands
    on this machine reach the host; `outlast serve` sets it.
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
        self._flush = _checked_flush(flush)
        self._boot_concurrency = boot_concurrency
        self.clock = clock or SystemClock()
        self.ids = ids or RandomIds()
        self.cause = checked(cause)
        self.died_at: int | None = None  # when the previous host ended, in milliseconds
        self.events = Events(self.clock)
        self.audience: Audience | None = None  # serves connections; set it before the start
        self.on_upgrade = on_upgrade
        self.admin = admin  # set it before the start
        self.server: str | None = (
            None  # id of the server whose workers share the store; set it before the start
        )
        self._admin_service: AdminService | None = None
        self._state = "new"
        self._is_marked = False  # running work has recorded why it may be interrupted
        self._activations: Activations | None = None  # set by `start`
        self._reboots: dict[
            Address, tuple[int, float]
        ] = {}  # consecutive failures; time of the last
        self._background: set[asyncio.Task[Any]] = set()
        self._boot_task: asyncio.Task[None] | None = None
        self._settled: list[asyncio.Future[None]] = []

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, and begin to wake every agent with unfinished work."""
        if self._state != "new":
            raise HostStopped("a host can be started only once; create a new Host")
        self._state = "starting"
        json.prepare()
        self._loop = asyncio.get_running_loop()
        try:
            self.store = await self._open_store(self._store_url)
        except BaseException:
            self._state = "stopped"
            raise
        if self._state != "starting":
            await self.store.close()
            raise HostStopped("the host was stopped while it was starting")
        self.owner = self.ids.new("owner")
        self._alarm_correction = AlarmCorrection(
            self.store, self._classes, self.clock, self._correct_alarms, self._in_background
        )
        self._alarms = Alarms(
            self.store,
            self.clock,
            self._fire,
            watch=ClockWatch(self.clock, self._loop),
            on_clock_back=self._alarm_correction.look,
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
            on_alarm_set=self._alarms.on_set,
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
            from outlast.host.admin.operators import open_admin  # most hosts have none

            self._admin_service = await open_admin(self)
        self._boot_task = self._in_background(self._boot(), "outlast-boot")

    async def _open_store(self, source: str | Store | None) -> Store:
        """Open the store and create the tables that the agents need."""
        schemas = _schemas_of(self._classes.values())
        if isinstance(source, Store):
            await source.add_schemas(schemas)
            return source
        return await open_store(source, StoreOptions(server=self.server), schemas=schemas)

    async def stop(self, timeout: float | timedelta | None = None) -> None:
        """Let running work finish for `timeout` (default:

        `shutdown_timeout`); the next host resumes the rest.
        """
        within = self._shutdown_timeout if timeout is None else seconds(timeout, "timeout")
        if self._state == "stopping":
            await self._until(lambda: self._state == "stopped")
        if self._state != "running":
            self._state = "stopped"
            return
        self._state = "stopping"
        if self._admin_service is not None:
            await self._admin_service.close()
        try:
            await self.mark_interruptions("deploy")
            await self._drain(within)
        finally:
            try:
                async with asyncio.timeout(CLOSE_WITHIN):
                    await self.store.close()
            except TimeoutError:
                logger.error(
                    "the store does not respond; the outcome of the last commits is unknown"
                )
                self.store.give_up("the host stopped while the store did not respond")
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
        """Have all running work record why it may be interrupted. Only the first call has an effect."""
        if self._is_marked or self._activations is None:
            return
        self._is_marked = True
        try:
            async with asyncio.timeout(MARK_WITHIN):
                await self._activations.mark(cause)
        except TimeoutError:  # the next host will not know the cause
            logger.error("cannot record why the host stops: the store does not respond")
        except Exception:
            logger.exception("cannot record why the host stops")

    async def _drain(self, timeout: float) -> None:
        if self._boot_task is not None:
            self._boot_task.cancel()
        assert self._activations is not None
        self._activations.stop_evicting()
        firing = self._alarms.stop()
        self._alarm_correction.stop()
        deadline = self._loop.time() + timeout
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._until(self._is_quiet)
        finally:  # cancelling a stopping host hurries it, it must not leave it half stopped
            await self._leave(firing)

    async def _leave(self, firing: list[asyncio.Task[None]]) -> None:
        """Stop the remaining work and keep its rows for the next host."""
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
        """The agent classes that this host runs, including those of sub-agents, by name."""
        return self._classes

    def get(self, agent_class: type[A], name: str) -> A:
        """Return a stub of the agent `name`, to call its public async methods. Does no I/O.

        It is typed as the agent itself, so that type checkers know its methods. Attributes and methods that
        are not async raise nevertheless: use `get_messages()`, `get_state()` and `get_configuration()`, or
        an async method of your own, instead of `messages`, `state` and `get_config()`.
        """
        check_known(agent_class, self._classes)
        return cast(A, Stub(self, agent_class, Address.of(agent_class.__name__, name)))

    @contextlib.asynccontextmanager
    async def using(
        self, address: Address, *, is_wake: bool = False, may_make: bool = False
    ) -> AsyncIterator[Hosted]:
        """Activate the agent at `address` and keep it in memory inside the block.

        A wake (`is_wake`) does not create an agent that has no rows. With `may_make`, a sub-agent need not
        exist yet: its first commit creates it, as the first commit of a root does.
        """
        if self._state != "running" and not (
            self._state == "stopping" and _inside.get() is self  # running work that is finishing
        ):
            raise HostStopped(
                f"cannot call {address}: the host is {self._state}."
                + (" Use `async with Host(...)`." if self._state == "new" else "")
            )
        token = _inside.set(self)
        try:
            assert self._activations is not None
            using = self._activations.using(address, is_wake=is_wake, may_make=may_make)
            async with using as agent:
                yield agent
        finally:
            with contextlib.suppress(ValueError):  # a generator that was closed in another context
                _inside.reset(token)

    # --- resuming discarded agents ---------------------------------------------------------------

    def _new_context(self) -> Context:
        """Return a new context for work inside this host."""
        context = Context()
        context.run(_inside.set, self)
        return context

    def _reboot_later(
        self, address: Address, reason: Exception, fence: Fence | None = None
    ) -> None:
        """Boot a discarded agent again, with growing delays while it keeps failing."""
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
        """Return until when an agent that failed more than once rests, even if it is called."""
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
            # A row with an older epoch is not another host's: it is from a dead process, or the store went
            # back.
            if owner != self.owner and epoch >= fence.epoch:
                return
        await self._wake(address)

    # --- waking ----------------------------------------------------------------------------------

    async def _boot(self) -> None:
        """Wake every agent with unfinished work, a few at a time, then read the alarms."""
        limit = asyncio.Semaphore(self._boot_concurrency)

        async def wake(address: Address) -> None:
            waking = self._in_background(self._wake(address), f"wake {address}")
            await asyncio.wait(
                {waking}, timeout=BOOT_SLOT
            )  # one that hangs must not delay the others
            limit.release()

        try:
            async for address in unfinished(self.store, self._classes):
                await limit.acquire()
                self._in_background(wake(address), f"wake {address} when a slot is free")
            self._alarms.look()  # an `on_start` that hangs must not delay alarms
            self._alarm_correction.look()
            for _ in range(self._boot_concurrency):
                await limit.acquire()
        finally:
            self._boot_task = None
            self._alarms.look()
            self._poke()

    async def _wake(self, address: Address) -> None:
        """Activate an agent, which resumes its unfinished work. A failure is logged and retried."""
        try:
            async with self.using(address, is_wake=True):
                pass
        except (HostStopped, AgentAborted, AgentDestroyed):
            pass
        except OutlastError as error:
            logger.error("cannot wake %s, will retry: %s", address, error)
            self._reboot_later(address, error)

    async def _fire(self, text: str, source: str) -> None:
        """Handle a due alarm of an agent."""
        address = Address.parse(text)
        try:
            async with self.using(address, is_wake=True) as agent:
                await agent._wake(source)
        except AgentDestroyed:
            assert self._activations is not None
            await self._activations.until_removed(address)  # which removes its alarm

    async def _correct_alarms(self, address: Address) -> None:
        """Have an agent correct its alarms: the clock may have gone back since it set them."""
        async with self.using(address, is_wake=True) as agent:
            await agent._clock_set_back()

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

    # --- waiting for the end ---------------------------------------------------------------------

    async def until_settled(self) -> None:
        """Wait until nothing is left to do: no call, fiber or recovery runs, and no alarm is due."""
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
        """Something ended: have waiters check their condition again, after all pending callbacks."""
        waiting, self._settled = self._settled, []
        for future in waiting:
            if not future.done():
                self._loop.call_soon(_resolve, future)

    def statistics(self) -> HostStatistics:
        """Return a cheap snapshot of the host."""
        return HostStatistics(
            active=len(self._activations) if self._activations else 0,
            held=self._activations.held if self._activations else 0,
            booting=self._boot_task is not None and not self._boot_task.done(),
            next_alarm_at=self._alarms.next_at if self._state == "running" else None,
        )


def _checked_flush(flush: float | timedelta) -> float:
    found = seconds(flush, "flush")
    if not 0 <= found <= LONGEST_FLUSH:
        raise ValueError(
            f"flush must be from 0 to {LONGEST_FLUSH:g} seconds, got {flush!r};"
            " chunks that wait are not shown"
        )
    return found


def _by_name(agents: Sequence[type[Any]]) -> dict[str, type[Hosted]]:
    """Return the classes and those of their sub-agents, by name."""
    classes: dict[str, type[Hosted]] = {}
    waiting: list[Any] = list(agents)
    while waiting:
        agent_class = waiting.pop(0)
        if not inspect.isclass(agent_class) or not hasattr(agent_class, "_unfinished_work"):
            raise TypeError(
                f"Host(agents=[...]) and `sub_agents` must be subclasses of Agent, got {agent_class!r}"
            )
        known = cast(type[Hosted], agent_class)
        name = known.__name__
        if name not in classes:
            waiting += known.sub_agents
        if classes.setdefault(name, known) is not known:
            raise ValueError(
                f"two agent classes are named {name!r}; rename one, because the name is part of the"
                " address under which agents are stored"
            )
    return classes


def _schemas_of(classes: Iterable[type[Hosted]]) -> list[Schema]:
    """Return the schemas that these classes add to the foundation's tables."""
    found = [schema for each in classes for schema in getattr(each, "_schemas", ())]
    return list(dict.fromkeys(found))


def _pause_after(failures: int) -> float:
    """Return the seconds until an agent boots again after this many consecutive failures."""
    return min(LAST_REBOOT, FIRST_REBOOT * 2.0 ** min(failures - 1, 20))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
