"""One agent in memory: its right to write, and what keeps it there."""

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
    """What one agent can do to others, through its host."""

    def stub(self, agent_class: type[A], address: Address) -> A:
        """A stub of the agent at `address`."""
        ...

    def removing(
        self, address: Address, reason: Exception, *, by: Activation
    ) -> AbstractAsyncContextManager[Removal]:
        """End an agent and all below it, and keep them away inside the block."""
        ...

    def abort(self, address: Address, reason: Exception) -> bool:
        """End an agent and all below it; their rows stay. False when none of them is in memory."""
        ...


class Removal(Protocol):
    """What may be written while an agent and all below it are away."""

    async def commit(self, operations: list[Operation], *, with_root: bool) -> tuple[int, ...]:
        """Write in the place of those that were ended; `with_root`: the root's own row goes too.

        Returns what each operation touched; nothing when there was nothing to remove.
        """
        ...


class Making(Protocol):
    """An agent that is visited before anybody has made it: its first commit does."""

    def operations(self) -> list[Operation]:
        """What makes it; each time the same, and nothing where it is made already."""
        ...

    def written(self, outcome: Outcome) -> None:
        """Called with the outcome of a commit that brought them."""
        ...

    async def check(self) -> None:
        """Raise `AgentDestroyed` unless somebody has made it by now."""
        ...


class Activation:
    """What an agent gets from its host: the store under its fence, a clock, ids, events, holds."""

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
        self.fence: Fence | None = None  # its root's, once that agent's row was read
        self.is_called = False  # somebody wants it, whether anything is stored or not
        self.may_be_made = False  # the same of a sub-agent that its parent has not made
        self.making: Making | None = None  # until it is made
        self.is_continued = False  # an earlier activation in this same host wrote the row last
        self.cause: str | None = None  # why the process before this one ended, if anybody knows
        self.died_at: int | None = None  # when, in milliseconds
        self.on_upgrade: Callable[[], None] | None = None  # replaces this process, if anybody can
        self.flush = 0.0  # seconds between two commits of chunks alone
        self.boot_order = BootOrder()  # the host has one for all
        self.unstorable: CommitFailed | None = None  # what has ended the one before it here
        self.rests_until = (
            0.0  # on the loop's clock: until then, nothing that was interrupted goes on
        )
        self.is_retired = False  # it leaves memory as soon as nothing holds it
        self.ready: asyncio.Task[None] | None = None
        self.waits_for: Activation | None = None  # whom its `on_start` calls
        self.ended: Exception | None = None
        self.last_write: Outcome | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.calls: dict[asyncio.Timeout, asyncio.Task[Any] | None] = {}  # each on a leash
        self.alarm_was_set = on_alarm_set
        self.audience: Audience | None = None  # who serves its connections
        self._on_idle = on_idle
        self._new_context = new_context
        self._ahead: dict[Read, list[Row]] = {}  # what was read ahead
        self._holds = 0
        self._loop = asyncio.get_running_loop()
        family.members.add(self)

    async def read_ahead(self, reads: Sequence[Read]) -> None:
        """Read what is wanted while the agent starts, in one go. Each is there for one `fetch`."""
        found = await self.store.fetch_all(reads)
        self._ahead = dict(zip(reads, found, strict=True))

    async def fetch(self, query: Query, *arguments: Any) -> list[Row]:
        """The rows of a query, as of the start of the agent if they were read then."""
        found = self._ahead.pop((query, arguments), None) if self._ahead else None
        return found if found is not None else await self.store.fetch(query, *arguments)

    def forget_ahead(self) -> None:
        """What was read ahead and not fetched is of no use any more."""
        self._ahead.clear()

    @property
    def held(self) -> bool:
        """True while a call, a fiber, a keep-alive or a scan needs the agent in memory."""
        return self._holds > 0

    @property
    def rest(self) -> float:
        """Seconds until what was interrupted may go on: it has failed again and again."""
        return max(0.0, self.rests_until - self._loop.time())

    def hold(self) -> None:
        """One more reason to stay in memory."""
        self._holds += 1

    def release(self) -> None:
        """One reason less."""
        self._holds -= 1
        if self._holds == 0:
            self._on_idle(self)

    def submit(self, operations: list[Operation]) -> Outcome:
        """Hand a batch over, now and without waiting; await the outcome to know how it ended."""
        if self.ended is not None:
            raise again(self.ended)
        assert self.fence is not None
        making = self.making
        if making is not None:  # last: what the others touched stands where it is looked for
            operations = [*operations, *making.operations()]
        self.last_write = outcome = self.store.submit(self.fence, operations)
        if making is not None:
            outcome.add_done_callback(lambda _: making.written(outcome))
        return outcome

    @property
    def is_writing(self) -> bool:
        """True while a batch of this agent has no outcome yet. They end in order."""
        return self.last_write is not None and not self.last_write.done()

    def tell(self, notice: Notice) -> None:
        """Tell those who are connected to this agent."""
        if self.audience is not None:
            self.audience.hear(self.address, notice)

    def stop_calls(self) -> None:
        """Interrupt whoever is inside a call of this agent, except for the caller of this.

        Not at once: whoever is about to hear how a commit has ended hears that instead.
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
        """Run something for this agent. It is held, and not left behind, until that ends.

        It runs in a context of its own, unless one is given: what is done for an agent does not
        belong to whoever happened to wake it, nor to a commit() block that is open there.
        """
        self.hold()
        task = self._loop.create_task(work, name=name, context=context or self._new_context())
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        self.release()
