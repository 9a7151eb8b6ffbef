"""Activation: one live object per address, started once, before anything else reaches it."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from outlast import ActivationFailed, Agent, CommitFailed
from outlast.agent.agent import parts_of
from outlast.agent.fibers.fibers import Fibers
from support import World, fiber_rows, forever


class Watched(Agent):
    """Notes what happens to its objects."""

    objects: ClassVar[list[Watched]] = []
    log: ClassVar[list[str]] = []

    def __init__(self) -> None:
        Watched.objects.append(self)
        self.mine = "made without arguments"

    async def on_start(self) -> None:
        Watched.log.append("start begins")
        await asyncio.sleep(0)
        await self.storage.get("anything")
        Watched.log.append("start ends")

    async def call(self, text: str = "call") -> int:
        Watched.log.append(text)
        await asyncio.sleep(0)
        return id(self)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Watched.objects, Watched.log = [], []


async def test_a_hundred_first_calls_at_once_reach_one_object_that_started_once(
    world: World,
) -> None:
    host = await world.host(Watched)
    stub = host.get(Watched, "alice")
    reached = await asyncio.gather(*(stub.call() for _ in range(100)))
    assert len(set(reached)) == len(Watched.objects) == 1
    assert Watched.log == ["start begins", "start ends", *["call"] * 100]
    assert host.statistics().active == 1
    assert await host.get(Watched, "bob").call() not in reached


async def test_the_object_stays_between_calls(sqlite_world: World) -> None:
    host = await sqlite_world.host(Watched)
    stub = host.get(Watched, "alice")
    assert await stub.call() == await stub.call()
    assert Watched.log.count("start begins") == 1


async def test_an_init_without_arguments_may_set_attributes_of_its_own(sqlite_world: World) -> None:
    host = await sqlite_world.host(Watched)
    await host.get(Watched, "alice").call()
    assert Watched.objects[0].mine == "made without arguments"
    assert Watched.objects[0].name == "alice"


class Chatty(Agent):
    async def on_start(self) -> None:
        self.log: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    async def talk(self, who: str) -> list[str]:
        gate = self.gates[who] = asyncio.Event()
        self.log.append(f"{who} in")
        await gate.wait()
        self.log.append(f"{who} out")
        return self.log

    async def let(self, who: str) -> None:
        self.gates[who].set()

    async def hurry(self, who: str) -> None:
        self.log.append(f"{who} in")
        self.log.append(f"{who} out")

    async def told(self) -> list[str]:
        return self.log


@pytest.mark.virtual_time
async def test_calls_to_one_agent_interleave_at_awaits(sqlite_world: World) -> None:
    host = await sqlite_world.host(Chatty)
    agent = host.get(Chatty, "x")
    first = asyncio.create_task(agent.talk("first"))
    second = asyncio.create_task(agent.talk("second"))
    await asyncio.sleep(1)
    await agent.let("second")
    await second
    await agent.let("first")
    assert await first == ["first in", "second in", "second out", "first out"]


async def test_between_two_awaits_an_agent_is_alone(sqlite_world: World) -> None:
    host = await sqlite_world.host(Chatty)
    agent = host.get(Chatty, "x")
    await asyncio.gather(*(agent.hurry(str(n)) for n in range(20)))
    log = await agent.told()
    assert len(log) == 40
    assert all(log[n].replace("in", "out") == log[n + 1] for n in range(0, 40, 2))


class SyncStart(Agent):
    def on_start(self) -> None:  # type: ignore[override]
        self.started = True

    async def has_started(self) -> bool:
        return self.started


async def test_on_start_may_be_a_plain_function(sqlite_world: World) -> None:
    host = await sqlite_world.host(SyncStart)
    assert await host.get(SyncStart, "x").has_started() is True


class Stumbling(Agent):
    fails: ClassVar[int] = 1
    starts: ClassVar[int] = 0

    async def on_start(self) -> None:
        Stumbling.starts += 1
        await asyncio.sleep(0)
        if Stumbling.starts <= Stumbling.fails:
            raise ZeroDivisionError("no luck")

    async def hello(self) -> str:
        return "hello"


async def test_an_on_start_that_raises_is_told_to_every_caller_and_tried_again_by_the_next(
    sqlite_world: World,
) -> None:
    Stumbling.starts = 0
    host = await sqlite_world.host(Stumbling)
    stub = host.get(Stumbling, "x")
    answers = await asyncio.gather(*(stub.hello() for _ in range(10)), return_exceptions=True)
    assert all(isinstance(answer, ActivationFailed) for answer in answers)
    assert all(isinstance(answer.__cause__, ZeroDivisionError) for answer in answers)
    assert str(answers[0]) == "Stumbling/x: on_start raised ZeroDivisionError: no luck"
    assert (Stumbling.starts, host.statistics().active) == (1, 0)
    assert await stub.hello() == "hello"
    assert Stumbling.starts == 2


class Demanding(Agent):
    def __init__(self, colour: str) -> None: ...

    async def hello(self) -> None: ...


async def test_an_init_that_raises_or_wants_arguments_is_named_as_the_cause(
    sqlite_world: World,
) -> None:
    host = await sqlite_world.host(Demanding)
    with pytest.raises(ActivationFailed, match=r"Demanding/x: __init__ raised.*colour") as e:
        await host.get(Demanding, "x").hello()
    assert isinstance(e.value.__cause__, TypeError)


class SlowStart(Agent):
    gate: ClassVar[asyncio.Event]
    ends: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        await SlowStart.gate.wait()
        SlowStart.ends.append("started")

    async def hello(self) -> str:
        return "hello"


async def test_a_caller_that_gives_up_does_not_stop_the_start_that_others_wait_for(
    sqlite_world: World,
) -> None:
    SlowStart.gate, SlowStart.ends = asyncio.Event(), []
    host = await sqlite_world.host(SlowStart)
    stub = host.get(SlowStart, "x")
    impatient = asyncio.create_task(stub.hello())
    patient = asyncio.create_task(stub.hello())
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    SlowStart.gate.set()
    assert await patient == "hello"
    assert SlowStart.ends == ["started"]


class BadFirstWrite(Agent):
    starts: ClassVar[int] = 0

    async def on_start(self) -> None:
        BadFirstWrite.starts += 1
        # Too large for a column of the store: the commit itself fails, and with it the activation.
        await parts_of(self).commits.commit([parts_of(self)[Fibers].insertion(self._broken_row())])

    def _broken_row(self) -> Any:
        row = parts_of(self)[Fibers].new_row("x", None)
        object.__setattr__(row, "created_at", 1 << 70)
        return row

    async def hello(self) -> None: ...


@pytest.mark.virtual_time
async def test_an_agent_whose_on_start_cannot_write_is_told_to_the_caller_and_not_woken_again(
    sqlite_world: World,
) -> None:
    BadFirstWrite.starts = 0
    host = await sqlite_world.host(BadFirstWrite)
    with pytest.raises(CommitFailed):
        await host.get(BadFirstWrite, "x").hello()
    await asyncio.sleep(3600)
    assert (BadFirstWrite.starts, host.statistics().active) == (1, 0)


class Left(Agent):
    log: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        Left.log.append("start")
        await asyncio.sleep(0)

    async def on_fiber_recovered(self, fiber: Any) -> None:
        Left.log.append("recover")

    async def begin(self) -> None:
        self.run_fiber("work", forever)

    async def hello(self) -> None:
        Left.log.append("call")


async def test_on_start_comes_before_the_recovery_of_fibers_and_before_calls(
    world: World,
) -> None:
    host = await world.host(Left, shutdown_timeout=0)
    await host.get(Left, "x").begin()
    await host.store.drained()
    assert len(await fiber_rows(host)) == 1
    await world.stop()
    Left.log = []
    host = await world.next_life()
    await host.get(Left, "x").hello()
    await host.until_settled()
    assert Left.log[0] == "start"
    assert sorted(Left.log[1:]) == ["call", "recover"]
    assert await fiber_rows(host) == []


async def test_on_start_that_calls_its_own_agent_is_told_so(sqlite_world: World) -> None:
    class Narcissus(Agent):
        async def on_start(self) -> None:
            await host.get(Narcissus, self.name).look()

        async def look(self) -> None: ...

    host = await sqlite_world.host(Narcissus)
    with pytest.raises(ActivationFailed, match="call the method on self"):
        await host.get(Narcissus, "n").look()
