"""Which agent a URL means, and what becomes of those that mean none."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from tabs import LONG, quiet_log, served, serving
from websockets.exceptions import InvalidStatus

from conformance.fixture_agent import FixtureAgent
from outlast import Agent, App
from outlast.host.address import Address
from outlast.server.routing import NoSuchAgent, kebab, resolve

METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "FOO")


class Note(Agent):
    pass


class Chat(Agent):
    sub_agents = [Note]


class Inbox(Agent):
    sub_agents = [Chat, Note]


class Echo(Agent):
    """Answers every other request with what it was."""

    async def on_request(self, request: Any) -> Any:
        return PlainTextResponse(f"{request.method} {request.scope['path']}")


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("FixtureAgent", "fixture-agent"),
        ("AIChat", "a-i-chat"),
        ("MY_BOT", "my-bot"),
        ("Bot", "bot"),
        ("BOT", "bot"),
        ("bot", "bot"),
        ("My_Bot", "my--bot"),
        ("my_bot", "my-bot"),
        ("Bot_", "bot"),
        ("BOT_", "bot-"),
        ("Bot2Go", "bot2-go"),
        ("B2", "b2"),
        ("_Hidden", "--hidden"),
    ],
)
def test_a_class_is_spelled_as_the_clients_spell_it(name: str, segment: str) -> None:
    assert kebab(name) == segment


@pytest.mark.parametrize(
    ("path", "address", "rest"),
    [
        ("/agents/inbox/alice", "Inbox/alice", ()),
        ("//agents//inbox///alice//", "Inbox/alice", ()),
        ("/agents/inbox/kid%20one", "Inbox/kid%2520one", ()),
        ("/agents/inbox/a/get-messages", "Inbox/a", ("get-messages",)),
        ("/agents/inbox/a/sub/chat/abc", "Inbox/a/Chat/abc", ()),
        ("/agents/inbox/a/sub/chat/abc/sub/note/n%201/x", "Inbox/a/Chat/abc/Note/n%201", ("x",)),
        ("/agents/inbox/a/sub/chat/a%2Fb", "Inbox/a/Chat/a%2Fb", ()),
        ("/agents/inbox/a/sub/nobody/x", "Inbox/a", ("sub", "nobody", "x")),
        ("/agents/inbox/a/sub/chat", "Inbox/a", ("sub", "chat")),
        ("/agents/note/a/sub/chat/x", "Note/a", ("sub", "chat", "x")),
        ("/agents/inbox/sub/sub/note/x", "Inbox/sub/Note/x", ()),
    ],
)
def test_a_path_names_an_agent(path: str, address: str, rest: tuple[str, ...]) -> None:
    found = resolve(path, [Inbox, Note])
    assert found is not None
    assert (found.address, found.rest) == (Address.parse(address), rest)


@pytest.mark.parametrize(
    "path", ["", "/", "/agents", "/agents/inbox", "/other/inbox/a", "/agent/inbox/a"]
)
def test_a_path_of_something_else_names_none(path: str) -> None:
    assert resolve(path, [Inbox]) is None


@pytest.mark.parametrize(
    "path",
    [
        "/agents/Inbox/a",
        "/agents/nobody/a",
        "/agents/%69nbox/a",
        "/agents/inbox/a/sub/chat/%00",
        "/agents/inbox/a/sub/chat/%ff",
        f"/agents/inbox/{'x' * 2000}",
    ],
)
def test_a_class_that_is_not_there_or_a_bad_name_is_an_error(path: str) -> None:
    with pytest.raises(NoSuchAgent):
        resolve(path, [Inbox])


@settings(max_examples=300)
@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                "agents",
                "inbox",
                "sub",
                "chat",
                "note",
                "%00",
                "%",
                "%ff",
                "..",
                ".",
                "a",
                "%2F",
                "\udc80",
                "é",
            ]
        ),
        max_size=14,
    ).map("/".join)
)
def test_no_path_breaks_the_router(path: str) -> None:
    with contextlib.suppress(NoSuchAgent):
        resolve("/agents/inbox/" + path, [Inbox])
    with contextlib.suppress(NoSuchAgent):
        resolve(path, [Inbox])


async def test_http_says_what_is_wrong_with_a_path(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient() as http:
        for path, status in (
            ("/agents/FixtureAgent/x/get-messages", 400),
            ("/agents/nobody/x", 400),
            ("/agents/fixture-agent", 404),
            ("/other/fixture-agent/x", 404),
            ("/", 404),
            ("/agents/fixture-agent/x", 404),
            ("/agents/fixture-agent/x/nothing", 404),
            ("/agents/fixture-agent/x/get-messages", 200),
            ("/agents/fixture-agent/x/deep/er/get-messages", 200),
            ("/agents/fixture-agent/x/sub/fixture-agent/y%20z/get-messages", 200),
            ("/healthz", 200),
            ("/readyz", 200),
        ):
            assert (await http.get(server.http + path)).status_code == status, path


async def test_a_handshake_with_a_path_of_nobody_is_refused(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server:
        for path in ("/agents/nobody/x", "/agents/fixture-agent", "/x", "/"):
            with pytest.raises(InvalidStatus) as refused:
                await server.tab(path=path).open()
            assert refused.value.response.status_code in (400, 403, 404)


async def test_a_sub_agent_is_who_the_connection_talks_to(sqlite_url: str) -> None:
    async with served(Inbox, url=sqlite_url) as server:
        path = "/agents/inbox/al%20ice/sub/chat/a%20b/sub/note/n%2F1"
        async with server.tab(path=path) as tab:
            found = await tab.wait("cf_agent_identity")
            assert (found["name"], found["agent"]) == ("n/1", "note")


async def test_sub_agents_have_their_own_conversations(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, httpx.AsyncClient() as http:
        path = "/agents/fixture-agent/a/sub/fixture-agent/kid"
        async with server.tab(path=path) as child, server.tab() as parent:
            await child.answered("r1", "Hello")
            assert not parent.all("cf_agent_use_chat_response")
        assert len((await http.get(f"{server.http}{path}/get-messages")).json()) == 2
        assert (await http.get(server.at("a", "get-messages"))).json() == []


@pytest.mark.parametrize("mount", ["", "/api", "/deep/er", "/with space"])
async def test_it_can_be_mounted_in_another_application(sqlite_url: str, mount: str) -> None:
    app = App(agents=[FixtureAgent, Echo], store=sqlite_url, shutdown_timeout=0.2)

    async def hello(_: Any) -> PlainTextResponse:
        return PlainTextResponse("the other application")

    outer = Starlette(routes=[Route("/hello", hello), Mount(mount, app=app)], lifespan=app.lifespan)
    async with serving(outer) as server, httpx.AsyncClient() as http:
        assert (await http.get(f"{server.http}/hello")).text == "the other application"
        at = mount.replace(" ", "%20")
        path = f"{at}/agents/fixture-agent/kid%20one"
        async with server.tab(path=path) as tab:
            assert (await tab.wait("cf_agent_identity"))["name"] == "kid%20one"
            await tab.answered("r1", "Hello")
        found = await http.get(f"{server.http}{path}/get-messages")
        assert [each["role"] for each in found.json()] == ["user", "assistant"]
        assert (await http.get(f"{server.http}{at}/readyz")).status_code == 200
        echo = await http.get(f"{server.http}{at}/agents/echo/x/y?z=1")
        assert echo.text.endswith("/agents/echo/x/y")


async def test_another_prefix_can_be_chosen(sqlite_url: str) -> None:
    async with served(url=sqlite_url, prefix="bots") as server, httpx.AsyncClient() as http:
        at = f"{server.http}/bots/fixture-agent/a/get-messages"
        assert (await http.get(at)).status_code == 200
        assert (await http.get(server.at("a", "get-messages"))).status_code == 404


async def test_an_application_that_does_not_run_answers_so(sqlite_url: str) -> None:
    """Mounted without its lifespan."""
    app = App(agents=[FixtureAgent], store=sqlite_url)
    async with serving(Starlette(routes=[Mount("/", app=app)])) as server:
        async with quiet_log(), httpx.AsyncClient() as http:
            assert (await http.get(server.at("a", "get-messages"))).status_code == 503
            assert (await http.get(f"{server.http}/readyz")).status_code == 503
            assert (await http.get(f"{server.http}/healthz")).status_code == 200
            async with server.tab() as tab:
                assert await tab.until_closed() == (1013, "restarting")


# --- hostile requests ----------------------------------------------------------------------------


async def raw_request(port: int, data: bytes) -> bytes:
    """What is answered to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(LONG):
            return await reader.readuntil(b"\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


LAST = ["get-messages", "chat", "chat/stream", "chat/stop", "chat/tool-result", "submissions", "rpc/add",
    "chat/tool-approval", "submissions/x", "rpc/notCallable", "rpc/__init__", "chat/%00/stream", "rpc/%ff",
    "submissions/%00", "submissions/" + "9" * 300, "healthz", "sub/fixture-agent/%00", "%", ""]  # fmt: skip
HEADERS = ["Origin: null", "Origin: http://[", "Origin: \xff", "Host: [", "Host: a b", "Host: ",
    "Last-Event-ID: \xb2", "Last-Event-ID: -1", "Last-Event-ID: " + "9" * 5000, "Idempotency-Key: \xff",
    "Idempotency-Key: " + "k" * 3000, "Content-Type: text/xml", "Authorization: \x80",
    "Access-Control-Request-Headers: \xff", "X-Forwarded-For: x", "Idempotency-Key: "]  # fmt: skip
BODIES = ["", "{}", "[]", "null", "1", "{", '"x"', '{"messages":[]}', '{"messages":1}', '{"message":{}}',
    '{"messages":["x"]}', '{"messages":[{"id":"m","role":"user","parts":[1]}]}', '{"args":{}}',
    '{"messages":[{"id":"m","role":"user","parts":[]}]}', '{"args":[[[[]]]]}', "\xff\xfe", "\x00",
    '{"toolCallId":1}', '{"toolCallId":"x","output":1}', '{"toolCallId":"x","approved":1}',
    '{"toolCallId":"x","approved":true}', '{"toolCallId":"x","clientTools":[1]}', '{"requestId":"\\ud800"}',
    '{"requestId":"\\u0000"}', '{"toolCallId":"\\u0000","approved":true}', '{"toolCallId":"\\u0000"}',
    '{"messages":[{"id":"\\u0000","role":"user","parts":[]}]}', "[" * 300,
    '{"args":' + "[" * 180 + "]" * 180 + "}",
    '{"messages":[{"id":"m","role":"user","parts":[{"type":"x","y":' + "[" * 160 + "]" * 160 + "}]}]}",
    '{"messages":[{"id":"m","role":"user","parts":[]}],"clientTools":[1]}', '{"messages":"text"}',
    '{"messages":[{"id":"m","role":"system","parts":[]}],"trigger":"regenerate-message"}',
    '{"messages":"text","metadata":{"a":[]}}', '{"trigger":"regenerate-message","messages":[]}']  # fmt: skip


def hostile(method: str, path: str, headers: list[str], body: str) -> bytes:
    data = body.encode("latin-1")
    names = {header.partition(":")[0].lower() for header in headers}
    lines = [f"{method} {path} HTTP/1.1", *headers, f"Content-Length: {len(data)}"]
    if "host" not in names:
        lines.append("Host: localhost")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + data


@settings(max_examples=6)
@given(st.data())
def test_no_request_makes_the_server_fail(data: st.DataObject) -> None:
    """Every method, path, header and body that one can think of: never a 500, never an error in the log."""
    requests = data.draw(
        st.lists(
            st.builds(
                hostile,
                st.sampled_from(METHODS),
                st.sampled_from(LAST).map(lambda last: f"/agents/fixture-agent/a/{last}")
                | st.text("/%.0fa~\xe9?#", max_size=30).map(lambda text: f"/agents/{text}")
                | st.text("/%.0fa~?#", max_size=30).map(lambda text: f"/{text}"),
                st.lists(st.sampled_from(HEADERS), max_size=2),
                st.sampled_from(BODIES),
            ),
            min_size=120,
            max_size=120,
        )
    )

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/store.db"
            async with served(url=url) as server, quiet_log():
                for request in requests:
                    answer = await raw_request(server.port, request)
                    assert b" 500 " not in answer, request

    asyncio.run(run())


@pytest.mark.parametrize("header", HEADERS)
async def test_no_header_makes_the_server_fail(sqlite_url: str, header: str) -> None:
    async with served(url=sqlite_url) as server, quiet_log():
        for method, last in (
            ("GET", "get-messages"),
            ("POST", "chat"),
            ("GET", "chat/stream?requestId=k"),
            ("POST", "submissions"),
            ("OPTIONS", "chat"),
        ):
            body = '{"messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"Hi"}]}]}'
            path = f"/agents/fixture-agent/a/{last}"
            sent = hostile(method, path, [header], body if method == "POST" else "")
            answer = await raw_request(server.port, sent)
            assert b" 500 " not in answer, sent


@pytest.mark.parametrize("header", HEADERS)
async def test_no_header_makes_a_handshake_fail(sqlite_url: str, header: str) -> None:
    async with served(url=sqlite_url) as server, quiet_log():
        headers = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", header]  # fmt: skip
        if not header.startswith("Host"):
            headers.append("Host: localhost")
        text = "\r\n".join(["GET /agents/fixture-agent/a HTTP/1.1", *headers, "", ""])
        answer = await raw_request(server.port, text.encode("latin-1"))
        assert b" 500 " not in answer
