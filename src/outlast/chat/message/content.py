"""Large values of a message that clients fetch separately: outputs of tools, and files. Pure.

Clients receive a URL in place of such a value. The URL ends with the message's id and the key of the value,
so that the value can be found again, even if a client sends the URL back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any
from urllib.parse import quote, unquote

from outlast.chat.message.tool_part import tool_name
from outlast.core import json

REFERENCE = "outlast-reference"
PREVIEW = 2000  # characters of a large output that a client receives

_URL = re.compile(r"/chat/content/([^/?#]+)/([^/?#]+)(?:\?[^#]*)?\Z")

Find = Callable[[str], Mapping[str, Any] | None]  # a message by its id


def url_of(base: str, message_id: str, key: str) -> str:
    """Return the URL of a value; `base` is the path of its agent."""
    return f"{base}/chat/content/{quote(message_id, safe='')}/{quote(key, safe='')}"


def reference(url: str, text: str) -> dict[str, Any]:
    """Return the placeholder of a large output, whose JSON is `text`."""
    about = {"size": len(text), "mediaType": "application/json", "preview": text[:PREVIEW]}
    return {"type": REFERENCE, "url": url, **about}


def key_of_file(url: str) -> str:
    return blake2b(url.encode(errors="replace"), digest_size=16).hexdigest()


def is_large_file(part: Mapping[str, Any], inline: int) -> bool:
    url = part.get("url")
    is_data = isinstance(url, str) and url.startswith("data:") and len(url) > inline
    return part.get("type") in ("file", "reasoning-file") and is_data


def referenced(
    message: Mapping[str, Any], base: str, inline: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the message with URLs in place of large values, and the keys of those values."""
    keys: list[str] = []
    parts = [_part(part, message["id"], base, inline, keys) for part in message["parts"]]
    return {**message, "parts": parts}, keys


def _part(part: Any, message_id: str, base: str, inline: int, keys: list[str]) -> Any:
    if not isinstance(part, Mapping):
        return part
    if is_large_file(part, inline):
        keys.append(key_of_file(part["url"]))
        return {**part, "url": url_of(base, message_id, keys[-1])}
    call = part.get("toolCallId")
    if "output" not in part or not isinstance(call, str) or tool_name(part) is None:
        return part
    text = json.encode(part["output"], "output", json.MAX_DEPTH + 20)
    if len(text) <= inline:
        return part
    keys.append(call)
    return {**part, "output": reference(url_of(base, message_id, call), text)}


def value_of(message: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    """Return the part that contains the value with this key, or None."""
    for part in message["parts"]:
        if not isinstance(part, Mapping):
            continue
        if part.get("toolCallId") == key and "output" in part:
            return part
        url = part.get("url")
        if isinstance(url, str) and url.startswith("data:") and key_of_file(url) == key:
            return part
    return None


def restored(message: dict[str, Any], find: Find) -> dict[str, Any]:
    """Return a client's message with our URLs replaced by the files that they refer to."""
    parts = [_restored(part, find) for part in message["parts"]]
    is_same = all(new is old for new, old in zip(parts, message["parts"], strict=True))
    return message if is_same else {**message, "parts": parts}


def _restored(part: Any, find: Find) -> Any:
    url = part.get("url") if isinstance(part, Mapping) and part.get("type") == "file" else None
    match = _URL.search(url) if isinstance(url, str) and not url.startswith("data:") else None
    if match is None:
        return part
    message = find(unquote(match[1]))
    stored = None if message is None else value_of(message, unquote(match[2]))
    return part if stored is None or "url" not in stored else {**part, "url": stored["url"]}
