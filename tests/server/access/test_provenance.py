"""Where a request comes from: this machine, a proxy, a page of another origin."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx2 as httpx
import pytest
from starlette.requests import HTTPConnection
from tabs import LONG, quiet_log, served

from outlast import Think
from outlast.server.access import provenance
from outlast.testing import ScriptedModel

PATH = "/agents/assistant/a/get-messages"
OPEN = ("127.0.0.1", 5000)


class Assistant(Think):
    model = ScriptedModel("Hello.", repeat=True)


def asked(
    *headers: tuple[str, str], client: tuple[str, int] | None = OPEN, scheme: str = "http"
) -> HTTPConnection:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    scope = {"type": "http", "headers": raw, "client": client, "scheme": scheme, "path": "/"}
    return HTTPConnection({**scope, "query_string": b"", "server": ("127.0.0.1", 8000)})


# --- this machine --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost", True),
        ("localhost:8000", True),
        ("LOCALHOST:8000", True),
        ("localhost.", True),
        ("localhost.:8000", True),
        ("localhost:", True),
        ("chat.localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("127.8.9.1", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("[0:0:0:0:0:0:0:1]", True),
        ("[::ffff:127.0.0.1]:8000", True),
        ("", False),
        ("localhost..", False),
        (".localhost.evil.example", False),
        ("localhost.evil.example", False),
        ("evillocalhost", False),
        ("127.0.0.1.evil.example:8000", False),
        ("127.0.0.1.nip.io", False),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("192.168.1.7:8000", False),
        ("0.0.0.0:8000", False),
        ("[::]:8000", False),
        ("[::ffff:192.168.1.7]", False),
        ("::1", False),
        ("[::1", False),
        ("127.1", False),
        ("0x7f.0.0.1", False),
        ("2130706433", False),
        ("localhost:99999", False),
        ("localhost:80a", False),
        ("localhost:-1", False),
        ("localhost@evil.example", False),
        ("evil.example@localhost", False),
        ("localhost/evil.example", False),
        ("localhost#evil.example", False),
        ("localhost, evil.example", False),
        ("localhost evil.example", False),
        (" localhost", False),
        ("localhost\t", False),
        ("http://localhost", False),
        ("loc\xe0lhost", False),
        ("\xb9\xb2\xb7.0.0.1", False),
        ("[::1%25eth0]", False),
        ("[localhost]", False),
    ],
)
def test_a_host_header_names_this_machine_or_not(host: str, is_local: bool) -> None:
    assert provenance.is_local(asked(("host", host))) is is_local


def test_a_request_with_two_hosts_or_none_is_for_nobody() -> None:
    assert not provenance.is_local(asked(("host", "localhost"), ("host", "evil.example")))
    assert not provenance.is_local(asked(("host", "evil.example"), ("host", "localhost")))
    assert not provenance.is_local(asked(("host", "localhost"), ("host", "localhost")))
    assert not provenance.is_local(asked())


@pytest.mark.parametrize("client", [None, ("192.168.1.7", 1), ("testclient", 1), ("", 0)])
def test_who_asks_from_elsewhere_is_not_here_whatever_they_claim(
    client: tuple[str, int] | None,
) -> None:
    assert not provenance.is_local(asked(("host", "localhost"), client=client))


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Forwarded-Port",
        "X-Forwarded-Server",
        "X-Forwarded",
        "Forwarded-For",
        "X-Real-IP",
        "X-Client-IP",
        "X-Cluster-Client-IP",
        "X-Original-Forwarded-For",
        "X-Original-Host",
        "X-Envoy-External-Address",
        "Via",
        "CF-Connecting-IP",
        "CF-Ray",
        "CDN-Loop",
        "True-Client-IP",
        "Fastly-Client-IP",
        "Fly-Client-IP",
        "X-Azure-ClientIP",
        "X-Vercel-Forwarded-For",
        "Tailscale-User-Login",
    ],
)
def test_what_a_proxy_adds_says_that_a_request_is_not_from_here(header: str) -> None:
    for value in ("127.0.0.1", ""):
        assert not provenance.is_local(asked(("host", "localhost"), (header, value)))


async def test_without_auth_only_this_machine_is_answered(sqlite_url: str) -> None:
    async with (
        served(Assistant, url=sqlite_url, ui=True) as server,
        httpx.AsyncClient(base_url=server.http) as http,
    ):
        refused: list[dict[str, str]] = [
            {"host": "evil.example"},
            {"host": "evil.example", "origin": "http://evil.example"},
            {"x-forwarded-for": "203.0.113.7"},
            {"via": "1.1 proxy"},
        ]
        for headers in refused:
            for path in (PATH, "/", "/_outlast/ui/app.js", "/_outlast/page", "/nothing"):
                answer = await http.get(path, headers=headers)
                assert (answer.status_code, "App(auth=" in answer.text) == (403, True)
            posted = await http.post(
                "/agents/assistant/a/submissions", json={"messages": "Hi"}, headers=headers
            )
            assert posted.status_code == 403
            assert (await http.get("/healthz", headers=headers)).text == "ok", (
                "probes are not local"
            )
            options = {"additional_headers": headers}
            async with server.tab(path="/agents/assistant/a", **options) as tab:
                assert await tab.until_closed() == (1008, "without auth, localhost only")
                assert tab.frames == []
        assert (await http.get(PATH)).json() == []
        async with server.tab(path="/agents/assistant/a") as tab:
            await tab.say("r", "Hi")
            await tab.done("r")


async def test_who_is_known_or_wants_it_so_is_answered_from_anywhere(sqlite_url: str) -> None:
    elsewhere = {"host": "chat.example.org", "x-forwarded-for": "203.0.113.7"}
    everybody: list[dict[str, Any]] = [{"insecure": True}, {"auth": lambda connection: "alice"}]
    for options in everybody:
        async with (
            served(Assistant, url=sqlite_url, **options) as server,
            httpx.AsyncClient(base_url=server.http) as http,
        ):
            assert (await http.get(PATH, headers=elsewhere)).status_code == 200


async def raw(port: int, text: str) -> str:
    """What is answered to bytes that no library would send, up to the frame that closes a WebSocket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        writer.write(text.replace("\n", "\r\n").encode("latin-1"))
        async with asyncio.timeout(LONG):
            while b"\x88" not in answer and (more := await reader.read(65536)):
                answer += more
        return answer.decode("latin-1")
    finally:
        writer.close()


@pytest.mark.parametrize(
    "request_",
    [
        "GET {path} HTTP/1.1\nHost: evil.example\nConnection: close\n\n",
        "GET {path} HTTP/1.1\nHost: localhost\nHost: evil.example\nConnection: close\n\n",
        "GET {path} HTTP/1.1\nHost: evil.example\nHost: localhost\nConnection: close\n\n",
        "GET {path} HTTP/1.1\nConnection: close\n\n",
        "GET {path} HTTP/1.0\n\n",
        "GET {path} HTTP/1.1\nHost:\nConnection: close\n\n",
        "GET http://localhost{path} HTTP/1.1\nHost: evil.example\nConnection: close\n\n",
        "GET http://evil.example{path} HTTP/1.1\nHost: evil.example\nConnection: close\n\n",
        "GET //evil.example{path} HTTP/1.1\nHost: evil.example\nConnection: close\n\n",
        "GET {path} HTTP/1.1\nHost: localhost:80:80\nConnection: close\n\n",
        "GET {path} HTTP/1.1\nHost: localhost\n evil.example\nConnection: close\n\n",
        "GET {path} HTTP/1.1\nHost: localhost\nX-Forwarded-For:\nConnection: close\n\n",
        "GET {path} HTTP/1.1\nHost: localhost\nORIGIN: null\nConnection: close\n\n",
        "GET {path} HTTP/1.1\nHost: localhost\nOrigin: http://localhost\nOrigin: null\nConnection: close\n\n",
    ],
)
async def test_no_request_that_is_odd_gets_past_the_door(sqlite_url: str, request_: str) -> None:
    async with served(Assistant, url=sqlite_url) as server:
        answer = await raw(server.port, request_.format(path=PATH))
        status = int(answer.split(" ", 2)[1]) if answer else 400
        assert status in (400, 403, 404), answer
        fine = f"GET {PATH} HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        assert (await raw(server.port, fine)).startswith("HTTP/1.1 200")


async def test_a_handshake_for_another_host_gets_nothing(sqlite_url: str) -> None:
    handshake = (
        "GET /agents/assistant/a HTTP/1.1\nHost: {host}\nUpgrade: websocket\nConnection: Upgrade\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-WebSocket-Version: 13\n{more}\n"
    )
    async with served(Assistant, url=sqlite_url) as server:
        own = f"127.0.0.1:{server.port}"
        for host, more in (
            ("evil.example", ""),
            (own, "Host: evil.example\n"),
            (own, "Origin: null\n"),
            (own, f"Origin: https://{own}\n"),
            (own, "Origin: http://127.0.0.1\n"),
            (own, f"Origin: http://{own}\nOrigin: http://evil.example\n"),
            (own, "X-Forwarded-For: 127.0.0.1\n"),
        ):
            answer = await raw(server.port, handshake.format(host=host, more=more))
            assert "cf_agent" not in answer, (host, more)
            assert "Hello" not in answer


# --- pages of other origins ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "is_foreign"),
    [
        ("http://a.example", "a.example", "http", False),
        ("http://A.example", "a.EXAMPLE", "http", False),
        ("http://a.example:80", "a.example", "http", False),
        ("https://a.example", "a.example:443", "https", False),
        ("https://a.example", "a.example", "wss", False),
        ("http://a.example", "a.example", "ws", False),
        ("http://[::1]:8000", "[::1]:8000", "http", False),
        ("http://a.example", "a.example", "https", True),
        ("https://a.example", "a.example", "http", True),
        ("http://a.example:8001", "a.example:8000", "http", True),
        ("http://a.example", "a.example:8000", "http", True),
        ("http://a.example:443", "a.example", "https", True),
        ("http://b.example", "a.example", "http", True),
        ("null", "a.example", "http", True),
        ("", "a.example", "http", True),
        ("a.example", "a.example", "http", True),
        ("http://a.example/", "a.example", "http", True),
        ("http://x@a.example", "a.example", "http", True),
        ("file://a.example", "a.example", "http", True),
        ("http://a.example http://b.example", "a.example", "http", True),
        ("http://a.example", "", "http", True),
    ],
)
def test_an_origin_is_a_scheme_a_name_and_a_port(
    origin: str, host: str, scheme: str, is_foreign: bool
) -> None:
    connection = asked(("host", host), ("origin", origin), scheme=scheme)
    assert provenance.is_foreign(connection) is is_foreign


def test_a_proxy_that_ends_tls_says_which_scheme_a_page_has() -> None:
    for more in (
        ("x-forwarded-proto", "https"),
        ("x-forwarded-proto", "HTTPS, http"),
        ("forwarded", 'for=10.0.0.1;proto="https";by=10.0.0.2'),
        ("forwarded", "proto=https"),
    ):
        host, page = ("host", "a.example"), ("origin", "https://a.example")
        assert not provenance.is_foreign(asked(host, page, more))
        assert provenance.is_foreign(asked(host, ("origin", "http://a.example"), more))


async def test_a_host_that_is_none_is_an_answer_and_no_error(sqlite_url: str) -> None:
    options: dict[str, Any] = {"auth": lambda connection: "alice", "ui": True}
    async with served(Assistant, url=sqlite_url, **options) as server, quiet_log():
        for host in ("[::1", "]", "a b", "a:b:c", "//", "\xff", "a" * 5000):
            for path in (PATH, "/_outlast/conversations?agent=assistant", "/?token=x"):
                for page in ("", "Origin: http://a.example\n", "Origin: http://[\n"):
                    text = f"GET {path} HTTP/1.1\nHost: {host}\n{page}Connection: close\n\n"
                    status = (await raw(server.port, text)).split(" ", 2)[1]
                    assert status in ("200", "400", "403"), (host, path, page)


async def test_a_page_that_differs_in_its_scheme_is_refused_and_the_log_says_what_to_set(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"auth": lambda connection: "alice"}
    async with (
        served(Assistant, url=sqlite_url, **options) as server,
        httpx.AsyncClient(base_url=server.http) as http,
    ):
        headers = {"host": "a.example", "origin": "https://a.example"}
        for _ in range(2):
            assert (await http.get(PATH, headers=headers)).status_code == 403
        proxied = {**headers, "x-forwarded-proto": "https"}
        assert (await http.get(PATH, headers=proxied)).status_code == 200
    told = [
        each.getMessage() for each in caplog.records if "X-Forwarded-Proto" in each.getMessage()
    ]
    assert len(told) == 1


def test_the_sockets_of_this_machine_are_known() -> None:
    from outlast.cli.serving.access import public

    with socket.create_server(("127.0.0.1", 0)) as own, socket.create_server(("", 0)) as everybody:
        assert public([own]) == []
        assert public([own, everybody]) == [f"http://0.0.0.0:{everybody.getsockname()[1]}"]
