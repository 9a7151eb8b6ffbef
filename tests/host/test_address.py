"""Addresses: any name but one with NUL, as a path of URL segments and back."""

from __future__ import annotations

import posixpath
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlast import Agent, OutlastError
from outlast.core.errors import InvalidName
from outlast.host.address import MAX_BYTES, Address
from support import World

# Each differs from its neighbours by something that a URL, a file system or a collation might lose.
NASTY = [
    "",
    ".",
    "..",
    "...",
    "%00",
    "%2E",
    "%2e%2e",
    "/",
    "//",
    "a/b",
    "a%2Fb",
    "a%2fb",
    "a\\b",
    "../a",
    "a/..",
    " a",
    "a ",
    "a",
    "A",
    "a+b",
    "a b",
    "a?b#c",
    "a:b@c",
    "\n",
    "\t",
    "\x7f",
    "é",
    "e\u0301",
    "ß",
    "ss",
    "😀",
    "\ud83d\ude00",
    "\ud800",
    "\udfff",
    "\ufffd",
    "\U0010ffff",
    "'; DROP TABLE storage; --",
    "x" * 300,
]

characters = st.characters(exclude_characters="\0")  # up to 12 characters each in a URL
names = st.text(characters, max_size=30)
short_names = st.text(characters, max_size=10)


def nasty(test):  # type: ignore[no-untyped-def]
    for name in NASTY:
        test = example(name)(test)
    return test


@nasty
@given(names)
def test_every_name_comes_back_from_the_text_of_its_address(name: str) -> None:
    address = Address.of("Researcher", name)
    assert Address.parse(address.text) == address
    assert Address.parse(address.text).name == name
    assert str(address) == address.text


@nasty
@given(names)
def test_every_address_passes_through_a_url_unchanged(name: str) -> None:
    address = Address.of("Researcher", name).child("Notes", name)
    path = f"/agents/{address.text}"
    assert urlsplit(f"https://example.org{path}?key=1#part").path == path
    assert posixpath.normpath(path) == path
    assert urljoin("https://example.org/agents/", address.text) == f"https://example.org{path}"
    assert address.text.isascii()
    assert all(character.isprintable() and character not in ' "<>\\' for character in address.text)


@given(names, names)
def test_different_names_have_different_texts(one: str, other: str) -> None:
    assert (Address.of("A", one).text == Address.of("A", other).text) == (one == other)


def test_the_nasty_names_have_different_texts() -> None:
    assert len({Address.of("A", name).text for name in NASTY}) == len(NASTY)


@given(st.lists(st.tuples(st.sampled_from(["A", "Größe"]), short_names), min_size=1, max_size=4))
def test_the_path_of_a_sub_agent_comes_back_with_all_its_parents(
    path: list[tuple[str, str]],
) -> None:
    address = Address(())
    for kind, name in path:
        address = address.child(kind, name)
    assert Address.parse(address.text).path == tuple(path)
    assert (address.kind, address.name) == path[-1]
    assert address.root == Address.of(*path[0])


def test_a_class_name_beyond_ascii_can_stand_in_a_url_too() -> None:
    address = Address.of("Größe", "a")
    assert address.text == "Gr%C3%B6%C3%9Fe/a"
    assert Address.parse(address.text).kind == "Größe"


@pytest.mark.parametrize("name", ["\0", "a\0b", "\0."])
def test_a_name_with_nul_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="must not contain NUL"):
        Address.of("A", name)


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidName, match="must be a str, got 7"):
        Address.of("A", 7)  # type: ignore[arg-type]


def test_an_address_that_is_too_long_is_refused_and_the_longest_is_not() -> None:
    longest = "x" * (MAX_BYTES - len("A/"))
    assert len(Address.of("A", longest).text) == MAX_BYTES
    with pytest.raises(
        InvalidName, match=rf"at most {MAX_BYTES:,} bytes, got {MAX_BYTES + 1:,}.*shorter name"
    ):
        Address.of("A", longest + "x")
    with pytest.raises(InvalidName, match="bytes"):
        Address.of("A", "😀" * 200)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "A/x/B",
        "A/%FF",
        "A/%ED%A0",
        "A/a%00b",
        "A/%00a",
        "A/%00%00",
        "A/" + "x" * MAX_BYTES,
    ],
)
def test_text_that_stands_for_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        Address.parse(text)


class Diary(Agent):
    async def write(self, text: str) -> None:
        await self.storage.put("text", text)

    async def read(self) -> tuple[str, dict[str, str]]:
        return self.name, await self.storage.list()


async def test_two_different_names_never_share_rows(world: World) -> None:
    host = await world.host(Diary)
    for number, name in enumerate(NASTY):
        await host.get(Diary, name).write(f"diary {number}")
    host = await world.next_life()
    for number, name in enumerate(NASTY):
        assert await host.get(Diary, name).read() == (name, {"text": f"diary {number}"})


@pytest.mark.parametrize("name", ["a\0b", "😀" * 200])
async def test_a_host_refuses_an_impossible_name_before_any_call(
    sqlite_world: World, name: str
) -> None:
    host = await sqlite_world.host(Diary)
    with pytest.raises(InvalidName) as caught:
        host.get(Diary, name)
    assert isinstance(caught.value, OutlastError)
    assert host.statistics().active == 0
