"""The session in the inspector, on both engines: its views, its search, and what a summary stands for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outlast import BareThink, Session, Think
from outlast.host.address import Address
from outlast.inspect import battery_views, searching, views
from outlast.inspect.batteries import installed
from outlast.inspect.reader import reading
from outlast.inspect.summaries import covered
from outlast.inspect.values import NotFound
from outlast.session.battery import BATTERY
from outlast.store.catalogue import Reader
from outlast.testing import ScriptedModel
from support import hosting

SUMMARY = "They spoke of owls."


class Assistant(Think):
    model = ScriptedModel("Owls hunt at night.", repeat=True)

    def configure_session(self, session: Session) -> Session:
        return (
            session.with_context("memory", description="Facts", max_tokens=100)
            .with_cached_prompt()
            .with_search()
            .on_compaction(lambda messages: SUMMARY)
        )

    async def compact(self) -> bool:
        return await self.session.compact()

    async def learn(self, fact: str) -> None:
        await self.session.append_context_block("memory", fact)


class Plain(Think):
    model = ScriptedModel("Plain owls hunted.", repeat=True)


class Bare(BareThink):
    model = ScriptedModel("Bare owls hunted.", repeat=True)


class German(Plain):
    model = ScriptedModel("Die Häuser sind alt.", repeat=True)

    def configure_session(self, session: Session) -> Session:
        return session.with_search(language="german")


AGENTS = (Assistant, Plain, German)
A, P = Address.of("Assistant", "a"), Address.of("Plain", "p")


@asynccontextmanager
async def of_a_host(url: str) -> AsyncIterator[Reader]:
    async with hosting(*AGENTS, url=url, life="2") as host:
        yield host.store


Opened = Callable[[str], Any]


@pytest.fixture(params=["host", "offline"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """How the store is looked at: in a host, or without one."""
    return of_a_host if request.param == "host" else reading


async def fill(url: str) -> None:
    async with hosting(*AGENTS, url=url) as host:
        agent = host.get(Assistant, "a")
        await agent.learn("Alice likes owls.")
        for n in range(3):
            await agent.save_messages(f"Question {n}?")
        assert await agent.compact()
        await host.get(Plain, "p").save_messages("And sparrows?")
        await host.until_settled()


async def shown(reader: Reader, address: Address) -> dict[str, list[list[Any]]]:
    tables = await battery_views.tables(reader, BATTERY, address)
    assert [table.error for table in tables] == [None] * len(tables)
    return {table.title: table.rows for table in tables}


async def test_everything_that_a_session_stores_has_a_view(store_url: str, opened: Opened) -> None:
    await fill(store_url)
    async with opened(store_url) as reader:
        said = await views.messages(reader, A)
        found = await shown(reader, A)
        ((fact, prompt, tokens),) = found["Frozen prompt"]
        assert fact == "session:prompt"
        assert "MEMORY (Facts)" in prompt
        assert "Alice likes owls." in prompt
        assert tokens > 10
        ((block, content, _, at),) = found["Context blocks"]
        assert (block, content) == ("memory", "Alice likes owls.")
        assert at > 0
        ((number, summary, stands_for, tokens, _),) = found["Summaries"]
        assert (number, summary) == ("1", SUMMARY)
        assert stands_for > tokens == 5
        usage = found["Tokens of answers"]
        assert [row[1] for row in usage] == [each.turn for each in said if each.role == "assistant"]
        assert all(row[2] > 0 and row[5] > 0 for row in usage)
        assert found["Search index"] == [["done", 6, 6, 0, "english.1"]]
        for title, row in [("Frozen prompt", fact), ("Context blocks", block), ("Summaries", "1")]:
            view = battery_views.find_view(BATTERY, title)
            detail = await battery_views.detail(reader, view, A, row)
            texts = [str(value) for value in detail.values]
            assert any(told in text for text in texts for told in ("Alice likes owls.", SUMMARY))
        assert detail.values[:2] == [said[-1].id, said[2].id], "the first and the last message"


async def test_an_agent_without_a_session_has_empty_views(store_url: str) -> None:
    await fill(store_url)
    async with reading(store_url) as reader:
        found = await shown(reader, P)
    assert [len(found.pop("Tokens of answers")), *found.values()] == [1, [], [], [], []]


def test_the_battery_is_known_without_a_host() -> None:
    assert installed()["session"].load() is BATTERY


# --- what a summary stands for -------------------------------------------------------------------


async def test_messages_say_in_which_summary_the_model_sees_them(
    store_url: str, opened: Opened
) -> None:
    await fill(store_url)
    async with opened(store_url) as reader:
        said = await views.messages(reader, A)
        assert [each.summary for each in said] == [None, None, 1, 1, 1, 1]
        assert {each.summary for each in await views.messages(reader, P)} == {None}


def test_a_summary_stands_for_the_messages_before_it_on_its_branch() -> None:
    parents = {"a": None, "b": "a", "c": "b", "d": "c", "x": "a", "y": "x"}
    assert covered(parents, []) == {}
    assert covered(parents, [(1, "b")]) == {"b": 1, "a": 1}
    assert covered(parents, [(2, "c"), (1, "y")]) == {"c": 2, "b": 2, "a": 2, "y": 1, "x": 1}
    assert covered({"c": "b", "d": "c"}, [(1, "c"), (0, "not loaded")]) == {"c": 1}
    assert covered({"a": "b", "b": "a"}, [(1, "a")]) == {"a": 1, "b": 1}, "a cycle ends"


# --- the search ----------------------------------------------------------------------------------


async def test_messages_are_found_with_an_index_and_without(store_url: str, opened: Opened) -> None:
    await fill(store_url)
    async with opened(store_url) as reader:
        said = {each.id: each for each in await views.messages(reader, A)}
        found = await searching.search(reader, A, '"question 1"')
        (hit,) = found
        assert (hit.role, hit.text, hit.marks) == ("user", "Question 1?", ((0, 10),))
        assert (hit.number, hit.turn) == (said[hit.id].number, said[hit.id].turn)
        assert hit.created_at == said[hit.id].created_at
        (plain,) = await searching.search(reader, P, "hunting")
        assert (plain.agent, plain.text) == ("Plain/p", "Plain owls hunted.")
        assert len(await searching.search(reader, A, "owl", limit=2)) == 2
        assert await searching.search(reader, A, "  ") == []
        assert await searching.search(reader, Address.of("Assistant", "none"), "owl") == []


async def test_of_all_agents_those_that_talked_last_come_first(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store_url)
    async with reading(store_url) as reader:
        found = await searching.search_all(reader, "owls hunt")
        agents = [each.agent for each in found.messages]
        assert agents == ["Plain/p", *["Assistant/a"] * 3]
        assert (found.searched, found.is_complete) == (2, True)
        exact = await searching.search_all(reader, "owls hunt", limit=4)
        assert (len(exact.messages), exact.is_complete) == (4, True)
        some = await searching.search_all(reader, "owls hunt", limit=1)
        assert ([each.agent for each in some.messages], some.is_complete) == (["Plain/p"], False)
        monkeypatch.setattr(searching, "AGENTS", 1)
        first = await searching.search_all(reader, "owls hunt")
        assert (len(first.messages), first.searched, first.is_complete) == (1, 1, False)


async def test_a_store_without_the_tables_is_searched_too(sqlite_url: str) -> None:
    async with hosting(Bare, url=sqlite_url) as host:
        await host.get(Bare, "b").save_messages("Hi")
    async with reading(sqlite_url) as reader:
        (hit,) = await searching.search(reader, Address.of("Bare", "b"), "hunting")
        assert hit.text == "Bare owls hunted."
        assert {each.summary for each in await views.messages(reader, Address.of("Bare", "b"))} == {
            None
        }


async def test_an_index_is_searched_in_its_own_language(sqlite_url: str) -> None:
    async with hosting(*AGENTS, url=sqlite_url) as host:
        await host.get(German, "g").save_messages("Hallo")
        await host.until_settled()
    async with reading(sqlite_url) as reader:
        (hit,) = await searching.search(reader, Address.of("German", "g"), "Häusern")
        assert hit.text == "Die Häuser sind alt."


async def test_without_the_battery_there_is_no_search_and_that_is_said(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(sqlite_url)
    monkeypatch.setattr("outlast.inspect.batteries.OWN", {})
    async with reading(sqlite_url) as reader:
        with pytest.raises(NotFound, match="needs the battery 'session'"):
            await searching.search(reader, A, "owls")
        assert {each.summary for each in await views.messages(reader, A)} == {None}
