"""Copies a conversation up to a message into a new agent, to try something else from there."""

from __future__ import annotations

from typing import Any

from outlast.chat.transcript import sql as message_rows
from outlast.core import json
from outlast.host.address import Address
from outlast.host.life.host import Host
from outlast.inspect.values import NotFound

WINDOW = 1 << 40  # bytes; the whole path, whatever its length


async def fork(host: Host, address: Address, message_id: str, to: Address) -> int:
    """Store the conversation of an agent, up to a message, as that of another. Returns the number of
    messages.

    The other agent must have no messages. Both conversations are independent afterwards.
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
            continue  # damaged: the agent itself skips it, too
        if isinstance(message, dict):
            messages.append(message)
    async with host.using(to, may_make=True) as agent:
        if await agent.get_messages():  # type: ignore[attr-defined]
            raise ValueError(f"{to} already has a conversation; choose another name")
        return len(await agent.add_messages(messages))  # type: ignore[attr-defined]
