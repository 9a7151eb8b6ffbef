"""What a session finds in the store that another version of its class left there."""

from __future__ import annotations

from typing import Any

import pytest
from troubled import talk, talker

from support import World

pytestmark = pytest.mark.virtual_time

Searchable = talker(lambda session: session.with_search())
Plain = talker(lambda session: session)


async def test_a_block_that_code_now_has_was_added_before(world: World) -> None:
    Before = talker(lambda session: session.with_context("memory"))
    After = talker(lambda session: session.with_context("memory").with_context("notes"))
    host = await world.host(Before)
    await host.get(Before, "a").add("notes")
    await host.get(Before, "a").append("notes", "Milk.")
    host = await world.next_life(After)
    await talk(host.get(After, "a"), 1)
    assert await host.get(After, "a").labels() == ["memory", "notes"]
    assert "Milk." in await host.get(After, "a").prompt()


async def test_a_block_may_be_added_at_every_start(world: World) -> None:
    async def on_start(self: Any) -> None:
        await self.session.add_context("notes")

    Talker = talker(lambda session: session.with_context("memory"), on_start=on_start)
    for _ in range(3):
        host = await world.next_life(Talker)
        await talk(host.get(Talker, "a"), 0)
        assert await host.get(Talker, "a").labels() == ["memory", "notes"]


async def test_a_block_of_another_kind_gets_a_new_prompt(sqlite_world: World) -> None:
    Writable = talker(lambda session: session.with_context("docs").with_cached_prompt())
    ReadOnly = talker(
        lambda session: session.with_context("docs", provider=lambda: "x").with_cached_prompt()
    )
    host = await sqlite_world.host(Writable)
    assert "[writable]" in await host.get(Writable, "a").prompt()
    host = await sqlite_world.next_life(ReadOnly)
    assert "[readonly]" in await host.get(ReadOnly, "a").prompt()


async def test_without_an_index_messages_are_found_that_an_old_index_does_not_have(
    world: World,
) -> None:
    host = await world.host(Searchable)
    await talk(host.get(Searchable, "a"), 0, 1)
    await host.until_settled()
    host = await world.next_life(Plain)
    agent = host.get(Plain, "a")
    await agent.save_messages("A sparrow flew.")
    assert await agent.find("sparrow") == ["A **sparrow** flew."]


async def test_what_changed_without_the_index_is_found_with_it(world: World) -> None:
    host = await world.host(Searchable)
    agent = host.get(Searchable, "a")
    await agent.save_messages("sparrow " * 20_000)
    await talk(agent, 0)
    await host.until_settled()
    host = await world.next_life(Plain)
    agent = host.get(Plain, "a")
    first = (await agent.get_messages())[0]
    await agent.update_message({**first.raw, "parts": [{"type": "text", "text": "Eagles soar."}]})
    host = await world.next_life(Searchable)
    agent = host.get(Searchable, "a")
    assert await agent.find("eagles") == ["**Eagles** soar."]
    await host.until_settled()
    assert await agent.find("eagles") == ["**Eagles** soar."]
    assert await agent.find("sparrow") == []


async def test_a_conversation_that_was_replaced_without_the_index_is_found_with_it(
    world: World,
) -> None:
    host = await world.host(Searchable)
    await talk(host.get(Searchable, "a"), 0, 1)
    await host.until_settled()
    host = await world.next_life(Plain)
    agent = host.get(Plain, "a")
    await agent.clear_messages()
    await agent.save_messages("Eagles soar.")
    await agent.save_messages("Eagles soar.")
    host = await world.next_life(Searchable)
    agent = host.get(Searchable, "a")
    await agent.labels()
    await host.until_settled()
    assert len(await agent.find("eagles")) == 2
    assert await agent.find('"question 0"') == []


async def test_a_search_in_another_language_does_not_wait_for_the_index(world: World) -> None:
    English = talker(lambda session: session.with_search(language="english"))
    German = talker(lambda session: session.with_search(language="german"))
    host = await world.host(English)
    await host.get(English, "a").save_messages("Die Häuser brannten.")
    await host.until_settled()
    host = await world.next_life(German)
    agent = host.get(German, "a")
    assert await agent.find("haus") == ["Die **Häuser** brannten."]
    await host.until_settled()
    assert await agent.find("haus") == ["Die **Häuser** brannten."]
