"""A server in the event loop of a test, and browser tabs that remember every frame."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import httpx2 as httpx
import uvicorn.server
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from conformance.fixture_agent import FixtureAgent
from outlast import App
from outlast.server.socket.batching import protocol

LONG = 60.0  # seconds: only a test that fails waits that long

RESPONSE = "cf_agent_use_chat_response"
MESSAGES = "cf_agent_chat_messages"
UPDATED = "cf_agent_message_updated"
RESUMING = "cf_agent_stream_resuming"
PENDING = "cf_agent_stream_pending"
NONE = "cf_agent_stream_resume_none"
STATE = "cf_agent_state"
PROBE = "cf_agent_stream_resume_request"
ACK = "cf_agent_stream_resume_ack"

Frame = dict[str, Any]


class _Hasty:
    """asyncio, as uvicorn sees it here: it looks twenty times as often whether it is to stop, or has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


uvicorn.server.asyncio = _Hasty()  # type: ignore[assignment,attr-defined]


class Served:
    """Where a server is to be reached."""

    def __init__(self, app: Any, server: uvicorn.Server, port: int) -> None:
        self.app = app
        self.server = server
        self.port = port
        self.http = f"http://127.0.0.1:{port}"
        self.ws = f"ws://127.0.0.1:{port}"

    def at(self, name: str = "a", *rest: str, agent: str = "fixture-agent") -> str:
        """The URL of an agent over HTTP."""
        return "/".join([self.http, "agents", agent, name, *rest])

    def tab(self, name: str = "a", pk: str | None = None, **options: Any) -> Tab:
        """A tab that is to be opened with `async with`."""
        query = options.pop("query", "")
        path = options.pop("path", f"/agents/fixture-agent/{name}")
        mark = "&".join(each for each in (f"_pk={pk}" if pk else "", query) if each)
        return Tab(f"{self.ws}{path}" + (f"?{mark}" if mark else ""), **options)


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncIterator[Served]:
    """Serve an ASGI application for real, on a port of its own, as `outlast serve` does."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    given: dict[str, Any] = {"log_level": "error", "lifespan": "on", **options}
    given.setdefault("timeout_graceful_shutdown", 5)
    given.setdefault("ws", protocol())
    server = uvicorn.Server(uvicorn.Config(app, **given))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        async with asyncio.timeout(LONG):
            while not server.started:
                if task.done():
                    task.result()
                    raise AssertionError("the server has not started")
                await asyncio.sleep(0.002)
        yield Served(app, server, port)
    finally:
        server.should_exit = True
        async with asyncio.timeout(LONG + 5):
            await task
        listening.close()


@asynccontextmanager
async def served(*agents: type[Any], url: str, **options: Any) -> AsyncIterator[Served]:
    """Serve agents; without any, the fixture agent."""
    options.setdefault("shutdown_timeout", 0.2)
    app = App(agents=list(agents) or [FixtureAgent], store=url, **options)
    ours = {"ws_max_size": app.limits.frame, "ws_per_message_deflate": False}
    async with serving(app, **ours) as found:
        yield found


class Tab:
    """A client that keeps what it is sent, in order, and waits for frames rather than for time."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.frames: list[Frame] = []
        self.socket: ClientConnection | None = None
        self.closed: tuple[int, str] | None = None
        self._options = options
        self._reading: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> Self:
        self.closed = None
        self.socket = await connect(
            self.url, max_size=None, open_timeout=LONG, close_timeout=1, **self._options
        )
        self._reading = asyncio.create_task(self._read(self.socket))
        return self

    async def close(self) -> None:
        if self.socket is not None:
            with suppress(ConnectionClosed):
                await self.socket.close()
            assert self._reading is not None
            await self._reading

    async def cut(self) -> None:
        """Lose the connection, without a word."""
        assert self.socket is not None
        self.socket.transport.abort()
        assert self._reading is not None
        await self._reading

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for text in socket:
                self.frames.append(json.loads(text))
                self._tell()
        except ConnectionClosed:
            pass
        finally:
            self.closed = (socket.close_code or 1006, socket.close_reason or "")
            self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    # --- looking ---------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], Any], timeout: float = LONG) -> Any:
        """Wait until what was received makes it true."""
        try:
            async with asyncio.timeout(timeout):
                while not (found := condition()):
                    if self.closed is not None:
                        raise AssertionError(f"closed with {self.closed}: {self.shape()}")
                    changed = asyncio.get_running_loop().create_future()
                    self._waiting.append(changed)
                    await changed
        except TimeoutError:
            raise AssertionError(f"it never came: {self.shape()}") from None
        return found

    async def wait(self, kind: str, after: int = 0, **fields: Any) -> Frame:
        """Wait for a frame with this type and these fields; the first from the place `after` on."""

        def find() -> Frame | None:
            return next((each for each in self.frames[after:] if fits(each, kind, fields)), None)

        return await self.until(find)

    async def heard(self, count: int) -> bool:
        """Wait until more frames than that have come; False: the connection is gone."""
        while len(self.frames) <= count:
            if self.closed is not None:
                return False
            changed = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed
        return True

    async def until_closed(self) -> tuple[int, str]:
        async with asyncio.timeout(LONG):
            assert self._reading is not None
            await self._reading
        assert self.closed is not None
        return self.closed

    def all(self, kind: str, **fields: Any) -> list[Frame]:
        return [each for each in self.frames if fits(each, kind, fields)]

    def shape(self) -> str:
        """What has come, in short."""
        return "\n".join(json.dumps(each)[:200] for each in self.frames[-20:])

    def text(self, id: str, *, replay: bool | None = None) -> str:
        """What the response frames of a request say."""
        found = ""
        for frame in self.all(RESPONSE, id=id, done=False):
            if replay is None or bool(frame.get("replay")) is replay:
                chunk = json.loads(frame["body"]) if frame["body"] else {}
                found += chunk.get("delta", "") if chunk.get("type") == "text-delta" else ""
        return found

    def chunks(self, id: str) -> list[dict[str, Any]]:
        found = self.all(RESPONSE, id=id, done=False)
        return [json.loads(each["body"]) for each in found if each["body"]]

    # --- asking ----------------------------------------------------------------------------------

    async def send(self, kind: str, **fields: Any) -> None:
        await self.raw(json.dumps({"type": kind, **fields}))

    async def raw(self, text: str | bytes) -> None:
        assert self.socket is not None
        await self.socket.send(text)

    async def call(self, method: str, *arguments: Any, id: str | None = None) -> Any:
        """Call a method, and return what the last frame of the answer says."""
        id = id or f"call-{len(self.frames)}-{method}"
        at = len(self.frames)
        await self.send("rpc", id=id, method=method, args=list(arguments))

        def answer() -> Frame | None:
            mine = [each for each in self.frames[at:] if fits(each, "rpc", {"id": id})]
            return next((each for each in mine if each.get("done") is not False), None)

        found = await self.until(answer)
        if not found["success"]:
            raise RuntimeError(found["error"])
        return found.get("result")

    async def ask(self, id: str, *messages: Frame, **body: Any) -> None:
        """Send a chat request."""
        body.setdefault("trigger", "submit-message")
        text = json.dumps({"messages": list(messages), **body})
        init = {"method": "POST", "body": text}
        await self.send("cf_agent_use_chat_request", id=id, init=init)

    async def say(self, id: str, text: str, *earlier: Frame, **body: Any) -> Frame:
        """Send a message of the user, after those that the tab shows already."""
        message = user(f"u-{id}", text)
        await self.ask(id, *earlier, message, **body)
        return message

    async def done(self, id: str) -> Frame:
        """Wait for the frame that ends a request."""
        return await self.wait(RESPONSE, id=id, done=True)

    async def answered(self, id: str, text: str) -> Frame:
        await self.say(id, text)
        return await self.done(id)


class Screen:
    """A tab as the hook keeps it: it resumes whenever it is offered something, and builds messages."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.at = 0
        self.messages: list[Frame] = []
        self.built: dict[str, dict[int, str]] = {}  # of each request, the texts by seq
        self.streaming: set[str] = set()
        self.acked: set[tuple[int, str]] = set()

    async def follow(self) -> None:
        """Handle what has come since."""
        while self.at < len(self.tab.frames):
            frame = self.tab.frames[self.at]
            self.at += 1
            kind = frame["type"]
            if kind == MESSAGES:
                self.messages = frame["messages"]
                ids = [each["id"] for each in self.messages]
                assert len(ids) == len(set(ids))
            elif kind == RESUMING:
                await self.tab.send(ACK, id=frame["id"])
            elif kind == RESPONSE:
                self.respond(frame)

    def respond(self, frame: Frame) -> None:
        id = frame["id"]
        if frame["done"]:
            self.streaming.discard(id)
            return
        if not frame.get("replay"):
            self.streaming.add(id)
        if not frame["body"]:
            return
        chunk = json.loads(frame["body"])
        seen = self.built.setdefault(id, {})
        if chunk["type"] == "text-delta":
            if frame["seq"] in seen:
                assert seen[frame["seq"]] == chunk["delta"]
                assert frame.get("replay"), "a live frame came twice"
            seen[frame["seq"]] = chunk["delta"]

    def text(self, id: str) -> str:
        """What was built of a request, in the order of its chunks."""
        return "".join(text for _, text in sorted(self.built.get(id, {}).items()))


class Page(Screen):
    """A tab that comes back by itself whenever its connection is lost, and resumes."""

    def __init__(self, url: str) -> None:
        super().__init__(Tab(url))
        self._staying: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._staying = asyncio.create_task(self._stay())
        await until(lambda: self.tab.frames, self)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._staying is not None
        self._staying.cancel()
        await asyncio.wait({self._staying})
        if self.tab.socket is not None:
            await self.tab.close()

    def check(self) -> None:
        """Raise what went wrong inside."""
        if self._staying is not None and self._staying.done():
            self._staying.result()

    async def _stay(self) -> None:
        while True:
            with suppress(OSError, InvalidHandshake, ConnectionClosed, TimeoutError):
                await self.tab.open()
                self.streaming.clear()
                await self.tab.send(PROBE, probeId=f"p{self.at}")
                while await self.tab.heard(self.at):
                    await self.follow()
            await asyncio.sleep(0.02)


async def until(condition: Callable[[], Any], *pages: Page, timeout: float = LONG) -> None:
    """Wait until something holds of these pages, or elsewhere."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():
                for page in pages:
                    page.check()
                await asyncio.sleep(0.005)
    except TimeoutError:
        shapes = "\n--\n".join(page.tab.shape() for page in pages)
        raise AssertionError(f"it has not come to that: {shapes}") from None


def fits(frame: Frame, kind: str, fields: dict[str, Any]) -> bool:
    return frame.get("type") == kind and all(
        frame.get(name) == value for name, value in fields.items()
    )


def user(id: str, text: str) -> Frame:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def words(count: int) -> str:
    return " ".join(f"w{n}" for n in range(1, count + 1))


def said(messages: list[Frame]) -> list[str]:
    """Who says what: `["user: Hi", "assistant: Hello"]`."""
    return [f"{each['role']}: {text_of(each)}" for each in messages]


def text_of(message: Frame) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def tool_parts(message: Frame) -> list[Frame]:
    return [part for part in message["parts"] if "toolCallId" in part]


def seqs(tab: Tab, id: str) -> list[int]:
    return [each["seq"] for each in tab.all(RESPONSE, id=id) if "seq" in each]


def last_messages(tab: Tab) -> list[Frame]:
    found: list[Frame] = tab.all(MESSAGES)[-1]["messages"]
    return found


def before(tab: Tab, first: Frame, second: Frame) -> bool:
    return tab.frames.index(first) < tab.frames.index(second)


async def stored(server: Any, name: str = "a") -> list[Frame]:
    async with httpx.AsyncClient() as http:
        found: list[Frame] = (await http.get(server.at(name, "get-messages"))).json()
    return found


@asynccontextmanager
async def quiet_log(*but: str) -> AsyncIterator[list[logging.LogRecord]]:
    """No error is logged inside, except those whose text begins with one of `but`."""
    records: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keeping(logging.ERROR)
    names = ("outlast", "uvicorn.error", "asyncio", "websockets")
    for name in names:
        logging.getLogger(name).addHandler(handler)
    try:
        yield records
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(handler)
    shown = [each for each in records if not each.getMessage().startswith(but or ("\0",))]
    assert not shown, [(each.getMessage(), each.exc_info) for each in shown]


def body_of(*messages: Frame, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}
