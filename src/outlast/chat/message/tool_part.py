"""The part of a message that shows a tool call, and its state transitions.

`advanced` applies the rules: it never modifies the given part, and returns None if a chunk changes nothing. A
call only moves forward. Providers and replays repeat chunks, and a repeated input must not undo an approval,
nor a repeated approval a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outlast.chat.message.chunk_json import FOR_CLIENT, METADATA_KEY, plain_object

Part = dict[str, Any]
Chunk = Mapping[str, Any]

_SETTLED = ("output-available", "output-error", "output-denied")
_BEFORE_APPROVAL = ("input-streaming", "input-available")
_DESCRIPTION = ("title", "toolMetadata", "providerExecuted", "inputEncoding")
_APPROVAL = {
    "descriptor": "approvalDescriptor",
    "inputSchemaInput": "inputSchemaInput",
    "requestReason": "reason",
    "isAutomatic": "isAutomatic",
    "signature": "signature",
}


def tool_name(part: object) -> str | None:
    """Return the name of the tool that this part calls, or None if it is not a call."""
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if kind == "dynamic-tool":
        name = part.get("toolName")
        return name if isinstance(name, str) else None
    if isinstance(kind, str) and kind.startswith("tool-"):
        return kind.removeprefix("tool-")
    return None


def is_settled(part: Mapping[str, Any]) -> bool:
    """Return whether the call has its final outcome: a result, an error or a denial."""
    return part.get("state") in _SETTLED and part.get("preliminary") is not True


def opened(chunk: Chunk) -> Part | None:
    """Return the part of a new call, or None if this chunk does not begin one."""
    name, call_id = chunk.get("toolName"), chunk.get("toolCallId")
    if not isinstance(name, str) or not isinstance(call_id, str):
        return None
    if chunk.get("dynamic") is True:
        return {"type": "dynamic-tool", "toolName": name, "toolCallId": call_id}
    return {"type": f"tool-{name}", "toolCallId": call_id}


def advanced(part: Part, chunk: Chunk) -> Part | None:
    """Return the part after this chunk, or None if the chunk changes nothing."""
    rule = _RULES.get(chunk.get("type"))
    return rule(part, chunk) if rule is not None else None


def with_raw_input(part: Part, text: str) -> Part:
    """Return a part with its incomplete input, as text and as far as it can be parsed."""
    import pydantic_core

    shown = {**part, "rawInput": text}
    try:
        value = pydantic_core.from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return shown
    return {**shown, "input": value} if isinstance(value, dict) else shown


def merge_provider_metadata(part: Part, chunk: Chunk, name: str = "providerMetadata") -> None:
    """Merge the fields of each provider, so that a later signature does not replace an earlier id."""
    metadata = chunk.get("providerMetadata")
    if not isinstance(metadata, Mapping):
        return
    merged = dict(part[name]) if isinstance(part.get(name), dict) else {}
    for provider, fields in metadata.items():
        old = merged.get(provider)
        if isinstance(old, dict) and isinstance(fields, Mapping):
            merged[provider] = {**old, **fields}
        else:
            merged[provider] = fields
    part[name] = merged


def _input_start(part: Part, chunk: Chunk) -> Part | None:
    if "state" in part:
        return None
    return _described({**part, "state": "input-streaming"}, chunk)


def _input_available(part: Part, chunk: Chunk) -> Part | None:
    if part.get("state", "input-streaming") != "input-streaming":
        return None
    after = _renamed(part, chunk)
    after |= {"state": "input-available", "input": plain_object(chunk.get("input")) or {}}
    return _described(after, chunk)


def _input_error(part: Part, chunk: Chunk) -> Part | None:
    if is_settled(part):
        return None
    given = chunk.get("input")
    understood = plain_object(given)
    after = _renamed(part, chunk)
    after |= {"state": "output-error", "input": understood or {}}
    if understood is None and given not in (None, ""):
        after["rawInput"] = given
    after["errorText"] = _text(chunk.get("errorText"))
    return _described(_without(after, "output", "preliminary"), chunk)


def _approval_request(part: Part, chunk: Chunk) -> Part | None:
    approval_id = chunk.get("approvalId")
    if part.get("state") not in _BEFORE_APPROVAL or not isinstance(approval_id, str):
        return None
    if _is_approved(part):
        return None
    fields = {name: chunk[source] for name, source in _APPROVAL.items() if chunk.get(source)}
    approval = {"id": approval_id, **fields}
    after = {**_with_whole_input(part), "state": "approval-requested", "approval": approval}
    merge_provider_metadata(after, chunk, "callProviderMetadata")
    return after


def _approval_response(part: Part, chunk: Chunk) -> Part | None:
    approval, approved = part.get("approval"), chunk.get("approved")
    if part.get("state") != "approval-requested" or not isinstance(approved, bool):
        return None
    answer: Part = {**approval, "approved": approved} if isinstance(approval, dict) else {}
    if isinstance(chunk.get("reason"), str):
        answer["reason"] = chunk["reason"]
    waits = approved and _is_for_client(part)  # the client runs it from here on
    state = "input-available" if waits else "approval-responded"
    return {**part, "state": state, "approval": answer}


def _output_available(part: Part, chunk: Chunk) -> Part | None:
    is_preliminary = chunk.get("preliminary") is True
    if is_preliminary and is_settled(part):
        return None
    after = _without(_with_whole_input(part), "errorText", "preliminary")
    after |= {"state": "output-available", "output": chunk.get("output")}
    if is_preliminary:
        after["preliminary"] = True
    return _described(after, chunk, metadata="resultProviderMetadata")


def _output_error(part: Part, chunk: Chunk) -> Part | None:
    if is_settled(part) and part.get("state") != "output-error":
        return None
    after = _without(_with_whole_input(part), "output", "preliminary")
    after |= {"state": "output-error", "errorText": _text(chunk.get("errorText"))}
    return _described(after, chunk, metadata="resultProviderMetadata")


def _output_denied(part: Part, chunk: Chunk) -> Part | None:
    if is_settled(part) or _is_approved(part):
        return None
    after = _without(_with_whole_input(part), "output", "preliminary")
    return {**after, "state": "output-denied"}


_RULES: dict[object, Callable[[Part, Chunk], Part | None]] = {
    "tool-input-start": _input_start,
    "tool-input-available": _input_available,
    "tool-input-error": _input_error,
    "tool-approval-request": _approval_request,
    "tool-approval-response": _approval_response,
    "tool-output-available": _output_available,
    "tool-output-error": _output_error,
    "tool-output-denied": _output_denied,
}
OPENING = frozenset({"tool-input-start", "tool-input-available", "tool-input-error"})
"""The chunks that begin a call, unless one with that id exists."""


def as_object(given: object) -> dict[str, Any]:
    """Return an input as a dict; empty if it is not one."""
    return plain_object(given) or {}


def _is_approved(part: Part) -> bool:
    approval = part.get("approval")
    return isinstance(approval, dict) and approval.get("approved") is True


def _is_for_client(part: Part) -> bool:
    metadata = part.get("callProviderMetadata")
    ours = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    return isinstance(ours, dict) and ours.get(FOR_CLIENT) is True


def _with_whole_input(part: Part) -> Part:
    """Return the part of a call that proceeds: an incomplete input counts as the input."""
    if part.get("state") != "input-streaming":
        return part if "input" in part else {**part, "input": {}}
    given = plain_object(part.get("rawInput"))
    return {**_without(part, "rawInput"), "input": given or {}}


def _renamed(part: Part, chunk: Chunk) -> Part:
    """Set the tool's name from the chunk, because names may arrive in pieces."""
    after, name = _without(part, "rawInput"), chunk.get("toolName")
    if isinstance(name, str):
        is_dynamic = part.get("type") == "dynamic-tool"
        after |= {"toolName": name} if is_dynamic else {"type": f"tool-{name}"}
    return after


def _described(part: Part, chunk: Chunk, *, metadata: str = "callProviderMetadata") -> Part:
    part |= {name: chunk[name] for name in _DESCRIPTION if chunk.get(name) is not None}
    merge_provider_metadata(part, chunk, metadata)
    return part


def _without(part: Part, *names: str) -> Part:
    return {name: value for name, value in part.items() if name not in names}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
