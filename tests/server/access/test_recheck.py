"""Connections that stay open are asked about again: `Auth(recheck=…)`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest
from tabs import LONG, body_of, served, user

from outlast import Auth, Think
from outlast.agent.agent import parts_of
from outlast.chat.gateway import ChatGateway
from outlast.server.access.auth import AccessDenied
from outlast.server.access.recheck import PAUSES, WITHIN, RecheckFailed, until_refused
from outlast.testing import ScriptedModel, Step

SOON = 0.05  # seconds


class Slow(Think):
    """Says a word, and no more until it is told to."""

    release: asyncio.Event
    model = ScriptedModel(Step.text("Well ") + Step.stalls(), by="request", repeat=True)


class Assistant(Think):
    model = ScriptedModel("Hello.", repeat=True)


class Guard:
    """The application's functions: who is known, and what they may."""

    def __init__(self) -> None:
        self.known: Any = "alice"
        self.may = True
        self.asked: list[tuple[Any, str]] = []

    def auth(self, connection: Any) -> Any:
        return self.known

    async def authorize(self, principal: Any, address: Any, action: str) -> bool:
        self.asked.append((principal, action))
        return self.may

    def options(self, every: float | timedelta = SOON) -> dict[str, Any]:
        return {"auth": Auth(self.auth, recheck=every), "authorize": self.authorize}


async def test_an_open_socket_is_closed_when_its_user_is_not_known_any_more(
    sqlite_url: str,
) -> None:
    guard = Guard()
    async with served(Assistant, url=sqlite_url, **guard.options()) as server:
        async with server.tab(path="/agents/assistant/a") as tab:
            await tab.say("r", "Hi")
            await tab.done("r")
            guard.known = None
            assert await tab.until_closed() == (1008, "unauthorized")
        assert len(server.app.rooms) == 0


async def test_an_open_socket_is_closed_when_its_user_may_not_any_more(sqlite_url: str) -> None:
    guard = Guard()
    async with served(
        Assistant, url=sqlite_url, **guard.options(timedelta(seconds=SOON))
    ) as server:
        async with server.tab(path="/agents/assistant/a") as tab:
            guard.may = False
            assert await tab.until_closed() == (1008, "forbidden")
    assert set(guard.asked) == {("alice", "connect")}


async def test_who_may_stay_stays_as_who_they_are_by_then(sqlite_url: str) -> None:
    guard = Guard()
    async with served(Assistant, url=sqlite_url, **guard.options(0.01)) as server:
        async with server.tab(path="/agents/assistant/a") as tab:
            guard.known = "alice, an administrator"
            async with asyncio.timeout(LONG):
                while ("alice, an administrator", "connect") not in guard.asked:
                    await asyncio.sleep(0.005)
            await tab.say("r", "Hi")
            await tab.done("r")
            (room,) = server.app.rooms._rooms.values()
            assert [each.principal for each in room.connections] == ["alice, an administrator"]


async def test_an_event_stream_ends_and_its_turn_goes_on(sqlite_url: str) -> None:
    guard = Guard()
    async with (
        served(Slow, url=sqlite_url, **guard.options()) as server,
        httpx.AsyncClient(base_url=server.http, timeout=LONG) as http,
    ):
        path, body = "/agents/slow/a/chat", body_of(user("u", "Hm?"))
        async with http.stream("POST", path, json=body) as stream:
            lines = stream.aiter_lines()
            async for line in lines:
                if "Well" in line:
                    break
            guard.known = None
            rest = [line async for line in lines]
        assert "data: [DONE]" not in rest
        assert (await http.get(f"{path}/stream")).status_code == 401
        guard.known = "alice"
        async with server.app.host.using(_address("Slow", "a")) as agent:
            turns: Any = agent
            assert parts_of(turns)[ChatGateway].situation().started is not None, "the turn goes on"
        assert server.app.readers.count == 0


async def test_a_stream_that_ends_by_itself_is_whole(sqlite_url: str) -> None:
    guard = Guard()
    async with (
        served(Assistant, url=sqlite_url, **guard.options(60)) as server,
        httpx.AsyncClient(base_url=server.http, timeout=LONG) as http,
    ):
        answer = await http.post("/agents/assistant/a/chat", json=body_of(user("u", "Hi")))
        assert answer.text.rstrip().endswith("data: [DONE]")


async def test_what_a_refused_client_still_sends_is_not_read(sqlite_url: str) -> None:
    guard = Guard()
    async with served(Assistant, url=sqlite_url, **guard.options()) as server:
        async with server.tab(path="/agents/assistant/a") as tab:
            await tab.say("r", "Hi")
            await tab.done("r")
            (room,) = server.app.rooms._rooms.values()
            (connection,) = room.connections
            connection._closing = (1008, "forbidden")  # and it takes a while until that is sent
            await tab.say("r2", "Hi")
            await tab.until_closed()
        async with httpx.AsyncClient(base_url=server.http) as http:
            assert len((await http.get("/agents/assistant/a/get-messages")).json()) == 2


async def test_who_cannot_be_rechecked_may_come_back(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("outlast.server.access.recheck.PAUSES", (0.01, 0.01))
    guard = Guard()

    def auth(connection: Any) -> Any:
        if guard.known is None:
            raise RuntimeError("postgresql://admin:hunter2@db")
        return guard.known

    options: dict[str, Any] = {"auth": Auth(auth, recheck=SOON)}
    async with served(Assistant, url=sqlite_url, **options) as server:
        async with server.tab(path="/agents/assistant/a") as tab:
            guard.known = None
            assert await tab.until_closed() == (1011, "internal error")
        assert caplog.text.count("cannot recheck the access of") == 2
        guard.known = "alice"
        async with server.tab(path="/agents/assistant/a") as tab:
            await tab.wait("cf_agent_identity")


async def test_without_recheck_nobody_is_asked_again(sqlite_url: str) -> None:
    guard = Guard()
    async with served(
        Assistant, url=sqlite_url, auth=guard.auth, authorize=guard.authorize
    ) as server:
        async with server.tab(path="/agents/assistant/a") as tab:
            guard.known = None
            await tab.say("r", "Hi")
            await tab.done("r")
    assert guard.asked == [("alice", "connect")]


@pytest.mark.virtual_time
async def test_a_recheck_that_fails_is_tried_again_before_anybody_is_sent_away() -> None:
    loop = asyncio.get_running_loop()
    began, outcomes = loop.time(), [RuntimeError("database down")] * len(PAUSES)

    async def ask() -> None:
        if outcomes:
            raise outcomes.pop()
        if loop.time() - began > 1000:
            raise AccessDenied(403)

    why = await until_refused(ask, 300.0, "a connection")
    assert isinstance(why, AccessDenied), "all failures but the last were survived, and forgotten"
    assert loop.time() - began > 1000


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_recheck_that_never_works_keeps_nobody_for_ever(how: str) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def ask() -> None:
        if how == "raises":
            raise RuntimeError("database down")
        await asyncio.Event().wait()

    assert isinstance(await until_refused(ask, 300.0, "a connection"), RecheckFailed)
    lasted = loop.time() - began
    assert 270 + sum(PAUSES) <= lasted <= 300 + sum(PAUSES) + WITHIN * (len(PAUSES) + 1)


@pytest.mark.virtual_time
async def test_connections_that_came_together_are_not_asked_about_all_at_once() -> None:
    loop = asyncio.get_running_loop()
    began, moments = loop.time(), []

    async def ask() -> None:
        moments.append(loop.time() - began)
        raise AccessDenied(401)

    await asyncio.gather(*(until_refused(ask, 100.0, "one") for _ in range(50)))
    assert len({round(each, 3) for each in moments}) > 10
    assert all(90 <= each <= 100 for each in moments)


def test_an_interval_that_is_none_is_refused() -> None:
    for wrong in (0, -1, float("nan"), timedelta(0)):
        with pytest.raises(ValueError, match="recheck must "):
            Auth(lambda connection: "x", recheck=wrong)
    with pytest.raises(TypeError, match="check must be a function"):
        Auth("alice")  # type: ignore[arg-type]
    assert Auth(lambda connection: "x").recheck is None


def _address(kind: str, name: str) -> Any:
    from outlast.host.address import Address

    return Address.of(kind, name)
