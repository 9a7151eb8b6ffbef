"""Lists the stored conversations of a class, and searches their messages. For development: these queries
scan every message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlast.chat.message.reducer import text_of
from outlast.chat.transcript import sql as rows
from outlast.core import json
from outlast.core.errors import InvalidName
from outlast.host.address import Address
from outlast.store.base import Row, Store

LISTED = 200  # conversations
FOUND = 40  # messages
TITLE = 80  # characters
AROUND = 60  # characters before and after a hit

_IN_A_URL = re.compile(r"[\w.~!$&'()*+,;=:@%-]+", re.ASCII)  # unescaped


async def list_stored(store: Store, kind: str) -> list[dict[str, Any]]:
    """Return name, title and time of the last message of each conversation, newest first."""
    prefix = f"{kind}/"
    found = await store.fetch(rows.CONVERSATIONS, len(prefix), prefix, LISTED)
    listed = []
    for agent, last_at, body in found:
        name = _name(agent)
        if name is not None:
            listed.append({"name": name, "title": title_of(_decoded(body)), "at": last_at})
    return listed


async def search(store: Store, kind: str, text: str) -> list[dict[str, Any]]:
    """Return the messages that contain the text, newest first, each with an excerpt."""
    prefix, wanted = f"{kind}/", text.casefold()
    rough = f"%{_escaped(json.encode(text)[1:-1])}%"
    hits = []
    for row in await store.fetch(rows.CONTAINING, len(prefix), prefix, rough.lower(), FOUND * 5):
        hit = _hit(row, wanted)
        if hit is not None:
            hits.append(hit)
    return hits[:FOUND]


def _hit(row: Row, wanted: str) -> dict[str, Any] | None:
    agent, id, role, at, body = row
    name, message = _name(agent), _decoded(body)
    said = text_of(message) if message is not None else ""
    place = said.casefold().find(wanted)
    if name is None or place < 0:
        return None
    start = max(0, place - AROUND)
    excerpt = " ".join(said[start : place + len(wanted) + AROUND].split())
    shown = f"…{excerpt}" if start else excerpt
    return {"name": name, "messageId": id, "role": role, "at": at, "excerpt": shown}


def title_of(message: Mapping[str, Any] | None) -> str:
    """Return the title of a conversation: its beginning."""
    said = " ".join(text_of(message).split()) if message is not None else ""
    return said if len(said) <= TITLE else f"{said[: TITLE - 1].rstrip()}…"


def _name(agent: str) -> str | None:
    """Return the name of a root agent; None for a sub-agent, or a name that a URL cannot contain."""
    try:
        address = Address.parse(agent)
    except InvalidName:
        return None
    is_reached = address.parent is None and _IN_A_URL.fullmatch(address.name)
    return address.name if is_reached and address.name not in (".", "..") else None


def _decoded(body: str) -> dict[str, Any] | None:
    try:
        message = json.decode(body)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _escaped(text: str) -> str:
    """Escape a text for LIKE. SQLite folds the case of ASCII only, so other letters match any character."""
    for special in "!%_":
        text = text.replace(special, f"!{special}")
    return "".join(each if each.isascii() else "_" for each in text)
