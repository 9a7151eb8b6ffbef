"""The agents of one host that are in memory: how they come, and how they go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextvars import Context
from typing import Any

from outlast.core.clock import Clock
from outlast.core.errors import (
    ActivationFailed,
    CommitFailed,
    HostStopped,
    OutlastError,
    OwnershipLost,
    UnknownAgent,
)
from outlast.core.events import Events
from outlast.core.ids import Ids
from outlast.host.activation import Activation
from outlast.host.address import Address
from outlast.host.hosted import Hosted
from outlast.store import fencing
from outlast.store.base import Store
from outlast.store.operations import Fence

logger = logging.getLogger("outlast.host")

UNWIND_FOR = 5.0  # seconds that a new activation waits for the work of a discarded one to stop


class Activations:
    """At most one live object per address. What a user of an agent needs is `using`."""

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
        new_context: Callable[[], Context],
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
        self._on_discarded = on_discarded  # with unfinished work: somebody has to take that up
        self._new_context = new_context
        self._loop = asyncio.get_running_loop()
        self._live: dict[Address, Activation] = {}
        self._idle: OrderedDict[Activation, float] = OrderedDict()  # since when, oldest first
        self._leaving: dict[Address, set[asyncio.Task[Any]]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._live)

    @property
    def held(self) -> int:
        """How many of them are at work."""
        return sum(activation.held for activation in self._live.values())

    # --- coming ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def using(self, address: Address) -> AsyncIterator[Hosted]:
        """The agent at `address`, activated, and kept in memory inside the block."""
        activation = self._live.get(address)
        if activation is None:
            activation = self._activate(address)
        activation.hold()
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
            activation.release()

    def _activate(self, address: Address) -> Activation:
        if address.kind not in self._classes:
            raise unknown(address.kind, self._classes)
        activation = Activation(
            address,
            store=self._store,
            clock=self._clock,
            ids=self._ids,
            events=self._events,
            on_idle=self._became_idle,
            on_alarm_set=self._on_alarm_set,
            new_context=self._new_context,
        )
        self._live[address] = activation
        activation.ready = activation.spawn(self._prepare(activation), f"activate {address}")
        activation.ready.add_done_callback(_retrieved)
        return activation

    async def _prepare(self, activation: Activation) -> None:
        """Everything between the wish to reach an agent and its being there."""
        address = activation.address
        doing = "__init__"
        try:
            unwinding = self._leaving.get(address)
            if unwinding:
                await asyncio.wait(unwinding, timeout=UNWIND_FOR)
            rows = await self._store.fetch(fencing.READ, address.root.text)
            known = rows[0] if rows else None
            fence = Fence.after(address.root.text, self._owner, known)
            fence.on_closed = lambda reason: self._fence_closed(activation, reason)
            activation.fence = fence
            activation.is_continued = known is not None and known[1] == self._owner
            activation.agent = self._classes[address.kind]._make(activation)
            doing = "on_start"
            await activation.agent._start()
            activation.ready = None
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

    # --- going -----------------------------------------------------------------------------------

    def _became_idle(self, activation: Activation) -> None:
        if activation.ended is None:
            self._idle[activation] = self._loop.time()
            self._idle.move_to_end(activation)
            if self._sweep is None and not self._stopped:
                self._sweep_in(self._idle_timeout)
        self._on_quiet()

    def _sweep_in(self, delay: float) -> None:
        self._sweep = self._loop.call_later(delay, self._evict, context=Context())

    def _evict(self) -> None:
        """Let go of what has been idle for long enough, and come back for the next."""
        self._sweep = None
        now = self._loop.time()
        while self._idle:
            activation, since = next(iter(self._idle.items()))
            if activation.held or activation.ended is not None:
                del self._idle[activation]
            elif activation.fence is not None and self._store.is_writing(activation.fence):
                self._sweep_in(self._idle_timeout)  # a commit that nobody waits for
                return
            elif since + self._idle_timeout <= now:
                del self._idle[activation]
                del self._live[activation.address]
                self._close(
                    activation,
                    CommitFailed(
                        f"{activation.address} was evicted because nothing held it; work of its own"
                        f" belongs in a fiber, or under keep_alive()"
                    ),
                )
                self._events.emit("lifecycle:evicted", activation.address.text)
            else:
                self._sweep_in(since + self._idle_timeout - now)
                return

    def _fence_closed(self, activation: Activation, reason: Exception) -> None:
        """Its writes are refused from now on: discard the object."""
        if isinstance(reason, OwnershipLost):
            logger.warning("%s", reason)
            self._events.emit("fence:lost", activation.address.text, reason=str(reason))
        self._discard(activation, reason)

    def _discard(self, activation: Activation, reason: Exception) -> None:
        """End it, and see that work which it leaves unfinished is taken up again."""
        unfinished = any(task is not activation.ready for task in activation.tasks)
        self._end(activation, reason)
        if unfinished:
            self._on_discarded(activation.address, reason, activation.fence)

    def _end(self, activation: Activation, reason: Exception) -> None:
        """This activation is over. Its work stops; its rows stay for the next one."""
        if activation.ended is not None:
            return
        self._close(activation, reason)
        address = activation.address
        if self._live.get(address) is activation:
            del self._live[address]
        self._idle.pop(activation, None)
        this = asyncio.current_task()
        if activation.agent is not None:
            try:
                activation.agent._leave(reason)
            except Exception:  # the others must be let go, and its work taken up, all the same
                logger.exception("%s could not be stopped", address)
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

    def stop_evicting(self) -> None:
        self._stopped = True
        if self._sweep is not None:
            self._sweep.cancel()

    def end_all(self, reason: Exception) -> set[asyncio.Task[Any]]:
        """All of them are over. Returns the tasks that are still unwinding."""
        for activation in list(self._live.values()):
            self._end(activation, reason)
        return {task for tasks in self._leaving.values() for task in tasks}


def unknown(kind: str, classes: Iterable[str]) -> UnknownAgent:
    """The error for a class that the host does not run."""
    known = ", ".join(sorted(classes)) or "none"
    return UnknownAgent(
        f"this host runs no agent class {kind!r} (it runs: {known})."
        f" Add the class to Host(agents=[...])."
    )


def _retrieved(task: asyncio.Task[None]) -> None:
    """Whoever called is told; if nobody waits any more, that is no news."""
    if not task.cancelled():
        task.exception()
