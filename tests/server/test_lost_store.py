"""The store is taken away under a running server: nothing is acknowledged, and the server says so."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx2 as httpx
import pytest
from tabs import served

from outlast import Think, rpc
from outlast.store.sqlite import engine as sqlite
from outlast.testing import ScriptedModel, Step


class Assistant(Think):
    model = ScriptedModel(Step.text("Hello!"))

    @rpc
    async def remember(self, key: str) -> str:
        await self.storage.put(key, "v")
        return key


class Talker(Think):
    model = ScriptedModel(Step.text("word " * 1000, delay=0.01))


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


async def test_a_server_whose_store_is_gone_accepts_nothing_and_is_not_ready(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECK_FILES_EVERY", 0.0)
    path = path_of(sqlite_url)
    async with served(Assistant, url=sqlite_url) as server, httpx.AsyncClient() as http:
        agent = f"{server.http}/agents/assistant/a"
        message = {"role": "user", "parts": [{"type": "text", "text": "Hi"}]}

        async def submit(key: str) -> httpx.Response:
            return await http.post(
                f"{agent}/submissions",
                json={"messages": [message]},
                headers={"Idempotency-Key": key},
            )

        async def remember(key: str) -> httpx.Response:
            return await http.post(f"{agent}/rpc/remember", json={"args": [key]})

        assert (await submit("before")).status_code == 202
        assert (await remember("before")).status_code == 200
        assert (await http.get(f"{server.http}/readyz")).status_code == 200
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink()
        refused = [await remember("after"), await submit("after"), await remember("again")]
        assert [answer.status_code for answer in refused] == [503] * 3
        assert all("retry-after" in answer.headers for answer in refused)
        assert all(str(path) not in answer.text for answer in refused)
        assert (await http.get(f"{server.http}/readyz")).status_code == 503
        assert (await http.get(f"{server.http}/healthz")).status_code == 200
        told = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert [each.levelname for each in told] == ["CRITICAL"], "once, and not once a request"
    assert not path.exists()


async def test_sockets_are_told_to_come_back_and_shown_nothing_more(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    async with served(Talker, url=sqlite_url) as server:
        async with server.tab(path="/agents/talker/a") as tab:
            await tab.say("r1", "Hi")
            await tab.heard(20)
            for each in path.parent.glob(f"{path.name}*"):
                each.unlink()
            assert await tab.until_closed() == (1013, "try again")
            assert not tab.all("cf_agent_use_chat_response", done=True)
        async with server.tab(path="/agents/talker/a") as tab:
            assert (await tab.until_closed())[0] == 1013


async def test_readiness_looks_by_itself(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    async with served(Assistant, url=sqlite_url) as server, httpx.AsyncClient() as http:
        path.unlink()
        assert (await http.get(f"{server.http}/readyz")).status_code == 503
