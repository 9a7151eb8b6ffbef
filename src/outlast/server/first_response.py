"""Detects that an application serves: it sent its first response or frame to a client."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROBES = (
    "/healthz",
    "/readyz",
)  # every process that has started responds, whatever its state
FAILED = 500  # the lowest status of a server error


class FirstResponse:
    """An ASGI middleware that calls `on_served` once, when the application first serves a client.

    That is an HTTP response that is not a server error, or a WebSocket frame. Responses to probes do not
    count: a process that crashes right after each start sends them, too.
    """

    def __init__(self, application: ASGIApp, on_served: Callable[[], None]) -> None:
        self._application = application
        self._on_served: Callable[[], None] | None = on_served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._on_served is None or scope["type"] == "lifespan" or _is_probe(scope):
            await self._application(scope, receive, send)
        else:
            await self._application(scope, receive, self._watched(send))

    def _watched(self, send: Send) -> Send:
        async def sent(message: Message) -> None:
            await send(message)
            if self._on_served is not None and _serves(message):
                on_served, self._on_served = self._on_served, None
                on_served()

        return sent


def _is_probe(scope: Scope) -> bool:
    return scope["path"] in PROBES


def _serves(message: Message) -> bool:
    if message["type"] == "http.response.start":
        return int(message["status"]) < FAILED
    return bool(message["type"] == "websocket.send")
