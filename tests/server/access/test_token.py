"""The token of a server without auth: who has it sees everything, and nobody else does."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tabs import LONG, serving

from outlast import App, Think
from outlast.server.access.token import LEAST, Token
from outlast.server.pages.pages import Page
from outlast.testing import ScriptedModel

TOKEN = "a-token-that-nobody-guesses"
BEARER = {"authorization": f"Bearer {TOKEN}"}
OPERATORS = [
    "/_outlast/inspect/agents",
    "/_outlast/inspect/host",
    "/_outlast/conversations?agent=talker",
    "/_outlast/search?agent=talker&q=x",
]


class Talker(Think):
    model = ScriptedModel("Yes.", repeat=True)


@pytest.fixture(autouse=True)
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill that should have been refused fails the test, instead of killing whoever runs it."""

    def kill(*_: object) -> None:
        raise AssertionError("this would have been the end")

    monkeypatch.setattr("outlast.server.pages.pages.os.kill", kill)
    monkeypatch.delenv("OUTLAST_TOKEN", raising=False)


@asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    given: dict[str, Any] = {"inspector": True, "ui": Page(dev=True), "token": TOKEN, **options}
    app = App([Talker], url, **given)
    async with (
        serving(app) as running,
        httpx.AsyncClient(base_url=running.http, timeout=LONG) as http,
    ):
        yield app, http


async def test_without_the_token_nobody_sees_what_is_everybody_s(sqlite_url: str) -> None:
    wrong: list[dict[str, str]] = [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN.upper()}"},
        {"authorization": "Bearer " + "x" * 30_000},
        {"authorization": TOKEN},
        {"cookie": f"outlast-80={TOKEN}"},
        {"cookie": f"token={TOKEN}"},
    ]
    async with client(sqlite_url) as (_, http):
        port = http.base_url.port
        for headers in [*wrong, {"cookie": f"outlast-{port}={TOKEN}"}]:
            for path in OPERATORS:
                answer = await http.get(path, headers=headers)
                assert (answer.status_code, "token" in answer.text) == (401, True)
            for path in ("/_outlast/kill", "/_outlast/inspect/release"):
                assert (await http.post(path, json={}, headers=headers)).status_code == 401
            about = (await http.get("/_outlast/page", headers=headers)).json()
            assert (about["dev"], about["pid"], about["inspector"]) == (False, None, None)
        for query in (
            "token=",
            "token=x",
            f"Token={TOKEN}",
            f"token={TOKEN}%00",
            f"token=x&x={TOKEN}",
        ):
            answer = await http.get(f"/_outlast/inspect/agents?{query}")
            assert (query, answer.status_code) == (query, 401)


async def test_a_program_brings_the_token_in_a_header_or_in_the_query(sqlite_url: str) -> None:
    async with client(sqlite_url) as (_, http):
        for path in OPERATORS:
            assert (await http.get(path, headers=BEARER)).status_code == 200
            more = "&" if "?" in path else "?"
            assert (await http.get(f"{path}{more}token={TOKEN}")).status_code == 200
        about = (await http.get("/_outlast/page", headers=BEARER)).json()
        assert (about["dev"], about["pid"], about["inspector"]) == (True, os.getpid(), "inspect")


@pytest.mark.parametrize("page", ["/", "/inspect"])
async def test_a_browser_gets_a_cookie_for_the_token_and_an_address_without_it(
    sqlite_url: str, page: str
) -> None:
    async with client(sqlite_url) as (_, http):
        opened = await http.get(f"{page}?agent=talker&token={TOKEN}&x=%26")
        assert (opened.status_code, opened.headers["location"]) == (
            303,
            f"{page}?agent=talker&x=%26",
        )
        name = f"outlast-{http.base_url.port}"
        cookie, *rules = opened.headers["set-cookie"].split("; ")
        assert cookie.startswith(f"{name}=")
        assert rules == ["Path=/_outlast/", "HttpOnly", "SameSite=Strict"]
        assert TOKEN not in cookie
        assert http.cookies
        for path in OPERATORS:
            assert (await http.get(path)).status_code == 200
        assert (await http.get("/_outlast/page")).json()["inspector"] == "inspect"
        assert (await http.get(page)).status_code == 200


async def test_a_wrong_token_opens_the_page_and_gives_no_cookie(sqlite_url: str) -> None:
    async with client(sqlite_url) as (_, http):
        opened = await http.get("/inspect?token=wrong-wrong-wrong-wrong")
        assert (opened.status_code, "set-cookie" in opened.headers) == (200, False)


async def test_the_page_that_takes_the_token_never_leads_elsewhere(sqlite_url: str) -> None:
    async with client(sqlite_url) as (_, http):
        for path in ("//evil.example", "/%2Fevil.example", "/inspect/../..//evil.example"):
            answer = await http.get(f"{http.base_url}".rstrip("/") + f"{path}?token={TOKEN}")
            assert "evil" not in answer.headers.get("location", "")


async def test_no_page_of_somebody_else_uses_the_cookie(sqlite_url: str) -> None:
    async with client(sqlite_url) as (_, http):
        await http.get(f"/?token={TOKEN}")
        own = str(http.base_url).rstrip("/")
        other_port = "http://127.0.0.1:1"
        refused: list[dict[str, str]] = [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": other_port},
            {"origin": own.replace("http", "https")},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": own, "sec-fetch-site": "same-site"},
            {"host": "evil.example", "origin": "http://evil.example"},
            {"x-forwarded-for": "203.0.113.7"},
        ]
        for headers in refused:
            for path in OPERATORS:
                assert (await http.get(path, headers=headers)).status_code == 403, headers
            for path in ("/_outlast/kill?pid=1", "/_outlast/inspect/release"):
                posted = await http.post(path, content="{}", headers=headers)
                assert posted.status_code == 403, headers
        same = {"origin": own, "sec-fetch-site": "same-origin"}
        assert (await http.post("/_outlast/kill?pid=1", headers=same)).status_code == 409


async def test_everybody_who_is_let_in_still_needs_the_token(sqlite_url: str) -> None:
    async with client(sqlite_url, insecure=True) as (_, http):
        elsewhere = {"host": "192.168.1.7", "x-forwarded-for": "203.0.113.7"}
        for path in OPERATORS:
            assert (await http.get(path, headers=elsewhere)).status_code == 401
            assert (await http.get(path, headers={**elsewhere, **BEARER})).status_code == 200


async def test_with_auth_the_token_opens_nothing(sqlite_url: str) -> None:
    asked: list[Any] = []

    def authorize(principal: str, address: Any, action: str) -> bool:
        asked.append((principal, address, action))
        return principal == "root"

    options: dict[str, Any] = {
        "auth": lambda connection: connection.query_params.get("as"),
        "authorize": authorize,
    }
    async with client(sqlite_url, **options) as (app, http):
        assert app.token is None
        assert "set-cookie" not in (await http.get(f"/inspect?token={TOKEN}")).headers
        for path in OPERATORS:
            more = "&" if "?" in path else "?"
            for who, status in (("", 401), ("as=alice", 403), ("as=root", 200)):
                answer = await http.get(f"{path}{more}{who or 'x=y'}", headers=BEARER)
                assert answer.status_code == status
        assert (await http.post("/_outlast/kill?as=alice", headers=BEARER)).status_code == 403
    assert set(asked) == {("alice", None, "inspect"), ("root", None, "inspect")}


async def test_authorize_is_asked_without_auth_too(sqlite_url: str) -> None:
    async with client(sqlite_url, authorize=lambda principal, address, action: False) as (_, http):
        for path in OPERATORS:
            assert (await http.get(path, headers=BEARER)).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/_outlast/%69nspect/agents",
        "/%5Foutlast/inspect/agents",
        "/_outlast//inspect/agents",
        "//_outlast/inspect/agents",
        "/_outlast/inspect//agents",
        "/_outlast/inspect/%61gents",
        "/_outlast/inspect%2Fagents",
        "/_outlast/ui/../inspect/agents",
        "/_outlast/ui/%2e%2e/inspect/agents",
        "/_outlast/page/../inspect/agents",
        "/_OUTLAST/inspect/agents",
        "/_outlast/inspect/agents/",
        "/_outlast/inspect/agents;x",
        "/agents/../_outlast/inspect/agents",
        "/_outlast/conversations/",
        "/_outlast/%63onversations",
    ],
)
async def test_no_other_spelling_of_a_path_opens_it(sqlite_url: str, path: str) -> None:
    from test_provenance import raw

    async with client(sqlite_url) as (_, http):
        assert http.base_url.port is not None
        request = f"GET {path} HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        answer = await raw(http.base_url.port, request)
        assert answer.split(" ", 2)[1] in ("400", "401", "403", "404"), answer


async def test_a_token_that_nobody_was_given_is_logged_at_the_start(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(sqlite_url, token=None) as (app, http):
        assert app.token is not None
        assert f"open /inspect?token={app.token.text}" in caplog.text
        bearer = {"authorization": f"Bearer {app.token.text}"}
        assert (await http.get(OPERATORS[0], headers=bearer)).status_code == 200
    for options in ({"auth": lambda connection: "x"}, {"inspector": False, "ui": False}, {}):
        caplog.clear()
        async with client(sqlite_url, **options):  # type: ignore[arg-type]
            assert "?token=" not in caplog.text
    monkeypatch.setenv("OUTLAST_TOKEN", TOKEN)
    async with client(sqlite_url, token=None) as (app, _):
        assert app.token is not None
        assert (app.token.text, "?token=" in caplog.text) == (TOKEN, False)


async def test_where_it_is_mounted_the_cookie_is_for_there(sqlite_url: str) -> None:
    app = App([Talker], sqlite_url, inspector=True, token=TOKEN)
    outer = Starlette(routes=[Mount("/chat", app)], lifespan=app.lifespan)
    async with (
        serving(outer) as running,
        httpx.AsyncClient(base_url=running.http, timeout=LONG) as http,
    ):
        opened = await http.get(f"/chat/inspect?token={TOKEN}")
        assert opened.headers["location"] == "/chat/inspect"
        assert "Path=/chat/_outlast/" in opened.headers["set-cookie"]
        assert (await http.get("/chat/_outlast/inspect/agents")).status_code == 200


def test_a_token_is_long_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"token must have at least {LEAST} characters, got 5"):
        Token("short")
    monkeypatch.setenv("OUTLAST_TOKEN", "short")
    with pytest.raises(ValueError, match="OUTLAST_TOKEN must have"):
        Token()
    monkeypatch.setenv("OUTLAST_TOKEN", "")
    assert len(Token().text) >= 32
    assert Token().text != Token().text
