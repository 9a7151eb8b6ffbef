"""A root and all below it write under one fence: they lose it together, and come and go apart."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest
from families import Node, below, forget, rows_under

from outlast import AgentDestroyed, CommitFailed, Host, OwnershipLost
from outlast.store import fencing
from outlast.store.operations import Fence
from outlast.store.url import open_store
from support import (
    ONE_SERVER,
    World,
    fiber_rows,
    hosting,
    kept_in_memory,
    listen,
    live_activation,
    raw,
    stub_at,
)

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()


async def take_away(host: Host, url: str, root: str) -> None:
    """Somebody else becomes the owner, as if by another host."""
    if host.store.engine == "sqlite":
        with closing(raw(url)) as db:
            db.execute(
                "UPDATE agents SET epoch = epoch + 1, owner = 'thief', commit_no = commit_no + 1"
                " WHERE root = ?",
                (root,),
            )
    else:
        (known,) = await host.store.fetch(fencing.READ, root)
        other = await open_store(url, ONE_SERVER)
        await other.commit(Fence.after(root, "thief", known), [])
        await other.close()


async def family(host: Host) -> list[Any]:
    """A root, two below it, and one below one of them; all in memory."""
    root = host.get(Node, "r")
    nodes = [await below(root, *names) for names in ((), ("a",), ("a", "b"), ("c",))]
    for node in nodes:
        await node.put("before")
    return nodes


async def epochs(host: Host) -> list[tuple[Any, ...]]:
    return await host.store.fetch(fencing.READ, "Node/r")


# --- one fence -----------------------------------------------------------------------------------


async def test_a_family_has_one_row_however_many_they_are(world: World) -> None:
    host = await world.host(Node)
    nodes = await family(host)
    await asyncio.gather(*(node.put(str(n)) for node in nodes for n in range(10)))
    rows = await rows_under(host, "Node/r")
    assert [row[:2] for row in rows["agents"]] == [("Node/r", 1)]
    assert len(rows["storage"]) == 44


@pytest.mark.invariant("B8")
async def test_whoever_of_them_finds_the_fence_lost_all_of_them_are_discarded(
    world: World,
) -> None:
    host = await world.host(Node)
    for teller in range(4):
        nodes = await family(host)
        other = host.get(Node, "other")
        await other.put("before")
        lost, discarded = listen(host, "fence:lost"), listen(host, "lifecycle:discarded")
        waiting = [asyncio.create_task(node.wait()) for node in nodes]
        await asyncio.sleep(1)
        await take_away(host, world.url, "Node/r")
        before = await rows_under(host, "Node/r")
        with pytest.raises(OwnershipLost, match=r"Node/r: epoch \d no longer owns"):
            await nodes[teller].put("stale")
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(answer) for answer in answers] == [OwnershipLost] * 4
        assert [event.agent for event in lost] == ["Node/r"]
        assert {event.agent for event in discarded} == {node._address.text for node in nodes}
        assert host.statistics().active == 1  # the other one
        assert await rows_under(host, "Node/r") == before
        for node in nodes:  # and they come again, under a new fence
            assert await node.everything() == {"before": True}
        await other.put("after")


async def test_a_commit_of_one_that_fails_discards_all_and_their_work_is_taken_up_again(
    world: World,
) -> None:
    host = await world.host(Node)
    nodes = await family(host)
    for node in nodes[:3]:  # the last one has nothing to do
        await node.begin(10, id="x")
    await asyncio.sleep(5)
    forget()
    with pytest.raises(CommitFailed):
        await nodes[2].break_a_commit()
    assert host.statistics().active == 0
    await asyncio.sleep(0.9)
    assert Node.starts == []
    await asyncio.sleep(0.2)
    assert sorted(Node.starts) == ["a", "b", "r"]
    await host.until_settled()
    for name in "rab":
        lines = [f"{name} recovers work", f"{name} works", f"{name} has worked"]
        assert [line for line in Node.log if line.startswith(name)] == lines
    for node in nodes:
        assert await node.get("worked") == (None if node is nodes[3] else 1)


async def test_what_one_hands_over_after_the_failure_of_another_is_not_written(
    world: World,
) -> None:
    """They are in one group: what stands before the failing batch is written, nothing behind it."""
    host = await world.host(Node)
    nodes = await family(host)
    answers = await asyncio.gather(
        nodes[0].put("ahead"),
        nodes[1].break_a_commit(),
        nodes[2].put("behind"),
        return_exceptions=True,
    )
    assert answers[0] is None
    assert [type(answer) for answer in answers[1:]] == [CommitFailed, CommitFailed]
    assert await nodes[0].get("ahead") is True
    assert await nodes[2].get("behind") is None


async def test_commits_of_a_family_keep_their_order(world: World) -> None:
    host = await world.host(Node)
    nodes = await family(host)
    for n in range(10):
        await asyncio.gather(*(node.put("n", n) for node in nodes for _ in range(3)))
    assert [await node.get("n") for node in nodes] == [9] * 4
    assert (await epochs(host))[0][0] == 1


async def test_two_hundred_at_once(world: World) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    names = [f"n{n}" for n in range(200)]
    children = await asyncio.gather(*(root.sub_agent(Node, name) for name in names))
    assert sorted(each.name for each in await root.list_sub_agents()) == sorted(names)
    await asyncio.gather(*(child.begin(10) for child in children))
    await asyncio.gather(
        *(child.put("n", n) for n, child in enumerate(children)),
        *(child.set(n, n) for n, child in enumerate(children)),
    )
    await host.until_settled()
    assert await asyncio.gather(*(child.get("n") for child in children)) == list(range(200))
    assert await asyncio.gather(*(child.get("worked") for child in children)) == [1] * 200
    assert host.statistics().active == 201
    assert len(await epochs(host)) == 1
    some = names[::10]
    assert all(await asyncio.gather(*(root.delete_sub_agent(Node, name) for name in some)))
    left = {row[0] for row in (await rows_under(host, "Node/r"))["storage"]}
    assert left == {f"Node/r/Node/{name}" for name in names if name not in some}
    assert host.statistics().active == 181


async def test_two_hundred_are_recovered_and_destroyed_with_their_root(world: World) -> None:
    host = await world.host(Node, shutdown_timeout=0)
    root = host.get(Node, "r")
    children = await asyncio.gather(*(root.sub_agent(Node, f"n{n}") for n in range(200)))
    await asyncio.gather(*(child.begin(10) for child in children))
    await asyncio.sleep(1)
    await world.stop()
    forget()
    host = await world.next_life()
    await host.until_settled()
    assert sum(line.endswith("has worked") for line in Node.log) == 200
    assert "r" not in Node.starts
    assert await fiber_rows(host) == []
    await host.get(Node, "r").destroy()
    assert await rows_under(host, "Node/r") == {}


# --- coming and going ----------------------------------------------------------------------------


async def test_one_stays_while_its_parent_is_evicted_and_goes_on_writing(world: World) -> None:
    host = await world.host(Node, idle_timeout=5)
    root, child, *_ = await family(host)
    evicted = listen(host, "lifecycle:evicted")
    await child.begin(100)
    before = await child.identity()
    await asyncio.sleep(50)
    assert {event.agent for event in evicted} == {
        "Node/r",
        "Node/r/Node/a/Node/b",
        "Node/r/Node/c",
    }
    assert host.statistics().active == 1
    await child.put("alone")
    assert await child.identity() == before
    await root.put("back")  # under the same fence
    assert (await epochs(host))[0][0] == 1
    await host.until_settled()
    assert await child.get("worked") == 1


async def test_one_is_evicted_while_its_parent_stays(world: World) -> None:
    host = await world.host(Node, idle_timeout=5)
    root, child, *_ = await family(host)
    await root.begin(100)
    before = await child.identity()
    await asyncio.sleep(50)
    assert host.statistics().active == 1
    assert await child.identity() != before
    await child.put("after")
    assert await child.everything() == {"before": True, "after": True}
    assert (await epochs(host))[0][0] == 1


async def test_an_idle_one_is_evicted_while_its_sibling_writes_all_the_time(
    world: World,
) -> None:
    class Writer(Node):
        async def work(self, fiber: Any, seconds: float) -> None:
            for n in range(int(seconds * 5)):
                await asyncio.sleep(0.2)
                await self.storage.put("n", n)

    Writer.sub_agents = [Writer]
    host = await world.host(Writer, idle_timeout=5)
    root = host.get(Writer, "r")
    idle, busy = await root.sub_agent(Writer, "idle"), await root.sub_agent(Writer, "busy")
    await idle.put("key")
    await busy.begin(10)
    evicted = listen(host, "lifecycle:evicted")
    await asyncio.sleep(6)
    assert {event.agent for event in evicted} == {"Writer/r", "Writer/r/Writer/idle"}
    assert host.statistics().active == 1
    await host.until_settled()
    assert await busy.get("n") == 49


async def test_code_of_an_evicted_one_can_write_nothing_while_its_family_stays(
    world: World,
) -> None:
    class Ghost(Node):
        async def stray(self) -> asyncio.Task[None]:
            async def write() -> None:
                await asyncio.sleep(50)
                for attempt in (
                    lambda: self.storage.put("ghost", True),
                    lambda: self.delete_sub_agent(Ghost, "kept"),
                    self.destroy,
                ):
                    with pytest.raises(CommitFailed, match="was evicted because nothing held it"):
                        await attempt()
                Node.log.append("refused")

            return asyncio.create_task(write())

    Ghost.sub_agents = [Ghost]
    host = await world.host(Ghost, idle_timeout=5)
    root = host.get(Ghost, "r")
    child = await root.sub_agent(Ghost, "a")
    await (await child.sub_agent(Ghost, "kept")).put("key")
    await root.begin(100)
    stray = await child.stray()
    await stray
    assert Node.log == ["r works", "refused"]
    assert await child.everything() == {}
    assert await child.has_sub_agent(Ghost, "kept") is True


async def test_when_all_have_gone_the_next_takes_a_new_epoch(world: World) -> None:
    host = await world.host(Node, idle_timeout=5)
    _, child, *_ = await family(host)
    await asyncio.sleep(10)
    assert host.statistics().active == 0
    assert kept_in_memory(host) == {}
    await child.put("after")
    assert (await epochs(host))[0][0] == 2


async def test_nothing_is_kept_in_memory_of_those_that_were_deleted(world: World) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    for n in range(20):
        await (await below(root, f"n{n}", "below")).begin_stubborn()
        await root.delete_sub_agent(Node, f"n{n}")
    family = live_activation(host, Node, "r").family
    assert (len(family.members), len(family.left)) == (1, 0)
    assert kept_in_memory(host)["families"] == 1
    await asyncio.sleep(1000)
    assert kept_in_memory(host) == {}


async def test_two_hosts_take_a_family_from_each_other_as_a_whole(postgres_url: str) -> None:
    async with (
        hosting(Node, url=postgres_url, life="A") as first,
        hosting(Node, url=postgres_url, life="B") as second,
    ):
        mine = await family(first)
        theirs = [stub_at(second, Node, node) for node in mine]
        await theirs[2].put("from B")
        with pytest.raises(OwnershipLost):
            await mine[0].put("stale")
        assert first.statistics().active == 0
        assert await mine[2].everything() == {"before": True, "from B": True}
        await mine[3].put("from A")
        with pytest.raises(OwnershipLost):
            await theirs[2].put("stale")
        assert await theirs[3].get("from A") is True


async def test_a_host_whose_agent_was_destroyed_by_another_can_write_nothing_for_it(
    postgres_url: str,
) -> None:
    async with (
        hosting(Node, url=postgres_url, life="A") as first,
        hosting(Node, url=postgres_url, life="B") as second,
    ):
        mine = await family(first)
        await second.get(Node, "r").destroy()
        with pytest.raises(OwnershipLost):
            await mine[2].put("stale")
        for node in mine[1:]:  # discarded with it, they find out when they come again
            with pytest.raises(AgentDestroyed):
                await node.put("stale")
        assert await rows_under(second, "Node/r") == {}
