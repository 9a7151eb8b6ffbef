"""Turns a message back into chunks, for clients that build messages from chunks alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outlast.chat.message.reducer import INTERRUPTED
from outlast.chat.message.tool_part import tool_name
from outlast.core import json

Part = Mapping[str, Any]
Chunk = dict[str, Any]


def rebuilt(message: Mapping[str, Any]) -> list[Chunk]:
    """Return the chunks that build this message from scratch."""
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
    return [*chunks, *_end_of_step(step)]


def _end_of_step(step: Part) -> Iterator[Chunk]:
    """Yield the end of a step with the origin of its answer, which a message keeps at the step's start."""
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
        yield dict(part)  # files, sources and data have the same form as chunks


def _of_call(part: Part) -> Iterator[Chunk]:
    """Yield the chunks of a call. A complete input chunk would make the client execute it again."""
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
        request = {"approvalId": approval["id"]}
        yield {"type": "tool-approval-request", **call, **request}
        if isinstance(approval.get("approved"), bool):
            why = {"reason": approval["reason"]} if "reason" in approval else {}
            answer = {"approved": approval["approved"], **why}
            yield {"type": "tool-approval-response", **request, **answer}
    yield from outcome_of(part)


def outcome_of(part: Part) -> Iterator[Chunk]:
    """Yield the chunk with the outcome of a call; nothing if it has none."""
    call, state = {"toolCallId": part["toolCallId"]}, part.get("state")
    metadata = part.get("resultProviderMetadata")
    more = {"providerMetadata": metadata} if isinstance(metadata, Mapping) else {}
    if state == "output-available":
        yield {"type": "tool-output-available", **call, "output": part.get("output"), **more}
    elif state == "output-error":
        text = part.get("errorText") or INTERRUPTED
        yield {"type": "tool-output-error", **call, "errorText": text, **more}
    elif state == "output-denied":
        yield {"type": "tool-output-denied", **call}
