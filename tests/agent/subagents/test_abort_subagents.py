"""`abort_sub_agent`: work stops, rows stay, and the next use takes the work up again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from families import Node, below, forget, rows_under

from outlast import AgentAborted, FiberContext
from support import World, forever, listen

pytestmark = pytest.mark.virtual_time


class Member(Node):
    """Ends itself and others from inside."""

    async def abort_me(self) -> str:
        assert await self.parent_agent(Member).abort_sub_agent(Member, self.name) is True
        with pytest.raises(AgentAborted):
            await self.storage.put("ghost", True)
        await asyncio.sleep(1)
        return "goes on"

    async def abort_me_in_a_fiber(self) -> None:
        await self.run_fiber("aborting", self.aborting)._fiber.accepted

    async def aborting(self, fiber: FiberContext) -> None:
        Node.log.append("aborting")
        await self.parent_agent(Member).abort_sub_agent(Member, self.name)
        with pytest.raises(AgentAborted):
            await fiber.stash("ghost")
        Node.log.append("aborted")

    async def write_and_wait(self) -> None:
        await self.storage.put("before", True)
        async with self.commit():
            await self.storage.put("in the block", True)
            await forever()

    async def slow_start(self) -> None:
        await self.storage.put("slow", True)

    async def on_start(self) -> None:
        await super().on_start()
        if await self.storage.get("slow"):
            await asyncio.sleep(10)


Member.sub_agents = [Member]


async def member(host: Any, *names: str) -> Any:
    stub = host.get(Member, "r")
    for name in names:
        stub = await stub.sub_agent(Member, name)
    return stub


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()


async def test_whoever_is_inside_is_told_why_and_what_was_stored_stays(world: World) -> None:
    host = await world.host(Member)
    aborted = listen(host, "sub_agent:aborted")
    root, child = await member(host), await member(host, "a")
    below_it = await member(host, "a", "b")
    calls = [asyncio.create_task(each.write_and_wait()) for each in (child, below_it, root)]
    await asyncio.sleep(1)
    before = await rows_under(host, "Member/r")
    assert await root.abort_sub_agent(Member, "a", "it was too loud") is True
    answers = await asyncio.gather(*calls[:2], return_exceptions=True)
    assert [type(answer) for answer in answers] == [AgentAborted, AgentAborted]
    assert "Member/r/Member/a was aborted: it was too loud" in str(answers[0])
    assert not calls[2].done()  # its parent goes on
    assert host.statistics().active == 1
    assert await rows_under(host, "Member/r") == before
    assert [event.payload for event in aborted] == [{"child": "Member/r/Member/a"}]
    assert await child.everything() == {"before": True}
    calls[2].cancel()


async def test_its_fiber_is_recovered_when_it_is_used_again_and_not_before(world: World) -> None:
    host = await world.host(Node)
    root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
    await child.begin(10)
    await child.begin(12, id="managed")
    await asyncio.sleep(5)
    assert await root.abort_sub_agent(Node, "a") is True
    await host.until_settled()
    await asyncio.sleep(1000)
    assert (Node.log, Node.starts) == (["a works"] * 2, ["r", "a"])
    await child.identity()
    await host.until_settled()
    assert Node.starts == ["r", "a", "a"]
    assert Node.log.count("a recovers work") == 2
    assert Node.log.count("a has worked") == 2
    assert await child.get("worked") == 2


async def test_an_occurrence_that_was_running_runs_again_when_it_is_used(world: World) -> None:
    class Slow(Node):
        async def note(self, text: str) -> None:
            Node.log.append("begun")
            await asyncio.sleep(100)
            await super().note(text)

    Slow.sub_agents = [Slow]
    host = await world.host(Slow)
    root = host.get(Slow, "r")
    child = await root.sub_agent(Slow, "a")
    await child.later(10)
    await asyncio.sleep(50)
    assert await root.abort_sub_agent(Slow, "a") is True
    await asyncio.sleep(1000)
    assert Node.log == ["begun"]
    await child.identity()
    await host.until_settled()
    assert Node.log == ["begun", "begun", "a: noted"]
    assert await child.get_schedules() == []


async def test_a_schedule_still_to_come_starts_it_again(world: World) -> None:
    host = await world.host(Node)
    root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
    await child.later(100)
    assert await root.abort_sub_agent(Node, "a") is True
    await asyncio.sleep(101)
    assert Node.log == ["a: noted"]


async def test_what_is_not_in_memory_cannot_be_aborted(world: World) -> None:
    host = await world.host(Node, idle_timeout=5)
    root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
    assert await root.abort_sub_agent(Node, "nobody") is False
    assert await root.abort_sub_agent(Node, "a") is False  # made, and never used
    await child.identity()
    assert await root.abort_sub_agent(Node, "a") is True
    assert await root.abort_sub_agent(Node, "a") is False
    await child.identity()
    await asyncio.sleep(10)
    assert await root.abort_sub_agent(Node, "a") is False  # evicted


async def test_what_is_below_is_aborted_also_when_it_is_in_memory_alone(world: World) -> None:
    host = await world.host(Node, idle_timeout=5)
    deep = await below(host.get(Node, "r"), "a", "b")
    call = asyncio.create_task(deep.wait())
    await asyncio.sleep(20)
    assert host.statistics().active == 1
    assert await host.get(Node, "r").abort_sub_agent(Node, "a") is True
    with pytest.raises(AgentAborted, match=r"Node/r/Node/a was aborted"):
        await call


async def test_siblings_and_names_that_are_alike_go_on(world: World) -> None:
    host = await world.host(Node)
    names = ["a", "ab", "a0", "a/", "A"]
    objects = {name: await (await below(host.get(Node, "r"), name)).identity() for name in names}
    assert await host.get(Node, "r").abort_sub_agent(Node, "a") is True
    for name in names:
        is_same = await (await below(host.get(Node, "r"), name)).identity() == objects[name]
        assert is_same == (name != "a"), name


@pytest.mark.parametrize("through", ["call", "fiber"])
async def test_one_that_aborts_itself_goes_on_but_can_write_nothing(
    world: World, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    host = await world.host(Member)
    await host.until_settled()  # what is found at the start is woken
    child = await member(host, "a")
    if through == "call":
        assert await child.abort_me() == "goes on"
    else:
        await child.abort_me_in_a_fiber()
        await asyncio.sleep(10)
        assert Node.log == ["aborting", "aborted"]
    assert host.statistics().active == 1
    assert await child.everything() == {}
    await host.until_settled()
    assert Node.log == ([] if through == "call" else [*Node.log[:2], "a recovers aborting"])
    assert caplog.records == []


async def test_one_that_is_just_starting_is_aborted_too(world: World) -> None:
    host = await world.host(Member)
    root, child = await member(host), await member(host, "a")
    await child.slow_start()
    await root.abort_sub_agent(Member, "a")
    call = asyncio.create_task(child.identity())
    await asyncio.sleep(5)
    assert await root.abort_sub_agent(Member, "a") is True
    with pytest.raises(AgentAborted):
        await call
    assert host.statistics().active == 1
    assert await child.get("slow") is True  # and then it starts


async def test_one_that_does_not_stop_starting_is_not_started_again_by_itself(
    world: World,
) -> None:
    class Deaf(Node):
        async def on_start(self) -> None:
            await super().on_start()
            if self.name == "a":
                self.run_fiber("stubborn", self.stubborn)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(10)

    Deaf.sub_agents = [Deaf]
    host = await world.host(Deaf)
    root = host.get(Deaf, "r")
    child = await root.sub_agent(Deaf, "a")
    call = asyncio.create_task(child.identity())
    await asyncio.sleep(5)
    assert await root.abort_sub_agent(Deaf, "a") is True
    with pytest.raises(AgentAborted):
        await call
    await asyncio.sleep(50)
    assert Node.starts == ["r", "a"]


async def test_one_that_is_woken_at_boot_and_aborted_stays_away_until_it_is_used(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    host = await world.host(Member, shutdown_timeout=0)
    child = await member(host, "a")
    await child.slow_start()
    await child.begin(10)
    await world.stop()
    forget()
    host = await world.next_life()
    await asyncio.sleep(5)
    assert Node.starts == ["a"]
    assert await host.get(Member, "r").abort_sub_agent(Member, "a") is True
    await asyncio.sleep(1000)
    assert Node.starts == ["a", "r"]
    assert caplog.records == []
    child = await member(host, "a")
    await child.identity()
    await host.until_settled()
    assert await child.get("worked") == 1


async def test_a_write_handed_over_before_is_stored_or_not_and_its_caller_is_told(
    world: World,
) -> None:
    host = await world.host(Node)
    root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
    await child.identity()
    for n in range(20):
        writing = asyncio.create_task(child.put(str(n)))
        for _ in range(n % 4):
            await asyncio.sleep(0)
        await root.abort_sub_agent(Node, "a")
        (answer,) = await asyncio.gather(writing, return_exceptions=True)
        assert answer is None or isinstance(answer, AgentAborted)
        stored = str(n) in await child.everything()
        assert stored or answer is not None, "whoever is told that it is stored can rely on it"
