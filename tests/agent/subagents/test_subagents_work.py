"""What a sub-agent stores and does is its own, and goes on after a death without its parent."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from families import Node, below, forget

from outlast import ActivationFailed, Agent, FiberRecovery, Lease
from support import World, alarm_rows, fiber_rows, forever, stub_at

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()


# --- rows of its own -----------------------------------------------------------------------------


async def test_storage_state_and_configuration_are_its_own(world: World) -> None:
    names = [(), ("a",), ("a", "a"), ("b",)]
    host = await world.host(Node)
    for names_ in names:
        node = await below(host.get(Node, "r"), *names_)
        await node.put("key", [*names_])
        await node.set({"state of": [*names_]}, {"config of": [*names_]})
    await (await below(host.get(Node, "r"), "a")).put("more")
    host = await world.next_life()
    for names_ in names:
        node = await below(host.get(Node, "r"), *names_)
        more = {"more": True} if names_ == ("a",) else {}
        assert await node.everything() == {"key": [*names_]} | more
        assert await node.facts() == ({"state of": [*names_]}, {"config of": [*names_]})


async def test_one_fiber_id_and_one_key_stand_for_a_fiber_of_each(world: World) -> None:
    host = await world.host(Node)
    nodes = [await below(host.get(Node, "r"), *names) for names in ((), ("a",), ("b",))]
    for node in nodes:
        await node.begin(10, id="x")
    await asyncio.sleep(1)
    assert Node.log == ["r works", "a works", "b works"]
    for node in nodes:
        assert [fiber.id for fiber in await node.list_fibers()] == ["x"]
    assert await nodes[1].cancel_fiber("x") is True
    statuses = [(await node.inspect_fiber("x")).status for node in nodes]
    assert statuses == ["running", "aborted", "running"]
    await host.until_settled()
    assert await nodes[0].delete_fibers() == 1
    assert [len(await node.list_fibers()) for node in nodes] == [0, 1, 1]


async def test_schedules_of_one_are_not_seen_or_cancelled_by_another(world: World) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    child = await below(root, "a")
    await root.later(10)
    await child.later(10)
    (of_root,), (of_child,) = await root.get_schedules(), await child.get_schedules()
    assert await root.get_schedule(of_child.id) is None
    assert await root.cancel_schedule(of_child.id) is False
    assert await root.cancel_schedule(of_root.id) is True
    await asyncio.sleep(20)
    assert Node.log == ["a: noted"]
    assert await alarm_rows(host) == []


# --- after a death -------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [None, "x"], ids=["plain", "managed"])
async def test_a_fiber_goes_on_after_a_restart_without_anybody_calling(
    world: World, id: str | None
) -> None:
    host = await world.host(Node, shutdown_timeout=0)
    await (await below(host.get(Node, "r"), "a", "b")).begin(10, id=id)
    await asyncio.sleep(5)
    await world.stop()
    forget()
    host = await world.next_life()
    await host.until_settled()
    assert Node.starts == ["b"]  # neither its parent nor its root
    assert Node.log == ["b recovers work", "b works", "b has worked"]
    assert await (await below(host.get(Node, "r"), "a", "b")).get("worked") == 1
    assert await fiber_rows(host, "status") == ([] if id is None else [("completed",)])


async def test_fibers_of_a_whole_family_are_each_recovered_once(world: World) -> None:
    names = [(), ("a",), ("a", "b"), ("a", "c"), ("d",)]
    host = await world.host(Node, shutdown_timeout=0)
    for names_ in names:
        await (await below(host.get(Node, "r"), *names_)).begin(10, id="x")
    await asyncio.sleep(1)
    await world.stop()
    forget()
    host = await world.next_life()
    await host.until_settled()
    assert sorted(Node.starts) == ["a", "b", "c", "d", "r"]
    for name in "rabcd":
        assert [line for line in Node.log if line.startswith(name)] == [
            f"{name} recovers work",
            f"{name} works",
            f"{name} has worked",
        ]
    for names_ in names:
        assert await (await below(host.get(Node, "r"), *names_)).get("worked") == 1


class Minder(Agent):
    """Keeps time for its parent."""

    rang: ClassVar[list[tuple[str, int]]] = []

    async def begin(self) -> None:
        await self.schedule("*/10 * * * *", self.ring, "cron")
        await self.schedule_every(400, self.ring, "interval")
        await self.schedule(1500, self.ring, "once")

    async def ring(self, what: str) -> None:
        Minder.rang.append((what, int(asyncio.get_running_loop().time())))


class Owner(Agent):
    sub_agents = [Minder]

    async def on_start(self) -> None:
        Minder.rang.append(("the owner was started", 0))


async def test_schedules_fire_after_a_restart_without_the_parent(world: World) -> None:
    host = await world.host(Owner, idle_timeout=5)
    await (await host.get(Owner, "o").sub_agent(Minder, "m")).begin()
    await asyncio.sleep(450)
    assert host.statistics().active == 0
    await world.stop()
    Minder.rang = []
    host = await world.next_life(idle_timeout=5)
    await asyncio.sleep(1201)
    assert [each for each in Minder.rang if each[0] == "the owner was started"] == []
    kinds = [what for what, _ in Minder.rang]
    assert (kinds.count("cron"), kinds.count("interval"), kinds.count("once")) == (2, 3, 1)
    assert host.statistics().active == 0
    assert dict(Minder.rang)["once"] == 1500


async def test_an_occurrence_that_was_running_at_a_death_runs_again_at_boot(
    world: World,
) -> None:
    class Slow(Node):
        async def note(self, text: str) -> None:
            Node.log.append("begun")
            await asyncio.sleep(100)
            await super().note(text)

    Slow.sub_agents = [Slow]
    host = await world.host(Slow, shutdown_timeout=0)
    child = await host.get(Slow, "r").sub_agent(Slow, "a")
    await child.later(10)
    await asyncio.sleep(50)
    assert Node.log == ["begun"]
    host = await world.next_life()
    await host.until_settled()
    assert Node.log == ["begun", "begun", "a: noted"]
    assert await (await host.get(Slow, "r").sub_agent(Slow, "a")).get("noted") == 1


# --- staying in memory ---------------------------------------------------------------------------


class Holder(Node):
    async def hold(self) -> Lease:
        return self.keep_alive()


Holder.sub_agents = [Holder]


async def test_keeping_one_alive_keeps_neither_its_parent_nor_its_child(world: World) -> None:
    host = await world.host(Holder, idle_timeout=10)
    middle = await host.get(Holder, "r").sub_agent(Holder, "m")
    leaf = await middle.sub_agent(Holder, "l")
    objects = [await middle.identity(), await leaf.identity()]
    lease = await middle.hold()
    await asyncio.sleep(100)
    assert host.statistics().active == 1
    assert await middle.identity() == objects[0]
    lease.release()
    await asyncio.sleep(11)
    assert host.statistics().active == 0


class Unlucky(Agent):
    """Its hook fails, and is to be called again after half a minute."""

    fiber_recovery = FiberRecovery(retry=30)
    tried: ClassVar[list[int]] = []

    async def begin(self) -> None:
        await self.run_fiber("work", forever)._fiber.accepted

    async def hello(self) -> None: ...

    async def on_fiber_recovered(self, fiber: Any) -> None:
        Unlucky.tried.append(int(asyncio.get_running_loop().time()))
        raise ConnectionError("not yet")


class Patron(Agent):
    sub_agents = [Unlucky]

    async def hold(self) -> Lease:
        return self.keep_alive()


@pytest.mark.invariant("A10")
@pytest.mark.parametrize("is_root", [True, False], ids=["root", "sub-agent"])
async def test_an_evicted_one_waits_for_its_turn_to_be_recovered_although_it_is_called(
    sqlite_world: World, is_root: bool
) -> None:
    async def unlucky(host: Any) -> Any:
        if is_root:
            return host.get(Unlucky, "u")
        return await host.get(Patron, "p").sub_agent(Unlucky, "u")

    host = await sqlite_world.host(Patron, shutdown_timeout=0)
    stub = await unlucky(host)
    await stub.begin()
    await sqlite_world.stop()
    Unlucky.tried = []
    host = await sqlite_world.next_life(idle_timeout=2)
    begun = int(asyncio.get_running_loop().time())
    lease = await host.get(Patron, "p").hold()  # the family stays
    stub = await unlucky(host)
    for _ in range(5):
        await stub.hello()
        await asyncio.sleep(5)  # it is evicted each time
    assert [at - begun for at in Unlucky.tried] == [0]
    await asyncio.sleep(10)
    assert [at - begun for at in Unlucky.tried] == [0, 30]
    lease.release()


# --- starting ------------------------------------------------------------------------------------


class Starter(Agent):
    """Calls whomever it is told to when it starts."""

    calls: ClassVar[dict[str, Any]] = {}
    log: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        if self.name in Starter.calls:
            await Starter.calls[self.name](self)
        Starter.log.append(self.name)

    async def hello(self) -> str:
        return f"hello from {self.name}"

    async def call_child(self) -> str:
        return str(await (await self.sub_agent(Starter, "child")).hello())

    async def call_parent(self) -> str:
        return str(await self.parent_agent(Starter).hello())


Starter.sub_agents = [Starter]


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    Starter.calls, Starter.log = {}, []


async def test_a_parent_may_call_its_sub_agent_when_it_starts(world: World) -> None:
    Starter.calls = {"parent": Starter.call_child}
    host = await world.host(Starter)
    assert await host.get(Starter, "parent").hello() == "hello from parent"
    assert Starter.log == ["child", "parent"]


async def test_a_sub_agent_may_call_its_parent_when_it_starts(world: World) -> None:
    Starter.calls = {"child": Starter.call_parent}
    host = await world.host(Starter)
    parent = host.get(Starter, "parent")
    assert await parent.call_child() == "hello from child"
    assert Starter.log == ["parent", "child"]


@pytest.mark.parametrize("first", ["parent", "child"])
async def test_starts_that_wait_for_each_other_fail_and_say_so(world: World, first: str) -> None:
    host = await world.host(Starter)
    parent = host.get(Starter, "parent")
    child = await parent.sub_agent(Starter, "child")
    await world.stop()
    Starter.calls = {"parent": Starter.call_child, "child": Starter.call_parent}
    host = await world.next_life()
    parent = host.get(Starter, "parent")
    if first == "child":  # a stub of it, without its parent being started
        child = stub_at(host, Starter, child)
    with pytest.raises(ActivationFailed, match=r"on_start calls Starter/parent.* waits"):
        await (parent if first == "parent" else child).hello()
    assert host.statistics().active == 0
    Starter.calls = {}
    assert await parent.call_child() == "hello from child"


async def test_an_agent_that_calls_itself_through_its_sub_agent_when_it_starts_is_told(
    world: World,
) -> None:
    """No circle of starts: the sub-agent is there, and its method runs in the task of the start."""

    async def through_child(self: Starter) -> None:
        await (await self.sub_agent(Starter, "child")).call_parent()

    Starter.calls = {"parent": through_child}
    host = await world.host(Starter)
    with pytest.raises(ActivationFailed, match=r"call the method on self, or after on_start"):
        await host.get(Starter, "parent").hello()


async def test_one_that_cannot_start_harms_neither_its_parent_nor_its_siblings(
    world: World,
) -> None:
    async def fail(self: Starter) -> None:
        await self.storage.put("written", True)
        raise OSError("no luck")

    Starter.calls = {"child": fail}
    host = await world.host(Starter)
    parent = host.get(Starter, "parent")
    sibling = await parent.sub_agent(Starter, "sibling")
    await sibling.hello()
    with pytest.raises(ActivationFailed, match=r"child: on_start raised OSError: no luck"):
        await parent.call_child()
    assert host.statistics().active == 2
    assert await sibling.hello() == "hello from sibling"
    assert await parent.hello() == "hello from parent"
    assert Starter.log == ["parent", "sibling"]  # neither of them has started anew
    Starter.calls = {}
    assert await parent.call_child() == "hello from child"
