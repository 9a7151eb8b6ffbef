"""Sub-agents: made by their parent, to any depth, under any name; each has its own rows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from families import Node, below, forget, rows_under

from outlast import Agent, AgentDestroyed, Host, InvalidName, SubAgent, UnknownAgent
from outlast.testing.virtual import START
from support import World, listen

pytestmark = pytest.mark.virtual_time


class Leaf(Agent):
    async def put(self, value: Any) -> None:
        await self.storage.put("value", value)

    async def get(self) -> Any:
        return await self.storage.get("value")


class Twig(Leaf):
    """Has a class of its own, and so names of its own."""

    async def trunk(self) -> str:
        return await self.parent_agent(Trunk).hello(self.name)

    async def wrong_parent(self) -> None:
        self.parent_agent(Leaf)

    async def paths(self) -> tuple[Any, Any]:
        return self.self_path, self.parent_path


class Trunk(Agent):
    sub_agents = (Leaf, Twig)

    async def hello(self, name: str) -> str:
        return f"{self.name} greets {name}"

    async def parent(self, agent_class: type[Any]) -> None:
        self.parent_agent(agent_class)

    async def paths(self) -> tuple[Any, Any]:
        return self.self_path, self.parent_path

    async def give_up(self) -> None:
        async with self.commit():
            await self.sub_agent(Leaf, "given up")
            raise OSError("given up")

    async def make_two(self) -> list[str]:
        async with self.commit():
            await self.sub_agent(Leaf, "one")
            two = await self.sub_agent(Leaf, "two")
        await two.put(2)
        return [each.name for each in await self.list_sub_agents()]


# Each differs from a neighbour by something that a path, a pattern or a collation might lose.
NAMES = [
    "a",
    "A",
    "ab",
    "a0",
    "a/",
    "a/Leaf/b",
    "a%2F",
    "a%2FLeaf%2Fb",
    "a%",
    "a_",
    "a-",
    "a.",
    "a ",
    "a!",
    "a~",
    "a\x01",
    "/",
    "",
    ".",
    "..",
    "%2F",
    "%00",
    "*",
    "ä",
    "a\u0308",
    "ß",
    "ss",
    "😀",
    "\ud800",
    "\U0010ffff",
    "'; DROP TABLE sub_agents; --",
    "x" * 300,
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()


# --- making them ---------------------------------------------------------------------------------


async def test_a_sub_agent_is_made_once_and_found_again(world: World) -> None:
    host = await world.host(Trunk)
    created = listen(host, "sub_agent:created")
    trunk = host.get(Trunk, "t")
    assert await trunk.has_sub_agent(Leaf, "a") is False
    leaf = await trunk.sub_agent(Leaf, "a")
    assert await trunk.has_sub_agent(Leaf, "a") is True
    await leaf.put(1)
    assert await (await trunk.sub_agent(Leaf, "a")).get() == 1
    assert await trunk.sub_agent(Leaf, "a") == leaf
    assert [(event.agent, event.payload) for event in created] == [
        ("Trunk/t", {"child": "Trunk/t/Leaf/a"})
    ]
    host = await world.next_life()
    trunk = host.get(Trunk, "t")
    assert await trunk.has_sub_agent(Leaf, "a") is True
    assert await (await trunk.sub_agent(Leaf, "a")).get() == 1


async def test_a_hundred_who_ask_for_a_new_one_at_once_get_one(world: World) -> None:
    host = await world.host(Trunk)
    created = listen(host, "sub_agent:created")
    trunk = host.get(Trunk, "t")
    stubs = await asyncio.gather(*(trunk.sub_agent(Leaf, "a") for _ in range(100)))
    assert len(set(stubs)) == 1
    assert [each.name for each in await trunk.list_sub_agents()] == ["a"]
    assert len(created) == 1


async def test_looking_makes_nothing(world: World) -> None:
    host = await world.host(Trunk)
    trunk = host.get(Trunk, "t")
    assert await trunk.has_sub_agent(Leaf, "a") is False
    assert await trunk.list_sub_agents() == []
    assert await trunk.abort_sub_agent(Leaf, "a") is False
    assert await trunk.delete_sub_agent(Leaf, "a") is False
    assert await rows_under(host, "Trunk/t") == {}


async def test_they_are_listed_in_the_order_in_which_they_were_made(world: World) -> None:
    host = await world.host(Trunk)
    trunk = host.get(Trunk, "t")
    await trunk.sub_agent(Leaf, "z")
    await asyncio.sleep(1)
    await trunk.sub_agent(Twig, "z")
    for name in "mab":
        await trunk.sub_agent(Leaf, name)
    await trunk.sub_agent(Leaf, "z")  # is there already
    listed = await trunk.list_sub_agents()
    names = [(each.class_name, each.name) for each in listed]
    assert names == [("Leaf", "z"), ("Twig", "z"), ("Leaf", "m"), ("Leaf", "a"), ("Leaf", "b")]
    begun = datetime.fromtimestamp(START / 1000, UTC)
    assert listed[0] == SubAgent("Leaf", "z", begun)
    assert (listed[1].created_at - begun).total_seconds() == 1
    assert [each.name for each in await trunk.list_sub_agents(Twig)] == ["z"]
    host = await world.next_life()
    trunk = host.get(Trunk, "t")
    await trunk.delete_sub_agent(Leaf, "m")
    await trunk.sub_agent(Leaf, "0")
    await trunk.sub_agent(Leaf, "m")
    names = [(each.class_name, each.name) for each in await trunk.list_sub_agents(Leaf)]
    assert [name for _, name in names] == ["z", "a", "b", "0", "m"]


async def test_one_made_in_a_commit_block_is_there_when_the_block_ends(world: World) -> None:
    host = await world.host(Trunk)
    trunk = host.get(Trunk, "t")
    with pytest.raises(OSError, match="given up"):
        await trunk.give_up()
    assert await rows_under(host, "Trunk/t") == {}
    assert await trunk.make_two() == ["one", "two"]
    assert await (await trunk.sub_agent(Leaf, "two")).get() == 2


async def test_four_levels_each_with_its_own_value(world: World) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    line = [root, *[await below(root, *"abcd"[:depth]) for depth in range(1, 5)]]
    for depth, node in enumerate(line):
        await node.put("depth", depth)
    assert [await node.get("depth") for node in line] == [0, 1, 2, 3, 4]
    assert await line[4].path() == tuple(("Node", name) for name in "rabcd")
    host = await world.next_life()
    deepest = await below(host.get(Node, "r"), *"abcd")
    assert await deepest.get("depth") == 4


# --- names ---------------------------------------------------------------------------------------


async def test_every_name_has_rows_of_its_own_and_comes_back_as_it_was(world: World) -> None:
    host = await world.host(Trunk)
    trunk = host.get(Trunk, "t")
    for name in NAMES:
        await (await trunk.sub_agent(Leaf, name)).put(name.encode("utf-8", "surrogatepass").hex())
    assert [each.name for each in await trunk.list_sub_agents(Leaf)] == NAMES
    host = await world.next_life()
    trunk = host.get(Trunk, "t")
    for name in NAMES:
        leaf = await trunk.sub_agent(Leaf, name)
        assert await leaf.get() == name.encode("utf-8", "surrogatepass").hex()


async def test_deleting_one_touches_none_whose_name_is_like_it(world: World) -> None:
    host = await world.host(Node)
    root = host.get(Node, "r")
    for name in NAMES:
        await (await below(root, name, "below")).put("name", 1)
    left = list(NAMES)
    for name in NAMES:
        assert await root.delete_sub_agent(Node, name) is True
        left.remove(name)
        assert [each.name for each in await root.list_sub_agents()] == left
        stored = (await rows_under(host, "Node/r")).get("storage", [])
        assert len(stored) == len(left), name
    for name in left:
        assert await (await below(root, name, "below")).get("name") == 1
    assert set(await rows_under(host, "Node/r")) == {"agents"}


async def test_an_address_looks_the_same_but_is_another_agent(world: World) -> None:
    """A root whose name is the text of another's path, a child whose name is the path of a child."""
    host = await world.host(Trunk)
    trunk = host.get(Trunk, "t")
    deep = await trunk.sub_agent(Leaf, "a")
    flat = await trunk.sub_agent(Leaf, "a/Leaf/b")
    root = host.get(Leaf, "t/Leaf/a")
    for value, leaf in enumerate([deep, flat, root]):
        await leaf.put(value)
    assert [await leaf.get() for leaf in (deep, flat, root)] == [0, 1, 2]
    await host.get(Trunk, "t").destroy()
    assert await root.get() == 2


@pytest.mark.parametrize("name", ["a\0b", 7, None, b"a"])
async def test_what_is_not_a_name_is_refused(sqlite_world: World, name: Any) -> None:
    host = await sqlite_world.host(Trunk)
    with pytest.raises(InvalidName):
        await host.get(Trunk, "t").sub_agent(Leaf, name)
    assert await rows_under(host, "Trunk/t") == {}


async def test_an_address_that_has_grown_too_long_is_refused(sqlite_world: World) -> None:
    host = await sqlite_world.host(Node)
    deep = await below(host.get(Node, "r"), *["x" * 200] * 4)
    with pytest.raises(InvalidName, match=r"must be at most 1,000 bytes, got 1,036"):
        await deep.sub_agent(Node, "x" * 200)
    assert await deep.list_sub_agents() == []


# --- classes, parents, paths ---------------------------------------------------------------------


async def test_one_name_under_two_classes_and_two_parents_is_four_agents(world: World) -> None:
    host = await world.host(Trunk)
    leaves = [
        await host.get(Trunk, trunk).sub_agent(kind, "same")
        for trunk in ("t", "u")
        for kind in (Leaf, Twig)
    ]
    for value, leaf in enumerate(leaves):
        await leaf.put(value)
    await host.get(Leaf, "same").put("a root's")
    assert [await leaf.get() for leaf in leaves] == [0, 1, 2, 3]
    assert await host.get(Trunk, "t").delete_sub_agent(Leaf, "same") is True
    assert [await leaf.get() for leaf in leaves[1:]] == [1, 2, 3]
    assert await host.get(Leaf, "same").get() == "a root's"
    assert await host.get(Trunk, "t").has_sub_agent(Twig, "same") is True
    assert await host.get(Trunk, "u").has_sub_agent(Leaf, "same") is True


async def test_a_sub_agent_knows_its_parent_and_its_path(world: World) -> None:
    host = await world.host(Trunk)
    trunk = host.get(Trunk, "t")
    twig = await trunk.sub_agent(Twig, "a/b")
    assert await twig.trunk() == "t greets a/b"
    assert await twig.paths() == ((("Trunk", "t"), ("Twig", "a/b")), (("Trunk", "t"),))
    assert await trunk.paths() == ((("Trunk", "t"),), ())


async def test_a_parent_of_another_class_or_none_is_said(sqlite_world: World) -> None:
    host = await sqlite_world.host(Trunk)
    twig = await host.get(Trunk, "t").sub_agent(Twig, "a")
    with pytest.raises(UnknownAgent, match=r"parent of Trunk/t/Twig/a is a Trunk, not a Leaf"):
        await twig.wrong_parent()
    with pytest.raises(UnknownAgent, match=r"Trunk/t is not a sub-agent, so it has no parent"):
        await host.get(Trunk, "t").parent(Trunk)


async def test_a_class_that_the_host_does_not_run_is_said(sqlite_world: World) -> None:
    class Stranger(Agent): ...

    host = await sqlite_world.host(Trunk)
    with pytest.raises(UnknownAgent, match=r"'Stranger' \(it runs Leaf, Trunk, Twig\)\. Add"):
        await host.get(Trunk, "t").sub_agent(Stranger, "s")
    assert await rows_under(host, "Trunk/t") == {}
    with pytest.raises(TypeError, match="agent_class must be a class, got"):
        await host.get(Trunk, "t").sub_agent("Leaf", "a")  # type: ignore[type-var]


async def test_another_class_of_the_same_name_is_not_the_one(sqlite_world: World) -> None:
    another = type("Leaf", (Agent,), {})
    host = await sqlite_world.host(Trunk)
    trunk = host.get(Trunk, "t")
    await trunk.sub_agent(Leaf, "a")
    with pytest.raises(UnknownAgent, match="another class named 'Leaf'"):
        await trunk.sub_agent(another, "a")


async def test_classes_are_found_wherever_they_are_declared(sqlite_world: World) -> None:
    class Deep(Agent): ...

    class Middle(Agent):
        sub_agents = [Deep]

    class Top(Agent):
        sub_agents = [Middle]

    class Beside(Agent): ...

    host = await sqlite_world.host(Top, Beside)
    top = host.get(Top, "t")
    middle = await top.sub_agent(Middle, "m")
    await middle.sub_agent(Deep, "d")
    await top.sub_agent(Beside, "b")  # declared for the host only
    await middle.sub_agent(Top, "another")  # any class that the host runs
    assert [each.class_name for each in await middle.list_sub_agents()] == ["Deep", "Top"]
    host.get(Deep, "as a root")


def test_two_classes_of_one_name_are_refused_however_deep() -> None:
    class Top(Agent):
        sub_agents = [Trunk]

    class Middle(Agent):
        sub_agents = [type("Leaf", (Agent,), {})]

    Host(agents=[Top, Trunk, Leaf])
    with pytest.raises(ValueError, match="two agent classes are named 'Leaf'"):
        Host(agents=[Top, Middle])
    Middle.sub_agents = ["Leaf"]  # type: ignore[list-item]
    with pytest.raises(TypeError, match="subclasses of Agent, got 'Leaf'"):
        Host(agents=[Middle])


async def test_what_nobody_has_made_cannot_be_reached(world: World) -> None:
    """Through a stub that is older than its agent; there is no other way to such a stub."""
    host = await world.host(Node)
    child = await below(host.get(Node, "r"), "a", "b")
    await host.get(Node, "r").destroy()
    with pytest.raises(AgentDestroyed, match=r"Node/r/Node/a/Node/b was deleted, or never created"):
        await child.put("key")
    assert await rows_under(host, "Node/r") == {}
    assert Node.starts == ["r", "a"]
