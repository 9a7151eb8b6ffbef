"""The store is taken away under a running server: nothing is acknowledged, and the server says so."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx2 as httpx
import pytest
from tabs import served

from outlast import Think, rpc
from outlast.store import sqlite
from outlast.testing import ScriptedModel, Step


class Assistant(Think):
    model = ScriptedModel(Step.text("Hello!"))

    @rpc
    async def remember(self, key: str) -> str:
        await self.storage.put(key, "v")
        return key


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


async def test_a_server_whose_store_is_gone_accepts_nothing_and_is_not_ready(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOK_EVERY", 0.0)
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
        assert all(answer.status_code >= 500 for answer in refused), refused
        assert all(str(path) not in answer.text for answer in refused)
        assert (await http.get(f"{server.http}/readyz")).status_code == 503
        assert (await http.get(f"{server.http}/healthz")).status_code == 200
        told = [each for each in caplog.records if each.levelno == logging.CRITICAL]
        assert len(told) == 1
    assert not path.exists()


async def test_readiness_looks_by_itself(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    async with served(Assistant, url=sqlite_url) as server, httpx.AsyncClient() as http:
        path.unlink()
        assert (await http.get(f"{server.http}/readyz")).status_code == 503
