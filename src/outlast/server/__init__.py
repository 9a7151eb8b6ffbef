"""Agents on the network: `App`, an ASGI application with the WebSocket protocol of the JavaScript clients.

**What lives here.** `routing` resolves a URL to an agent; `limits` bounds what clients may send and hold;
`access` decides who may connect; `socket` is one connection and its frames; `room` is all connections of
one agent; `http` is the same without a socket; `pages` serves the chat page and the inspector. `app` puts
them together, and `uvicorn_server` runs it.

**What it promises.** No client receives a chunk that is not durable. A slow client delays no other client
and no commit. Clients see public fields and public error messages only; everything else is in the log.

**Where to start reading.** `App.__call__` in `app`, then `socket.socket` for what a client asks and
`room.chat_room` for what it receives.

This package may import every package below it; only `cli`, `demo` and `testing` import it.
"""

from outlast.server.access.auth import Auth
from outlast.server.app import App
from outlast.server.limits import Limits
from outlast.server.pages.pages import Page, Suggestion

__all__ = ["App", "Auth", "Limits", "Page", "Suggestion"]
