"""An agent that admits work from inside other work, as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from outlast import (
    Agent,
    FiberContext,
    FiberRecovery,
    FiberRecoveryContext,
    FiberResolution,
    Host,
)
from outlast.store.operations import Query
from support import World, forever

Act = Callable[["Planner", int], Any]  # is given the number of the run


class Planner(Agent):
    """Does what a test says, in a callback or in a fiber, and logs what comes of it."""

    host: ClassVar[Host]
    act: ClassVar[Act | None] = None
    recover: ClassVar[Any] = None
    runs: ClassVar[int] = 0
    log: ClassVar[list[Any]] = []
    failed: ClassVar[list[BaseException]] = []  # a callback's errors are not seen otherwise

    async def tick(self, payload: Any = None) -> None:
        """A callback."""
        Planner.runs += 1
        assert Planner.act is not None
        try:
            await Planner.act(self, Planner.runs)
        except (AssertionError, pytest.fail.Exception) as error:
            Planner.failed.append(error)
            raise

    async def march(self, fiber: FiberContext, input: Any = None) -> None:
        """A fiber that does the same."""
        await self.tick()

    async def note(self, what: Any) -> None:
        """A one-shot's callback."""
        Planner.log.append(what)

    async def other(self, what: Any) -> None:
        """And another."""
        Planner.log.append(["other", what])

    async def child(self, fiber: FiberContext, what: Any = None) -> None:
        """A fiber that is started from inside."""
        Planner.log.append(what)

    async def begin(self, what: Any) -> Any:
        """For calls from inside another agent: it is admitted here."""
        return await self.start_fiber("child", self.child, what)

    async def do(self, function: Any) -> Any:
        return await function(self)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> FiberResolution | None:
        if Planner.recover is not None:
            return await Planner.recover(self, fiber)  # type: ignore[no-any-return]
        fiber.resume(self.march if fiber.name == "march" else self.child)
        return None


class Child(Planner):
    """A sub-agent."""


class Parent(Planner):
    sub_agents = (Child,)


def fresh() -> Iterator[None]:
    """For a fixture: a new Planner, and what its code found wrong."""
    Planner.act, Planner.recover, Planner.runs = None, None, 0
    Planner.log, Planner.failed = [], []
    Planner.fiber_recovery = FiberRecovery()
    yield
    assert Planner.failed == []


async def start_march(host: Host) -> None:
    await host.get(Planner, "p").do(lambda agent: agent.start_fiber("march", agent.march))


async def die_in(act: Act, world: World, begin: Any = None) -> None:
    """A first life: a callback, or what `begin` starts, does `act` and never ends; the host is killed."""

    async def then_hang(agent: Planner, run: int) -> None:
        await act(agent, run)
        await forever()

    Planner.act = then_hang
    Planner.host = await world.host(Planner, Parent)
    if begin is None:
        await Planner.host.get(Planner, "p").schedule(10, "tick")
    else:
        await begin(Planner.host)
    await asyncio.sleep(20)
    await world.kill()
    Planner.act = act


async def noted(host: Host) -> list[tuple[Any, ...]]:
    """What the table of admissions holds."""
    return await host.store.fetch(Query.same("SELECT agent, origin, key FROM admissions"))


async def scheduled(host: Host) -> list[tuple[Any, ...]]:
    """The schedules that have not run to their end."""
    return await host.store.fetch(
        Query.same("SELECT callback, payload FROM schedules ORDER BY run_at, id")
    )


async def fiber_names(host: Host, agent: str = "Planner/p") -> list[str]:
    found = await host.store.fetch(
        Query.same("SELECT name FROM fibers WHERE agent = ? ORDER BY created_at, id"), agent
    )
    return [name for (name,) in found]
