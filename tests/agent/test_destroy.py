"""`destroy()`: an agent and all below it are gone, as if they had never been."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

import pytest
from families import Node, below, forget, furnish, rows_under

from outlast import Agent, AgentDestroyed, CommitFailed, FiberContext
from outlast.host.address import Address
from support import World, alarm_rows, cancel_boot, forever, hosting, listen

pytestmark = pytest.mark.virtual_time


class Mortal(Node):
    """Destroys itself from wherever its code runs."""

    at_start: ClassVar[Any] = None

    async def on_start(self) -> None:
        await super().on_start()
        if Mortal.at_start is not None:
            await Mortal.at_start(self)

    async def die(self) -> str:
        await self.destroy()
        with pytest.raises(AgentDestroyed):
            await self.storage.put("ghost", True)
        with pytest.raises(AgentDestroyed):
            await self.sub_agent(Mortal, "ghost")
        await self.destroy()  # again: nothing
        await asyncio.sleep(1)
        return "goes on"

    async def die_in_a_fiber(self) -> None:
        await self.run_fiber("dying", self.dying)._fiber.accepted

    async def dying(self, fiber: FiberContext) -> None:
        await self.die()
        with pytest.raises(AgentDestroyed):
            await fiber.stash("ghost")
        Node.log.append("died")

    async def die_by_schedule(self) -> None:
        await self.schedule(1, self.due)
        await self.schedule(1, self.note, "another one")
        await self.schedule_every(100, self.note, "every")

    async def due(self) -> None:
        await self.die()
        Node.log.append("died")

    async def die_in_a_block(self) -> None:
        async with self.commit():
            await self.storage.put("in the block", True)
            await self.destroy()

    async def destroy_root(self) -> None:
        await self.parent_agent(Mortal).destroy()
        with pytest.raises(AgentDestroyed):
            await self.storage.put("ghost", True)

    async def linger(self) -> None:
        await self.run_fiber("lingering", self.lingering)._fiber.accepted

    async def lingering(self, fiber: FiberContext) -> None:
        await self.destroy()
        try:
            await forever()
        finally:
            Node.log.append("let go")

    async def await_a_fiber(self) -> None:
        await self.run_fiber("long", forever)

    async def await_a_managed_fiber(self) -> None:
        await self.start_fiber("long", forever, id="long", wait=True)


Mortal.sub_agents = [Mortal]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()
    Mortal.at_start = None


# --- what goes -----------------------------------------------------------------------------------


async def test_nothing_is_left_of_it_and_of_all_below_it(world: World) -> None:
    host = await world.host(Node)
    destroyed = listen(host, "destroy")
    root = host.get(Node, "r")
    for names in ((), ("a",), ("a", "b")):
        await furnish(host, await below(root, *names))
    others = [host.get(Node, name) for name in ("r0", "r/", "R", "r/Node/a", "")]
    for other in others:
        await other.put("kept")
    await root.destroy()
    assert await rows_under(host, "Node/r") == {}
    for other in others:
        assert await other.get("kept") is True
    assert [event.agent for event in destroyed] == ["Node/r"]
    await asyncio.sleep(3600)
    assert await rows_under(host, "Node/r") == {}
    host = await world.next_life()
    await host.until_settled()
    assert await rows_under(host, "Node/r") == {}


async def test_called_again_it_is_a_new_agent(world: World) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    child = await below(root, "a")
    await furnish(host, root)
    await child.put("old")
    before = await root.identity()
    await root.destroy()
    assert await root.identity() != before
    assert await root.everything() == {}
    assert await root.facts() == (None, None)
    assert await root.list_sub_agents() == []
    assert await rows_under(host, "Node/r") == {}  # reading has made no row
    with pytest.raises(AgentDestroyed):
        await child.get("old")
    await (await below(root, "a")).put("new")
    await root.begin(10)
    await host.until_settled()
    assert await child.everything() == {"new": True}
    assert await root.everything() == {"worked": 1}
    host = await world.next_life()
    assert await host.get(Node, "r").everything() == {"worked": 1}
    await host.get(Node, "r").destroy()
    await host.get(Node, "r").destroy()
    assert await rows_under(host, "Node/r") == {}


async def test_one_that_never_was_is_destroyed_without_a_trace(world: World) -> None:
    host = await world.host(Node)
    await host.get(Node, "nobody").destroy()
    await host.get(Node, "nobody").destroy()
    assert await rows_under(host, "Node/nobody") == {}
    assert host.store.statistics().batches == 0
    await host.get(Node, "nobody").put("key")
    assert await host.get(Node, "nobody").get("key") is True


async def test_a_sub_agent_that_destroys_itself_is_deleted(world: World) -> None:
    host = await world.host(Node)
    deleted = listen(host, "sub_agent:deleted")
    root = host.get(Node, "r")
    child = await below(root, "a")
    await (await below(child, "b")).put("key")
    sibling = await below(root, "a0")
    await sibling.put("key")
    await child.destroy()
    assert await rows_under(host, "Node/r/Node/a") == {}
    assert [each.name for each in await root.list_sub_agents()] == ["a0"]
    assert await sibling.get("key") is True
    assert [event.payload for event in deleted] == [{"child": "Node/r/Node/a"}]
    with pytest.raises(AgentDestroyed):
        await child.destroy()


async def test_one_left_by_an_earlier_process_is_destroyed_before_it_has_written(
    world: World,
) -> None:
    """The first commit under a new fence is the one that removes the row."""
    host = await world.host(Node, shutdown_timeout=0)
    await furnish(host, await below(host.get(Node, "r"), "a"))
    host = await world.next_life(shutdown_timeout=0)
    cancel_boot(host)
    await host.get(Node, "r").destroy()
    assert await rows_under(host, "Node/r") == {}
    assert host.store.statistics().batches == 1


# --- from inside ---------------------------------------------------------------------------------


async def test_the_code_that_destroys_its_agent_goes_on_but_can_write_nothing(
    world: World,
) -> None:
    host = await world.host(Mortal)
    await host.get(Mortal, "r").put("key")
    assert await host.get(Mortal, "r").die() == "goes on"
    assert await rows_under(host, "Mortal/r") == {}


@pytest.mark.parametrize("by", ["fiber", "schedule"])
async def test_one_whose_own_work_destroys_it_leaves_nothing_and_no_error(
    world: World, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    host = await world.host(Mortal)
    root = host.get(Mortal, "r")
    await root.begin(100, id="managed")
    await (root.die_in_a_fiber() if by == "fiber" else root.die_by_schedule())
    await asyncio.sleep(10)
    assert Node.log.count("died") == 1
    await asyncio.sleep(1000)
    await host.until_settled()
    assert await rows_under(host, "Mortal/r") == {}
    assert [record.getMessage() for record in caplog.records] == []
    assert Node.starts == ["r"]
    assert host.statistics().active == 0


async def test_a_sub_agent_may_destroy_its_root(world: World) -> None:
    host = await world.host(Mortal)
    child = await host.get(Mortal, "r").sub_agent(Mortal, "a")
    await child.put("key")
    await child.destroy_root()
    assert await rows_under(host, "Mortal/r") == {}


@pytest.mark.parametrize("is_child", [False, True], ids=["root", "sub-agent"])
async def test_one_that_destroys_itself_when_it_starts_is_gone_and_stays_away(
    world: World, is_child: bool, caplog: pytest.LogCaptureFixture
) -> None:
    host = await world.host(Mortal)
    mortal = host.get(Mortal, "r")
    if is_child:
        mortal = await mortal.sub_agent(Mortal, "a")
    await mortal.put("key")
    await world.stop()
    forget()

    async def die(self: Mortal) -> None:
        if self.name == ("a" if is_child else "r"):
            self.run_fiber("stubborn", self.stubborn)  # does not stop when it is told to
            await self.storage.put("more", True)
            await self.destroy()

    Mortal.at_start = die
    host = await world.next_life()
    if is_child:
        mortal = await host.get(Mortal, "r").sub_agent(Mortal, "a")
    else:
        mortal = host.get(Mortal, "r")
    with pytest.raises(AgentDestroyed):
        await mortal.get("key")
    starts = [*Node.starts]
    await asyncio.sleep(1000)
    assert Node.starts == starts, "nobody has woken it again"
    kept = {"agents"} if is_child else set()
    assert set(await rows_under(host, "Mortal/r")) == kept
    assert [record.getMessage() for record in caplog.records] == []


async def test_destroying_is_no_part_of_a_commit_block(world: World) -> None:
    host = await world.host(Mortal)
    await host.get(Mortal, "r").put("key")
    with pytest.raises(RuntimeError, match=r"destroy\(\) must not be called inside a commit"):
        await host.get(Mortal, "r").die_in_a_block()
    assert await host.get(Mortal, "r").everything() == {"key": True}


async def test_code_that_outlives_its_agent_is_stopped_with_the_host(world: World) -> None:
    host = await world.host(Mortal, shutdown_timeout=5)
    await host.get(Mortal, "r").linger()
    await asyncio.sleep(10)
    assert await rows_under(host, "Mortal/r") == {}
    assert Node.log == []
    await world.stop()
    assert Node.log == ["let go"]


# --- meanwhile -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["wait", "await_a_fiber", "await_a_managed_fiber"], ids=lambda name: name
)
async def test_whoever_is_inside_is_told(world: World, method: str) -> None:
    host = await world.host(Mortal)
    root = host.get(Mortal, "r")
    child = await root.sub_agent(Mortal, "a")
    calls = [asyncio.create_task(getattr(node, method)()) for node in (root, child)]
    await asyncio.sleep(1)
    await root.destroy()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [repr(answer) for answer in answers] == ["AgentDestroyed('Mortal/r was destroyed')"] * 2
    assert await rows_under(host, "Mortal/r") == {}


async def test_work_under_way_stops_and_no_error_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Busy(Agent):
        async def begin(self) -> None:
            await self.start_fiber("steps", self.steps)
            for n in range(20):
                await self.schedule_every(0.1 + n / 50, self.tick, n)

        async def steps(self, fiber: FiberContext) -> None:
            for n in range(1000):
                await fiber.stash(n)
                await self.set_state(n)
                await asyncio.sleep(0.01)

        async def tick(self, n: int) -> None:
            await self.storage.put(str(n), True)
            await asyncio.sleep(0.05)

        async def on_fiber_recovered(self, fiber: Any) -> None:
            raise AssertionError("it was destroyed")

    host = await world.host(Busy)
    for n in range(4):
        busy = host.get(Busy, str(n))
        await busy.begin()
        await asyncio.sleep(0.2 + n / 13)
        await busy.destroy()
        assert await rows_under(host, f"Busy/{n}") == {}
    await asyncio.sleep(100)
    await host.until_settled()
    assert [record.getMessage() for record in caplog.records] == []
    assert await alarm_rows(host) == []


async def test_an_alarm_that_is_about_to_wake_it_is_no_error(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def slowly(self: Mortal) -> None:
        if len(Node.starts) > 1:
            await asyncio.sleep(10)

    Mortal.at_start = slowly
    host = await world.host(Mortal, idle_timeout=5)
    root = host.get(Mortal, "r")
    child = await root.sub_agent(Mortal, "a")
    Node.starts.clear()
    await child.later(100)
    await asyncio.sleep(105)  # it is being started, to run what is due
    assert Node.starts == ["a", "a"]
    forget()
    await root.destroy()
    assert await rows_under(host, "Mortal/r") == {}
    await asyncio.sleep(1000)
    assert [record.getMessage() for record in caplog.records] == []
    assert Node.log == []


async def writes_at_start(self: Mortal) -> None:
    await self.storage.put("started", True)
    await self.schedule_every(60, self.note, "every minute")


async def test_a_wake_that_comes_too_late_does_not_bring_it_back(world: World) -> None:
    """Whoever had read that there was something to do, an alarm or the boot, was overtaken."""
    Mortal.at_start = writes_at_start
    host = await world.host(Mortal)
    root = host.get(Mortal, "r")
    await root.identity()
    await root.destroy()
    forget()
    for source in ("schedules", "fibers"):
        await host._fire("Mortal/r", source)
    await host._wake(Address.of("Mortal", "r"))
    assert Node.starts == []
    assert await rows_under(host, "Mortal/r") == {}
    Mortal.at_start = None
    await root.everything()  # there is a new one, which has stored nothing
    await host._fire("Mortal/r", "schedules")
    assert await rows_under(host, "Mortal/r") == {}
    await root.put("key")
    await host._fire("Mortal/r", "schedules")
    assert await root.everything() == {"key": True}


async def test_one_that_was_to_be_woken_after_a_failure_is_not_brought_back(
    world: World,
) -> None:
    Mortal.at_start = writes_at_start
    host = await world.host(Mortal)
    root = host.get(Mortal, "r")
    await root.begin(100)
    with pytest.raises(CommitFailed):
        await root.break_a_commit()
    await root.destroy()
    forget()
    await asyncio.sleep(1000)
    assert Node.starts == []
    assert await rows_under(host, "Mortal/r") == {}


async def test_one_that_waits_for_its_turn_at_boot_is_not_brought_back(world: World) -> None:
    host = await world.host(Mortal, shutdown_timeout=0)
    for name in "ab":
        await host.get(Mortal, name).begin(100)
    await world.stop()
    forget()

    async def slowly(self: Mortal) -> None:
        await self.storage.put("started", True)
        if self.name == "a":
            await asyncio.sleep(5)

    Mortal.at_start = slowly
    host = await world.next_life(boot_concurrency=1)
    await asyncio.sleep(1)
    assert Node.starts == ["a"]
    await host.get(Mortal, "b").destroy()
    await host.until_settled()
    assert Node.starts == ["a", "b"]
    assert "a has worked" in Node.log
    assert await rows_under(host, "Mortal/b") == {}


async def test_several_who_destroy_it_at_once_leave_nothing(world: World) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    for _ in range(3):
        await (await below(root, "a")).put("key")
        answers = await asyncio.gather(
            *(root.destroy() for _ in range(3)),
            root.delete_sub_agent(Node, "a"),
            return_exceptions=True,
        )
        assert answers[0] is None
        for answer in answers[1:]:
            assert answer in (None, True, False) or isinstance(answer, AgentDestroyed)
        assert await rows_under(host, "Node/r") == {}


async def test_calls_that_come_meanwhile_reach_the_old_one_or_a_new_one(store_url: str) -> None:
    for steps in range(12):
        async with hosting(Node, url=store_url, life=str(steps)) as host:
            root = host.get(Node, "r")
            await root.put("old")
            destroying = asyncio.create_task(root.destroy())
            for _ in range(steps):
                await asyncio.sleep(0)
            answers = await asyncio.gather(
                *(root.put(f"new {n}") for n in range(3)), return_exceptions=True
            )
            await destroying
            stored = await root.everything()
            assert "old" not in stored
            for n, answer in enumerate(answers):
                assert answer is None or isinstance(answer, AgentDestroyed)
                assert answer is None or f"new {n}" not in stored, "told that it was not stored"
            await root.destroy()
            assert await rows_under(host, "Node/r") == {}


async def test_a_first_write_that_is_still_on_its_way_is_destroyed_too(world: World) -> None:
    host = await world.host(Node)
    for steps in range(1, 10):  # once it has been handed over, or later
        new = host.get(Node, f"n{steps}")
        await new.identity()
        writing = asyncio.create_task(new.later(1000))  # takes several statements
        for _ in range(steps):
            await asyncio.sleep(0)
        await new.destroy()
        (answer,) = await asyncio.gather(writing, return_exceptions=True)
        assert answer is None or isinstance(answer, AgentDestroyed)
        await host.store.drained()
        assert await rows_under(host, f"Node/n{steps}") == {}


async def test_a_destruction_that_is_given_up_is_done_or_not_done(store_url: str) -> None:
    for steps in range(12):
        forget()
        async with hosting(Node, url=store_url, life=str(steps)) as host:
            root = host.get(Node, "r")
            await (await below(root, "a")).begin(10)
            await root.put("key")
            await asyncio.sleep(1)
            destroying = asyncio.create_task(root.destroy())
            for _ in range(steps):
                await asyncio.sleep(0)
            destroying.cancel()
            with contextlib.suppress(asyncio.CancelledError, AgentDestroyed):
                await destroying
            left = await rows_under(host, "Node/r")
            assert left.keys() in (set(), {"agents", "fibers", "storage", "sub_agents"})
            if left:
                await asyncio.sleep(100)
                assert "a has worked" in Node.log
                await root.destroy()
            assert await rows_under(host, "Node/r") == {}
