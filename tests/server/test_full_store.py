"""A store without space: clients are asked to try again, nothing accepted is lost, and it works again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import httpx2 as httpx
import pytest
from tabs import LONG, RESPONSE, body_of, said, served, tool_parts, user

from loops import skip
from outlast import Think, rpc
from outlast.client import Client
from outlast.store.postgres.engine import parse
from outlast.testing import ScriptedModel, Step

LARGE = "x" * 500_000
FULL = """
CREATE FUNCTION {0}.no_space() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON {0}.agents EXECUTE FUNCTION {0}.no_space();
"""


class Keeper(Think):
    """Stores what it is asked to; the client has a tool."""

    initial_state = {"n": 0}
    model = ScriptedModel(Step.calls("where"), "There.", repeat=True)

    @rpc
    async def keep(self, text: str) -> str:
        await self.storage.put("text", text)
        return "kept"

    async def on_request(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        await self.storage.put("text", (await request.body()).decode())
        return PlainTextResponse("kept")


class Talker(Think):
    model = ScriptedModel("Hello.", repeat=True)


async def fill(server: Any, url: str) -> None:
    """From now on the store has no space."""
    store = server.app.host.store
    if store.engine == "sqlite":
        (used,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {used + 20}")
        return
    dsn, schema = parse(url)
    database = await asyncpg.connect(dsn)
    await database.execute(FULL.format(schema))
    await database.close()


async def make_room(server: Any, url: str) -> None:
    store = server.app.host.store
    if store.engine == "sqlite":
        store._db.execute("PRAGMA max_page_count = 1073741823")
        return
    dsn, schema = parse(url)
    database = await asyncpg.connect(dsn)
    await database.execute(f"DROP FUNCTION {schema}.no_space CASCADE")
    await database.close()


TOOLS = [{"name": "where", "inputSchema": {"type": "object"}}]


async def _chat(http: httpx.AsyncClient, at: Callable[..., str]) -> httpx.Response:
    return await http.post(at("chat"), json=body_of(user("u9", LARGE)))


async def _submission(http: httpx.AsyncClient, at: Callable[..., str]) -> httpx.Response:
    return await http.post(at("submissions"), json={"messages": LARGE})


async def _tool_result(http: httpx.AsyncClient, at: Callable[..., str]) -> httpx.Response:
    (part,) = tool_parts((await http.get(at("get-messages"))).json()[-1])
    given = {"toolCallId": part["toolCallId"], "output": LARGE}
    return await http.post(at("chat", "tool-result"), json=given)


async def _call(http: httpx.AsyncClient, at: Callable[..., str]) -> httpx.Response:
    return await http.post(at("rpc", "keep"), json={"args": [LARGE]})


async def _other(http: httpx.AsyncClient, at: Callable[..., str]) -> httpx.Response:
    return await http.post(at("whatever"), content=LARGE)


ROUTES: dict[str, Callable[..., Awaitable[httpx.Response]]] = {
    "chat": _chat,
    "submissions": _submission,
    "tool-result": _tool_result,
    "rpc": _call,
    "on_request": _other,
}


@pytest.mark.parametrize("route", ROUTES)
async def test_a_request_that_cannot_be_stored_is_to_be_made_again_and_then_works(
    store_url: str, route: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def at(*rest: str) -> str:
        return server.at("a", *rest, agent="keeper")

    async with served(Keeper, url=store_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        first = body_of(user("u1", "Where?"), clientTools=TOOLS)
        assert (await http.post(at("chat"), json=first)).status_code == 200
        await fill(server, store_url)
        full = await ROUTES[route](http, at)
        assert (full.status_code, full.headers["retry-after"]) == (503, "5"), full.text
        assert full.json() == {
            "error": "The server cannot store anything right now. Try again later."
        }
        assert len((await http.get(at("get-messages"))).json()) == 2
        await make_room(server, store_url)
        assert (await ROUTES[route](http, at)).status_code in (200, 202)


async def test_requests_that_wait_behind_the_one_that_failed_are_asked_to_come_again_too(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with served(Talker, url=store_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        path = server.at("a", "submissions", agent="talker")
        assert (await http.post(path, json={"messages": "Hi"})).status_code == 202
        await fill(server, store_url)
        posts = [http.post(path, json={"messages": LARGE}) for _ in range(5)]
        answers = await asyncio.gather(*posts)
        assert {each.status_code for each in answers} == {503}
        assert all(each.headers["retry-after"] == "5" for each in answers)


async def test_over_a_socket_a_request_that_cannot_be_stored_is_answered_so(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    path = {"path": "/agents/keeper/a"}
    async with served(Keeper, url=store_url) as server, server.tab(**path) as tab:
        await tab.say("r1", "Where?", clientTools=TOOLS)
        await tab.done("r1")
        await fill(server, store_url)
        await tab.say("r2", LARGE)
        refused = await tab.done("r2")
        assert (refused["error"], refused["retryAfter"]) == (True, 5)
        assert "Try again later" in refused["body"]
        await tab.send("cf_agent_state", state={"n": LARGE})
        assert "Try again later" in (await tab.wait("cf_agent_state_error"))["error"]
        with pytest.raises(RuntimeError, match="Try again"):
            await tab.call("keep", LARGE)
        await make_room(server, store_url)
        assert await tab.call("keep", LARGE) == "kept"
        await tab.say("r2", LARGE)
        await tab.until(lambda: tab.all(RESPONSE, id="r2", done=True)[1:])
        assert "error" not in tab.all(RESPONSE, id="r2", done=True)[-1]


async def test_what_a_client_is_not_answered_closes_its_socket_so_that_it_sends_it_again(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    path = {"path": "/agents/keeper/a"}
    async with served(Keeper, url=store_url) as server, server.tab(**path) as tab:
        await tab.say("r1", "Where?", clientTools=TOOLS)
        await tab.done("r1")
        (call,) = tool_parts((await _messages(server))[-1])
        await fill(server, store_url)
        result = {"toolCallId": call["toolCallId"], "output": LARGE, "autoContinue": True}
        await tab.send("cf_agent_tool_result", **result)
        assert await tab.until_closed() == (1013, "try again")
        await make_room(server, store_url)
        await tab.open()
        await tab.send("cf_agent_tool_result", **result)
        await tab.wait("cf_agent_message_updated")
        assert tool_parts((await _messages(server))[-1])[0]["state"] == "output-available"


async def _messages(server: Any) -> list[dict[str, Any]]:
    async with httpx.AsyncClient() as http:
        found: list[dict[str, Any]] = (
            await http.get(server.at("a", "get-messages", agent="keeper"))
        ).json()
    return found


class Family(Think):
    model = ScriptedModel("Hello.", repeat=True)
    sub_agents = [Talker]


async def test_a_sub_agent_that_cannot_be_made_is_made_when_there_is_room(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    path = {"path": "/agents/family/a/sub/talker/x"}
    async with served(Family, url=postgres_url) as server:
        await fill(server, postgres_url)
        async with server.tab(**path) as tab:
            await tab.say("r0", "Hi")
            assert (await tab.done("r0"))["retryAfter"] == 5
        await make_room(server, postgres_url)
        async with server.tab(**path) as tab:
            await tab.say("r1", "Hi")
            assert "error" not in await tab.done("r1")


class Writer(Think):
    """Waits in its first attempt, before it says anything."""

    model = ScriptedModel("All is well.", repeat=True)
    began: asyncio.Event
    going_on: asyncio.Event

    async def before_turn(self, context: Any) -> None:
        if not context.recovering:
            self.began.set()
            await self.going_on.wait()


@pytest.mark.skipped_time
async def test_a_turn_that_cannot_be_stored_claims_no_end_and_goes_on_when_there_is_room(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    Writer.began, Writer.going_on = asyncio.Event(), asyncio.Event()
    Writer.model = ScriptedModel(LARGE, "All is well.", by="request", repeat=True)
    path = {"path": "/agents/writer/a"}
    async with served(Writer, url=store_url) as server, server.tab(**path) as tab:
        await tab.say("r1", "Write.")
        await Writer.began.wait()
        await fill(server, store_url)
        Writer.going_on.set()
        assert await tab.until_closed() == (1013, "try again")
        assert tab.all(RESPONSE, id="r1", done=True) == [], "no end is claimed"
        await make_room(server, store_url)
        async with Client(server.http, "writer", "a") as client:  # whoever comes wakes it
            text = "".join([each.get("delta", "") async for each in client.resume("r1")])
        assert "All is well." in text
        async with httpx.AsyncClient(timeout=LONG) as http:
            found = (await http.get(server.at("a", "get-messages", agent="writer"))).json()
        assert [each["role"] for each in found] == ["user", "assistant"]
        assert said(found)[1].endswith("All is well.")


@pytest.mark.skipped_time
async def test_the_python_client_sends_a_message_again_until_there_is_room(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    refusals: list[Any] = []

    class Noticing(Client):
        def _response(self, told: dict[str, Any]) -> None:
            refusals.extend([told] if "retryAfter" in told else ())
            super()._response(told)

    async def ask(client: Client) -> str:
        return "".join([each.get("delta", "") async for each in client.send(LARGE)])

    async with served(Talker, url=store_url) as server:
        async with Noticing(server.http, "talker", "a") as client:
            assert [each async for each in client.send("Hi")]
            await fill(server, store_url)
            asking = asyncio.create_task(ask(client))
            for count in (1, 2, 3):
                async with asyncio.timeout(LONG * 100):  # the clock is moved on
                    while len(refusals) < count:
                        await asyncio.sleep(0)
                assert not asking.done()
                if count == 3:
                    await make_room(server, store_url)
                for _ in range(20):  # by then it waits
                    await asyncio.sleep(0)
                skip(5)
            assert await asking == "Hello."
        async with httpx.AsyncClient(timeout=LONG) as http:
            found = (await http.get(server.at("a", "get-messages", agent="talker"))).json()
        assert [
            len(each["parts"][0].get("text", "")) for each in found if each["role"] == "user"
        ] == [2, len(LARGE)]
