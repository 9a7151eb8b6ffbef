"""Blocks in the store: durable, in the open commit, and no write is lost."""

from __future__ import annotations

import pytest
from block_agents import ROWS, Rememberer, of, remembering

from outlast.session.block import ContextBlockError, ContextBlockFull, UnknownContextBlock
from outlast.session.blocks.stored import appended
from support import World


async def test_content_survives_and_belongs_to_one_agent(world: World) -> None:
    host = await world.host(Rememberer)
    written = await host.get(Rememberer, "r").write("memory", "Owls fly.")
    assert (written.content, written.tokens, written.kind) == ("Owls fly.", 3, "writable")
    await host.get(Rememberer, "other").write("memory", "Cows do not.")
    host = await world.next_life()
    assert (await host.get(Rememberer, "r").read("memory")) == written
    await host.get(Rememberer, "other").destroy()
    assert await host.store.fetch(ROWS) == [("memory", "", "Owls fly.", None)]


async def test_an_append_is_a_line_of_its_own(world: World) -> None:
    rememberer = (await world.host(Rememberer)).get(Rememberer, "r")
    for text in ("one", "two\n", "three"):
        assert (await rememberer.add_to("memory", text)).endswith(text)
    assert (await rememberer.read("memory")).content == "one\ntwo\nthree"


async def test_code_in_a_commit_reads_what_it_wrote_and_others_do_not(world: World) -> None:
    host = await world.host(Rememberer)
    rememberer = host.get(Rememberer, "r")
    await rememberer.write("memory", "one")
    assert await rememberer.add_to("memory", "two", "three") == "one\ntwo\nthree"
    with pytest.raises(ValueError, match="on purpose"):
        await rememberer.add_to("memory", "four", fails=True)
    assert (await rememberer.read("memory")).content == "one\ntwo\nthree"
    assert await host.store.fetch(ROWS) == [("memory", "", "one\ntwo\nthree", None)]


async def test_appends_at_the_same_time_are_all_there(world: World) -> None:
    rememberer = (await world.host(Rememberer)).get(Rememberer, "r")
    texts = [f"fact {n}" for n in range(9)]
    await rememberer.add_at_once("memory", *texts)
    assert (await rememberer.read("memory")).content.splitlines() == texts


async def test_more_than_max_tokens_is_refused_and_says_how_much(world: World) -> None:
    rememberer = (await world.host(Rememberer)).get(Rememberer, "r")
    await rememberer.write("memory", "x" * 200)
    with pytest.raises(ContextBlockFull, match=r"^memory would use 51 of 50 tokens; shorten it$"):
        await rememberer.write("memory", "x" * 201)
    with pytest.raises(ContextBlockFull, match="memory would use 51 of 50 tokens"):
        await rememberer.add_to("memory", "y")
    assert (await rememberer.read("memory")).content == "x" * 200


async def test_ten_megabytes_are_refused(world: World) -> None:
    agent = remembering(blocks=[of("memory", None)])
    rememberer = (await world.host(agent)).get(agent, "r")
    with pytest.raises(ContextBlockFull, match="would have 10,000,000 characters, but at most"):
        await rememberer.write("memory", "x" * 10_000_000)
    assert len((await rememberer.write("memory", "é" * 1_000_000)).content) == 1_000_000
    with pytest.raises(ContextBlockFull, match="would have 1,000,002 characters"):
        await rememberer.add_to("memory", "y")


async def test_characters_that_a_store_rejects_are_replaced(world: World) -> None:
    rememberer = (await world.host(Rememberer)).get(Rememberer, "r")
    await rememberer.write("memory", "a\0b\ud83d")
    await rememberer.add_to("memory", "\0'; DROP TABLE session_blocks; --%")
    expected = "a\ufffdb\ufffd\n\ufffd'; DROP TABLE session_blocks; --%"
    assert (await rememberer.read("memory")).content == expected


async def test_unknown_and_readonly_blocks_are_not_written(world: World) -> None:
    agent = remembering(blocks=[of("memory", None), of("rules", "Be kind.")])
    rememberer = (await world.host(agent)).get(agent, "r")
    with pytest.raises(
        UnknownContextBlock, match="no context block 'x'; there are: 'memory', 'rules'"
    ):
        await rememberer.write("x", "text")
    with pytest.raises(ContextBlockError, match="rules is read-only"):
        await rememberer.write("rules", "text")
    with pytest.raises(TypeError, match="content of 'memory' must be a str, got 3"):
        await rememberer.write("memory", 3)


def test_appending_adds_a_newline_only_where_one_is_missing() -> None:
    assert [appended(*pair) for pair in (("", "b"), ("a", "b"), ("a\n", "b"), ("a", ""))] == [
        "b",
        "a\nb",
        "a\nb",
        "a\n",
    ]
