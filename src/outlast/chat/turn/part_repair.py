"""The hook `repair_interrupted_tool_part`, for calls with an unknown outcome before a model sees them.

The hook is called for a stored call without an outcome when the next turn begins, and for a call with an
unknown outcome as soon as that is known: during the turn, or when it continues after an interruption. A call
that ends with its turn as interrupted or unknown is marked as due when its message is stored, and the hook is
called when the next turn begins. The ledger is not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from outlast.agent.part import Part, Parts
from outlast.chat.message.chunk_json import METADATA_KEY, encoded
from outlast.chat.message.rebuild import rebuilt
from outlast.chat.message.repair import check_repaired
from outlast.chat.message.tool_part import Part as ToolPart
from outlast.chat.message.tool_part import is_settled, tool_name
from outlast.core import json
from outlast.core.hooks import call_hook, is_overridden

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

logger = logging.getLogger("outlast.chat")

MARK = "repair"  # the field of a result's metadata
Mark = Literal["due", "asked"]


class Repairing(Protocol):
    """An agent with the hook."""

    def repair_interrupted_tool_part(self, part: ToolPart) -> Any: ...


class PartRepair(Part):
    """The hook of one agent. An exception or an invalid result is logged and ignored."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._hook = parts.agent.repair_interrupted_tool_part
        self.is_wanted = is_overridden(self._hook)

    async def made_of(self, part: ToolPart) -> ToolPart | None:
        """Return the replacement of a part, or None to keep it."""
        try:
            made = await call_hook(self._hook, without_mark(part))
            if made is None:
                return None
            stored: ToolPart = json.decode(json.encode(check_repaired(made), "part"))
        except Exception:  # the conversation must continue
            logger.exception("%s: repair_interrupted_tool_part failed", self.address)
            return None
        if stored == without_mark(part):
            return None
        return marked(stored, "asked") if is_unknown(stored) else stored

    def unasked(self, said: Mapping[str, Any], begun: Mapping[str, Any] | None) -> list[ToolPart]:
        """Return the calls of a turn with an unknown outcome that the hook was not called for."""
        if not self.is_wanted:
            return []
        known = _calls(begun or {})
        return [part for id, part in _calls(said).items() if id not in known and is_unknown(part)]

    def marking(
        self, said: Mapping[str, Any], stored: dict[str, Any], begun: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Mark each call in a turn's final message that the hook must be called for.

        `said` is the message before its open calls were closed, `begun` the one that the turn continued.
        """
        if not self.is_wanted:
            return stored
        before, known = _calls(said), _calls(begun or {})

        def is_left(part: Any) -> bool:
            id = part.get("toolCallId") if tool_name(part) is not None else None
            if id is None or part.get("state") != "output-error" or mark_of(part) is not None:
                return False
            if id in known and is_settled(known[id]):
                return False
            return is_unknown(part) or (id in before and not is_settled(before[id]))

        parts = [marked(part, "due") if is_left(part) else part for part in stored["parts"]]
        return {**stored, "parts": parts}


def is_unknown(part: Mapping[str, Any]) -> bool:
    """Return whether the outcome of a call is unknown, and the hook was not called for it."""
    is_open = part.get("state") == "output-error" and mark_of(part) is None
    return is_open and _ours(part).get("outcome") == "unknown"


def with_replaced(message: dict[str, Any], replaced: Mapping[str, ToolPart]) -> list[str]:
    """Return the chunks that make clients show this message with some calls replaced."""
    parts = [replaced.get(str(part.get("toolCallId")), part) for part in message["parts"]]
    return [encoded(chunk) for chunk in rebuilt({**message, "parts": parts})]


def without_calls(response: ModelResponse, replaced: Mapping[str, ToolPart]) -> ModelResponse:
    """Return the answer with each call that became a text replaced by that text."""
    from pydantic_ai.messages import TextPart, ToolCallPart

    parts: list[Any] = []
    for part in response.parts:
        made = replaced.get(part.tool_call_id) if isinstance(part, ToolCallPart) else None
        if made is None or tool_name(made) is not None:
            parts.append(part)
        elif made["type"] == "text":
            parts.append(TextPart(str(made.get("text", ""))))
    return replace(response, parts=parts)


def mark_of(part: Mapping[str, Any]) -> Any:
    """Return the mark of a call: whether the hook is due, or was called."""
    return _ours(part).get(MARK)


def marked(part: ToolPart, mark: Mark) -> ToolPart:
    metadata = part.get("resultProviderMetadata")
    known = metadata if isinstance(metadata, dict) else {}
    ours = {**_ours(part), MARK: mark}
    return {**part, "resultProviderMetadata": {**known, METADATA_KEY: ours}}


def without_mark(part: ToolPart) -> ToolPart:
    """Return the part without its mark."""
    ours = {name: value for name, value in _ours(part).items() if name != MARK}
    metadata = part.get("resultProviderMetadata")
    if not isinstance(metadata, dict) or METADATA_KEY not in metadata:
        return part
    others = {name: value for name, value in metadata.items() if name != METADATA_KEY}
    after = {**others, METADATA_KEY: ours} if ours else others
    rest = {name: value for name, value in part.items() if name != "resultProviderMetadata"}
    return {**rest, "resultProviderMetadata": after} if after else rest


def _ours(part: Mapping[str, Any]) -> dict[str, Any]:
    metadata = part.get("resultProviderMetadata")
    ours = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    return ours if isinstance(ours, dict) else {}


def _calls(message: Mapping[str, Any]) -> dict[Any, ToolPart]:
    parts = message.get("parts")
    found = parts if isinstance(parts, list) else []
    return {part.get("toolCallId"): part for part in found if tool_name(part) is not None}
