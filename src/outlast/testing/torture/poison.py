"""A turn that kills its process, beside healthy ones: how it ends for its user."""

from __future__ import annotations

import asyncio

from outlast.client import Client, TurnFailed

PROMPT = "Die."
GIVEN_UP = "given up"


async def run_poison(url: str, within: float) -> str:
    """Ask for it, and wait for its end for so many seconds."""
    async with Client(url, "poison", "p") as client:
        try:
            async with asyncio.timeout(within):
                async for _ in client.send(PROMPT):
                    pass
        except TurnFailed:
            return GIVEN_UP
        except TimeoutError:
            return "still running"
    return "completed"
