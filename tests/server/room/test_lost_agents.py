"""An agent that this host has lost: whoever waits for an answer is sent away, comes back, and gets it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import asyncpg
import httpx2 as httpx
import pytest
from conversation import agent_of
from tabs import LONG, MESSAGES, Served, served, text_of, user

from outlast import Think
from outlast.agent.agent import parts_of
from outlast.chat.transcript.transcript import Transcript
from outlast.host.address import Address
from outlast.store.postgres.engine import parse
from outlast.testing import ScriptedModel

AWAY = (1013, "try again")
THIEF = "UPDATE agents SET epoch = epoch + 1, owner = 'thief', commit_no = commit_no + 1"
FORGET = "DELETE FROM inbox WHERE id = 'second'; UPDATE agents SET commit_no = commit_no - 1"


class Talker(Think):
    model = ScriptedModel.answering(lambda messages: "Here it is.")


async def elsewhere(url: str, script: str) -> None:
    """What somebody else does to the database."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            db.executescript(script)
        return
    dsn, schema = parse(url)
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    try:
        await connection.execute(script)
    finally:
        await connection.close()


@asynccontextmanager
async def before_its_claim(server: Served) -> AsyncIterator[None]:
    """What is accepted in the block is not taken up before its end."""
    async with server.app.host.using(Address.of("Talker", "a")) as agent:
        await parts_of(agent)[Transcript].changing.__aenter__()
        try:
            yield
        finally:
            await parts_of(agent)[Transcript].changing.__aexit__(None, None, None)


async def accepted(server: Served) -> None:
    """Wait until a request waits for its turn."""
    agent = agent_of(server.app.host, Talker)
    async with asyncio.timeout(LONG):
        while not agent.turn_statistics().waiting:
            await asyncio.sleep(0.001)


async def test_who_waits_for_an_agent_that_another_owner_has_taken_is_told_to_come_back(
    store_url: str,
) -> None:
    async with served(Talker, url=store_url) as server:
        async with server.tab(path="/agents/talker/a") as tab:
            await tab.answered("first", "Hello")
            async with before_its_claim(server):
                await tab.say("second", "And?")
                await accepted(server)
                await elsewhere(store_url, THIEF)
            assert await tab.until_closed() == AWAY
        async with server.tab(path="/agents/talker/a") as back:
            await back.until(lambda: _says(back.all(MESSAGES), "Here it is.", 2))


async def test_who_waits_for_what_a_database_has_lost_is_told_to_come_back(store_url: str) -> None:
    """It was restored from an older copy, or a failover has lost its last commits."""
    async with served(Talker, url=store_url) as server:
        async with server.tab(path="/agents/talker/a") as tab:
            await tab.answered("first", "Hello")
            async with before_its_claim(server):
                await tab.say("second", "And?")
                await accepted(server)
                await elsewhere(store_url, FORGET)
            assert await tab.until_closed() == AWAY
        async with server.tab(path="/agents/talker/a") as back:
            await back.wait(MESSAGES)
            assert "And?" not in str(back.all(MESSAGES))
            await back.answered("third", "And?")
            assert back.text("third") == "Here it is."


def _says(frames: list[dict], text: str, times: int) -> bool:  # type: ignore[type-arg]
    last = frames[-1]["messages"] if frames else []
    return sum(text_of(each) == text for each in last) == times


async def test_who_reads_events_of_an_agent_that_was_lost_is_let_go_and_can_resume(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(Talker, url=store_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        chat = server.at("a", "chat", agent="talker")
        first = {"id": "first", "messages": [user("u1", "Hello")]}
        assert "[DONE]" in (await http.post(chat, json=first)).text
        async with before_its_claim(server):
            second = {"id": "second", "messages": [user("u2", "And?")]}
            reading = asyncio.create_task(http.post(chat, json=second))
            await accepted(server)
            await elsewhere(store_url, THIEF)
        with suppress(httpx.HTTPError):
            assert "[DONE]" not in (await asyncio.wait_for(reading, LONG)).text
        async with server.tab(path="/agents/talker/a") as back:
            await back.until(lambda: _says(back.all(MESSAGES), "Here it is.", 2))
        assert not [each for each in caplog.records if each.exc_info]
