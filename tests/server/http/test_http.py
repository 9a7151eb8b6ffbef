"""Everything that a tab can do with its socket, over plain HTTP; and who may."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2 as httpx
import pytest
from starlette.responses import PlainTextResponse
from tabs import (
    LONG,
    MESSAGES,
    RESPONSE,
    Frame,
    body_of,
    quiet_log,
    said,
    served,
    text_of,
    tool_parts,
    user,
    words,
)

from outlast import Agent, Think, rpc
from outlast.agent.agent import parts_of
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.message.reducer import MessageBuilder
from outlast.server.limits import Limits
from outlast.server.pages.pages import Page
from outlast.testing import ScriptedModel


class Guarded(Think):
    """Tells who has asked."""

    model = ScriptedModel("Hello", repeat=True, by="request")
    seen: list[Any] = []

    async def before_turn(self, context: Any) -> None:
        entry = (
            await parts_of(self)[Inbox].get(context.request_id)
            if hasattr(context, "request_id")
            else None
        )
        Guarded.seen.append(None if entry is None else json.loads(entry.options).get("principal"))


class Broken(Agent):
    async def on_request(self, request: Any) -> Any:
        raise RuntimeError("the password is swordfish")


class Custom(Agent):
    @rpc
    async def twice(self, n: int) -> int:
        return 2 * n

    @rpc
    async def none(self) -> None:
        return None

    async def on_request(self, request: Any) -> Any:
        if request.url.path.endswith("/mine"):
            return PlainTextResponse(await request.body(), 201)
        return None


def events(text: str) -> list[tuple[int | None, Any]]:
    """The events of a stream: their ids and what they hold."""
    found: list[tuple[int | None, Any]] = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in lines:
            data = lines["data"]
            id = int(lines["id"]) if "id" in lines else None
            found.append((id, data if data == "[DONE]" else json.loads(data)))
    return found


def deltas(text: str) -> str:
    return "".join(each.get("delta", "") for _, each in events(text) if isinstance(each, dict))


async def messages(http: httpx.AsyncClient, server: Any, name: str = "a") -> list[Frame]:
    found: list[Frame] = (await http.get(server.at(name, "get-messages"))).json()
    return found


async def test_a_conversation_is_read_as_it_is_shown(store_url: str) -> None:
    async with served(url=store_url) as server, httpx.AsyncClient() as http:
        empty = await http.get(server.at("a", "get-messages"))
        assert (empty.status_code, empty.json()) == (200, [])
        assert empty.headers["content-type"].startswith("application/json")
        assert empty.headers["cache-control"] == "no-store"
        async with server.tab() as tab:
            await tab.say("r1", "say 20 words every 10ms")
            await tab.until(lambda: tab.text("r1"))
            await tab.say("r2", "and then?")
            await tab.call("echo")
            found = await messages(http, server)
            assert [each["id"] for each in found] == ["u-r1", "u-r2"]
            await tab.done("r2")
            assert len(await messages(http, server)) == 4
        head = await http.head(server.at("a", "get-messages"))
        assert (head.status_code, head.text) == (200, "")


async def test_a_message_is_answered_as_a_stream_of_events(store_url: str) -> None:
    async with served(url=store_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        async with server.tab() as tab:
            await tab.wait("cf_agent_mcp_servers")
            found = await http.post(server.at("a", "chat"), json=body_of(user("u1", "say 4 words")))
            assert found.status_code == 200
            assert found.headers["content-type"].startswith("text/event-stream")
            assert found.headers["x-vercel-ai-ui-message-stream"] == "v1"
            seen = events(found.text)
            assert seen[-1] == (None, "[DONE]")
            assert [id for id, _ in seen[:-1]] == [*range(len(seen) - 1)]
            assert deltas(found.text) == words(4)
            done = await tab.wait(RESPONSE, done=True)
            assert done["messageIds"] == ["u1"]
            assert tab.text(done["id"]) == words(4)
            assert said(tab.all(MESSAGES)[0]["messages"]) == ["user: say 4 words"]


async def test_a_stream_is_resumed_from_any_event(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        assert (await http.get(server.at("a", "chat", "stream"))).status_code == 204
        whole = await http.post(
            server.at("a", "chat"),
            json=body_of(user("u1", "say 9 words")),
            headers={"Idempotency-Key": "k1"},
        )
        all_events = events(whole.text)
        for last in (0, 3, len(all_events) - 2, len(all_events) - 1, 10_000):
            again = await http.get(
                server.at("a", "chat", "stream?requestId=k1"), headers={"Last-Event-ID": str(last)}
            )
            assert events(again.text) == [e for e in all_events if e[0] is None or e[0] > last]
        for odd in ("-1", "x", "²", "9" * 5000, "1.5", ""):
            again = await http.get(
                server.at("a", "chat", "stream?requestId=k1"),
                headers={"Last-Event-ID": odd.encode("latin-1")},  # type: ignore[dict-item]
            )
            assert again.status_code == 200
        assert (await http.get(server.at("a", "chat", "stream"))).status_code == 204
        assert (await http.get(server.at("a", "chat", "stream?requestId=no"))).status_code == 204


async def test_a_stream_that_runs_is_joined_and_outlives_its_reader(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, quiet_log():
        async with httpx.AsyncClient(timeout=LONG) as http:
            request = http.stream(
                "POST",
                server.at("a", "chat"),
                json=body_of(user("u1", "say 40 words every 10ms")),
            )
            async with request as answer:
                seen = ""
                async for text in answer.aiter_text():
                    seen += text
                    if "w3 " in seen:
                        break
            last = max(
                id for id, _ in events(seen.rpartition("\n\n")[0] + "\n\n") if id is not None
            )
            rest = await http.get(
                server.at("a", "chat", "stream"), headers={"Last-Event-ID": str(last)}
            )
            assert events(rest.text)[0][0] == last + 1
            assert events(rest.text)[-1][1] == "[DONE]"
            found = await messages(http, server)
            assert text_of(found[1]) == words(40)


async def test_a_stream_is_stopped(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        assert (await http.post(server.at("a", "chat", "stop"))).json() == {"stopped": False}
        asking = asyncio.create_task(
            http.post(server.at("a", "chat"), json=body_of(user("u1", "say 900 words every 10ms")))
        )
        async with server.tab() as tab:
            async with asyncio.timeout(LONG):
                while not (await http.post(server.at("a", "chat", "stop"))).json()["stopped"]:
                    await asyncio.sleep(0.02)
            found = await asking
            assert events(found.text)[-1][1] == "[DONE]"
            assert (await tab.wait(RESPONSE, done=True))["outcome"] == "aborted"
        no = await http.post(server.at("a", "chat", "stop"), json={"requestId": "no"})
        assert no.json() == {"stopped": False}


async def test_tools_are_answered_and_approved(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        for name, prompt, last, answer, text in (
            ("a", "call client tool", "tool-result", {"output": "CET"}, "Your timezone is CET."),
            ("b", "need approval", "tool-approval", {"approved": True}, "Deleted /tmp/x."),
        ):
            await http.post(server.at(name, "chat"), json=body_of(user("u1", prompt)))
            (part,) = tool_parts((await messages(http, server, name))[1])
            for applied in (True, False):
                done = await http.post(
                    server.at(name, "chat", last), json={"toolCallId": part["toolCallId"], **answer}
                )
                assert done.json() == {"applied": applied}
            await http.get(server.at(name, "chat", "stream"))
            async with asyncio.timeout(LONG):
                while text_of((await messages(http, server, name))[1]) != text:
                    await asyncio.sleep(0.02)
            assert len(await messages(http, server, name)) == 2


@pytest.mark.parametrize(
    ("prompt", "answer", "text"),
    [
        (
            "call client tool",
            {"state": "output-available", "output": "CET"},
            "Your timezone is CET.",
        ),
        ("need approval", {"state": "approval-responded", "approved": True}, "Deleted /tmp/x."),
        (
            "need approval",
            {"state": "approval-responded", "approved": False},
            "Okay, I will not delete it.",
        ),
    ],
)
async def test_the_ai_sdk_sends_the_message_whose_calls_it_has_answered(
    sqlite_url: str, prompt: str, answer: dict[str, Any], text: str
) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        await http.post(server.at("a", "chat"), json=body_of(user("u1", prompt)))
        shown = await messages(http, server)
        (part,) = tool_parts(shown[1])
        approved = answer.get("approved")
        part.update({name: value for name, value in answer.items() if name != "approved"})
        if approved is not None:
            part["approval"] = {**part["approval"], "approved": approved}
        body = body_of(*shown, trigger="submit-message", messageId=shown[1]["id"])
        found = await http.post(server.at("a", "chat"), json=body)
        assert deltas(found.text) == text
        told = [chunk for _, chunk in events(found.text)]
        if approved is False:  # nobody else tells the page what has become of the call
            call = {"type": "tool-output-denied", "toolCallId": part["toolCallId"]}
            assert told.pop(0) == call
        assert (told[0]["type"], "messageId" in told[0]) == ("start", False)
        assert events(found.text)[-1][1] == "[DONE]"
        after = await messages(http, server)
        assert (len(after), text_of(after[1])) == (2, text)
        again = await http.post(server.at("a", "chat"), json=body)
        assert events(again.text) == [(None, "[DONE]")]
        assert await messages(http, server) == after


async def test_what_goes_on_with_a_message_is_resumed_with_all_of_it(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        prompt = "call client tool then say 9 words, held after 6 words"
        await http.post(server.at("a", "chat"), json=body_of(user("u1", prompt)))
        (part,) = tool_parts((await messages(http, server))[1])
        answer = {"toolCallId": part["toolCallId"], "output": "CET"}
        await http.post(server.at("a", "chat", "tool-result"), json=answer)
        stream = server.at("a", "chat", "stream")
        reading = asyncio.gather(http.get(stream), http.get(stream, headers={"Last-Event-ID": "2"}))
        async with server.tab() as tab:
            await tab.wait("cf_agent_stream_resuming")
            await tab.call("release")
        whole, rest = await reading
        builder = MessageBuilder()
        for _, chunk in events(whole.text)[:-1]:
            builder.apply(chunk)
        assert builder.message() == (await messages(http, server))[1]
        numbered = [each for each in events(whole.text) if each[0] is not None]
        assert [id for id, _ in numbered] == list(range(1, len(numbered) + 1))
        assert events(rest.text) == [*numbered[2:], (None, "[DONE]")]


async def test_only_so_many_messages_wait(sqlite_url: str) -> None:
    limits = Limits(pending=3)
    async with served(url=sqlite_url, limits=limits) as server:
        async with server.tab() as tab, httpx.AsyncClient(timeout=LONG) as http:
            await tab.say("r0", "say 900 words every 10ms")
            for n in range(1, 3):
                await tab.say(f"r{n}", "Hi")
            await tab.say("r3", "Hi")
            assert (await tab.done("r3"))["error"] is True
            for last, body in (
                ("chat", body_of(user("x", "Hi"))),
                ("submissions", {"messages": "Hi"}),
            ):
                assert (await http.post(server.at("a", last), json=body)).status_code == 429
            await tab.send("cf_agent_chat_request_cancel", id="r0")
            await tab.done("r2")
            await tab.answered("r4", "Hi")
            assert len(await messages(http, server)) == 8


async def test_a_submission_is_made_once(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        where, key = server.at("a", "submissions"), {"Idempotency-Key": "k"}
        made = await http.post(where, json={"messages": "Hi", "metadata": {"x": 1}}, headers=key)
        assert made.status_code == 202
        assert made.json()["accepted"] is True
        again = await http.post(where, json={"messages": "Hi"}, headers=key)
        assert (again.json()["id"], again.json()["accepted"]) == (made.json()["id"], False)
        async with asyncio.timeout(LONG):
            at = f"{where}/{made.json()['id']}"
            while (found := (await http.get(at)).json())["status"] != "completed":
                await asyncio.sleep(0.02)
        assert (found["metadata"], found["idempotencyKey"]) == ({"x": 1}, "k")
        assert (await http.get(f"{where}/nobody")).status_code == 404
        assert (await http.delete(f"{where}/nobody")).status_code == 404
        assert len(await messages(http, server)) == 2


async def test_a_submission_is_cancelled_and_a_conversation_cleared(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        where = server.at("a", "submissions")
        made = await http.post(where, json={"messages": "say 900 words every 10ms"})
        gone = await http.delete(f"{where}/{made.json()['id']}")
        assert gone.status_code == 200
        async with asyncio.timeout(LONG):
            at = f"{where}/{made.json()['id']}"
            while (await http.get(at)).json()["status"] != "aborted":
                await asyncio.sleep(0.02)
        assert (await http.delete(server.at("a", "chat"))).status_code == 204
        assert await messages(http, server) == []


async def test_methods_are_called(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient() as http:

        async def call(name: str, body: Any = None) -> tuple[int, Any]:
            found = await http.post(server.at("a", "rpc", name), json=body)
            return found.status_code, found.json()

        assert await call("add", {"args": [1, 2]}) == (200, {"result": 3})
        assert await call("countTo", {"args": [2]}) == (
            200,
            {"results": [1, 2], "result": {"total": 2}},
        )
        assert await call("boom", {"args": ["my words"]}) == (500, {"error": "my words"})
        status, told = await call("crash", {"args": ["postgresql://admin:hunter2@db"]})
        assert (status, list(told)) == (500, ["error"])
        assert re.fullmatch(r"The call failed\. \(error_\w+\)", told["error"])
        assert (await call("notCallable", {}))[0] == 404
        assert (await call("nobody", {}))[0] == 404
        assert (await call("add", {"args": [1]}))[0] == 400
        assert (await call("add", {"args": {"a": 1}}))[0] == 400
        assert (await call("add", []))[0] == 400
        assert (await http.get(server.at("a", "rpc", "add"))).status_code == 404


async def test_other_requests_are_the_applications(sqlite_url: str) -> None:
    async with served(Custom, url=sqlite_url) as server, httpx.AsyncClient() as http:
        mine = await http.post(server.at("x", "mine", agent="custom"), content=b"abc")
        assert (mine.status_code, mine.text) == (201, "abc")
        assert (await http.get(server.at("x", "yours", agent="custom"))).status_code == 404
        done = await http.post(server.at("x", "rpc", "twice", agent="custom"), json={"args": [4]})
        assert done.json() == {"result": 8}
        none = await http.post(server.at("x", "rpc", "none", agent="custom"))
        assert none.json() == {"result": None}
        assert (await http.get(server.at("x", "get-messages", agent="custom"))).json() == []
        assert (await http.post(server.at("x", "chat", agent="custom"), json={})).status_code == 404


@pytest.mark.parametrize("last", ["chat", "submissions", "chat/tool-result", "chat/tool-approval"])
async def test_bad_bodies_are_refused(sqlite_url: str, last: str) -> None:
    limits = Limits(frame=10_000, body=10_000, message=2_000, messages=3)
    async with served(url=sqlite_url, limits=limits) as server, httpx.AsyncClient() as http:
        async with quiet_log():
            where = server.at("a", *last.split("/"))
            for content in (b"{", b"\xff", b"[]", b"1", b"null", b"", b"{}", b'"x"'):
                assert (await http.post(where, content=content)).status_code == 400, content
            assert (await http.post(where, content=b" " * 10_001)).status_code == 413
            if last == "chat":
                long = user("u", "x" * 2_001)
                assert (await http.post(where, json=body_of(long))).status_code == 413
                many = [user(f"u{n}", "x") for n in range(4)]
                assert (await http.post(where, json=body_of(*many))).status_code == 413
                for odd in (1, "x", {}, [{"id": "u", "role": "user", "parts": [1]}]):
                    found = await http.post(where, json={"messages": odd})
                    assert found.status_code == 400, odd
        assert await messages(http, server) == []


async def test_browsers_of_other_origins_are_refused(sqlite_url: str) -> None:
    async with served(url=sqlite_url, origins=["https://good.example"]) as server:
        async with httpx.AsyncClient() as http:
            where = server.at("a", "get-messages")

            async def get(origin: str, method: str = "GET") -> httpx.Response:
                return await http.request(method, where, headers={"Origin": origin})

            for bad in ("https://bad.example", "null", "https://good.example.bad", "http://[", "x"):
                refused = await get(bad)
                assert refused.status_code == 403
                assert "access-control-allow-origin" not in refused.headers
                assert (await get(bad, "OPTIONS")).status_code == 403
                async with server.tab(origin=bad) as tab:
                    assert await tab.until_closed() == (1008, "origin not allowed")
                    assert tab.frames == []
            good = await get("https://good.example")
            assert good.headers["access-control-allow-origin"] == "https://good.example"
            assert (await get(server.http)).status_code == 200
            preflight = await get("https://good.example", "OPTIONS")
            assert preflight.status_code in (200, 204)
            assert "POST" in preflight.headers["access-control-allow-methods"]
            for fine in ("https://good.example", server.http):
                async with server.tab(origin=fine) as tab:
                    await tab.wait("cf_agent_identity")


async def test_all_origins_can_be_let_in(sqlite_url: str) -> None:
    async with served(url=sqlite_url, origins="*") as server, httpx.AsyncClient() as http:
        found = await http.get(
            server.at("a", "get-messages"), headers={"Origin": "https://any.example"}
        )
        assert found.headers["access-control-allow-origin"] == "*"


async def test_who_is_nobody_gets_nothing(sqlite_url: str) -> None:
    asked: list[tuple[Any, str, str]] = []

    async def auth(connection: Any) -> Any:
        token = connection.query_params.get("token")
        return {"user": token} if token else None

    def authorize(principal: Any, address: Any, action: str) -> bool:
        asked.append((principal, str(address), action))
        return bool(principal["user"] == address.name)

    Guarded.seen.clear()
    options: dict[str, Any] = {"auth": auth, "authorize": authorize}
    async with served(Guarded, url=sqlite_url, **options) as server:
        async with httpx.AsyncClient(timeout=LONG) as http:
            where = server.at("ann", "get-messages", agent="guarded")
            assert (await http.get(where)).status_code == 401
            assert (await http.get(f"{where}?token=bob")).status_code == 403
            assert (await http.get(f"{where}?token=ann")).status_code == 200
            path = "/agents/guarded/ann"
            for query, reason in (("", "unauthorized"), ("token=bob", "forbidden")):
                async with server.tab(path=path, query=query) as tab:
                    assert await tab.until_closed() == (1008, reason)
                    assert tab.frames == []
            async with server.tab(path=path, query="token=ann") as tab:
                await tab.answered("r1", "Hi")
            assert ({"user": "ann"}, "Guarded/ann", "connect") in asked
            assert ({"user": "ann"}, "Guarded/ann", "request") in asked
            chat = server.at("ann", "chat?token=ann", agent="guarded")
            await http.post(chat, json=body_of(user("u2", "Hi")))
            assert server.app.host.statistics().active == 1  # nothing was made for anybody else


DOORS = [
    ("GET", "get-messages"),
    ("GET", "chat/stream"),
    ("GET", "chat/some-id/stream"),
    ("GET", "chat/content/m1/k1"),
    ("GET", "chat/branches"),
    ("GET", "submissions/s1"),
    ("GET", "sub/guarded/inner/get-messages"),
    ("GET", "anything-of-the-application"),
    ("HEAD", "get-messages"),
    ("POST", "chat"),
    ("POST", "chat/stop"),
    ("POST", "chat/tool-result"),
    ("POST", "chat/tool-approval"),
    ("POST", "chat/branch"),
    ("POST", "submissions"),
    ("POST", "rpc/anything"),
    ("DELETE", "chat"),
    ("DELETE", "submissions/s1"),
]


class Inner(Guarded):
    pass


class Outer(Guarded):
    sub_agents = (Inner,)


async def test_every_door_tells_the_unknown_from_those_who_may_not(sqlite_url: str) -> None:
    """401: say who you are. 403: you said so, and may not."""

    def auth(connection: Any) -> Any:
        return connection.query_params.get("token")

    options: dict[str, Any] = {
        "auth": auth,
        "authorize": lambda principal, address, action: principal == "root",
        "inspector": True,
        "ui": Page(dev=True),
    }
    async with served(Outer, url=sqlite_url, **options) as server:
        async with httpx.AsyncClient(timeout=LONG) as http:
            places = [
                (method, server.at("ann", rest.replace("guarded", "inner"), agent="outer"))
                for method, rest in DOORS
            ]
            root = server.at("ann", "", agent="outer").partition("/agents/")[0]
            for what in ("inspect/agents", "conversations", "search", "activity"):
                places.append(("GET", f"{root}/_outlast/{what}?agent=outer&q=x"))
            places.append(("POST", f"{root}/_outlast/kill?pid=1"))
            places.append(("POST", f"{root}/_outlast/inspect/cancel"))
            for method, place in places:
                between = "&" if "?" in place else "?"
                for query, status, text in (
                    ("", 401, "unauthorized"),
                    ("token=bob", 403, "forbidden"),
                ):
                    refused = await http.request(method, f"{place}{between}{query}")
                    assert (place, refused.status_code) == (place, status)
                    assert method == "HEAD" or refused.json() == {"error": text}
            for path in ("/agents/outer/ann", "/agents/outer/ann/sub/inner/b"):
                for query, reason in (("", "unauthorized"), ("token=bob", "forbidden")):
                    async with server.tab(path=path, query=query) as tab:
                        assert await tab.until_closed() == (1008, reason)
            assert (await http.get(f"{root}/_outlast/conversations?token=root")).status_code == 200
            assert server.app.host.statistics().active == 0, "nothing was made for them"


async def test_the_principal_is_kept_with_what_it_asks(sqlite_url: str) -> None:
    options: dict[str, Any] = {"auth": lambda connection: {"user": "ann"}}
    async with served(Guarded, url=sqlite_url, **options) as server:
        async with httpx.AsyncClient(timeout=LONG) as http:
            async with server.tab(path="/agents/guarded/x") as tab:
                await tab.answered("r1", "Hi")
            chat = server.at("x", "chat", agent="guarded")
            await http.post(chat, json=body_of(user("u2", "Hi")), headers={"Idempotency-Key": "r2"})
            made = await http.post(
                server.at("x", "submissions", agent="guarded"), json={"messages": "Hi"}
            )
            async with server.app.host.using(_address("Guarded", "x")) as agent:
                for id in ("r1", "r2", made.json()["id"]):
                    entry = await parts_of(agent)[Inbox].get(id)
                    assert json.loads(entry.options).get("principal") == {"user": "ann"}, id


def _address(kind: str, name: str) -> Any:
    from outlast.host.address import Address

    return Address.of(kind, name)


async def test_an_error_inside_says_nothing_but_its_number(sqlite_url: str) -> None:
    async with served(Broken, url=sqlite_url) as server, httpx.AsyncClient() as http:
        async with quiet_log("GET /agents/broken/x/y failed") as records:
            found = await http.get(server.at("x", "y", agent="broken"))
        assert found.status_code == 500
        assert "swordfish" not in found.text
        id = found.json()["error"].split("(")[1].rstrip(")")
        assert any(id in record.getMessage() for record in records)


@pytest.mark.parametrize("what", ["auth", "authorize"])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_an_auth_that_raises_lets_nobody_in_and_tells_nothing(
    sqlite_url: str, what: str, is_async: bool
) -> None:
    """The others go on; whoever was not let in may come back, for it may work the next time."""
    breaks = False

    def asked(*_: Any) -> Any:
        if breaks:
            raise RuntimeError("the password is swordfish")
        return {"user": "ann"}

    async def asked_async(*_: Any) -> Any:
        return asked()

    options: dict[str, Any] = {what: asked_async if is_async else asked}
    origins = ["https://app.example"]
    where = {"path": "/agents/guarded/x"}
    async with served(Guarded, url=sqlite_url, origins=origins, **options) as server:
        async with server.tab(**where) as other, httpx.AsyncClient() as http:
            await other.wait("cf_agent_identity")
            at = server.at("x", "get-messages", agent="guarded")
            breaks = True
            failures = ("GET /agents/guarded/x/get-messages failed", "the handshake of /agents")
            async with quiet_log(*failures) as records:
                found = await http.get(at, headers={"Origin": origins[0]})
                async with server.tab(**where) as tab:
                    code, reason = await tab.until_closed()
            assert found.status_code == 500
            assert found.headers["content-type"] == "application/json"
            assert found.headers["access-control-allow-origin"] == origins[0]
            assert (code, tab.frames) == (1011, [])
            told = [found.json()["error"], reason]
            for said, record in zip(told, records, strict=True):
                text, id = said.rstrip(")").split(" (")
                assert text == "internal error"
                assert id in record.getMessage()
                assert "swordfish" in str(record.exc_info)
            assert "swordfish" not in f"{found.text} {found.headers} {reason}"
            await other.answered("r1", "Hi")
            breaks = False
            assert len((await http.get(at)).json()) == 2
            async with server.tab(**where) as tab:
                await tab.wait("cf_agent_identity")


async def test_arguments_that_are_nested_too_deeply_are_the_clients_mistake(
    sqlite_url: str,
) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient() as http:
        body = '{"args":' + "[" * 180 + "]" * 180 + "}"
        answer = await http.post(server.at("a", "rpc", "add"), content=body)
        assert (answer.status_code, answer.json()) == (
            400,
            {"error": "The arguments are nested too deeply."},
        )
