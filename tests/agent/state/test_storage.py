"""The key-value map of an agent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast import Agent, Host
from outlast.agent.state.storage import end_of
from outlast.core.errors import CorruptValue, ValueTooLarge
from support import World, raw


class Keeper(Agent):
    async def get(self, key: str, default: Any = None) -> Any:
        return await self.storage.get(key, default)

    async def put(self, key: str, value: Any) -> None:
        await self.storage.put(key, value)

    async def delete(self, key: str) -> None:
        await self.storage.delete(key)

    async def list(self, prefix: str = "") -> dict[str, Any]:
        return await self.storage.list(prefix)


async def test_values_come_back_as_they_were_put_after_a_restart(world: World) -> None:
    values = {"a": 1, "b": [1, 2.5, None, True], "c": {"x": {"y": "ö\0"}}, "d": None, "e": ""}
    host = await world.host(Keeper)
    for key, value in values.items():
        await host.get(Keeper, "k").put(key, value)
    host = await world.next_life()
    keeper = host.get(Keeper, "k")
    assert await keeper.list() == values
    for key, value in values.items():
        assert await keeper.get(key, "default") == value
    await keeper.put("a", 2)
    await keeper.delete("b")
    await keeper.delete("not there")
    assert await keeper.get("a") == 2
    assert await keeper.get("b", "default") == "default"
    assert await keeper.get("b") is None


async def test_agents_do_not_see_each_others_keys(world: World) -> None:
    class Other(Keeper):
        pass

    host = await world.host(Keeper, Other)
    for agent in (host.get(Keeper, "a"), host.get(Keeper, "A"), host.get(Other, "a")):
        assert await agent.list() == {}
        await agent.put("key", repr(agent))
    assert await host.get(Keeper, "a").get("key") == "<stub of Keeper/a>"


async def test_list_takes_exactly_the_prefix_in_order_of_code_points(world: World) -> None:
    keys = [
        "a",
        "a%",
        "a:",
        "a:1",
        "a:10",
        "a:2",
        "a:\U0010ffff",
        "a:\U0010ffffz",
        "a;",
        "B",
        "ä",
        "\ue000",
    ]
    host = await world.host(Keeper)
    keeper = host.get(Keeper, "k")
    for key in reversed(keys):
        await keeper.put(key, key)
    for prefix in ["", "a", "a:", "a:1", "a:\U0010ffff", "ä", "\ud7ff", "zz", "a%"]:
        expected = [key for key in sorted(keys) if key.startswith(prefix)]
        assert list(await keeper.list(prefix)) == expected, prefix


@settings(max_examples=200)
@given(
    st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1), max_size=4),
    st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1), max_size=6),
)
def test_end_of_a_prefix_is_behind_all_that_start_with_it(prefix: str, key: str) -> None:
    end = end_of(prefix)
    is_inside = key >= prefix and (end is None or key < end)
    assert is_inside == key.startswith(prefix)
    assert end is None or (end > prefix and end.encode())


async def test_a_listing_of_many_pages_is_whole(sqlite_world: World) -> None:
    class Bulk(Keeper):
        async def fill(self) -> None:
            async with self.commit():
                for n in range(450):
                    await self.storage.put(f"k{n:04}", n)

    host = await sqlite_world.host(Bulk)
    await host.get(Bulk, "k").fill()
    assert await host.get(Bulk, "k").list("k") == {f"k{n:04}": n for n in range(450)}
    assert len(await host.get(Bulk, "k").list("k00")) == 100


async def test_large_values_are_read_too(world: World) -> None:
    host = await world.host(Keeper)
    keeper = host.get(Keeper, "k")
    for size in (64 * 1024 - 2, 64 * 1024 - 1, 3_000_000):
        await keeper.put("large", "ü" * size)
        assert await keeper.get("large") == "ü" * size
        assert await keeper.list() == {"large": "ü" * size}


async def test_a_value_too_large_is_refused_and_the_agent_goes_on(sqlite_world: World) -> None:
    host = await sqlite_world.host(Keeper)
    keeper = host.get(Keeper, "k")
    with pytest.raises(ValueTooLarge, match="more than this store accepts"):
        await keeper.put("huge", "x" * (64 * 1024 * 1024))
    await keeper.put("small", 1)
    assert await keeper.list() == {"small": 1}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((1, 2), "value is a tuple, which is not JSON .*; use a list"),
        ({"a": [{"b": {1}}]}, r"value\['a'\]\[0\]\['b'\] is a set"),
        ({"a": {2: 1}}, r"value\['a'\] has the key 2; JSON keys must be str"),
        (b"x", "value is a bytes.*base64"),
        (object(), "value is a object"),
        pytest.param([10**5000], "an int of more than", id="endless int"),
    ],
)
async def test_what_is_not_json_is_refused_with_its_place(
    sqlite_world: World, value: Any, says: str
) -> None:
    host = await sqlite_world.host(Keeper)
    with pytest.raises(TypeError, match=says):
        await host.get(Keeper, "k").put("key", value)
    assert await host.get(Keeper, "k").list() == {}


@pytest.mark.parametrize(
    ("key", "error"),
    [("a\0b", ValueError), ("\ud800", ValueError), ("ü" * 501, ValueError), (5, TypeError)],
)
async def test_a_bad_key_is_refused(sqlite_world: World, key: Any, error: type[Exception]) -> None:
    host = await sqlite_world.host(Keeper)
    keeper = host.get(Keeper, "k")
    for call in (keeper.put(key, 1), keeper.get(key), keeper.delete(key), keeper.list(key)):
        with pytest.raises(error, match="a storage key must"):
            await call


async def test_a_corrupt_value_names_itself_and_harms_no_other(sqlite_url: str) -> None:
    async with Host([Keeper], sqlite_url) as host:
        await host.get(Keeper, "k").put("good", 1)
        await host.get(Keeper, "k").put("bad", 2)
    db = raw(sqlite_url)
    db.execute("UPDATE storage SET value = '{' WHERE key = 'bad'")
    db.close()
    async with Host([Keeper], sqlite_url) as host:
        keeper = host.get(Keeper, "k")
        with pytest.raises(CorruptValue, match="Keeper/k: the stored value of 'bad'"):
            await keeper.get("bad")
        assert await keeper.get("good") == 1
        await keeper.put("bad", 3)
        assert await keeper.list() == {"bad": 3, "good": 1}
