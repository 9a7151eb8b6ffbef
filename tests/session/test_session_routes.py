"""The routes of a session over HTTP: who may use them, and what they make of bad requests."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
from tabs import served

from outlast import Session, Think
from outlast.testing import ScriptedModel

BAD_LIMITS = ("0", "-1", "1e9", "101", "%D9%A1", "000000001" + "9" * 5000)
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH")


class Talker(Think):
    model = ScriptedModel("Owls.", repeat=True)

    def configure_session(self, session: Session) -> Session:
        return session.with_search().with_context("memory")


def auth(request: Any) -> Any:
    return request.headers.get("x-user")


async def test_routes_of_a_session_are_for_known_users_and_answer_bad_requests(
    sqlite_url: str,
) -> None:
    async with served(Talker, url=sqlite_url, auth=auth) as server, httpx.AsyncClient() as http:
        at = server.at("a", agent="talker")
        for path in ("search?q=owl", "session"):
            assert (await http.get(f"{at}/{path}")).status_code == 401
        headers = {"x-user": "bob"}
        for limit in BAD_LIMITS:
            answer = await http.get(f"{at}/search?q=owl&limit={limit}", headers=headers)
            assert answer.status_code == 400, limit
            assert answer.json()["error"].startswith("limit must be a number from 1 to 100, got")
        for query in ("", "q=%00%ff%22*", "q=-x", f"q={'a' * 11_000}"):
            answer = await http.get(f"{at}/search?{query}", headers=headers)
            assert answer.status_code == (400 if len(query) > 10_000 else 200), query


@pytest.mark.parametrize("path", ["search", "search/x", "session", "session/x", "session/search"])
async def test_routes_of_a_session_are_only_read(sqlite_url: str, path: str) -> None:
    async with served(Talker, url=sqlite_url, auth=auth) as server, httpx.AsyncClient() as http:
        for method in METHODS:
            at = server.at("a", path, agent="talker")
            answer = await http.request(method, at, headers={"x-user": "bob"})
            is_there = not path.endswith("/x") and method in ("GET", "HEAD")
            assert answer.status_code == (200 if is_there else 404), (method, answer.text)
