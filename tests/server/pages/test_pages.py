"""The chat page's own requests: what it is made of, what it may ask, and who may not."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tabs import LONG, served, serving

import outlast.ui
from conformance.fixture_agent import FixtureAgent
from outlast import App, Think
from outlast.core.events import Events
from outlast.host.events import AgentActivated
from outlast.server.access.provenance import authority, is_address
from outlast.server.pages.activity import KEPT, Activity
from outlast.server.pages.conversations import title_of
from outlast.server.pages.pages import Page
from outlast.testing import ScriptedModel

DEV = Page(dev=True)
UI = Path(outlast.ui.__path__[0])
FILES = sorted(each for each in UI.rglob("*") if each.is_file())


class Echo(Think):
    model = ScriptedModel.answering(lambda messages: f"Echo: {messages[-1].parts[-1].content}")


@asynccontextmanager
async def client(store: str, **options: Any) -> AsyncIterator[tuple[Any, httpx.AsyncClient]]:
    app = App([FixtureAgent, Echo], store, **options)
    headers = {} if app.token is None else {"authorization": f"Bearer {app.token.text}"}
    async with (
        serving(app) as running,
        httpx.AsyncClient(base_url=running.http, timeout=LONG, headers=headers) as http,
    ):
        yield app, http


async def ask(http: httpx.AsyncClient, name: str, text: str, agent: str = "echo") -> None:
    """Have something answered."""
    body = {
        "messages": [
            {"id": os.urandom(8).hex(), "role": "user", "parts": [{"type": "text", "text": text}]}
        ]
    }
    assert (await http.post(f"/agents/{agent}/{name}/chat", json=body)).status_code == 200


# --- the page ------------------------------------------------------------------------------------


async def test_there_is_no_page_unless_it_is_switched_on(sqlite_url: str) -> None:
    async with client(sqlite_url) as (_, http):
        for path in ("/", "/_outlast/ui/app.js", "/_outlast/page", "/_outlast/activity"):
            assert (await http.get(path)).status_code == 404


async def test_the_page_and_all_its_files_are_served_with_a_strict_policy(sqlite_url: str) -> None:
    async with client(sqlite_url, ui=True, inspector=True) as (_, http):
        index, inspector = await http.get("/"), await http.get("/inspect")
        assert (
            inspector.headers["content-security-policy"] == index.headers["content-security-policy"]
        )
        assert index.headers["content-type"] == "text/html; charset=utf-8"
        policy = index.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        wanted = set(re.findall(r'(?:src|href)="(_outlast/[^"]+)"', index.text + inspector.text))
        assert {"_outlast/ui/app.js", "_outlast/ui/style.css", "_outlast/ui/icon.svg"} <= wanted
        seen: set[str] = set()
        while wanted - seen:
            path = (wanted - seen).pop()
            seen.add(path)
            found = await http.get(f"/{path}")
            assert (path, found.status_code) == (path, 200)
            assert found.headers["x-content-type-options"] == "nosniff"
            if path.endswith(".js"):
                assert found.headers["content-type"].startswith("text/javascript")
                folder = f"/{path}".rpartition("/")[0]
                for each in re.findall(r'from "(\.[^"]+)"', found.text):
                    wanted.add(posixpath.normpath(f"{folder}/{each}").removeprefix("/"))
        shipped = {
            f"_outlast/ui/{each.relative_to(UI)}"
            for each in FILES
            if each.suffix in (".js", ".css", ".svg")
        }
        assert seen == shipped, "nothing is missing or left over"


async def test_the_inspector_has_a_page_where_it_is_on(sqlite_url: str) -> None:
    async with client(sqlite_url, ui=True) as (_, http):
        assert (await http.get("/inspect")).status_code == 404
        assert (await http.get("/_outlast/page")).json()["inspector"] is None
    async with client(sqlite_url, ui=True, inspector=True) as (_, http):
        assert "inspect/app.js" in (await http.get("/inspect")).text
        assert (await http.get("/_outlast/page")).json()["inspector"] == "inspect"
    async with client(sqlite_url, inspector=True) as (_, http):  # without a chat page
        assert (await http.get("/inspect")).status_code == 200
        assert (await http.get("/_outlast/ui/inspect/app.js")).status_code == 200
        assert (await http.get("/_outlast/page")).json()["chat"] is False
        for path in ("/", "/_outlast/activity", "/_outlast/conversations"):
            assert (await http.get(path)).status_code == 404
        assert (await http.post("/_outlast/kill")).status_code == 404


async def test_only_those_who_may_inspect_are_told_of_the_inspector(sqlite_url: str) -> None:
    options: dict[str, Any] = {
        "ui": True,
        "inspector": True,
        "auth": lambda connection: {"a": "alice", "r": "root"}[connection.headers["x-user"]],
        "authorize": lambda principal, address, action: action != "inspect" or principal == "root",
    }
    async with client(sqlite_url, **options) as (_, http):
        for headers, told in (({}, None), ({"x-user": "a"}, None), ({"x-user": "r"}, "inspect")):
            answer = await http.get("/_outlast/page", headers=headers)
            assert answer.json()["inspector"] == told
        elsewhere = {"x-user": "a", "x-forwarded-for": "10.0.0.1"}
        assert (await http.get("/inspect", headers=elsewhere)).status_code == 200, "no secrets"
    async with client(sqlite_url, ui=True, inspector=True) as (_, http):
        answer = await http.get("/_outlast/page", headers={"authorization": ""})
        assert answer.json()["inspector"] is None


def test_the_page_has_no_inline_script_style_or_foreign_address() -> None:
    for file in FILES:
        if file.suffix == ".html":
            text = file.read_text()
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)
        if file.suffix in (".html", ".css", ".js"):
            text = re.sub(r"http://www\.w3\.org/2000/svg", "", file.read_text())
            assert not re.search(
                r"""(?:src|href|url\(|from|import\()\s*=?\s*["']?(?:https?:)?//""", text
            ), file
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text
            ), file


@pytest.mark.parametrize(
    "path", ["/_outlast/ui/__init__.py", "/_outlast/ui/../pages.py", "/_outlast/ui/", "/_outlast/x"]
)
async def test_only_the_files_of_the_page_are_served(sqlite_url: str, path: str) -> None:
    async with client(sqlite_url, ui=True) as (_, http):
        assert (await http.get(path)).status_code == 404
        assert (await http.post("/_outlast/ui/app.js")).status_code == 405


async def test_the_page_works_where_it_is_mounted(sqlite_url: str) -> None:
    app = App([Echo], sqlite_url, ui=True)
    outer = Starlette(routes=[Mount("/chat", app)], lifespan=app.lifespan)
    async with serving(outer) as running, httpx.AsyncClient(base_url=running.http) as http:
        assert (await http.get("/chat/")).text.startswith("<!doctype html>")
        assert (await http.get("/chat/_outlast/ui/app.js")).status_code == 200
        about = (await http.get("/chat/_outlast/page")).json()
        assert about["agents"] == [{"kind": "Echo", "path": "echo", "hasSession": True}]


async def test_what_is_for_everybody_tells_nothing_of_the_server(sqlite_url: str) -> None:
    async with client(sqlite_url, ui=Page(title="Help", intro="Ask.")) as (_, http):
        about = (await http.get("/_outlast/page")).json()
        assert (about["title"], about["intro"], about["dev"], about["pid"]) == (
            "Help",
            "Ask.",
            False,
            None,
        )


# --- who may -------------------------------------------------------------------------------------

OURS = ["conversations?agent=echo", "search?agent=echo&q=x", "activity"]


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill that should have been refused fails the test, instead of killing whoever runs it."""

    def kill(*_: object) -> None:
        raise AssertionError("this would have been the end")

    monkeypatch.setattr("outlast.server.pages.pages.os.kill", kill)


@pytest.mark.usefixtures("alive")
async def test_what_is_for_development_needs_that_switch(sqlite_url: str) -> None:
    async with client(sqlite_url, ui=True) as (_, http):
        for path in OURS:
            assert (await http.get(f"/_outlast/{path}")).status_code == 403
        assert (await http.post("/_outlast/kill")).status_code == 403


@pytest.mark.usefixtures("alive")
async def test_no_other_page_can_kill_the_server(sqlite_url: str) -> None:
    async with client(sqlite_url, ui=DEV) as (_, http):
        own = str(http.base_url).rstrip("/")
        refused: list[dict[str, str]] = [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site", "origin": own},
            {"sec-fetch-site": "same-site"},
            # A name that was made to mean this machine: the page is its own as far as a browser can tell.
            {
                "host": "evil.example",
                "origin": "http://evil.example",
                "sec-fetch-site": "same-origin",
            },
        ]
        for headers in refused:
            answer = await http.post("/_outlast/kill", headers=headers)
            assert (headers, answer.status_code) == (headers, 403)
            for path in OURS[:2]:
                code = (await http.get(f"/_outlast/{path}", headers=headers)).status_code
                assert code == 403 or "sec-fetch-site" not in headers
        assert (await http.get("/_outlast/kill")).status_code == 404


@pytest.mark.usefixtures("alive")
async def test_a_kill_that_means_another_process_does_nothing(sqlite_url: str) -> None:
    async with client(sqlite_url, ui=DEV) as (_, http):
        assert (await http.post("/_outlast/kill?pid=1")).status_code == 409


@pytest.mark.usefixtures("alive")
async def test_who_is_not_let_in_gets_the_files_and_nothing_else(sqlite_url: str) -> None:
    def auth(request: Any) -> Any:
        return "alice" if request.query_params.get("token") == "secret" else None

    def authorize(principal: str, address: Any, action: str) -> bool:
        return action == "inspect"

    async with client(sqlite_url, ui=DEV, auth=auth, authorize=authorize) as (_, http):
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/_outlast/page")).status_code == 200
        assert (await http.get("/_outlast/conversations?agent=echo")).status_code == 401
        assert (await http.post("/_outlast/kill")).status_code == 401
        found = await http.get("/_outlast/conversations?agent=echo&token=secret")
        assert found.json() == {"conversations": []}
    async with client(sqlite_url, ui=DEV, auth=auth) as (
        _,
        http,
    ):  # everybody may chat, and no more
        listed = await http.get("/_outlast/conversations?agent=echo&token=secret")
        assert listed.status_code == 403
        assert (await http.post("/_outlast/kill?token=secret")).status_code == 403
        assert (await http.get("/_outlast/page?token=secret")).json()["dev"] is False


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:8000", True),
        ("192.168.1.7", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("localhost:8000", True),
        ("demo.localhost", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:80", False),
        ("", False),
    ],
)
def test_addresses_and_this_machine_cannot_be_made_to_mean_another(host: str, is_own: bool) -> None:
    where = authority(host)
    assert (where is not None and is_address(where.name)) is is_own


# --- conversations and search --------------------------------------------------------------------


async def test_conversations_are_listed_newest_first_with_how_they_begin(store_url: str) -> None:
    async with client(store_url, ui=DEV) as (app, http):
        await ask(http, "owls", "What do owls eat?")
        await ask(http, "n%20%C3%B6", "x" * 200)
        await ask(http, "other", "Hello", agent="fixture-agent")
        await app.host.get(Echo, "not in a URL").save_messages("Hello")
        listed = (await http.get("/_outlast/conversations?agent=echo")).json()["conversations"]
        assert [(each["name"], each["title"]) for each in listed] == [
            ("n%20%C3%B6", "x" * 79 + "…"),
            ("owls", "What do owls eat?"),
        ]
        assert (await http.get("/_outlast/conversations?agent=nobody")).json() == {
            "conversations": []
        }


async def test_search_finds_what_was_said_whatever_the_case(store_url: str) -> None:
    async with client(store_url, ui=DEV) as (_, http):
        await ask(http, "a", "Owls hunt at NIGHT.")
        await ask(http, "b", 'A 100% safe_bet, isn\'t it? Über "quotes"')

        async def found(text: str) -> list[tuple[str, str]]:
            answer = await http.get("/_outlast/search", params={"agent": "echo", "q": text})
            return [(each["name"], each["role"]) for each in answer.json()["found"]]

        both = [("a", "assistant"), ("a", "user")]
        assert sorted(await found("night")) == both
        assert sorted(await found("owls HUNT")) == both
        for text in ("100%", "safe_bet", "ÜBER", '"quotes"'):
            assert sorted(await found(text)) == [("b", "assistant"), ("b", "user")], text
        for text in (
            "1000",
            "safeXbet",
            "parts",
            "",
            "%",
        ):  # no pattern, and not what it is stored as
            assert await found(text) == (
                [("b", "assistant"), ("b", "user")] if text == "%" else []
            ), text


def test_a_title_is_short_and_of_one_line() -> None:
    assert title_of(None) == ""
    assert title_of({"parts": [{"type": "text", "text": " a\n\nb "}]}) == "a b"


# --- branches ------------------------------------------------------------------------------------


async def test_branches_are_told_and_chosen(store_url: str) -> None:
    async with client(store_url) as (_, http):
        at = "/agents/echo/branching"
        await ask(http, "branching", "Hi")
        assert (await http.get(f"{at}/chat/branches")).json() == {"branches": {}}
        question, first = (each["id"] for each in (await http.get(f"{at}/get-messages")).json())
        again = {
            "messages": [{"id": question, "role": "user", "parts": []}],
            "trigger": "regenerate-message",
        }
        await http.post(f"{at}/chat", json=again)
        second = (await http.get(f"{at}/get-messages")).json()[-1]["id"]
        assert (await http.get(f"{at}/chat/branches")).json() == {
            "branches": {second: [first, second]}
        }
        chosen = await http.post(f"{at}/chat/branch", json={"messageId": first})
        assert chosen.json() == {"selected": True}
        assert (await http.get(f"{at}/get-messages")).json()[-1]["id"] == first
        assert (await http.get(f"{at}/chat/branches")).json() == {
            "branches": {first: [first, second]}
        }
        nowhere = await http.post(f"{at}/chat/branch", json={"messageId": "nobody's"})
        assert nowhere.json() == {"selected": False}
        assert (await http.post(f"{at}/chat/branch", json={})).status_code == 400


# --- activity ------------------------------------------------------------------------------------


async def told(http: httpx.AsyncClient, until: str, **query: str) -> list[dict[str, Any]]:
    """What the activity tells, up to an event of this name."""
    seen = []
    async with (
        asyncio.timeout(LONG),
        http.stream("GET", "/_outlast/activity", params=query) as stream,
    ):
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                if seen[-1]["name"] == until:
                    break
    return seen


async def test_activity_tells_what_was_and_what_comes_of_one_agent(sqlite_url: str) -> None:
    async with client(sqlite_url, ui=DEV, cause="crashed") as (_, http):
        await ask(http, "alice", "Hi")
        await ask(http, "bob", "Hi")
        events = await told(http, "chat:turn:finish", agent="echo", name="alice")
        assert (events[0]["name"], events[0]["pid"], events[0]["cause"]) == (
            "host:started",
            os.getpid(),
            "crashed",
        )
        assert {each["agent"] for each in events} == {None, "Echo/alice"}
        assert [each["seq"] for each in events] == sorted(each["seq"] for each in events)
        following = asyncio.create_task(told(http, "message:clear", agent="echo", name="bob"))
        await http.delete("/agents/echo/bob/chat")
        assert "message:clear" in [each["name"] for each in await following]


async def test_readers_of_activity_do_not_hold_up_a_stop(sqlite_url: str) -> None:
    app = App([Echo], sqlite_url, ui=DEV)
    assert app.token is not None
    headers = {"authorization": f"Bearer {app.token.text}"}
    async with (
        serving(app) as running,
        httpx.AsyncClient(base_url=running.http, timeout=LONG, headers=headers) as http,
    ):
        async with http.stream("GET", "/_outlast/activity") as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            await app.leave()
            async with asyncio.timeout(LONG):
                assert [line async for line in lines if line.startswith("data")]


async def test_activity_keeps_so_much_and_lets_go_of_readers() -> None:
    activity, host = Activity(), _Host()
    activity.attach(host)  # type: ignore[arg-type]
    for count in range(KEPT + 50):
        host.events.emit(AgentActivated, f"Echo/{count % 2}")
    reader = activity.follow("Echo/1")
    first = await anext(reader)
    assert (first["seq"], first["agent"]) == (53, "Echo/1")
    assert len(activity._followers) == 1
    await reader.aclose()  # type: ignore[attr-defined]
    assert not activity._followers


class _Host:
    cause = None

    def __init__(self) -> None:
        self.events = Events()


async def test_nobody_listens_where_nothing_is_shown(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as running:
        assert not running.app.host.events._subscriptions
