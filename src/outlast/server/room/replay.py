"""Chunks that no stream holds, for clients that build a message from chunks alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.chat.message.rebuild import outcome_of, rebuilt
from outlast.chat.message.tool_part import is_settled
from outlast.core import json
from outlast.server.room.wire import encode

_BEGINNINGS = ('{"type":"start",', '{"type":"start"}')


def rebuilding(message: Mapping[str, Any]) -> list[str]:
    """The chunks that make this message out of nothing: what a continuation goes on with."""
    return [encode(chunk) for chunk in rebuilt(message)]


def begins_at(chunks: Sequence[str]) -> int:
    """Where the attempt begins that the answer is made of; what was said before it was taken back."""
    for place in range(len(chunks) - 1, 0, -1):
        if chunks[place].startswith(_BEGINNINGS):
            return place
    return 0


def denied(message: Mapping[str, Any], answered: Sequence[str]) -> list[str]:
    """Of these calls, those that were denied: whoever has denied one is told that this is its outcome."""
    return [
        encode(chunk)
        for part in message["parts"]
        if isinstance(part, Mapping) and part.get("state") == "output-denied"
        if part.get("toolCallId") in answered
        for chunk in outcome_of(part)
    ]


def closing(chunks: Sequence[str], message: Mapping[str, Any] | None) -> list[str]:
    """The ends of what a stream that broke off has left open, as the stored message has them."""
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
