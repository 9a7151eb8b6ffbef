"""One agent in memory: its right to write, and what keeps it there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from outlast.core.clock import Clock
from outlast.core.events import Events
from outlast.core.ids import Ids
from outlast.host.address import Address
from outlast.store.base import Store
from outlast.store.operations import Fence

if TYPE_CHECKING:
    from outlast.host.hosted import Hosted


class Activation:
    """What an agent gets from its host: the store under its fence, a clock, ids, events, holds."""

    def __init__(
        self,
        address: Address,
        *,
        store: Store,
        clock: Clock,
        ids: Ids,
        events: Events,
        on_idle: Callable[[Activation], None],
        on_alarm_set: Callable[[int], None],
        new_context: Callable[[], Context] = Context,
    ) -> None:
        self.address = address
        self.store = store
        self.clock = clock
        self.ids = ids
        self.events = events
        self.agent: Hosted | None = None
        self.fence: Fence | None = None  # once the agent's row was read
        self.is_continued = False  # an earlier activation in this same host wrote the row last
        self.ready: asyncio.Task[None] | None = None
        self.ended: Exception | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.alarm_was_set = on_alarm_set
        self._on_idle = on_idle
        self._new_context = new_context
        self._holds = 0
        self._loop = asyncio.get_running_loop()

    @property
    def held(self) -> bool:
        """True while a call, a fiber, a keep-alive or a scan needs the agent in memory."""
        return self._holds > 0

    def hold(self) -> None:
        """One more reason to stay in memory."""
        self._holds += 1

    def release(self) -> None:
        """One reason less."""
        self._holds -= 1
        if self._holds == 0:
            self._on_idle(self)

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
