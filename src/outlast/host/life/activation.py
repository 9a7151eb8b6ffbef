"""One agent in memory: its fence, its tasks, and the holds that keep it there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from outlast.core.clock import Clock
from outlast.core.errors import CommitFailed, again
from outlast.core.events import Events
from outlast.core.ids import Ids
from outlast.host.address import Address
from outlast.host.notices import Audience, Notice
from outlast.host.wakeups.boot_order import BootOrder
from outlast.store.base import Row, Store
from outlast.store.operations import Fence, Operation, Outcome, Query, Read

if TYPE_CHECKING:
    from outlast.host.hosted import Hosted
    from outlast.host.life.family import Family

A = TypeVar("A")


class Neighbours(Protocol):
    """What an agent can do to other agents, through its host."""

    def stub(self, agent_class: type[A], address: Address) -> A:
        """Return a stub of the agent at `address`."""
        ...

    def removing(
        self, address: Address, reason: Exception, *, by: Activation
    ) -> AbstractAsyncContextManager[Removal]:
        """End an agent and all below it, and block new activations inside the block."""
        ...

    def abort(self, address: Address, reason: Exception) -> bool:
        """End an agent and all below it, keeping their rows. Returns whether any of them was in memory."""
        ...


class Removal(Protocol):
    """The right to write for an agent, and all below it, after they were ended."""

    async def commit(self, operations: list[Operation], *, with_root: bool) -> tuple[int, ...]:
        """Write on behalf of the ended agents; `with_root` removes the root's own row, too.

        Returns how many rows each operation touched; empty if there was nothing to remove.
        """
        ...


class Making(Protocol):
    """The creation of a sub-agent that is called before its parent made it: its first commit creates it."""

    def operations(self) -> list[Operation]:
        """Return the operations that create it. They are idempotent."""
        ...

    def written(self, outcome: Outcome) -> None:
        """Called with the outcome of a commit that contained them."""
        ...

    async def check(self) -> None:
        """Raise `AgentDestroyed` unless the agent exists by now."""
        ...


class Activation:
    """What the host gives an agent: the store under its fence, a clock, ids, events, holds."""

    def __init__(
        self,
        address: Address,
        family: Family,
        *,
        store: Store,
        clock: Clock,
        ids: Ids,
        events: Events,
        on_idle: Callable[[Activation], None],
        on_alarm_set: Callable[[int], None],
        neighbours: Neighbours,
        new_context: Callable[[], Context] = Context,
    ) -> None:
        self.address = address
        self.family = family
        self.store = store
        self.clock = clock
        self.ids = ids
        self.events = events
        self.agent: Hosted | None = None
        self.neighbours = neighbours
        self.fence: Fence | None = None  # the root's, once the root's row was read
        self.is_called = False  # it was called, so it may start without rows
        self.may_be_made = False  # the same for a sub-agent that its parent did not make
        self.making: Making | None = None  # until the sub-agent exists
        self.is_continued = False  # the last writer was an earlier activation in this host
        self.cause: str | None = None  # why the previous process ended, if known
        self.died_at: int | None = None  # when, in milliseconds
        self.on_upgrade: Callable[[], None] | None = None  # replaces this process, if possible
        self.flush = 0.0  # seconds between two commits that contain only chunks
        self.boot_order = BootOrder()  # shared by all agents of the host
        self.shared: dict[type, Any] = {}  # what else they share, by its class
        self.unstorable: CommitFailed | None = (
            None  # the failure that ended the previous activation
        )
        self.rests_until = 0.0  # on the loop's clock: until then, interrupted work does not resume
        self.is_retired = False  # it leaves memory as soon as nothing holds it
        self.ready: asyncio.Task[None] | None = None
        self.waits_for: Activation | None = None  # the agent that its `on_start` calls
        self.ended: Exception | None = None
        self.last_write: Outcome | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.calls: dict[
            asyncio.Timeout, asyncio.Task[Any] | None
        ] = {}  # each with a timeout that can interrupt it
        self.alarm_was_set = on_alarm_set
        self.audience: Audience | None = None  # serves its connections
        self._on_idle = on_idle
        self._new_context = new_context
        self._ahead: dict[Read, list[Row]] = {}  # rows that were read ahead
        self._holds = 0
        self._loop = asyncio.get_running_loop()
        family.members.add(self)

    async def read_ahead(self, reads: Sequence[Read]) -> None:
        """Run the reads that the agent needs to start, in one round trip. Each serves one `fetch`."""
        found = await self.store.fetch_all(reads)
        self._ahead = dict(zip(reads, found, strict=True))

    async def fetch(self, query: Query, *arguments: Any) -> list[Row]:
        """Return the rows of a query, or those that `read_ahead` fetched for it."""
        found = self._ahead.pop((query, arguments), None) if self._ahead else None
        return found if found is not None else await self.store.fetch(query, *arguments)

    def forget_ahead(self) -> None:
        """Drop the rows that were read ahead and not fetched."""
        self._ahead.clear()

    @property
    def held(self) -> bool:
        """True while a call, a fiber, a keep-alive or a scan keeps the agent in memory."""
        return self._holds > 0

    @property
    def rest(self) -> float:
        """Seconds until interrupted work may resume, after repeated failures."""
        return max(0.0, self.rests_until - self._loop.time())

    def hold(self) -> None:
        """Add a hold, which keeps the agent in memory."""
        self._holds += 1

    def release(self) -> None:
        """Release a hold."""
        self._holds -= 1
        if self._holds == 0:
            self._on_idle(self)

    def submit(self, operations: list[Operation]) -> Outcome:
        """Submit a batch without waiting; await the outcome to learn how it ended."""
        if self.ended is not None:
            raise again(self.ended)
        assert self.fence is not None
        making = self.making
        if making is not None:  # last, so that the results of the others keep their places
            operations = [*operations, *making.operations()]
        self.last_write = outcome = self.store.submit(self.fence, operations)
        if making is not None:
            outcome.add_done_callback(lambda _: making.written(outcome))
        return outcome

    @property
    def is_writing(self) -> bool:
        """True while a batch of this agent has no outcome yet. Batches complete in order."""
        return self.last_write is not None and not self.last_write.done()

    def tell(self, notice: Notice) -> None:
        """Send a notice to the connections of this agent."""
        if self.audience is not None:
            self.audience.hear(self.address, notice)

    def stop_calls(self) -> None:
        """Interrupt every call of this agent, except the caller's own.

        Deferred by one tick, so that a call that is about to learn the outcome of a commit learns it first.
        """
        this = asyncio.current_task()
        leashes = [leash for leash, task in self.calls.items() if task is not this]
        if leashes:
            self._loop.call_soon(self._pull, leashes)

    def _pull(self, leashes: list[asyncio.Timeout]) -> None:
        for leash in leashes:
            if leash in self.calls:
                leash.reschedule(self._loop.time())

    def spawn(
        self, work: Coroutine[Any, Any, Any], name: str, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Run a coroutine for this agent, which is held until it ends.

        It runs in a context of its own unless one is given: work for an agent must not inherit the context
        of the task that woke the agent, nor an open commit() block there.
        """
        self.hold()
        task = self._loop.create_task(work, name=name, context=context or self._new_context())
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        self.release()
