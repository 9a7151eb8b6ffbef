"""Agents on the network: `App`, an ASGI application with the WebSocket protocol of the JavaScript clients.

`routing` says which agent a URL means, `frames` what is sent, `room` and `chat_room` who is told what,
`socket` what a connection asks, `http` the same without a socket. `doors` says who is let in: by where they
come from (`provenance`), by the application's functions (`auth`), by a `token`, and again later
(`rechecking`). `pages` serves the chat page, with what it needs besides: `conversations` and `activity`.
`serving` runs it all in uvicorn, `gathering` sees to it that many small frames are few large writes.

This package may import everything below it; nothing below imports it.
"""

from outlast.server.access.auth import Auth
from outlast.server.app import App
from outlast.server.limits import Limits
from outlast.server.pages.pages import Page, Suggestion

__all__ = ["App", "Auth", "Limits", "Page", "Suggestion"]
