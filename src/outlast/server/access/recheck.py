"""Repeating the access check of an open connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from outlast.core.text import described
from outlast.server.access.auth import AccessDenied

logger = logging.getLogger("outlast.server")

WITHIN = 10.0  # seconds that a check may take
PAUSES = (
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
)  # seconds before each retry of a failed check; then the connection closes
EARLIER = 0.1  # fraction of the interval over which simultaneous connections are spread
LAST_WORD = 5.0  # seconds for a client to receive the end of its stream

Ask = Callable[[], Awaitable[object]]


class RecheckFailed(Exception):
    """Checks failed for so long that it is unknown whether a connection may stay."""


async def until_refused(ask: Ask, every: float, whose: str) -> AccessDenied | RecheckFailed:
    """Repeat the check until it refuses, and return why the connection must close.

    `ask` raises `AccessDenied` to refuse. Any other exception, and a check that takes too long, is a failure:
    the connection stays open and `ask` is retried with growing pauses, a limited number of times.
    """
    pauses, wait = iter(PAUSES), _spread(every)
    while True:
        await asyncio.sleep(wait)
        try:
            async with asyncio.timeout(WITHIN):
                await ask()
        except AccessDenied as refusal:
            return refusal
        except Exception as error:
            pause = next(pauses, None)
            if pause is None:
                logger.error(
                    "closing %s: its access cannot be rechecked: %s", whose, described(error)
                )
                return RecheckFailed(f"the access of {whose} cannot be rechecked")
            # One line, without a traceback: there may be thousands of connections.
            text = "cannot recheck the access of %s, retrying in %g s: %s"
            logger.warning(text, whose, pause, described(error))
            wait = pause
        else:
            pauses, wait = iter(PAUSES), _spread(every)


def _spread(every: float) -> float:
    return every * (1 - EARLIER * random.random())


async def stream_until(
    response: Response, scope: Scope, receive: Receive, send: Send, refused: Awaitable[object]
) -> None:
    """Send a response of unlimited length, and end it when `refused` completes."""
    is_over = False

    async def sent(message: Message) -> None:
        nonlocal is_over
        is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    serving = asyncio.ensure_future(response(scope, receive, sent))
    watching = asyncio.ensure_future(refused)
    try:
        await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
            return
        watching.result()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        if not is_over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        for task in (serving, watching):
            task.cancel()
        await asyncio.gather(serving, watching, return_exceptions=True)
