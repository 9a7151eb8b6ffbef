"""A server that plays the protocol from a script, for what a real one does not do on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from tabs import serving

Play = Callable[["StandIn", WebSocket], Awaitable[None]]


def message(n: int, text: str = "x") -> dict[str, Any]:
    role = "user" if n % 2 else "assistant"
    return {"id": f"m{n}", "role": role, "parts": [{"type": "text", "text": text}]}


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [each["id"] for each in messages]


class StandIn:
    """Greets, plays its script to each connection, and serves `messages` and `contents` over HTTP."""

    def __init__(self, play: Play, **identity: Any) -> None:
        self.url = ""
        self.identity = {"type": "cf_agent_identity", "name": "a", "agent": "x", **identity}
        self.connects: list[float] = []  # when, on the clock of the loop
        self.queries: list[dict[str, str]] = []
        self.heard: list[dict[str, Any]] = []
        self.gets: list[Request] = []
        self.messages: list[dict[str, Any]] = []
        self.contents: dict[str, Response] = {}
        self.window = 3
        self.before_answering: Callable[[], Awaitable[None]] | None = None
        self._play = play

    async def connect(self, socket: WebSocket) -> None:
        self.connects.append(asyncio.get_running_loop().time())
        self.queries.append(dict(socket.query_params))
        await socket.accept()
        await self.tell(socket, **self.identity)
        with suppress(WebSocketDisconnect):
            await self._play(self, socket)

    async def tell(self, socket: WebSocket, **frame: Any) -> None:
        await socket.send_text(json.dumps(frame))

    async def hear(self, socket: WebSocket) -> dict[str, Any]:
        frame = json.loads(await socket.receive_text())
        self.heard.append(frame)
        return frame  # type: ignore[no-any-return]

    async def get_messages(self, request: Request) -> Response:
        self.gets.append(request)
        shown = list(self.messages)
        before = request.query_params.get("before")
        if before is not None:
            shown = shown[: ids(shown).index(before)]
        earlier = "true" if len(shown) > self.window else "false"
        if self.before_answering is not None:
            await self.before_answering()
        return JSONResponse(shown[-self.window :], headers={"x-outlast-earlier": earlier})

    async def get_content(self, request: Request) -> Response:
        self.gets.append(request)
        return self.contents.get(request.url.path, Response(status_code=404))


@asynccontextmanager
async def playing(play: Play, **identity: Any) -> AsyncIterator[StandIn]:
    made = StandIn(play, **identity)
    routes = [
        WebSocketRoute("/agents/x/a", made.connect),
        Route("/agents/x/a/get-messages", made.get_messages),
        Route("/agents/x/a/chat/content/{rest:path}", made.get_content),
    ]
    async with serving(Starlette(routes=routes), lifespan="off", ws="auto") as served:
        made.url = served.http
        yield made
