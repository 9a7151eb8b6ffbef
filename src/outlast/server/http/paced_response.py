"""Responses that are written at the pace of the client, which is dropped when it stops reading."""

from __future__ import annotations

import asyncio
import logging

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

logger = logging.getLogger("outlast.server")

PIECE = 64 * 1024  # bytes per write


class PacedResponse(Response):
    """A body of any size. A client that reads nothing of it for `stall` seconds is dropped."""

    stall = 30.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        body = memoryview(self.body)
        for at in range(0, len(body), PIECE):
            if not await write(send, bytes(body[at : at + PIECE]), self.stall):
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if self.background is not None:
            await self.background()


async def write(send: Send, piece: bytes, stall: float) -> bool:
    """Write a piece once the client has read enough of the earlier ones. False if the client was dropped."""
    try:
        async with asyncio.timeout(stall):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        logger.warning("dropping a client that read nothing for %.0f s", stall)
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()
        return False
    return True
