"""`delete_sub_agent`: a sub-agent and all below it are gone at once, with every row of theirs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest
from families import Node, below, forget, furnish, owned_tables, rows_under

from outlast import AgentDestroyed, FiberContext
from support import World, cancel_boot, forever, hosting, listen

pytestmark = pytest.mark.virtual_time


class Member(Node):
    """Deletes itself through its parent, from wherever its code runs."""

    async def delete_me(self) -> str:
        assert await self.parent_agent(Member).delete_sub_agent(Member, self.name) is True
        with pytest.raises(AgentDestroyed):
            await self.storage.put("ghost", True)
        await asyncio.sleep(1)
        return "goes on"

    async def delete_me_in_a_fiber(self) -> None:
        await self.run_fiber("deleting", self._deleting)._fiber.accepted

    async def _deleting(self, fiber: FiberContext) -> None:
        await self.delete_me()
        with pytest.raises(AgentDestroyed):
            await fiber.stash("ghost")
        Node.log.append("deleted")

    async def delete_me_by_schedule(self) -> None:
        await self.schedule(1, self.due)
        await self.schedule(1, self.note, "another one")

    async def due(self) -> None:
        await self.delete_me()
        Node.log.append("deleted")

    async def delete_me_and_come_again(self) -> dict[str, Any]:
        parent = self.parent_agent(Member)
        await parent.delete_sub_agent(Member, self.name)
        again = await parent.sub_agent(Member, self.name)
        await again.put("new")
        return dict(await again.everything())

    async def delete_in_a_block(self, name: str) -> None:
        async with self.commit():
            await self.storage.put("in the block", True)
            await self.delete_sub_agent(Member, name)


Member.sub_agents = [Member]


async def member(host: Any, *names: str) -> Any:
    stub = host.get(Member, "r")
    for name in names:
        stub = await stub.sub_agent(Member, name)
    return stub


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()


# --- what goes -----------------------------------------------------------------------------------


async def test_every_row_of_it_and_of_all_below_it_goes_and_no_other_does(world: World) -> None:
    host = await world.host(Node, shutdown_timeout=0)
    deleted = listen(host, "sub_agent:deleted")
    root = host.get(Node, "r")
    for names in ((), ("a",), ("a", "b", "c"), ("ab",), ("a", "0"), ("a0",)):
        await furnish(host, await below(root, *names))
    of_child = await rows_under(host, "Node/r/Node/a")
    assert of_child.keys() == (await owned_tables(host)).keys(), "something of everything"
    kept = await rows_under(host, "Node/r")
    for table, rows in of_child.items():
        kept[table] = [row for row in kept[table] if row not in rows]
    kept["sub_agents"] = [row for row in kept["sub_agents"] if row[:3] != ("Node/r", "Node", "a")]
    assert await root.delete_sub_agent(Node, "a") is True
    assert await rows_under(host, "Node/r/Node/a") == {}
    left = await rows_under(host, "Node/r")
    assert left.pop("agents") != kept.pop("agents")
    assert left == kept
    assert [event.payload for event in deleted] == [{"child": "Node/r/Node/a"}]
    assert await root.has_sub_agent(Node, "a") is False
    assert await root.delete_sub_agent(Node, "a") is False
    await asyncio.sleep(3600)
    assert await rows_under(host, "Node/r/Node/a") == {}


async def test_what_is_not_in_memory_goes_too(world: World) -> None:
    host = await world.host(Node, shutdown_timeout=0)
    await furnish(host, await below(host.get(Node, "r"), "a", "b"))
    host = await world.next_life(shutdown_timeout=0)
    cancel_boot(host)
    assert await host.get(Node, "r").delete_sub_agent(Node, "a") is True
    assert await rows_under(host, "Node/r/Node/a") == {}


async def test_a_stub_of_a_deleted_one_brings_nothing_back(world: World) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    child, deep = await below(root, "a"), await below(root, "a", "b")
    await deep.put("key")
    await root.delete_sub_agent(Node, "a")
    forget()
    for stub in (child, deep):
        for _ in range(3):
            with pytest.raises(AgentDestroyed, match=r"was deleted, or never created"):
                await stub.put("ghost")
        with pytest.raises(AgentDestroyed):
            await stub.sub_agent(Node, "ghost")
    assert Node.starts == []
    assert await rows_under(host, "Node/r/Node/a") == {}
    assert await root.list_sub_agents() == []


async def test_a_new_one_under_its_name_has_nothing_of_the_old_one(world: World) -> None:
    host = await world.host(Node, shutdown_timeout=0)
    root = host.get(Node, "r")
    old = await below(root, "a")
    await furnish(host, old)
    await root.delete_sub_agent(Node, "a")
    new = await below(root, "a")
    assert await new.everything() == {}
    assert await new.facts() == (None, None)
    assert await new.list_fibers() == []
    assert await new.get_schedules() == []
    assert await new.list_sub_agents() == []
    await new.put("new")
    assert await old.everything() == {"new": True}  # the old stub stands for the same name


async def test_work_of_a_deleted_one_stops_and_is_never_recovered(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    host = await world.host(Node)
    root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
    deep = await below(child, "b")
    for node in (child, deep):
        await node.begin(10)
        await node.begin(10, id="managed")
        await node.later(7)
    await asyncio.sleep(5)
    await root.delete_sub_agent(Node, "a")
    begun = [*Node.log]
    await asyncio.sleep(1000)
    await host.until_settled()
    assert Node.log == begun
    assert caplog.records == []
    host = await world.next_life()
    await host.until_settled()
    assert Node.log == begun


# --- while it goes -------------------------------------------------------------------------------


async def test_whoever_is_inside_is_told(world: World) -> None:
    host = await world.host(Node)
    root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
    deep = await below(child, "b")
    calls = [asyncio.create_task(node.wait()) for node in (child, child, deep, root)]
    await asyncio.sleep(1)
    assert await root.delete_sub_agent(Node, "a") is True
    answers = await asyncio.gather(*calls[:3], return_exceptions=True)
    assert [str(answer) for answer in answers] == ["Node/r/Node/a was destroyed"] * 3
    assert all(isinstance(answer, AgentDestroyed) for answer in answers)
    assert not calls[3].done()
    calls[3].cancel()


async def test_calls_that_come_meanwhile_wait_and_reach_nothing_of_the_old_one(
    store_url: str,
) -> None:
    for steps in range(12):
        forget()
        async with hosting(Node, url=store_url, life=str(steps)) as host:
            root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
            await child.put("old")
            deleting = asyncio.create_task(root.delete_sub_agent(Node, "a"))
            for _ in range(steps):
                await asyncio.sleep(0)
            answers = await asyncio.gather(
                child.put("new"), child.everything(), deleting, return_exceptions=True
            )
            assert answers[2] is True
            assert answers[0] is None or isinstance(answers[0], AgentDestroyed)
            assert isinstance(answers[1], AgentDestroyed | dict)
            with pytest.raises(AgentDestroyed):
                await child.get("old")
            assert set(await rows_under(host, "Node/r")) == {"agents"}


async def test_making_one_while_it_is_deleted_gives_the_old_or_a_new_one_but_no_mixture(
    store_url: str,
) -> None:
    for steps in range(12):
        async with hosting(Node, url=store_url, life=str(steps)) as host:
            root = host.get(Node, "r")
            await (await below(root, "a")).put("old")
            deleting = asyncio.create_task(root.delete_sub_agent(Node, "a"))
            for _ in range(steps):
                await asyncio.sleep(0)
            child = await below(root, "a")
            try:
                await child.put("new")
                stored = await child.everything()
            except AgentDestroyed:
                stored = None
            assert await deleting is True
            assert stored in (None, {"new": True}, {"new": True, "old": True})
            is_there = await root.has_sub_agent(Node, "a")
            rows = await rows_under(host, "Node/r/Node/a")
            assert set(rows) == ({"storage"} if is_there else set())
            assert len(rows.get("storage", [])) <= 1, "nothing old is left"
            await root.delete_sub_agent(Node, "a")


async def test_two_who_delete_it_at_once_delete_it_once(world: World) -> None:
    host = await world.host(Node)
    deleted = listen(host, "sub_agent:deleted")
    root = host.get(Node, "r")
    await (await below(root, "a", "b")).put("key")
    answers = await asyncio.gather(*(root.delete_sub_agent(Node, "a") for _ in range(5)))
    assert sorted(answers) == [False] * 4 + [True]
    assert len(deleted) == 1
    assert set(await rows_under(host, "Node/r")) == {"agents"}


async def test_an_agent_and_the_one_above_it_are_deleted_at_once(store_url: str) -> None:
    for steps in range(8):
        async with hosting(Node, url=store_url, life=str(steps)) as host:
            root, middle = host.get(Node, "r"), await below(host.get(Node, "r"), "m")
            for name in "abc":
                await (await below(middle, name)).put("key")
            lower = asyncio.create_task(middle.delete_sub_agent(Node, "a"))
            for _ in range(steps):
                await asyncio.sleep(0)
            upper = asyncio.create_task(root.delete_sub_agent(Node, "m"))
            lower_too = asyncio.create_task(middle.delete_sub_agent(Node, "b"))
            answers = await asyncio.gather(lower, lower_too, upper, return_exceptions=True)
            assert answers[2] is True
            assert all(
                answer is True or isinstance(answer, AgentDestroyed) for answer in answers[:2]
            )
            assert set(await rows_under(host, "Node/r")) == {"agents"}


async def test_what_a_deleted_one_had_handed_over_is_not_written_after_its_deletion(
    world: World,
) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    for n in range(10):
        child = await below(root, "a")
        await child.identity()
        writes = [asyncio.create_task(child.put(f"{n} {m}")) for m in range(10)]
        for _ in range(n):
            await asyncio.sleep(0)
        assert await root.delete_sub_agent(Node, "a") is True
        await asyncio.gather(*writes, return_exceptions=True)
        assert await rows_under(host, "Node/r/Node/a") == {}


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
async def test_a_fiber_that_does_not_stop_can_write_nothing_later(
    world: World, again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    child = await below(root, "a")
    await child.begin_stubborn()
    await asyncio.sleep(1)
    await root.delete_sub_agent(Node, "a")
    if again:
        new = await below(root, "a")
        await (await below(new, "kept")).put("new")
        await new.put("new")
    before = await rows_under(host, "Node/r")
    await asyncio.sleep(200)
    delete, destroy = "AgentDestroyed" if again else "False", "None"
    assert Node.log == [*["AgentDestroyed"] * 6, delete, destroy]
    assert await rows_under(host, "Node/r") == before
    if again:
        assert await (await below(root, "a", "kept")).everything() == {"new": True}
    assert caplog.records == []


# --- by itself -----------------------------------------------------------------------------------


async def test_one_that_deletes_itself_goes_on_but_can_write_nothing(world: World) -> None:
    host = await world.host(Member)
    child = await member(host, "a")
    await child.put("key")
    other = asyncio.create_task(child.wait())
    await asyncio.sleep(1)
    assert await child.delete_me() == "goes on"
    with pytest.raises(AgentDestroyed):
        await other
    assert set(await rows_under(host, "Member/r")) == {"agents"}


@pytest.mark.parametrize("by", ["fiber", "schedule"])
async def test_one_whose_own_work_deletes_it_leaves_nothing_and_no_error(
    world: World, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    host = await world.host(Member)
    child = await member(host, "a")
    await child.begin(100)
    await (child.delete_me_in_a_fiber() if by == "fiber" else child.delete_me_by_schedule())
    await asyncio.sleep(10)
    assert Node.log.count("deleted") == 1
    await asyncio.sleep(1000)
    await host.until_settled()
    assert set(await rows_under(host, "Member/r")) == {"agents"}
    assert [record.getMessage() for record in caplog.records] == []
    with pytest.raises(AgentDestroyed):
        await child.identity()


async def test_one_that_deletes_itself_may_make_its_successor(world: World) -> None:
    host = await world.host(Member)
    child = await member(host, "a")
    await child.put("old")
    await child.begin(100)
    assert await child.delete_me_and_come_again() == {"new": True}
    assert await child.everything() == {"new": True}
    assert asyncio.get_running_loop().time() < 1, "it did not wait for itself"


async def test_a_deletion_is_no_part_of_a_commit_block(world: World) -> None:
    host = await world.host(Member)
    child = await member(host, "a")
    await child.put("key")
    with pytest.raises(
        RuntimeError, match=r"delete_sub_agent\(\) must not be called inside a commit.*after"
    ):
        await (await member(host)).delete_in_a_block("a")
    assert await child.everything() == {"key": True}
    assert await (await member(host)).everything() == {}


async def test_a_deletion_that_is_given_up_is_done_or_not_done(store_url: str) -> None:
    """Its caller is cancelled at some point: either all is gone, or all is there and goes on."""
    for steps in range(12):
        forget()
        async with hosting(Node, url=store_url, life=str(steps)) as host:
            root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
            await child.put("key")
            await child.begin(10)
            await asyncio.sleep(1)
            before = set(await rows_under(host, "Node/r/Node/a"))
            deleting = asyncio.create_task(root.delete_sub_agent(Node, "a"))
            for _ in range(steps):
                await asyncio.sleep(0)
            deleting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await deleting
            if await root.has_sub_agent(Node, "a"):
                assert set(await rows_under(host, "Node/r/Node/a")) == before
                await asyncio.sleep(100)
                assert "a has worked" in Node.log
                await root.delete_sub_agent(Node, "a")
            assert set(await rows_under(host, "Node/r")) == {"agents"}


async def test_a_caller_that_does_not_stop_is_let_go_all_the_same(world: World) -> None:
    class Deaf(Node):
        async def wait(self) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await forever()
            await asyncio.sleep(50)
            await self.storage.put("ghost", True)

    Deaf.sub_agents = [Deaf]
    host = await world.host(Deaf)
    root = host.get(Deaf, "r")
    child = await root.sub_agent(Deaf, "a")
    call = asyncio.create_task(child.wait())
    await asyncio.sleep(1)
    assert await root.delete_sub_agent(Deaf, "a") is True
    assert asyncio.get_running_loop().time() == 1
    with pytest.raises(AgentDestroyed):
        await call
    assert set(await rows_under(host, "Deaf/r")) == {"agents"}
