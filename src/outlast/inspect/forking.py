"""Trying something else from a message on: a new agent with the conversation up to there."""

from __future__ import annotations

from typing import Any

from outlast.chat.transcript import sql as message_rows
from outlast.core import json
from outlast.host.address import Address
from outlast.host.life.host import Host
from outlast.inspect.values import NotFound

WINDOW = 1 << 40  # bytes: the whole path, however long it is


async def fork(host: Host, address: Address, message_id: str, to: Address) -> int:
    """Store the conversation of an agent, up to a message, as that of another. Returns how many messages.

    The other one must have none. Both go on, each for itself.
    """
    text = address.text
    found = await host.store.fetch(message_rows.PATH, text, message_id, text, 1, WINDOW, text)
    if not found:
        raise NotFound(f"{address} has no message {message_id!r}")
    messages: list[dict[str, Any]] = []
    for _, _, body in found:
        try:
            message = json.decode(body)
        except ValueError:
            continue  # damaged: the agent itself leaves it out, too
        if isinstance(message, dict):
            messages.append(message)
    async with host.using(to, may_make=True) as agent:
        if await agent.get_messages():  # type: ignore[attr-defined]
            raise ValueError(f"{to} has a conversation already; choose another name")
        return len(await agent.add_messages(messages))  # type: ignore[attr-defined]
