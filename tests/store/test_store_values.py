"""Values: how large they may be, and that strict JSON comes back equal. On both engines."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import fence, look, opened, put, settled, stored

from outlast.core import json
from outlast.core.errors import CommitFailed, ValueTooLarge
from outlast.store.base import StoreOptions
from outlast.store.url import open_store

LIMITED = StoreOptions(max_value_bytes=1000)
WIDTHS = ["one byte", "three bytes", "four bytes"]


@pytest.mark.parametrize(
    "value", ["v" * 1001, "€" * 334, "\U0001f600" * 251], ids=lambda text: f"{len(text)} characters"
)
async def test_a_value_over_the_limit_is_refused_and_nothing_is_written(
    store_url: str, value: str
) -> None:
    async with opened(store_url, LIMITED) as store:
        mine = fence()
        with pytest.raises(ValueTooLarge, match=r"1,00\d bytes \(storage put\).*1,000 bytes"):
            store.submit(mine, [put("A/x", "small"), put("A/x", "large", value)])
        assert mine.closed is None
        assert store.statistics().queue_bytes == 0
        assert await store.commit(mine, [put("A/x", "after")]) == (1,)
        assert await stored(store) == {"after": "v"}


@pytest.mark.parametrize(
    "value", ["v" * 1000, "€" * 333, "\U0001f600" * 250], ids=lambda text: f"{len(text)} characters"
)
async def test_values_up_to_the_limit_are_stored_however_many_they_are(
    store_url: str, value: str
) -> None:
    async with opened(store_url, LIMITED) as store:
        await store.commit(fence(), [put("A/x", str(n), value) for n in range(20)])
        assert await stored(store) == {str(n): value for n in range(20)}


async def test_a_large_value_that_is_no_text_fails_like_a_small_one(store_url: str) -> None:
    async with opened(store_url, LIMITED) as store:
        ends = await settled([store.submit(fence(), [put("A/x", "k", "\ud800" * 300)])])
        assert [type(end) for end in ends] == [CommitFailed]


async def test_values_of_many_megabytes_come_back_whole(store_url: str) -> None:
    async with opened(store_url) as store:
        value = "0123456789abcdé\n" * 300_000
        await store.commit(fence(), [put("A/x", "k", value)])
        assert (await stored(store))["k"] == value


HOSTILE = {
    "nul": "a\0b",
    "quotes": "'; DROP TABLE storage; -- \" \\ $1 ? %s {rows} {}",
    "line ends": "\r\n\u2028\u2029\x85",
    "invisible": "\u200b\ufeff\u202e",
    "not a character": "\uffff\ufffe\U0010ffff",
    "beyond the plane": "\U0001f600",
    "empty": "",
}
NAMES = [name for name in HOSTILE if name != "nul"]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_hostile_text_comes_back_as_it_was(store_url: str, text: str) -> None:
    async with opened(store_url) as store:
        value = {text: [text, {"in": text}]}
        await store.commit(fence(), [put("A/x", "k", json.encode(value))])
        assert json.decode((await stored(store))["k"]) == value
        assert await look(store_url, "SELECT count(*) FROM storage") == [(1,)]


@pytest.mark.parametrize(
    "name",
    [text for text in HOSTILE.values() if "\0" not in text],
    ids=lambda text: f"{len(text)} characters",
)
async def test_names_can_be_any_text_without_nul(store_url: str, name: str) -> None:
    async with opened(store_url) as store:
        await store.commit(fence(name), [put(name, name)])
        assert await stored(store, name) == {name: "v"}


texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
integers = st.one_of(st.integers(), st.integers(-(10**400), 10**400))
scalars = st.one_of(
    st.none(), st.booleans(), texts, integers, st.floats(allow_nan=False, allow_infinity=False)
)
strict_json = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(texts, inner)),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: 1 is not 1.0 and not True; -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def test_strict_json_comes_back_equal_from_the_store(store_url: str) -> None:
    numbers = itertools.count()
    with asyncio.Runner() as runner:
        store = runner.run(open_store(store_url))
        mine = fence()

        @settings(max_examples=200 if store.engine == "sqlite" else 75)
        @given(strict_json)
        def examples(value: Any) -> None:
            agent = f"A/{next(numbers)}"
            runner.run(store.commit(mine, [put(agent, "k", json.encode(value))]))
            assert same(json.decode(runner.run(stored(store, agent))["k"]), value)

        examples()
        runner.run(store.close())
    assert next(numbers) >= 50
