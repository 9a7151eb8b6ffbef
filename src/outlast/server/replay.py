"""Chunks that no stream holds, for clients that build a message from chunks alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outlast.chat.reducer import INTERRUPTED
from outlast.chat.tool_parts import is_settled, tool_name
from outlast.core import json
from outlast.server.frames import encode

Part = Mapping[str, Any]
Chunk = dict[str, Any]

_BEGINNINGS = ('{"type":"start",', '{"type":"start"}')


def rebuilding(message: Mapping[str, Any]) -> list[str]:
    """The chunks that make this message out of nothing: what a continuation goes on with."""
    start: Chunk = {"type": "start", "messageId": message["id"]}
    if message.get("metadata") is not None:
        start["messageMetadata"] = message["metadata"]
    chunks = [start]
    step: Part = {}
    for place, part in enumerate(message["parts"]):
        if isinstance(part, Mapping):
            if part.get("type") == "step-start":
                chunks += _end_of_step(step)
                step = part
            chunks += _of_part(part, f"before-{place}")
    return [encode(chunk) for chunk in [*chunks, *_end_of_step(step)]]


def _end_of_step(step: Part) -> Iterator[Chunk]:
    """Where a step's answer came from is said at its end, and kept at its beginning."""
    if "providerMetadata" in step:
        yield {"type": "finish-step", "providerMetadata": step["providerMetadata"]}


def _of_part(part: Part, id: str) -> Iterator[Chunk]:
    kind = part.get("type")
    if kind == "step-start":
        yield {"type": "start-step"}
    elif kind in ("text", "reasoning"):
        id = part.get("id") or id
        more = {name: part[name] for name in ("providerMetadata",) if name in part}
        yield {"type": f"{kind}-start", "id": id, **more}
        yield {"type": f"{kind}-delta", "id": id, "delta": part.get("text", "")}
        cited = {name: part[name] for name in ("citations",) if name in part}
        yield {"type": f"{kind}-end", "id": id, **cited}
    elif tool_name(part) is not None and isinstance(part.get("toolCallId"), str):
        yield from _of_call(part)
    else:
        yield dict(part)  # files, sources and data are chunks as they are


def _of_call(part: Part) -> Iterator[Chunk]:
    """The input comes as if it streamed: whole, it would have the client execute the call once more."""
    call = {"toolCallId": part["toolCallId"]}
    opening: Chunk = {"type": "tool-input-start", **call, "toolName": tool_name(part)}
    if part.get("type") == "dynamic-tool":
        opening["dynamic"] = True
    for name in ("providerExecuted", "title", "toolMetadata"):
        if name in part:
            opening[name] = part[name]
    if "callProviderMetadata" in part:
        opening["providerMetadata"] = part["callProviderMetadata"]
    yield opening
    given = json.encode(part.get("input") or {})
    yield {"type": "tool-input-delta", **call, "inputTextDelta": given}
    approval = part.get("approval")
    if isinstance(approval, Mapping) and isinstance(approval.get("id"), str):
        asked = {"approvalId": approval["id"]}
        yield {"type": "tool-approval-request", **call, **asked}
        if isinstance(approval.get("approved"), bool):
            why = {"reason": approval["reason"]} if "reason" in approval else {}
            answer = {"approved": approval["approved"], **why}
            yield {"type": "tool-approval-response", **asked, **answer}
    yield from _of_outcome(part)


def _of_outcome(part: Part) -> Iterator[Chunk]:
    call, state = {"toolCallId": part["toolCallId"]}, part.get("state")
    if state == "output-available":
        yield {"type": "tool-output-available", **call, "output": part.get("output")}
    elif state == "output-error":
        text = part.get("errorText") or INTERRUPTED
        yield {"type": "tool-output-error", **call, "errorText": text}
    elif state == "output-denied":
        yield {"type": "tool-output-denied", **call}


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
        for chunk in _of_outcome(part)
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
            found += _of_outcome(part)
    return [encode(chunk) for chunk in found]
