"""Asking about an open connection again: whether it would still be let in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from outlast.core.text import described
from outlast.server.access.auth import NotLetIn

logger = logging.getLogger("outlast.server")

WITHIN = 10.0  # seconds that an answer may take
PAUSES = (
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
)  # seconds before a failed recheck is tried again; then it is over
EARLIER = 0.1  # the part of an interval over which connections that came together are spread
LAST_WORD = 5.0  # seconds for a client to take the end of its stream

Ask = Callable[[], Awaitable[object]]


class CannotTell(Exception):
    """Rechecks have failed for so long that nobody can say whether a connection may stay."""


async def refused(ask: Ask, every: float, whose: str) -> NotLetIn | CannotTell:
    """Ask again and again, and return why the connection has to go.

    `ask` raises `NotLetIn` to refuse. Anything else that it raises, and an answer that takes too long, is a
    failure: the connection stays for now, and `ask` is tried again, later and later, until it is enough.
    """
    pauses, wait = iter(PAUSES), _spread(every)
    while True:
        await asyncio.sleep(wait)
        try:
            async with asyncio.timeout(WITHIN):
                await ask()
        except NotLetIn as refusal:
            return refusal
        except Exception as error:
            pause = next(pauses, None)
            if pause is None:
                logger.error("%s is closed: it cannot be rechecked: %s", whose, described(error))
                return CannotTell(f"{whose} cannot be rechecked")
            # One line: there may be thousands of connections.
            text = "%s cannot be rechecked, trying again in %g s: %s"
            logger.warning(text, whose, pause, described(error))
            wait = pause
        else:
            pauses, wait = iter(PAUSES), _spread(every)


def _spread(every: float) -> float:
    return every * (1 - EARLIER * random.random())


async def stream(
    response: Response, scope: Scope, receive: Receive, send: Send, going: Awaitable[object]
) -> None:
    """Send a response that may take for ever, and end it when `going` returns."""
    is_over = False

    async def sent(message: Message) -> None:
        nonlocal is_over
        is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    serving = asyncio.ensure_future(response(scope, receive, sent))
    watching = asyncio.ensure_future(going)
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
