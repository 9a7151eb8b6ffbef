"""What keeps the index up to date: edits, deletions, clears, long messages, and the background work."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rows import execute, look, opened, path_of
from searching import SCHEMA, STATE, TEXTS, Conversation, conversation, message, searching

from outlast.agent.subagents.subagents import deletion
from outlast.host.address import Address
from outlast.inspect.reader import reading
from outlast.session.search import backfill as backfill_module
from outlast.session.search import slices as slices_module
from outlast.session.search import sql, writes
from outlast.session.search.search import SearchIndex
from outlast.store.catalogue import owned_tables
from outlast.store.copier import copy_store

LONG = " ".join(f"word{number} the" for number in range(6_000))  # 12,000 words, and too many "the"


async def indexed(talk: Conversation) -> list[Any]:
    return [tuple(row) for row in await talk.store.fetch(TEXTS, talk.address)]


async def reached(talk: Conversation) -> int | None:
    found = await talk.store.fetch(STATE, talk.address)
    return found[0][1] if found else None


async def test_a_message_that_is_changed_is_found_by_its_new_words(store_url: str) -> None:
    async with conversation(store_url, ["an owl", "a cat"]) as talk:
        await talk.replace(message("m1", "a zebra"))
        await talk.put(message("m2", "a lion"))
        for query, expected in {"owl": [], "cat": [], "zebra": ["m1"], "lion": ["m2"]}.items():
            assert await talk.ids(query) == expected, query
        assert await indexed(talk) == [("m1", 0, 1, 0, "a zebra"), ("m2", 0, 2, 0, "a lion")]
        await talk.replace(message("m1", "🦉"))
        await talk.replace(message("m1", "an owl again"))
        assert await talk.ids("owl") == ["m1"]
        await talk.remove("m1")
        assert await talk.ids("owl") == []


async def test_a_conversation_that_is_cleared_is_not_found(store_url: str) -> None:
    async with conversation(store_url, ["an owl", "a cat"]) as talk:
        await talk.clear()
        assert await talk.ids("owl") == []
        await talk.add(message("m9", "another owl"))
        assert await talk.ids("owl") == ["m9"]
        assert await reached(talk) == sql.ALL


async def test_a_long_message_is_indexed_in_the_background_in_slices(store_url: str) -> None:
    async with conversation(store_url, [LONG]) as talk:
        assert await talk.ids("word5999") == []
        assert [row[3] > 0 for row in await indexed(talk)] == [True]
        await talk.backfill().run()
        rows = await indexed(talk)
        assert len(rows) > 20
        assert all(row[3] == 0 and row[4].split().count("the") <= 255 for row in rows)
        (hit,) = await talk.hits("word5999")
        assert hit.snippet.marked("[", "]").endswith("the word5998 the [word5999] the")
        await talk.replace(message("m1", "short"))
        assert await indexed(talk) == [("m1", 0, 1, 0, "short")]
        assert await talk.ids("word5999") == []


async def test_slices_overlap_so_that_no_phrase_is_cut(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices_module, "MAX_SAME_WORDS", 40)
    monkeypatch.setattr(slices_module, "MAX_SLICE_WORDS", 50)
    async with conversation(store_url, [" ".join(f"w{n}" for n in range(300))]) as talk:
        await talk.backfill().run()
        assert len(await indexed(talk)) > 10
        for start in range(0, 269, 3):
            phrase = " ".join(f"w{n}" for n in range(start, start + 32))
            assert await talk.ids(f'"{phrase}"') == ["m1"], start


async def test_a_long_message_that_changes_meanwhile_is_not_overwritten(store_url: str) -> None:
    """The background work has read the old text; what was stored since is newer."""
    async with conversation(store_url, [LONG]) as talk:
        ((id, due),) = await talk.store.fetch(sql.DUE, talk.address, 5)
        old = await talk.store.fetch(sql.messages(1), talk.address, id)
        await talk.replace(message("m1", "short"))
        await talk.commit(talk.index.writes.finished(id, due, old[0][3]))
        assert await indexed(talk) == [("m1", 0, 1, 0, "short")]
        await talk.replace(message("m1", LONG + " more"))
        await talk.commit(talk.index.writes.finished(id, due, old[0][3]))
        assert await talk.ids("word1") == []
        await talk.backfill().run()
        assert await talk.ids("word1") == ["m1"]
        assert await talk.ids("more") == ["m1"]


async def test_an_existing_conversation_is_indexed_newest_first(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_module, "STEP_MESSAGES", 2)
    async with conversation(store_url) as talk:
        texts = [message(f"m{number}", f"owl number{number}") for number in range(1, 8)]
        await talk.add(*texts, is_indexed=False)
        assert await talk.ids("owl number3") == ["m3"], "by reading the messages"
        work = talk.backfill()
        assert await work.step()
        assert [row[0] for row in await indexed(talk)] == ["m6", "m7"]
        assert await reached(talk) == 6
        await talk.add(message("m8", "owl number8"))
        assert await talk.ids("owl") == [f"m{number}" for number in range(8, 0, -1)]
        while await work.step():
            assert await talk.ids("owl") == [f"m{number}" for number in range(8, 0, -1)]
        assert len(await indexed(talk)) == 8
        assert await reached(talk) == sql.ALL


async def test_a_change_during_the_background_work_wins(store_url: str) -> None:
    async with conversation(store_url) as talk:
        await talk.add(message("m1", "old words"), message("m2", "older"), is_indexed=False)
        old = await talk.store.fetch(sql.messages(1), talk.address, "m1")
        await talk.replace(message("m1", "new words"))
        await talk.put(message("m2", "newer"))  # with a number that is not its own
        await talk.commit(talk.index.writes.filled("m1", 1, old[0][3]))
        await talk.backfill().run()
        assert await indexed(talk) == [("m1", 0, 1, 0, "new words"), ("m2", 0, 2, 0, "newer")]
        assert await talk.ids("old") == []
        assert await talk.ids("new") == ["m1"]


async def test_another_language_indexes_everything_again(store_url: str) -> None:
    async with conversation(store_url, ["Häuser und owls", LONG]) as talk:
        await talk.backfill().run()
        assert await talk.ids("owl") == ["m1"]
        german = Conversation(talk.store, talk.address, "german")
        await german.backfill().run()
        assert await german.ids("Hauses") == ["m1"]
        assert await german.ids("word17") == ["m2"]
        assert await german.store.fetch(STATE, talk.address) == [("german.1", sql.ALL)]


async def test_messages_that_were_stored_or_deleted_without_the_index(store_url: str) -> None:
    async with conversation(store_url, ["an owl", "a cat"]) as talk:
        await talk.add(message("m3", "another owl"), is_indexed=False)
        assert await talk.ids("owl") == ["m1"]
        await talk.backfill().run()
        assert await talk.ids("owl") == ["m3", "m1"]
        await talk.clear(is_indexed=False)
        await talk.backfill().run()
        assert await indexed(talk) == []


async def test_a_damaged_message_is_left_out(store_url: str) -> None:
    async with conversation(store_url) as talk:
        await talk.add(message("m1", "an owl"), message("m2", "an owl"), is_indexed=False)
        await execute(store_url, "UPDATE messages SET body = '{\"id' WHERE id = 'm1'")
        assert await talk.ids("owl") == ["m2"]
        await talk.backfill().run()
        assert await talk.ids("owl") == ["m2"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_every_commit_of_the_background_work_costs_nothing(
    store_url: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_module, "STEP_MESSAGES", 2)
    texts = [message(f"m{number}", f"owl number{number}") for number in range(1, 6)]
    async with searching(store_url) as store:
        await Conversation(store).add(*texts, message("long", LONG), is_indexed=False)
    crashes, is_done = 0, False
    while not is_done:
        async with searching(store_url) as store:
            talk = Conversation(store)

            async def submit(operations: Any, talk: Conversation = talk) -> None:
                if when == "after":
                    await talk.commit(operations)
                raise Killed

            work = talk.backfill()
            work._submit = submit
            try:
                await work.check()
                is_done = not await work.step()
            except Killed:
                crashes += 1
            assert crashes < 12
            if when == "before" and crashes % 2:  # the next life gets one commit further
                one = Conversation(store)
                await one.backfill().step()
    async with searching(store_url) as store:
        talk = Conversation(store)
        assert crashes >= 4
        assert await talk.ids("owl") == [f"m{number}" for number in range(5, 0, -1)]
        assert await talk.ids("word4711") == ["long"]
        assert await reached(talk) == sql.ALL
        rows = await indexed(talk)
        assert len({row[:2] for row in rows}) == len(rows)


# --- rows that go, or come, without the index ------------------------------------------------------


async def test_an_agent_that_is_deleted_leaves_nothing(store_url: str) -> None:
    async with searching(store_url) as store:
        mine, other = Conversation(store), Conversation(store, "A/y")
        await mine.add(message("m1", "an owl"))
        await other.add(message("m1", "an owl"))
        tables = await owned_tables(store)
        await mine.commit(deletion(Address.parse("A/x"), tables))
        assert await indexed(mine) == []
        assert await reached(mine) is None
        assert await other.ids("owl") == ["m1"]
    if store_url.startswith("sqlite"):
        assert await look(store_url, "SELECT agent FROM session_words_rowid") == [("A/y",)]
        found = "SELECT rowid FROM session_words WHERE session_words MATCH '{}w*'"
        assert await look(store_url, found.format(sql.token_of("A/x"))) == []
        assert len(await look(store_url, found.format(sql.token_of("A/y")))) == 1


async def test_a_copied_store_is_searched_at_once(
    store_url: str, tmp_path: Path, postgres_url: str
) -> None:
    async with conversation(store_url, ["two owls", "a cat", "日本語", LONG]) as talk:
        await talk.backfill().run()
    there = f"sqlite:///{tmp_path}/copy.db"
    for target in (postgres_url, there) if store_url.startswith("sqlite") else (there,):
        await copy_store(store_url, target)
        async with searching(target) as store:
            copied = Conversation(store)
            assert await copied.ids('"two owls"') == ["m1"]
            assert await copied.ids("owl") == ["m1"]
            assert await copied.ids("日本") == ["m3"]
            assert await copied.ids("word5000") == ["m4"]
            await copied.commit(copied.index.writes.cleared())
            assert await copied.ids("owl") == []


async def test_the_index_survives_a_vacuum(sqlite_url: str) -> None:
    async with conversation(sqlite_url, ["an owl", "a cat", "a dog"]) as talk:
        await talk.remove("m1")
    with closing(sqlite3.connect(path_of(sqlite_url))) as db:
        db.execute("VACUUM")
    async with conversation(sqlite_url) as talk:
        assert await talk.ids("dog") == ["m3"]
        await talk.commit(talk.index.writes.removed(["m3"]))
        assert await talk.ids("dog") == []
        assert await talk.ids("cat") == ["m2"]


async def test_a_store_that_is_opened_read_only_is_searched(store_url: str) -> None:
    async with conversation(store_url, ["an owl", "a cat"]):
        pass
    async with reading(store_url) as reader:
        (hit,) = await SearchIndex(reader, "A/x").search("owls")
        assert hit.snippet.marked() == "an **owl**"


async def test_a_store_without_the_tables_is_searched(store_url: str) -> None:
    async with opened(store_url) as store:
        await Conversation(store).add(message("m1", "an owl"), is_indexed=False)
        without = SearchIndex(store, "A/x", has_tables=False)
        assert [hit.message_id for hit in await without.search("owls")] == ["m1"]
    async with conversation(store_url) as talk:
        await talk.backfill().run()
        talk.number = 1
        await talk.add(message("m2", "an owl"))
        found = await SearchIndex(talk.store, "A/x").search("owls")
        assert [hit.message_id for hit in found] == ["m2", "m1"]


async def test_a_commit_of_a_message_touches_one_row_of_the_index(store_url: str) -> None:
    """The store counts rows; the triggers of SQLite must not add to them."""
    async with conversation(store_url, ["an owl"]) as talk:
        changed = talk.index.writes.stored(message("m1", "another owl"))
        assert await talk.commit(changed) == (1, 0)
        made = talk.index.writes.stored(message("m2", "a new one"), 7, is_new=True)
        assert await talk.commit(made) == (1,)


def test_the_limit_of_a_text_is_below_that_of_a_message() -> None:
    assert writes.MAX_TEXT < writes.MAX_BODY
    assert set(SCHEMA.owned) == {"session_texts", "session_indexed"}
