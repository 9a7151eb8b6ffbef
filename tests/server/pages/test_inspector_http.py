"""The inspector over HTTP: what it shows, what it does, and to whom."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2 as httpx
import pytest
from tabs import LONG, serving

from outlast import App, Think, TurnConfig, tool
from outlast.server.pages.pages import Page
from outlast.testing import ScriptedModel, Step

HERE = "/_outlast/inspect"
TOKEN = "the-token-of-these-tests"


class Talker(Think):
    model = ScriptedModel("Yes.", repeat=True)


class Silent(Think):
    model = ScriptedModel(Step.text("Well ") + Step.stalls(), by="request", repeat=True)


class Web:
    """A client of the inspector of one server."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, what: str, status: int = 200, **query: Any) -> Any:
        answer = await self._client.get(f"{HERE}/{what}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, what: str, status: int = 200, **body: Any) -> Any:
        answer = await self._client.post(f"{HERE}/{what}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_TOKEN", TOKEN)


def connected(url: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {TOKEN}"}
    return httpx.AsyncClient(base_url=url, timeout=LONG, headers=headers)


async def test_what_is_stored_is_shown_with_the_sockets_that_are_open(store_url: str) -> None:
    app = App([Talker], store_url, inspector=True)
    async with serving(app) as served, connected(served.http) as client:
        web = Web(client)
        turn = await app.host.get(Talker, "a/ö").save_messages("Hi")
        (agent,) = await web.get("agents")
        assert (agent["address"], agent["state"], agent["sockets"]) == (
            "Talker/a%2F%C3%B6",
            "idle",
            0,
        )
        async with served.tab(path="/agents/talker/b"):
            async with asyncio.timeout(LONG):
                while (await web.get("host"))["sockets"] != 1:
                    await asyncio.sleep(0.01)
        one = agent["address"]
        assert (await web.get("agent", agent=one))["messages"] == 2
        (asked,) = await web.get("turns", agent=one)
        assert (asked["id"], asked["asked"]) == (turn.request_id, "Hi")
        told = await web.get("turn", agent=one, id=turn.request_id)
        assert [each["kind"] for each in told["moments"]] == [
            "accepted",
            "claimed",
            "step",
            "said",
            "settled",
        ]
        assert await web.get("turn", id=turn.request_id) == told, "the id alone is enough"
        assert (await web.get("chunks", id=turn.request_id))[0]["chunk"]["type"] == "start"
        assert [each["text"] for each in await web.get("messages", agent=one)] == ["Yes.", "Hi"]
        for what in ("fibers", "schedules", "ledger"):
            assert await web.get(what, agent=one) == []
        for what in ("incidents", "submissions"):
            assert await web.get(what) == []
        assert {each["table"] for each in await web.get("sizes")} >= {"messages", "streams"}


async def test_turns_are_cancelled_sealed_and_tried_again(sqlite_url: str) -> None:
    app = App([Silent, Talker], sqlite_url, inspector=True)
    async with serving(app) as served, connected(served.http) as client:
        web = Web(client)
        await app.host.get(Silent, "s").submit_messages("Hm?", submission_id="hm")
        assert await web.post("cancel", agent="Silent/s", id="hm") == {"cancelled": True}
        await app.host.until_settled()
        assert (await web.get("turns"))[0]["outcome"] == "aborted"
        assert await web.post("seal", agent="Silent/s", id="hm") == {"sealed": False}
        assert await web.post("release", agent="Silent/s") == {"released": True}
        turn = await app.host.get(Talker, "t").save_messages("Hi")
        assert await web.post("retry", agent="Talker/t", id=turn.request_id) == {"retried": True}
        async with asyncio.timeout(LONG):
            while (
                len(found := await web.get("turns", agent="Talker/t")) < 2
                or not found[0]["endedAt"]
            ):
                await asyncio.sleep(0.01)
        assert (found[0]["kind"], found[0]["outcome"]) == ("regenerate", "completed")
        await web.post("retry", 404, agent="Talker/t", id="nobody")


async def test_a_conversation_is_forked_at_a_message(store_url: str) -> None:
    app = App([Talker], store_url, inspector=True)
    async with serving(app) as served, connected(served.http) as client:
        web = Web(client)
        alice = app.host.get(Talker, "alice")
        for text in ("first", "second", "third"):
            await alice.save_messages(text)
        messages = await alice.get_messages()
        made = await web.post("fork", agent="Talker/alice", message=messages[3].id, name="bob")
        assert made == {"agent": "Talker/bob", "name": "bob", "messages": 4}
        bob = app.host.get(Talker, "bob")
        assert await bob.get_messages() == messages[:4]
        await bob.save_messages("something else")
        assert [each.text for each in await bob.get_messages()][4] == "something else"
        assert await alice.get_messages() == messages, "each goes on for itself"
        named = await web.post("fork", agent="Talker/alice", message=messages[0].id)
        assert named["name"].startswith("alice-")
        assert named["messages"] == 1
        again = await web.post(
            "fork", 400, agent="Talker/alice", message=messages[3].id, name="bob"
        )
        assert "already has a conversation" in again["error"]
        await web.post("fork", 404, agent="Talker/alice", message="nobody", name="carol")


async def test_the_exact_requests_to_the_model_are_shown(sqlite_url: str) -> None:
    class Caller(Think):
        model = ScriptedModel.calls("look", where="out").then("Nothing.")
        system_prompt = "Be brief."

        async def before_turn(self, context: Any) -> TurnConfig:
            return TurnConfig(headers={"authorization": "Bearer secret"})

        @tool(effect="read")
        async def look(self, where: str) -> str:
            """Look somewhere."""
            return f"nothing {where}"

    app = App([Caller], sqlite_url, inspector=True, ui=Page(dev=True))
    async with serving(app) as served, connected(served.http) as client:
        turn = await app.host.get(Caller, "a").save_messages("Look!")
        first, second = await Web(client).get("requests", id=turn.request_id)
        assert (first["step"], second["step"], first["model"]) == (1, 2, "scripted")
        assert first["instructions"].startswith("Be brief.")
        assert [each["name"] for each in first["tools"]] == ["look"]
        assert first["tools"][0]["inputSchema"]["required"] == ["where"]
        assert [each["kind"] for each in first["messages"]] == ["request"]
        assert [each["kind"] for each in second["messages"]] == ["request", "response", "request"]
        assert second["messages"][2]["parts"][0]["content"] == "nothing out"
        assert first["settings"]["extra_headers"] == {"authorization": "…"}
        assert await Web(client).get("requests", agent="Caller/a", id="another") == []
        told = [event["name"] for event in app._activity._kept]
        assert "chat:turn:finish" in told
        assert not any("request" in event for event in app._activity._kept), "that is no line"


@pytest.mark.parametrize(
    ("what", "query", "status", "told"),
    [
        ("agent", {}, 400, "agent is missing"),
        ("agent", {"agent": "Talker"}, 400, "an address must look like"),
        ("agent", {"agent": "Talker/nobody"}, 404, "no agent Talker/nobody"),
        ("turn", {"agent": "Talker/a"}, 400, "id is missing"),
        ("turn", {"id": "nobody"}, 404, "no turn 'nobody' in this store"),
        ("turns", {"before": "soon"}, 400, "before must be a number"),
        ("unicorns", {}, 404, "unknown view 'unicorns'"),
        ("cancel", {}, 405, "cancel does not accept GET"),
    ],
)
async def test_what_makes_no_sense_is_said(
    sqlite_url: str, what: str, query: dict[str, str], status: int, told: str
) -> None:
    async with serving(App([Talker], sqlite_url, inspector=True)) as served:
        async with connected(served.http) as client:
            assert told in (await Web(client).get(what, status, **query))["error"]


async def test_it_is_off_unless_it_is_switched_on(sqlite_url: str) -> None:
    async with serving(App([Talker], sqlite_url)) as served:
        async with connected(served.http) as client:
            assert (await client.get(f"{HERE}/agents")).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-for": "203.0.113.7"},
        {"host": "attacker.example"},
        {"host": "203.0.113.7:8000"},
        {"origin": "https://attacker.example"},
    ],
)
async def test_without_auth_it_answers_this_machine_alone(
    sqlite_url: str, headers: dict[str, str]
) -> None:
    async with serving(App([Talker], sqlite_url, inspector=True)) as served:
        async with connected(served.http) as client:
            assert (await client.get(f"{HERE}/agents", headers=headers)).status_code == 403
            assert (await client.get(f"{HERE}/agents")).status_code == 200


async def test_with_auth_authorize_must_let_them_inspect(sqlite_url: str) -> None:
    asked: list[tuple[Any, Any, str]] = []

    def authorize(principal: Any, address: Any, action: str) -> bool:
        asked.append((principal, address, action))
        return action != "inspect" or principal == "root"

    app = App(
        [Talker],
        sqlite_url,
        inspector=True,
        auth=lambda connection: connection.headers.get("x-user"),
        authorize=authorize,
    )
    async with serving(app) as served, connected(served.http) as client:
        for user, status in ((None, 401), ("alice", 403), ("root", 200)):
            headers = {} if user is None else {"x-user": user}
            assert (await client.get(f"{HERE}/agents", headers=headers)).status_code == status
            posted = await client.post(
                f"{HERE}/cancel", json={"agent": "Talker/a", "id": "x"}, headers=headers
            )
            assert posted.status_code == status
    assert ("alice", None, "inspect") in asked


async def test_whoever_may_chat_may_not_look_at_everybody(sqlite_url: str) -> None:
    app = App([Talker], sqlite_url, inspector=True, auth=lambda connection: "somebody")
    async with serving(app) as served, connected(served.http) as client:
        assert (await client.get(f"{HERE}/agents")).status_code == 403
