"""The conversation can be searched: by code, by the model, over HTTP, with an index or without."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Session, Think
from outlast.testing import ScriptedModel, Step
from support import World


def talker(*steps: Any, searchable: bool = True) -> type[Any]:
    class Talker(Think):
        model = ScriptedModel(*(steps or ("Owls hunt at night.",)), repeat=True)

        async def find(self, query: str) -> list[str]:
            return [hit.snippet.marked() for hit in await self.session.search(query)]

        async def compact(self) -> bool:
            return await self.session.compact()

    def configure_session(self: Any, session: Session) -> Session:
        return session.with_search().on_compaction(lambda messages: "Birds.")

    if searchable:
        Talker.configure_session = configure_session  # type: ignore[method-assign]
    return Talker


@pytest.mark.parametrize("searchable", [True, False])
async def test_messages_of_all_kinds_are_found(world: World, searchable: bool) -> None:
    Talker = talker(searchable=searchable)
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await agent.save_messages("What do owls do?")
    assert await agent.find("hunting") == ["Owls **hunt** at night."]
    assert sorted(await agent.find("owl")) == ["**Owls** hunt at night.", "What do **owls** do?"]
    assert await agent.find("sparrows") == []
    await agent.add_messages("And sparrows?")
    assert await agent.find("sparrow") == ["And **sparrows**?"]
    first = (await agent.get_messages())[0]
    await agent.update_message(
        {**first.raw, "parts": [{"type": "text", "text": "What do eagles do?"}]}
    )
    assert await agent.find("owl") == ["**Owls** hunt at night."]
    await agent.regenerate((await agent.get_messages())[1].id)
    assert len(await agent.find("night")) == 2, "also on other branches"
    await agent.clear_messages()
    assert await agent.find("owl") == []


async def test_what_a_summary_stands_for_is_still_found(world: World) -> None:
    Talker = talker()
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    for n in range(4):
        await agent.save_messages(f"Question {n}")
    assert await agent.compact()
    assert await agent.find("question 1") == ["**Question** **1**"]


async def test_a_conversation_of_before_is_indexed_in_the_background(world: World) -> None:
    Before, After = talker(searchable=False), talker()
    host = await world.host(Before)
    for n in range(8):
        await host.get(Before, "a").save_messages(f"Question {n}")
    host = await world.next_life(After)
    agent = host.get(After, "a")
    assert await agent.find('"question 3"') == ["**Question 3**"], "at once"
    await host.until_settled()
    indexed = await host.store.fetch(_query("SELECT count(*) FROM session_texts"))
    assert indexed == [(16,)]
    assert await agent.find('"question 3"') == ["**Question 3**"]
    assert len(await agent.find("hunt")) == 8


async def test_a_long_message_is_indexed_while_the_agent_runs(world: World) -> None:
    Talker = talker()
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await agent.save_messages("Hello")
    await agent.add_messages(" ".join(f"word{n % 5000}" for n in range(10_000)) + " needle")
    await host.until_settled()
    due = await host.store.fetch(_query("SELECT count(*) FROM session_texts WHERE due <> 0"))
    assert due == [(0,)]
    assert len(await agent.find("needle")) == 1


def _query(text: str) -> Any:
    from outlast.store.operations import Query

    return Query.same(text)


async def test_the_model_searches_the_conversation(sqlite_world: World) -> None:
    call = Step.call("session_search", {"query": "colour"})
    Talker = talker(call, "It was green.")
    host = await sqlite_world.host(Talker)
    agent = host.get(Talker, "a")
    await agent.add_messages("My favourite colour is green.")
    turn = await agent.save_messages("What is it?")
    (part,) = [part for part in turn.message.parts if part["type"] == "tool-session_search"]
    assert "My favourite **colour** is green." in part["output"]
