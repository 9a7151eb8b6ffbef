"""What a host tells: the whole story of each fiber, schedule and agent, and nothing when nobody listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import closing
from typing import Any, ClassVar

import pytest

from outlast import ActivationFailed, Agent, FiberCancelled, FiberContext, OwnershipLost
from outlast.agent.agent import parts_of
from outlast.host.events import AgentDiscarded
from outlast.testing.virtual import START
from support import forever, hosting, listen, raw

pytestmark = pytest.mark.virtual_time


class Worker(Agent):
    behave: ClassVar[Callable[..., Any]]

    async def run(self, managed: bool) -> None:
        """Start a fiber, and cancel it after ten seconds."""
        if managed:
            await self.start_fiber("work", self.step, id="m")
            await asyncio.sleep(10)
            await self.cancel_fiber("m")
        else:
            handle = self.run_fiber("work", self.step)
            await asyncio.sleep(10)
            handle.cancel()
            with contextlib.suppress(FiberCancelled, ValueError):
                await handle

    async def put(self) -> None:
        await self.storage.put("key", 1)

    async def step(self, fiber: FiberContext) -> None:
        await type(self).behave()

    async def tick(self, payload: Any) -> None:
        await type(self).behave()


async def quickly() -> None:
    await asyncio.sleep(1)


async def fail() -> None:
    raise ValueError("no")


async def fail_when_cancelled() -> None:
    try:
        await forever()
    except asyncio.CancelledError:
        raise ValueError("no") from None


async def complete_when_cancelled() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await forever()


@pytest.mark.parametrize(
    ("behave", "managed", "end"),
    [
        (quickly, False, "fiber:run:completed"),
        (quickly, True, "fiber:run:completed"),
        (fail, False, "fiber:run:failed"),
        (fail, True, "fiber:run:failed"),
        (forever, False, "fiber:run:aborted"),
        (forever, True, "fiber:run:aborted"),
        (fail_when_cancelled, False, "fiber:run:aborted"),
        (fail_when_cancelled, True, "fiber:run:aborted"),
        (complete_when_cancelled, False, "fiber:run:completed"),
        (complete_when_cancelled, True, "fiber:run:aborted"),  # that was durable before
    ],
)
async def test_for_every_run_that_began_one_end_is_told(
    sqlite_url: str, behave: Callable[..., Any], managed: bool, end: str
) -> None:
    Worker.behave = staticmethod(behave)
    async with hosting(Worker, url=sqlite_url) as host:
        seen = listen(host, "fiber")
        await host.get(Worker, "w").run(managed)
        await host.until_settled()
        assert [event.name for event in seen] == ["fiber:run:started", end]
        assert {event.payload["managed"] for event in seen} == {managed}


async def test_a_run_that_fails_just_after_it_was_cancelled_is_aborted(sqlite_url: str) -> None:
    is_written = asyncio.Event()

    async def fail_then() -> None:
        await is_written.wait()
        raise ValueError("no")

    class Cancelled(Worker):
        async def cancel_fiber(self, id: str) -> bool:
            cancelling = asyncio.ensure_future(super().cancel_fiber(id))
            while not parts_of(self).activation.store.busy or is_reading:
                await asyncio.sleep(0)
            is_written.set()
            return await cancelling

    async def counted(*query: Any) -> Any:
        is_reading.append(query)
        try:
            return await fetch(*query)
        finally:
            is_reading.pop()

    is_reading: list[Any] = []
    Cancelled.behave = staticmethod(fail_then)
    async with hosting(Cancelled, url=sqlite_url) as host:
        seen = listen(host, "fiber")
        fetch, host.store.fetch = host.store.fetch, counted
        await host.get(Cancelled, "w").run(True)
        await host.until_settled()
        assert [event.name for event in seen] == ["fiber:run:started", "fiber:run:aborted"]


async def test_a_run_that_is_left_is_told_to_be_interrupted_and_nothing_else(
    sqlite_url: str,
) -> None:
    Worker.behave = staticmethod(forever)
    async with hosting(Worker, url=sqlite_url) as host:
        seen = listen(host, "fiber")
        calling = asyncio.ensure_future(host.get(Worker, "w").run(False))
        await asyncio.sleep(5)
        await host.stop(0)
        await asyncio.wait({calling})
        assert calling.exception() is not None
    assert [event.name for event in seen] == ["fiber:run:started", "fiber:run:interrupted"]


async def test_an_execution_of_a_schedule_has_a_beginning_and_an_end(sqlite_url: str) -> None:
    Worker.behave = staticmethod(quickly)
    async with hosting(Worker, url=sqlite_url) as host:
        seen = listen(host, "schedule")
        schedule = await host.get(Worker, "w").schedule(10, "tick")
        await asyncio.sleep(20)
    assert [(event.name, event.at - START) for event in seen] == [
        ("schedule:create", 0),
        ("schedule:execute", 10_000),
        ("schedule:complete", 11_000),
    ]
    assert seen[2].payload == {
        "schedule_id": schedule.id,
        "callback": "tick",
        "kind": "delayed",
        "elapsed_ms": 1000,
    }


async def test_an_agent_that_cannot_start_is_discarded_and_was_never_activated(
    sqlite_url: str,
) -> None:
    class Broken(Agent):
        async def on_start(self) -> None:
            raise OSError("no configuration")

        async def hello(self) -> None: ...

    async with hosting(Broken, url=sqlite_url) as host:
        seen = listen(host, "lifecycle")
        with pytest.raises(ActivationFailed):
            await host.get(Broken, "b").hello()
        assert [(event.name, event.payload) for event in seen] == [
            (
                "lifecycle:discarded",
                {"reason": "Broken/b: on_start raised OSError: no configuration"},
            )
        ]


async def test_an_agent_that_was_taken_over_is_lost_and_then_discarded_once(
    sqlite_url: str,
) -> None:
    async with hosting(Worker, url=sqlite_url) as host:
        seen = listen(host, "lifecycle")
        await host.get(Worker, "w").put()
        with closing(raw(sqlite_url)) as db:
            db.execute("UPDATE agents SET epoch = epoch + 1, owner = 'thief'")
        with pytest.raises(OwnershipLost):
            await host.get(Worker, "w").put()
        assert [event.name for event in seen] == [
            "lifecycle:activated",
            "fence:lost",
            "lifecycle:discarded",
        ]
        assert {event.agent for event in seen} == {"Worker/w"}


async def test_an_agent_that_is_lost_while_it_starts_is_discarded_once(sqlite_url: str) -> None:
    class Late(Worker):
        async def on_start(self) -> None:
            await self.put()
            with closing(raw(sqlite_url)) as db:
                db.execute("UPDATE agents SET epoch = epoch + 1, owner = 'thief'")
            with contextlib.suppress(asyncio.CancelledError, OwnershipLost):
                await self.put()

    async with hosting(Late, url=sqlite_url) as host:
        seen = listen(host, "lifecycle")
        with pytest.raises(OwnershipLost):
            await host.get(Late, "l").put()
        assert [event.name for event in seen] == ["fence:lost", "lifecycle:discarded"]


async def test_when_nobody_listens_no_event_is_made(sqlite_url: str) -> None:
    class Counting:
        looks = 0

        def now(self) -> int:
            self.looks += 1
            return 0

    Worker.behave = staticmethod(quickly)
    async with hosting(Worker, url=sqlite_url, idle_timeout=5) as host:
        host.events.clock = clock = Counting()  # it is looked at for every event that is made
        seen = listen(host, AgentDiscarded)  # which does not happen
        await host.get(Worker, "w").run(True)
        await host.get(Worker, "w").schedule(1, "tick")
        await host.get(Worker, "w").set_state(1)
        await asyncio.sleep(60)
        assert (host.statistics().active, clock.looks, seen) == (0, 0, [])
        everything = listen(host, "*")
        await host.get(Worker, "w").set_state(2)
        assert len(everything) == clock.looks > 0
