"""Noticing that an application serves: something was sent to a client that asked for it."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROBES = (
    "/healthz",
    "/readyz",
)  # answered by every process that has started, whatever state it is in
FAILED = 500  # the first status of those that say that the server could not answer


class Served:
    """An ASGI application that calls `on_served` once: when another one has served something.

    That is an answer over HTTP that is no server error, or a frame over a WebSocket. Answers to probes do not
    count: a process that dies right after each start answers them too.
    """

    def __init__(self, application: ASGIApp, on_served: Callable[[], None]) -> None:
        self._application = application
        self._on_served: Callable[[], None] | None = on_served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._on_served is None or scope["type"] == "lifespan" or _is_probe(scope):
            await self._application(scope, receive, send)
        else:
            await self._application(scope, receive, self._noticing(send))

    def _noticing(self, send: Send) -> Send:
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
