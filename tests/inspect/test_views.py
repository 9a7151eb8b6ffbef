"""Looking at a store, on both engines: beside a host that has it open, and without one."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, ChatRecovery, Think
from outlast.core.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from outlast.host.address import Address
from outlast.inspect import views
from outlast.inspect.offline import offline
from outlast.inspect.reader import reading
from outlast.inspect.values import Ambiguous, NotFound, as_json
from outlast.store.operations import Query
from outlast.store.url import file_of
from outlast.testing import ScriptedModel, Step
from support import forever, hosting


class Notes(Agent):
    async def keep(self) -> None:
        await self.storage.put("key", "ö" * 10)


class Talker(Think):
    model = ScriptedModel("Hello!", repeat=True)
    sub_agents = [Notes]

    async def work(self) -> None:
        await self.start_fiber("dig", forever, {"depth": 3}, id="f1")
        await self.schedule("0 9 * * *", self.remind, {"what": "tea"})
        notes = await self.sub_agent(Notes, "sub/1")
        await notes.keep()

    async def remind(self, payload: Any) -> None: ...


class Silent(Think):
    model = ScriptedModel(Step.text("Well ") + Step.stalls(), by="request", repeat=True)


async def test_agents_are_seen_beside_the_host_with_all_that_they_have(store_url: str) -> None:
    async with hosting(Talker, Silent, url=store_url, shutdown_timeout=0) as host:
        await host.get(Talker, "a").save_messages("Hi")
        await host.get(Talker, "a").work()
        await host.get(Silent, "s").submit_messages("Hm?", submission_id="hm")
        await host.get(Silent, "s").submit_messages("And?", submission_id="and")
        async with reading(store_url) as reader:
            while (await views.agent(reader, Address.of("Silent", "s"))).running is None:
                await asyncio.sleep(0.01)
            found = {each.address: each for each in await views.agents(reader)}
            assert list(found) == ["Silent/s", "Talker/a", "Talker/a/Notes/sub%2F1"]
            silent, talker, notes = found.values()
            assert (silent.state, silent.running, silent.open_turns) == ("answering", "hm", 2)
            assert (talker.state, talker.turns, talker.messages) == ("working", 1, 2)
            assert (talker.fibers, talker.schedules) == (1, 1)
            assert talker.next_schedule_at is not None
            assert (notes.kind, notes.name, notes.state) == ("Notes", "sub/1", "idle")
            assert [each.address for each in await views.agents(reader, after="Silent/s")] == [
                "Talker/a",
                "Talker/a/Notes/sub%2F1",
            ]
            address = Address.of("Talker", "a")
            (fiber,) = await views.fibers(reader, address)
            assert (fiber.id, fiber.snapshot, fiber.is_managed) == ("f1", {"depth": 3}, True)
            (schedule,) = await views.schedules(reader, address)
            assert (schedule.cron, schedule.payload) == ("0 9 * * *", {"what": "tea"})
            said = await views.messages(reader, address)
            assert [(each.role, each.text) for each in said] == [
                ("assistant", "Hello!"),
                ("user", "Hi"),
            ]
            child = address.child("Notes", "sub/1")
            sizes = {each.table: each for each in await views.sizes(reader, child)}
            assert (sizes["storage"].rows, sizes["storage"].bytes) == (1, 22), "bytes, not letters"
            assert await views.kinds(reader) == ["Notes", "Silent", "Talker"]


async def test_turns_are_found_by_agent_by_state_and_by_the_beginning_of_an_id(
    store_url: str,
) -> None:
    async with hosting(Silent, url=store_url, shutdown_timeout=0) as host:
        silent = host.get(Silent, "s")
        for id in ("red-1", "red-2", "blue"):
            await silent.submit_messages(f"About {id}", submission_id=id, metadata={"n": id})
        async with reading(store_url) as reader:
            address = Address.of("Silent", "s")
            while (await views.agent(reader, address)).running is None:
                await asyncio.sleep(0.01)
            found = await views.turns(reader, address)
            assert [each.id for each in found] == ["blue", "red-2", "red-1"]
            assert [each.asked for each in found] == ["About blue", "About red-2", "About red-1"]
            assert found[0].metadata == {"n": "blue"}
            assert [each.id for each in await views.turns(reader, limit=2)] == ["blue", "red-2"]
            assert len(await views.turns(reader, only_open=True, only_submissions=True)) == 3
            assert await views.find_turn(reader, "bl") == (address, "blue")
            with pytest.raises(Ambiguous, match="red-1 of Silent/s, red-2"):
                await views.find_turn(reader, "red")
            with pytest.raises(NotFound, match="no turn 'green'"):
                await views.find_turn(reader, "green")
            with pytest.raises(NotFound):
                await views.turn(reader, address, "green")
            with pytest.raises(NotFound):
                await views.agent(reader, Address.of("Silent", "nobody"))
            assert as_json(found[0])["acceptedAt"] == found[0].accepted_at
            while not (chunks := await views.chunks(reader, address, "red-1")):
                await asyncio.sleep(0.01)
            chunk = chunks[0]
            assert (chunk["seq"], chunk["attempt"], chunk["chunk"]["type"]) == (0, 1, "start")


@pytest.mark.virtual_time
async def test_incidents_are_seen_while_they_last_and_when_they_were_given_up(
    store_url: str,
) -> None:
    class Failing(Silent):
        chat_stream_stall_timeout = 1
        chat_recovery = ChatRecovery(max_attempts=1, terminal_message="No.")

    async with hosting(Failing, url=store_url) as host:
        turn = await host.get(Failing, "a").save_messages("Hi")
        assert turn.status == "error"
        (incident,) = await views.incidents(host.store)
        assert (incident.agent, incident.turn) == ("Failing/a", turn.request_id)
        assert (incident.state, incident.reason) == ("exhausted", "max_attempts_exceeded")
        assert await views.incidents(host.store, Address.of("Failing", "b")) == []
        (agent,) = await views.agents(host.store)
        assert (agent.given_up, agent.incidents) == (1, 0)


# --- a store that cannot be looked at ------------------------------------------------------------


async def look(url: str) -> None:
    async with reading(url) as reader:
        await views.agents(reader)


async def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, postgres: str) -> None:
    with pytest.raises(StoreUnavailable, match="no store at"):
        await look(f"sqlite:///{tmp_path}/none.db")
    assert os.listdir(tmp_path) == []
    with pytest.raises(StoreUnavailable, match="has no schema 'nobody_made_it'"):
        separator = "&" if "?" in postgres else "?"
        await look(f"{postgres}{separator}schema=nobody_made_it")


async def test_a_file_that_is_no_store_is_said(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("Dear diary, " * 1000)
    with pytest.raises(StoreCorrupt):
        await look(f"sqlite:///{tmp_path}/text.db")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (a)").connection.close()
    with pytest.raises(StoreUnavailable, match="is not an outlast store"):
        await look(f"sqlite:///{tmp_path}/other.db")


@pytest.mark.parametrize(
    ("version", "error", "words"), [(99, StoreTooNew, "upgrade"), (5, StoreUnavailable, "Start a")]
)
async def test_a_store_of_another_version_is_refused(
    sqlite_url: str, version: int, error: type[Exception], words: str
) -> None:
    async with hosting(Notes, url=sqlite_url):
        pass
    path = file_of(sqlite_url)
    assert path is not None
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(version),))
    db.close()
    with pytest.raises(error, match=words):
        await look(sqlite_url)


async def test_nothing_can_be_written_through_a_reader(store_url: str) -> None:
    async with hosting(Notes, url=store_url):
        pass
    async with reading(store_url) as reader:
        with pytest.raises(Exception, match=r"(?i)read-?\s?only|readonly"):
            await reader.fetch(Query.same("DELETE FROM agents"))


# --- writing in the place of a host --------------------------------------------------------------


async def test_a_turn_that_is_cancelled_without_a_host_ends_when_the_next_one_starts(
    store_url: str,
) -> None:
    address = Address.of("Silent", "s")
    async with hosting(Silent, url=store_url, shutdown_timeout=0) as host:
        await host.get(Silent, "s").submit_messages("Hm?", submission_id="hm")
        await host.get(Silent, "s").submit_messages("And?", submission_id="and")
        while (await views.agent(host.store, address)).running is None:
            await asyncio.sleep(0.01)
    async with offline(store_url) as writer:
        assert await writer.seal(address, "hm")
        assert await writer.cancel(address, "and")
        assert not await writer.cancel(address, "and"), "once is enough"
        with pytest.raises(NotFound):
            await writer.cancel(address, "green")
        with pytest.raises(NotFound):
            await writer.release(Address.of("Silent", "nobody"))
    async with hosting(Silent, url=store_url, life="2") as host:
        await host.until_settled()
        first, second = reversed(await views.turns(host.store, address))
        assert (first.outcome, first.cancelled) == ("aborted", "An operator ended this turn.")
        assert (second.outcome, second.attempt) == ("aborted", 0)
        said = await host.get(Silent, "s").get_messages()
        assert said[1].text.strip() == "Well", "what was said is kept"


async def test_another_answer_that_is_asked_for_without_a_host_is_given_by_the_next_one(
    store_url: str,
) -> None:
    address = Address.of("Talker", "a")
    async with hosting(Talker, url=store_url) as host:
        turn = await host.get(Talker, "a").save_messages("Hi")
    async with offline(store_url) as writer:
        made = await writer.retry(address, turn.request_id)
        with pytest.raises(NotFound):
            await writer.retry(address, made)
    async with hosting(Talker, url=store_url, life="2") as host:
        await host.until_settled()
        newest = (await views.turns(host.store, address))[0]
        assert (newest.id, newest.kind, newest.outcome) == (made, "regenerate", "completed")


async def test_an_agent_that_is_stuck_is_released_without_a_host(store_url: str) -> None:
    address = Address.of("Talker", "a")
    async with hosting(Talker, url=store_url) as host:
        await host.get(Talker, "a").save_messages("Hi")
        commits = Query.same("SELECT commit_no FROM agents")
        before = await host.store.fetch(commits)
        assert (await views.agent(host.store, address)).state == "idle"
    async with offline(store_url) as writer:
        assert not await writer.release(address), "it was not stuck"
        from outlast.chat.recovery.incidents import _STRIKE

        for _ in range(4):  # one with others, three alone
            await writer._commit(address, [(_STRIKE, (address.text, 1))])
        assert (await views.agent(writer._store, address)).state == "stuck"
        assert await writer.release(address)
        assert (await views.agent(writer._store, address)).state == "idle"
        assert await writer._store.fetch(commits) > before, "under the fence"
