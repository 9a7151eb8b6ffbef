"""Chunks that are not in a stream, for clients that build messages from chunks alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.chat.message.rebuild import outcome_of, rebuilt
from outlast.chat.message.tool_part import is_settled
from outlast.core import json
from outlast.server.public import encode

_BEGINNINGS = ('{"type":"start",', '{"type":"start"}')


def rebuild_chunks(message: Mapping[str, Any]) -> list[str]:
    """Return chunks that rebuild this message, so that a continuation can extend it."""
    return [encode(chunk) for chunk in rebuilt(message)]


def begins_at(chunks: Sequence[str]) -> int:
    """Return where the current attempt begins; the chunks before it were discarded."""
    for place in range(len(chunks) - 1, 0, -1):
        if chunks[place].startswith(_BEGINNINGS):
            return place
    return 0


def denied(message: Mapping[str, Any], answered: Sequence[str]) -> list[str]:
    """Return the outcome chunks of the denied calls among `answered`, for the client that denied them."""
    return [
        encode(chunk)
        for part in message["parts"]
        if isinstance(part, Mapping) and part.get("state") == "output-denied"
        if part.get("toolCallId") in answered
        for chunk in outcome_of(part)
    ]


def closing(chunks: Sequence[str], message: Mapping[str, Any] | None) -> list[str]:
    """Return the chunks that close open parts of an interrupted stream, as in the stored message."""
    texts: dict[tuple[str, str], None] = {}
    calls: dict[str, None] = {}
    for text in chunks:
        chunk = json.decode(text) if text else {}
        kind, id, call = str(chunk.get("type")), chunk.get("id"), chunk.get("toolCallId")
        what, _, event = kind.rpartition("-")
        if what in ("text", "reasoning") and isinstance(id, str):
            if event == "start":
                texts[what, id] = None
            elif event == "end":
                texts.pop((what, id), None)
        elif kind == "reset-step":
            texts.clear()
        elif kind in ("tool-input-start", "tool-input-available") and isinstance(call, str):
            calls[call] = None
        elif kind.startswith(("tool-output-", "tool-input-error")) and isinstance(call, str):
            calls.pop(call, None)
    found = [{"type": f"{what}-end", "id": id} for what, id in texts]
    stored = {
        part["toolCallId"]: part
        for part in ([] if message is None else message["parts"])
        if isinstance(part, Mapping) and "toolCallId" in part
    }
    for call in calls:
        part = stored.get(call, {"toolCallId": call, "state": "output-error"})
        if is_settled(dict(part)):
            found += outcome_of(part)
    return [encode(chunk) for chunk in found]
