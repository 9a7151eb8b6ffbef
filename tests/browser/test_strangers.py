"""Pages of strangers, in a browser that is let in: what they ask of the server comes to nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, BrowserContext

from browser.conftest import STRANGER
from browser.served import Server

ATTACK = """async ([base, socket, pid]) => {
  const tried = async (ask) => { try { return await ask(); } catch { return "refused by the browser"; } };
  const read = (path) => tried(async () => (await fetch(base + path, { credentials: "include" })).status);
  const post = (path, body) => tried(async () => {
    await fetch(base + path, { method: "POST", mode: "no-cors", credentials: "include", body });
  });
  const listen = () => new Promise((resolve) => {
    const opened = new WebSocket(socket + "/agents/page-agent/victim");
    let heard = 0;
    opened.onmessage = () => { heard += 1; };
    opened.onclose = ({ code }) => resolve([code, heard]);
    setTimeout(() => resolve(["open", heard]), 10000); // only a test that fails waits for that
  });
  await post(`/_outlast/kill?pid=${pid}`);
  await post("/agents/page-agent/victim/submissions", '{"messages": "forged"}');
  const seen = await read("/_outlast/inspect/agents");
  return [seen, await read("/agents/page-agent/victim/get-messages"), await listen()];
}"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>A page</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """The port of another server on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def victim(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    """A browser that has the cookie."""
    context = browser.new_context()
    context.request.get(server.link)
    assert context.request.get(f"{server.url}/_outlast/inspect/agents").status == 200
    yield context
    context.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", STRANGER])
def test_no_page_of_another_server_reads_or_does_anything(
    victim: BrowserContext, server: Server, elsewhere: int, host: str
) -> None:
    workers = server.children()
    page = victim.new_page()
    page.goto(f"http://{host}:{elsewhere}/")
    base = [server.url, server.url.replace("http", "ws"), workers[0]]
    agents, messages, heard = page.evaluate(ATTACK, base)
    assert (agents, messages) == ("refused by the browser", "refused by the browser")
    assert heard == [1008, 0]
    assert server.children() == workers
    assert server.messages("victim") == []


def test_a_name_that_was_made_to_mean_this_machine_opens_nothing(
    victim: BrowserContext, server: Server
) -> None:
    workers = server.children()
    page = victim.new_page()
    opened = page.goto(f"http://{STRANGER}:{server.port}/")
    assert opened is not None
    assert opened.status == 403
    base = [
        "",
        f"ws://{STRANGER}:{server.port}",
        workers[0],
    ]  # its own, as far as a browser can tell
    assert page.evaluate(ATTACK, base) == [403, 403, [1008, 0]]
    assert server.children() == workers
    assert server.messages("victim") == []
