"""The agents of one host that are in memory: activation, eviction, discarding."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextvars import Context
from typing import Any, TypeVar, cast

from outlast.core.clock import Clock
from outlast.core.errors import (
    ActivationFailed,
    AgentAborted,
    AgentDestroyed,
    CommitFailed,
    FiberInterrupted,
    HostStopped,
    OutlastError,
    OwnershipLost,
    StoreCorrupt,
    UnknownAgent,
    again,
)
from outlast.core.events import Events
from outlast.core.ids import Ids
from outlast.host.address import Address
from outlast.host.events import AgentActivated, AgentDiscarded, AgentEvicted, FenceLost
from outlast.host.hosted import Hosted
from outlast.host.life.activation import Activation
from outlast.host.life.family import Family, FamilyRemoval
from outlast.host.notices import Audience, Lost
from outlast.host.wakeups.boot_order import BootOrder
from outlast.store import fencing
from outlast.store.base import Row, Store
from outlast.store.catalogue import owned_tables
from outlast.store.operations import Fence, Query, Read

logger = logging.getLogger("outlast.host")

A = TypeVar("A")

UNWIND_FOR = 5.0  # seconds that a new activation waits for the work of a discarded one to stop


class Activations:
    """Keeps at most one live object per address. Callers use `using`."""

    def __init__(
        self,
        classes: Mapping[str, type[Hosted]],
        *,
        store: Store,
        clock: Clock,
        ids: Ids,
        events: Events,
        owner: str,
        idle_timeout: float,
        on_alarm_set: Callable[[int], None],
        on_quiet: Callable[[], None],
        on_discarded: Callable[[Address, Exception, Fence | None], None],
        rests_until: Callable[[Address], float],
        new_context: Callable[[], Context],
        make_stub: Callable[[type[Any], Address], Any],
    ) -> None:
        self._classes = classes
        self._store = store
        self._clock = clock
        self._ids = ids
        self._events = events
        self._owner = owner
        self._idle_timeout = idle_timeout
        self._on_alarm_set = on_alarm_set
        self._on_quiet = on_quiet
        self._on_discarded = on_discarded  # it has unfinished work, to be resumed
        self._rests_until = rests_until
        self._unstorable: dict[Address, CommitFailed] = {}  # the commits that ended their agents
        self._new_context = new_context
        self._make_stub = make_stub
        self.audience: Audience | None = None  # serves connections
        self._loop = asyncio.get_running_loop()
        self._live: dict[Address, Activation] = {}
        self.cause: str | None = None  # why the previous process ended
        self.died_at: int | None = None  # when
        self.on_upgrade: Callable[[], None] | None = None  # replaces this process
        self.flush = 0.0  # seconds between two commits of one stream
        self._boot_order = BootOrder()
        self._shared: dict[type, Any] = {}
        self._families: dict[Address, Family] = {}  # by root
        self._starting: dict[asyncio.Task[Any], Activation] = {}  # whose on_start the task runs
        self._barred: dict[Address, asyncio.Future[None]] = {}  # agents that are being removed
        self._idle: OrderedDict[Activation, float] = OrderedDict()  # since when, oldest first
        self._leaving: dict[Address, set[asyncio.Task[Any]]] = {}
        self._outliving: set[asyncio.Task[Any]] = set()  # work that ended its own agent
        self._sweep: asyncio.TimerHandle | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._live)

    @property
    def held(self) -> int:
        """How many agents are working."""
        return sum(activation.held for activation in self._live.values())

    @property
    def is_quiet(self) -> bool:
        """True when no work runs, neither for an agent nor left over from one that ended itself."""
        return not (self.held or self._outliving)

    # --- activation ------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def using(
        self, address: Address, *, is_wake: bool = False, may_make: bool = False
    ) -> AsyncIterator[Hosted]:
        """Activate the agent at `address` and keep it in memory inside the block.

        If the agent ends meanwhile, the block is interrupted and raises the reason. A wake (`is_wake`) is for
        stored rows: if they are gone, no agent is created. With `may_make`, a sub-agent that its parent did
        not make is available, too; its first commit creates it.
        """
        if self._barred:
            await self.until_removed(address)
        activation = self._live.get(address)
        if activation is None:
            activation = self._activate(address)
        activation.hold()
        activation.is_called |= not is_wake
        activation.may_be_made |= may_make
        leash = asyncio.timeout(None)
        try:
            await self._until_ready(activation)
            if is_wake:
                await self._check_stored(activation)
            if activation.making is not None and not may_make:
                await activation.making.check()
            assert activation.agent is not None
            async with leash:
                activation.calls[leash] = asyncio.current_task()
                yield activation.agent
        except TimeoutError:
            if leash.expired() and activation.ended is not None:
                raise again(activation.ended) from None
            raise
        except FiberInterrupted:  # the call awaited a fiber, which was interrupted first
            if isinstance(activation.ended, AgentAborted | AgentDestroyed):
                raise again(activation.ended) from None
            raise
        finally:
            activation.calls.pop(leash, None)
            activation.release()

    async def _until_ready(self, activation: Activation) -> None:
        ready = activation.ready
        if ready is None:
            return
        this = asyncio.current_task()
        starting = self._starting.get(this) if this is not None else None
        _check_circle(starting, activation)
        if starting is not None:
            starting.waits_for = activation
        try:
            await asyncio.wait({ready})
        finally:
            if starting is not None:
                starting.waits_for = None
        if ready.cancelled() and activation.ended is not None:
            raise again(activation.ended)
        ready.result()

    def _activate(self, address: Address) -> Activation:
        if address.kind not in self._classes:
            raise unknown(address.kind, self._classes)
        activation = Activation(
            address,
            self._family(address.root),
            store=self._store,
            clock=self._clock,
            ids=self._ids,
            events=self._events,
            on_idle=self._became_idle,
            on_alarm_set=self._on_alarm_set,
            neighbours=self,
            new_context=self._new_context,
        )
        activation.audience = self.audience
        activation.cause = self.cause
        activation.died_at = self.died_at
        activation.on_upgrade = self.on_upgrade
        activation.flush = self.flush
        activation.boot_order = self._boot_order
        activation.shared = self._shared
        activation.unstorable = self._unstorable.pop(address, None)
        activation.rests_until = self._rests_until(address)
        self._live[address] = activation
        activation.ready = activation.spawn(self._prepare(activation), f"activate {address}")
        activation.ready.add_done_callback(_mark_retrieved)
        return activation

    async def _prepare(self, activation: Activation) -> None:
        """Read the fence and the first rows, create the object, and run its `on_start`."""
        address = activation.address
        doing = "__init__"
        this = asyncio.current_task()
        assert this is not None
        self._starting[this] = activation
        try:
            unwinding = self._leaving.get(address)
            if unwinding:
                await asyncio.wait(unwinding, timeout=UNWIND_FOR)
            family = activation.family
            activation.fence = await self._read_ahead(activation)
            if not activation.is_called:
                await self._check_stored(activation)
            activation.is_continued = family.is_continued or address in family.left
            activation.agent = self._classes[address.kind]._make(activation)
            doing = "on_start"
            await activation.agent._start()
            activation.forget_ahead()
            if activation.ended is not None:
                raise again(activation.ended)
            activation.ready = None
            self._events.emit(AgentActivated, address.text)
        except OutlastError as error:
            self._discard(activation, error)
            raise
        except Exception as error:
            failure = ActivationFailed(f"{address}: {doing} raised {type(error).__name__}: {error}")
            self._discard(activation, failure)
            raise failure from error
        except BaseException:
            self._end(activation, HostStopped("the host was stopped"))
            raise
        finally:
            del self._starting[this]

    # --- families --------------------------------------------------------------------------------

    def _family(self, root: Address) -> Family:
        family = self._families.get(root)
        if family is None:
            family = self._families[root] = Family(root)
        return family

    async def _read_ahead(self, activation: Activation) -> Fence:
        """Read the fence and the rows that the agent needs to start, in one round trip."""
        family, address = activation.family, activation.address
        reads = self._classes[address.kind]._first_reads(address.text)
        if family.fence is not None:
            await activation.read_ahead(reads)
            return family.fence
        owner: Read = (fencing.READ, (family.root.text,))
        await activation.read_ahead([owner, *reads])
        return self._fence_of(family, await activation.fetch(owner[0], *owner[1]))

    def _fence_of(self, family: Family, rows: list[Row]) -> Fence:
        if family.fence is None:  # no concurrent activation set it first
            known = rows[0] if rows else None
            if known is not None and not all(isinstance(known[n], int) for n in (0, 2)):
                raise StoreCorrupt(f"the ownership row of {family.root} is damaged: {known!r}")
            fence = Fence.after(family.root.text, self._owner, cast(Any, known))
            fence.on_closed = lambda reason: self._fence_closed(family, reason)
            family.fence = fence
            family.is_continued = known is not None and known[1] == self._owner
        return family.fence

    async def _check_stored(self, activation: Activation) -> None:
        """Raise `AgentDestroyed` if the store has no rows of this agent, not even its ownership row."""
        fence, address = activation.fence, activation.address
        if fence is None or fence.held or fence.known is not None:
            return
        for table, key in (await owned_tables(self._store)).items():
            query = Query.same(f'SELECT 1 FROM {table} WHERE "{key}" = ? LIMIT 1')
            if await self._store.fetch(query, address.text):
                return
        raise AgentDestroyed(f"{address} was destroyed")

    def _fence_closed(self, family: Family, reason: Exception) -> None:
        """The store refuses their writes from now on: discard the objects.

        Clients would wait forever for answers that this host accepted, so they are told to reconnect.
        """
        if isinstance(reason, OwnershipLost):
            logger.warning("%s", reason)
            self._events.emit(FenceLost, family.root.text, reason=str(reason))
            for activation in list(family.members):
                activation.tell(Lost())
        if isinstance(reason, CommitFailed) and reason.agent is not None:
            self._unstorable[Address.parse(reason.agent)] = reason
        self._dissolve(family, reason)
        for activation in list(family.members):
            self._discard(activation, reason)

    def _dissolve(self, family: Family, reason: Exception) -> None:
        """Close the fence of a family; the next activation gets a new one."""
        if self._families.get(family.root) is family:
            del self._families[family.root]
        if family.fence is not None:
            family.fence.on_closed = None
            family.fence.close(reason)

    # --- between agents --------------------------------------------------------------------------

    def stub(self, agent_class: type[A], address: Address) -> A:
        check_known(agent_class, self._classes)
        return cast(A, self._make_stub(agent_class, address))

    def abort(self, address: Address, reason: Exception) -> bool:
        """End an agent and all below it, keeping their rows. Returns whether any of them was in memory."""
        family = self._families.get(address.root)
        ending = family.below(address) if family is not None else []
        for activation in ending:
            self._end(activation, reason)
        return bool(ending)

    @contextlib.asynccontextmanager
    async def removing(
        self, address: Address, reason: Exception, *, by: Activation
    ) -> AsyncIterator[FamilyRemoval]:
        """End an agent and all below it, and block new activations inside the block.

        If nothing is removed in the end, their unfinished work is resumed. Raises if `by` has itself ended:
        a new activation may have taken its place.
        """
        while (gate := self._gate_around(address)) is not None:
            await asyncio.wait({gate})
        if by.ended is not None:
            raise again(by.ended)
        self._barred[address] = self._loop.create_future()
        family = self._family(address.root)
        family.removals += 1
        ending = family.below(address)
        last_writes = [member.last_write for member in ending if member.last_write is not None]
        unfinished = [member.address for member in ending if _has_work(member)]
        removal = FamilyRemoval(self._store, family, last_writes)
        try:
            for activation in ending:
                self._end(activation, reason)
            if family.fence is None:
                self._fence_of(family, await self._store.fetch(fencing.READ, family.root.text))
            yield removal
            family.left -= {at for at in family.left if address.covers(at)}
        except BaseException as error:
            if not removal.is_durable:
                why = error if isinstance(error, Exception) else reason
                for left in unfinished:
                    self._on_discarded(left, why, family.fence)
            raise
        finally:
            family.removals -= 1
            if family.is_over:
                self._dissolve(family, reason)
            self._barred.pop(address).set_result(None)

    async def until_removed(self, address: Address) -> None:
        """Wait while the agent at `address` is being removed."""
        while (gate := self._gate_before(address)) is not None:
            await asyncio.wait({gate})

    def _gate_before(self, address: Address) -> asyncio.Future[None] | None:
        """Return what to wait for before the agent at `address` may be activated."""
        return next((gate for at, gate in self._barred.items() if at.covers(address)), None)

    def _gate_around(self, address: Address) -> asyncio.Future[None] | None:
        """Return what to wait for before the agent at `address` may be removed."""
        return self._gate_before(address) or next(
            (gate for at, gate in self._barred.items() if address.covers(at)), None
        )

    # --- eviction and discarding -----------------------------------------------------------------

    def _became_idle(self, activation: Activation) -> None:
        if activation.ended is None:
            self._idle[activation] = self._loop.time()
            self._idle.move_to_end(activation)
            if self._sweep is None and not self._stopped:
                self._sweep_in(self._idle_timeout)
            if activation.is_retired:
                self._loop.call_soon(self._retire, activation, context=Context())
        self._on_quiet()

    def _sweep_in(self, delay: float) -> None:
        self._sweep = self._loop.call_later(delay, self._evict, context=Context())

    def _evict(self) -> None:
        """Evict agents that were idle for long enough, and schedule the next round."""
        self._sweep = None
        now = self._loop.time()
        while self._idle:
            activation, since = next(iter(self._idle.items()))
            if activation.held or activation.ended is not None:
                del self._idle[activation]
            elif activation.is_writing:  # a commit that nothing awaits
                self._idle[activation] = now
                self._idle.move_to_end(activation)
            elif since + self._idle_timeout <= now:
                self._evict_one(activation)
            else:
                self._sweep_in(since + self._idle_timeout - now)
                return

    def _evict_one(self, activation: Activation) -> None:
        del self._idle[activation]
        del self._live[activation.address]
        self._detach(
            activation,
            CommitFailed(
                f"{activation.address} was evicted because nothing held it; background work"
                " must run in a fiber or under keep_alive()"
            ),
        )
        self._events.emit(AgentEvicted, activation.address.text)

    def _retire(self, activation: Activation) -> None:
        """Evict an agent that asked to leave, unless it was called meanwhile."""
        if activation.ended is not None or activation.held or self._stopped:
            return
        if activation.is_writing:  # a commit that nothing awaits
            assert activation.last_write is not None
            activation.last_write.add_done_callback(lambda _: self._retire(activation))
            return
        self._evict_one(activation)

    def _discard(self, activation: Activation, reason: Exception) -> None:
        """End an activation, and have its unfinished work resumed."""
        unfinished = any(task is not activation.ready for task in activation.tasks)
        was_live = activation.ended is None
        self._end(activation, reason)
        if was_live:
            self._events.emit(AgentDiscarded, activation.address.text, reason=str(reason))
        if was_live and unfinished:
            self._on_discarded(activation.address, reason, activation.fence)

    def _end(self, activation: Activation, reason: Exception) -> None:
        """End an activation: its work stops, its rows stay for the next one."""
        if activation.ended is not None:
            return
        self._detach(activation, reason)
        address = activation.address
        if self._live.get(address) is activation:
            del self._live[address]
        self._idle.pop(activation, None)
        if not isinstance(reason, HostStopped):  # then calls had time to finish
            activation.stop_calls()
        this = asyncio.current_task()
        if activation.agent is not None:
            try:
                activation.agent._leave(reason)
            except Exception:  # the others must still end, and its work be resumed
                logger.exception("cannot stop %s", address)
        elif activation.ready is not None and activation.ready is not this:
            activation.ready.cancel()
        if this is not None and this in activation.tasks:  # it ended itself, and continues
            self._outliving.add(this)
            this.add_done_callback(self._outliving.discard)
        unwinding = {task for task in activation.tasks if task is not this}
        if unwinding:
            self._leaving.setdefault(address, set()).update(unwinding)
            for task in unwinding:
                task.add_done_callback(lambda task: self._unwound(address, task))

    def _detach(self, activation: Activation, reason: Exception) -> None:
        """End its right to write. The last member of a family closes the fence."""
        activation.ended = reason
        family = activation.family
        family.members.discard(activation)
        family.left.add(activation.address)
        if family.is_over:
            self._dissolve(family, reason)

    def _unwound(self, address: Address, task: asyncio.Task[Any]) -> None:
        tasks = self._leaving.get(address, set())
        tasks.discard(task)
        if not tasks:
            self._leaving.pop(address, None)

    def stop_evicting(self) -> None:
        self._stopped = True
        if self._sweep is not None:
            self._sweep.cancel()

    async def mark(self, cause: str) -> None:
        """Have all working agents record why their work may be interrupted."""
        agents = [activation.agent for activation in self._live.values() if activation.held]
        for agent in agents:
            if agent is not None:
                await agent._host_stopping(cause)

    def end_all(self, reason: Exception) -> set[asyncio.Task[Any]]:
        """End all activations. Returns the tasks that are still unwinding."""
        for activation in list(self._live.values()):
            self._end(activation, reason)
        outliving = self._outliving - {asyncio.current_task()}
        for task in outliving:
            task.cancel()
        return outliving.union(*self._leaving.values())


def check_known(agent_class: type[Any], classes: Mapping[str, type[Hosted]]) -> None:
    """Raise unless this host runs exactly this class."""
    if not inspect.isclass(agent_class):
        raise TypeError(f"agent_class must be a class, got {agent_class!r}")
    known = classes.get(agent_class.__name__)
    if known is None:
        raise unknown(agent_class.__name__, classes)
    if known is not agent_class:
        raise UnknownAgent(
            f"this host runs another class named {known.__name__!r}: {known!r}, not {agent_class!r}"
        )


def unknown(kind: str, classes: Iterable[str]) -> UnknownAgent:
    """Return the error for a class that the host does not run."""
    known = ", ".join(sorted(classes)) or "none"
    return UnknownAgent(
        f"this host does not run the agent class {kind!r} (it runs {known})."
        " Add it to Host(agents=[...]), or to `sub_agents` of the class that uses it."
    )


def _has_work(activation: Activation) -> bool:
    return any(task is not activation.ready for task in activation.tasks)


def _check_circle(starting: Activation | None, wanted: Activation) -> None:
    """Raise if an `on_start` waits, directly or not, for itself."""
    at: Activation | None = wanted
    while starting is not None and at is not None:
        if at is starting:
            raise RuntimeError(
                f"{starting.address}: on_start calls {wanted.address} through a stub, which waits for"
                " this on_start to end; call the method on self, or after on_start"
            )
        at = at.waits_for


def _mark_retrieved(task: asyncio.Task[None]) -> None:
    """Retrieve the exception, so that asyncio does not log it: callers that wait receive it."""
    if not task.cancelled():
        task.exception()
