"""A server whose database is away says so, accepts nothing that it cannot keep, and goes on afterwards."""

from __future__ import annotations

import asyncio
import logging

import httpx2 as httpx
import pytest
from proxy import Proxy, proxied
from rows import look
from tabs import ACK, LONG, PROBE, RESPONSE, RESUMING, served

from loops import skip
from outlast import Think
from outlast.server.http import readiness
from outlast.store.postgres import engine as postgres
from outlast.testing import ScriptedModel


class Talker(Think):
    model = ScriptedModel.answering(lambda messages: "Here it is.")


async def until_ready(http: httpx.AsyncClient, url: str, status: int) -> httpx.Response:
    async with asyncio.timeout(LONG):
        while (found := await http.get(f"{url}/readyz")).status_code != status:
            await asyncio.sleep(0.005)
    return found


def go_away(proxy: Proxy) -> None:
    proxy.down = ""
    proxy.cut_all()


async def test_a_server_is_not_ready_while_its_store_is_away_even_if_nobody_asks_for_anything(
    postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "WITHIN", 0.2)
    async with (
        proxied(postgres_url) as (proxy, url),
        served(Talker, url=url) as server,
        httpx.AsyncClient() as http,
    ):
        assert (await http.get(f"{server.http}/readyz")).text == "ready"
        go_away(proxy)
        found = await until_ready(http, server.http, 503)
        assert found.text == "not ready: the store does not respond"
        assert (await http.get(f"{server.http}/healthz")).text == "ok"
        proxy.down = None
        await until_ready(http, server.http, 200)
        async with server.tab(path="/agents/talker/a") as tab:
            await tab.answered("first", "Hello")


@pytest.mark.skipped_time
async def test_a_server_is_not_ready_while_its_store_is_silent(postgres_url: str) -> None:
    async with (
        proxied(postgres_url) as (proxy, url),
        served(Talker, url=url) as server,
        httpx.AsyncClient() as http,
    ):
        proxy.cut_at("SELECT 1", "silence")
        asking = asyncio.create_task(http.get(f"{server.http}/readyz"))
        await asyncio.wait_for(proxy.has_cut.wait(), LONG)
        skip(readiness.WITHIN)
        assert (await asking).status_code == 503
        await until_ready(http, server.http, 200)


async def test_clients_that_come_while_the_store_is_away_come_back_later_and_no_traceback_is_logged(
    postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "READ_FOR", 0.1)
    async with (
        proxied(postgres_url) as (proxy, url),
        served(Talker, url=url) as server,
        httpx.AsyncClient() as http,
    ):
        caplog.set_level(logging.INFO)
        go_away(proxy)
        for _ in range(3):
            async with server.tab(path="/agents/talker/a") as tab:
                assert await tab.until_closed() == (1013, "try again")
            refused = await http.get(server.at("a", "get-messages", agent="talker"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        proxy.down = None
        async with server.tab(path="/agents/talker/a") as tab:
            await tab.answered("first", "Hello")
        ours = [each for each in caplog.records if each.name.startswith(("outlast", "asyncio"))]
        assert not [each for each in ours if each.exc_info and "proxy" not in str(each.exc_info[2])]
        said = [each.getMessage() for each in ours if each.levelno >= logging.WARNING]
        assert sum("the store does not answer" in each for each in said) <= 3
        assert any("the store answers again after" in each for each in said)


class Snowy(Think):
    model = ScriptedModel.answering(lambda messages: "Here it is: \N{SNOWMAN}.")


async def test_an_answer_that_the_database_does_not_accept_is_one_error_for_whoever_asked(
    postgres_url: str,
) -> None:
    path = "/agents/snowy/a"
    async with served(Snowy, url=postgres_url) as server:
        await look(postgres_url, "ALTER TABLE streams ADD CHECK (body NOT LIKE '%\N{SNOWMAN}%')")
        async with server.tab(path=path) as tab:
            await tab.say("first", "What does snow look like?")
            assert await tab.until_closed() == (1013, "try again")
        async with asyncio.timeout(LONG):
            ended = "SELECT outcome FROM inbox WHERE ended_at IS NOT NULL"
            while not (found := await look(postgres_url, ended)):
                await asyncio.sleep(0.005)
        assert found == [("error",)]
        async with server.tab(path=path) as back:
            await back.send(PROBE)
            await back.wait(RESUMING, id="first")
            await back.send(ACK, id="first")
            end = await back.done("first")
            assert (end["error"], end["body"]) == (True, "The answer could not be stored.")
            assert len(back.all(RESPONSE, id="first", done=True)) == 1
