"""The class that users subclass. Each method delegates to the part that implements it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, Self, TypeVar

from outlast.agent.battery import Battery, batteries_of
from outlast.agent.distant_alarms import agents_with_distant_alarms
from outlast.agent.fibers import sql as fiber_rows
from outlast.agent.fibers.backoff import FiberRecovery
from outlast.agent.fibers.fiber import FiberHandle
from outlast.agent.fibers.fibers import UNSET, FiberFunction, Fibers
from outlast.agent.fibers.managed import FiberInspection, FiberStatus, ManagedFibers
from outlast.agent.fibers.recovery import FiberRecoveryContext, FiberResolution, Recovery
from outlast.agent.keepalive import Lease, keep_alive_while
from outlast.agent.notices import Broadcast
from outlast.agent.part import Layout, Part, Parts
from outlast.agent.receipts import Receipts
from outlast.agent.schedules import sql as schedule_rows
from outlast.agent.schedules.schedules import Schedule, Schedules
from outlast.agent.schedules.timetable import Retry, ScheduleKind
from outlast.agent.state.facts import Facts
from outlast.agent.state.state import State
from outlast.agent.state.storage import Storage
from outlast.agent.subagents.subagents import SubAgent, SubAgents
from outlast.core import json
from outlast.core.hooks import call_hook
from outlast.host.life.activation import Activation
from outlast.store.operations import Query, Read
from outlast.store.schema import Schema

logger = logging.getLogger("outlast.agent")

A = TypeVar("A")
T = TypeVar("T")


class Agent:
    """An addressable object whose state is stored as rows, and whose work outlasts its process.

    ```python
    from outlast import Agent, FiberContext, FiberRecoveryContext, Host

    class Researcher(Agent):
        async def start(self, topic: str) -> str:
            fiber = await self.start_fiber(
                "research", self.research, {"topic": topic, "done": []}, idempotency_key=topic, wait=True
            )
            return fiber.status

        async def research(self, fiber: FiberContext, plan: dict) -> None:
            for step in ["search", "read", "write"][len(plan["done"]):]:
                plan["done"].append(step)
                await fiber.stash(plan)                     # durable when it returns

        async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
            if fiber.name == "research":
                fiber.resume(self.research)                 # continues from the last stash

    async with Host(agents=[Researcher], store="sqlite:///research.db") as host:
        assert await host.get(Researcher, "alice").start("owls") == "completed"
    ```

    Public async methods can be called through a stub (`host.get(...)`). Calls interleave at awaits: code
    between two awaits runs without interruption, code across an await does not.
    """

    fiber_recovery: FiberRecovery = FiberRecovery()
    initial_state: Any = None  # the value of `state` until it is set
    state_type: ClassVar[type[Any] | None] = None  # a dataclass or a Pydantic model
    config_type: ClassVar[type[Any] | None] = None  # likewise, for `get_config()`

    sub_agents: ClassVar[Sequence[type[Any]]] = ()  # the classes of this agent's sub-agents
    exposes_sub_agents: ClassVar[bool] = True  # to clients; False: only your code reaches them

    # Each receives the parts before it, and returns None if this agent does not use it.
    _part_types: ClassVar[tuple[Callable[[Parts], Part | None], ...]] = (
        SubAgents,
        Facts,
        State,
        Fibers,
        Recovery,
        ManagedFibers,
        Schedules,
        Receipts,
    )
    _batteries: ClassVar[tuple[Battery, ...]] = ()
    _schemas: ClassVar[tuple[Schema, ...]] = ()
    _layouts: ClassVar[dict[tuple[type[Part], ...], Layout]] = {}
    _unfinished_work: ClassVar[tuple[Query, ...]] = (
        fiber_rows.UNFINISHED_AGENTS,
        schedule_rows.CLAIMED_AGENTS,
    )
    _for_operators: ClassVar[frozenset[str]] = frozenset({"cancel_fiber", "cancel_schedule"})
    # Attributes that a stub cannot read, and the methods that return them.
    _through_a_stub: ClassVar[Mapping[str, str]] = {
        "state": "get_state",
        "get_config": "get_configuration",
    }
    _agents_with_distant_alarms = staticmethod(agents_with_distant_alarms)
    _activation: Activation

    def __init__(self) -> None:
        """Override for attributes of your own; the agent's storage and fibers exist already."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        known = {
            battery.name for base in cls.__bases__ for battery in getattr(base, "_batteries", ())
        }
        is_mixin = "battery" in vars(cls)
        found = batteries_of(reversed(cls.__mro__), cls.__name__, is_mixin=is_mixin)
        cls._batteries, cls._layouts = found, {}
        new = [battery for battery in found if battery.name not in known]
        cls._schemas = tuple(each.schema for each in found if each.schema is not None)
        more = [query for battery in new for query in battery.unfinished_work]
        cls._unfinished_work = (*cls._inherited("_unfinished_work"), *more)
        names = {name for battery in new for name in battery.operators}
        cls._for_operators = frozenset(cls._inherited("_for_operators")) | names

    @classmethod
    def _inherited(cls, name: str) -> tuple[Any, ...]:
        """Return the values of an attribute of the class and its bases, without duplicates."""
        own = [vars(cls)[name]] if name in vars(cls) else []
        values = [*(getattr(base, name, ()) for base in cls.__bases__), *own]
        return tuple(dict.fromkeys(each for value in values for each in value))

    @classmethod
    def _make(cls, activation: Activation) -> Self:
        agent = cls.__new__(cls)
        agent._attach(activation)
        parts = dict(vars(agent))
        agent.__init__()  # type: ignore[misc]
        for name, part in parts.items():
            if vars(agent).get(name) is not part:
                raise TypeError(f"{cls.__name__}.__init__ replaces self.{name}, which Agent needs")
        return agent

    def _attach(self, activation: Activation) -> None:
        self._activation = activation
        self._parts = parts = Parts(self, activation)
        self.storage = Storage(activation.address.text, activation.store, parts.commits)
        for make in self._part_types:
            parts.add(make(parts))
        for battery in self._batteries:
            parts.add(battery.part(parts), battery.name)
        parts.complete(self._layouts)

    @property
    def name(self) -> str:
        """The name under which this agent is addressed."""
        return self._activation.address.name

    @property
    def self_path(self) -> tuple[tuple[str, str], ...]:
        """The class and the name of each agent from the root down to this one."""
        return self._activation.address.path

    @property
    def parent_path(self) -> tuple[tuple[str, str], ...]:
        """The same without this agent itself; empty for a root."""
        return self.self_path[:-1]

    # --- hooks -----------------------------------------------------------------------------------

    async def on_start(self) -> None:
        """Called once per activation, before any call reaches the agent."""

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> FiberResolution | None:
        """Called with each fiber whose process ended before the fiber did.

        Call `fiber.resume(...)` to continue it, or `self.run_fiber(...)`: the first fiber started replaces
        it. If this returns without either, the fiber ends: its row is deleted, or for a managed fiber
        settled as the returned `FiberResolution` says (None: `interrupted`). If this raises, it is called
        again later for a plain fiber; a managed fiber is settled as an error.
        """
        logger.warning(
            "%s: dropped the interrupted fiber %r (%s): %s does not override on_fiber_recovered",
            self._activation.address,
            fiber.name,
            fiber.id,
            type(self).__name__,
        )
        return None

    def validate_state_change(self, state: Any, source: Any) -> None:
        """Raise to reject a new state. Must be a plain `def`."""

    async def on_state_changed(self, state: Any, source: Any) -> None:
        """Called after each change of the state, once it is durable. An exception here is only logged."""

    # --- state and configuration -----------------------------------------------------------------

    @property
    def state(self) -> Any:
        """A copy of the agent's state, as a `state_type` if one is declared.

        ```python
        from dataclasses import dataclass
        from outlast import Agent, Host

        @dataclass
        class Game:
            score: int = 0

        class Player(Agent):
            state_type = Game
            initial_state = Game()

            def validate_state_change(self, state: Game, source) -> None:
                if state.score < self.state.score:
                    raise ValueError("a score only rises")

            async def win(self) -> int:
                await self.set_state(Game(self.state.score + 1))     # durable when it returns
                return self.state.score

        async with Host(agents=[Player], store="sqlite:///game.db") as host:
            assert await host.get(Player, "alice").win() == 1
        ```
        """
        return self._parts[State].get()

    async def get_state(self) -> Any:
        """Return `state`, for callers that have a stub."""
        return self.state

    async def set_state(self, state: Any) -> None:
        """Replace the state. Durable when this returns; inside `commit()`, when the block ends."""
        await self._parts[State].change(state, "server")

    async def configure(self, config: Any) -> None:
        """Set the agent's configuration: one value, kept until it is set again."""
        await self._parts[State].configure(config)

    def get_config(self) -> Any:
        """Return the value passed to `configure`, as a `config_type` if one is declared, or None."""
        return self._parts[State].config()

    async def get_configuration(self) -> Any:
        """Return `get_config()`, for callers that have a stub."""
        return self.get_config()

    # --- connections -----------------------------------------------------------------------------

    async def on_connect(self, connection: Any) -> None:
        """Called when a client connects, before anything is sent. `connection.close(4003)` rejects it."""

    async def on_message(self, connection: Any, message: str) -> None:
        """Called with each text message that is not part of the protocol."""

    async def on_close(self, connection: Any) -> None:
        """Called when a connection has closed."""

    async def on_request(self, request: Any) -> Any:
        """Called with each HTTP request that outlast does not answer itself. Returns a Starlette response."""
        return None

    async def on_before_sub_agent(self, connection: Any, class_name: str, name: str) -> Any:
        """Called with each request and handshake for a sub-agent, after `authorize`, before it wakes.

        None admits it, False rejects it (403, or a close with 1008). A Starlette response answers a request,
        and rejects a handshake.
        """
        return None

    def broadcast(self, message: Any, *, without: Iterable[str] = ()) -> None:
        """Send a string, or a value as JSON, to every connected client. Nothing is stored."""
        text = message if isinstance(message, str) else json.encode(message, "message")
        self._activation.tell(Broadcast(text, frozenset(without)))

    # --- writing ---------------------------------------------------------------------------------

    def commit(self) -> AbstractAsyncContextManager[object, None]:
        """`async with self.commit():` makes everything written inside one atomic commit.

        ```python
        from outlast import Agent, Host

        class Mover(Agent):
            async def move(self) -> dict:
                async with self.commit():                  # all of this, or none of it
                    await self.storage.put("to", 1)
                    await self.storage.delete("from")
                return await self.storage.list()

        async with Host(agents=[Mover], store="sqlite:///mover.db") as host:
            assert await host.get(Mover, "m").move() == {"to": 1}
        ```
        """
        return self._parts.commits.block()

    # --- staying in memory -----------------------------------------------------------------------

    def keep_alive(self) -> Lease:
        """Stay in memory until the lease is released. Nothing is stored; a crash ends the lease."""
        return Lease(self._activation)

    async def keep_alive_while(self, work: Awaitable[T] | Callable[[], Awaitable[T]]) -> T:
        """Stay in memory while `work` (an awaitable, or a function that returns one) is awaited."""
        return await keep_alive_while(self._activation, work)

    # --- fibers ----------------------------------------------------------------------------------

    def run_fiber(
        self, name: str, function: FiberFunction[T], input: Any = UNSET
    ) -> FiberHandle[T]:
        """Start durable work. Its row is queued when this returns; await the handle for the result.

        `function` is called with a `FiberContext`, and with `input` if given. The input is stored with the
        row, and is the fiber's snapshot until the first stash.
        """
        return self._parts[Fibers].run(name, function, input)

    async def stash(self, data: Any) -> None:
        """Replace the snapshot of the fiber that runs this code. Durable when this returns."""
        await self._parts[Fibers].current().stash(data)

    async def start_fiber(
        self,
        name: str,
        function: FiberFunction[Any],
        input: Any = UNSET,
        *,
        id: str | None = None,
        idempotency_key: str | None = None,
        wait: bool = False,
        metadata: Any = None,
    ) -> FiberInspection:
        """Start a managed fiber: its record outlives it, and can be looked up and cancelled.

        If a fiber with this id or key exists, it is returned (`accepted` is False) and nothing is started.
        `wait=True` returns once the fiber has ended.
        """
        return await self._parts[ManagedFibers].launch(
            name, function, input, id, idempotency_key, wait, metadata
        )

    async def inspect_fiber(
        self, id: str | None = None, *, idempotency_key: str | None = None
    ) -> FiberInspection | None:
        """Return the stored record of a managed fiber, by its id or by its key, or None."""
        return await self._parts[ManagedFibers].inspect(id, idempotency_key)

    async def list_fibers(
        self,
        *,
        status: FiberStatus | Iterable[FiberStatus] | None = None,
        name: str | None = None,
        limit: int = 50,
    ) -> list[FiberInspection]:
        """Return managed fibers, newest first; `limit` is at most 100."""
        return await self._parts[ManagedFibers].list(status, name, limit)

    async def cancel_fiber(
        self, id: str | None = None, *, idempotency_key: str | None = None
    ) -> bool:
        """Cancel a managed fiber, by its id or by its key. False if it does not exist or has ended."""
        return await self._parts[ManagedFibers].cancel(id, idempotency_key)

    async def resolve_fiber(
        self,
        id: str,
        status: Literal["completed", "error", "aborted", "interrupted"],
        *,
        error: str | None = None,
        metadata: Any = None,
        snapshot: Any = None,
    ) -> bool:
        """Set how an interrupted managed fiber ended. False if it is not interrupted."""
        return await self._parts[ManagedFibers].resolve(
            id, FiberResolution(status, error, metadata, snapshot)
        )

    async def delete_fibers(
        self,
        *,
        status: FiberStatus | Iterable[FiberStatus] | None = None,
        settled_before: datetime | None = None,
        limit: int = 100,
    ) -> int:
        """Delete managed fibers that have ended, oldest first; interrupted ones only if `status` says so."""
        return await self._parts[ManagedFibers].delete(status, settled_before, limit)

    # --- schedules -------------------------------------------------------------------------------

    async def schedule(
        self,
        when: float | timedelta | datetime | str,
        callback: Callable[..., Any] | str,
        payload: Any = None,
        *,
        retry: Retry | None = None,
        idempotent: bool | None = None,
        timezone: str | None = None,
    ) -> Schedule:
        """Call a method of this agent later: after a delay, at a time, or by a cron expression.

        The callback is a method, stored by its name; it is called with the payload, and with the
        `Schedule` if it takes a second argument. It runs at least once per occurrence, even if the
        process crashes. With `idempotent` (the default for cron expressions), scheduling the same thing
        again returns the existing schedule.

        ```python
        from datetime import timedelta
        from outlast import Agent, Host

        class Clock(Agent):
            async def begin(self) -> str:
                await self.schedule(timedelta(hours=1), self.remind, {"what": "stretch"})
                daily = await self.schedule("0 9 * * 1-5", self.remind, timezone="Europe/London")
                return daily.kind

            async def remind(self, payload) -> None: ...

        async with Host(agents=[Clock], store="sqlite:///clock.db") as host:
            assert await host.get(Clock, "c").begin() == "cron"
            assert len(await host.get(Clock, "c").get_schedules()) == 2
        ```
        """
        return await self._parts[Schedules].once_or_by_cron(
            when, callback, payload, retry, idempotent, timezone
        )

    async def schedule_every(
        self,
        interval: float | timedelta,
        callback: Callable[..., Any] | str,
        payload: Any = None,
        *,
        retry: Retry | None = None,
        idempotent: bool | None = None,
    ) -> Schedule:
        """Call a method of this agent repeatedly, each time `interval` after the last call ended."""
        return await self._parts[Schedules].every(interval, callback, payload, retry, idempotent)

    async def get_schedules(
        self,
        *,
        kind: ScheduleKind | None = None,
        callback: Callable[..., Any] | str | None = None,
    ) -> list[Schedule]:
        """Return the schedules of this agent, the next first; optionally of one kind or one callback."""
        return await self._parts[Schedules].all(kind, callback)

    async def get_schedule(self, id: str) -> Schedule | None:
        """Return one schedule of this agent, or None."""
        return await self._parts[Schedules].get(id)

    async def cancel_schedule(self, id: str) -> bool:
        """Delete a schedule; a running callback continues. False if it does not exist."""
        return await self._parts[Schedules].cancel(id)

    # --- sub-agents ------------------------------------------------------------------------------

    async def sub_agent(self, agent_class: type[A], name: str) -> A:
        """Return a stub of a sub-agent of this agent, which is created if it does not exist.

        ```python
        from outlast import Agent, Host

        class Notes(Agent):
            async def add(self, text: str) -> int:
                count = len(await self.storage.list())
                await self.storage.put(str(count), text)
                return count + 1

        class Writer(Agent):
            sub_agents = [Notes]

            async def note(self, topic: str, text: str) -> int:
                notes = await self.sub_agent(Notes, topic)
                return await notes.add(text)

        async with Host(agents=[Writer], store="sqlite:///notes.db") as host:
            assert await host.get(Writer, "ann").note("owls", "they fly at night") == 1
        ```

        It has rows, fibers and schedules of its own, and runs on the same host as this agent.
        """
        return await self._parts[SubAgents].get(agent_class, name)

    def parent_agent(self, agent_class: type[A]) -> A:
        """Return a stub of this agent's parent."""
        return self._parts[SubAgents].parent(agent_class)

    async def has_sub_agent(self, agent_class: type[Any], name: str) -> bool:
        """Return whether this sub-agent exists."""
        return await self._parts[SubAgents].has(agent_class, name)

    async def list_sub_agents(self, agent_class: type[Any] | None = None) -> list[SubAgent]:
        """Return the sub-agents of this agent (of one class, if given), in order of creation."""
        return await self._parts[SubAgents].all(agent_class)

    async def abort_sub_agent(
        self, agent_class: type[Any], name: str, reason: str = "its parent asked for it"
    ) -> bool:
        """Stop a sub-agent and all below it. Their rows are kept, and the next call starts them again.

        Their pending calls raise `AgentAborted`. Returns whether any of them was in memory.
        """
        return self._parts[SubAgents].abort(agent_class, name, reason)

    async def delete_sub_agent(self, agent_class: type[Any], name: str) -> bool:
        """Stop a sub-agent and all below it, and delete all their rows. False if it does not exist."""
        return await self._parts[SubAgents].delete(agent_class, name)

    async def destroy(self) -> None:
        """End this agent and all below it, and delete everything that they own. Idempotent.

        For a sub-agent, this is the same as its parent's `delete_sub_agent`. Other calls, fibers and
        callbacks are interrupted; the caller continues, but can write nothing more.
        """
        await self._parts[SubAgents].destroy()

    # --- the host's interface: see `host.hosted` -------------------------------------------------

    @classmethod
    def _first_reads(cls, address: str) -> list[Read]:
        owners = (*cls._part_types, *cls._batteries)
        queries = (query for owner in owners for query in getattr(owner, "first_reads", ()))
        return [(query, (address,)) for query in queries]

    async def _start(self) -> None:
        parts = self._parts
        try:
            for load in parts.overriding("load"):
                await load()
            await call_hook(self.on_start)
            for start in parts.overriding("start"):
                await start()
        except Exception:
            for failed in parts.overriding("start_failed"):
                await failed()
            raise

    async def _wake(self, source: str) -> None:
        await self._parts.alarm_owner(source).wake(source)

    async def _clock_set_back(self) -> None:
        for clock_set_back in self._parts.overriding("clock_set_back"):
            await clock_set_back()

    async def _host_stopping(self, cause: str) -> None:
        for host_stops in self._parts.overriding("host_stops"):
            await host_stops(cause)

    def _leave(self, reason: Exception) -> None:
        for leave in self._parts.overriding("leave"):
            leave(reason)
        this = asyncio.current_task()
        for task in list(self._activation.tasks):
            if task is not this:
                task.cancel()


def batteries(agent_class: type[Agent]) -> tuple[Battery, ...]:
    """Return the batteries of an agent class, in the order of their parts."""
    return agent_class._batteries


def parts_of(agent: Agent) -> Parts:
    """Return the parts of an agent, for servers and batteries."""
    return agent._parts
