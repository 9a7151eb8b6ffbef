"""The open parts of a model's answer, each with the chunks that show it.

A provider reports when a part begins and what is added to it. Its end is less reliable: an interleaved call
is "ended" by the next one and continues later, and citations may follow the end of a text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Protocol

from outlast.chat.message.chunk_json import encoded, metadata_of, plain_object, present_attributes
from outlast.core import json

BROKEN_OFF = "The model's answer was cut off before the arguments of this call were complete."
MALFORMED = "The arguments of this call are not a JSON object."

MoreText = tuple[str, str, str, str]
"""`text` or `reasoning`, the id of the part, the added text, and its chunk."""


class OpenPart(Protocol):
    """A part of the model's answer that is not complete yet."""

    is_whole: bool  # it arrives in one piece, which a later one may replace

    def begin(self, part: Any) -> list[str]: ...
    def delta(self, delta: Any) -> list[str]: ...
    def may_end(self, part: Any) -> bool: ...
    def end(self, part: Any) -> list[str]: ...
    def broken(self) -> list[str]: ...
    def replaced_by(self, part: Any) -> bool: ...


class OpenText:
    """Text or reasoning, with details that may change until its end."""

    is_whole = False

    def __init__(self, kind: str, part_id: str, slot: int, details: dict[str, Any] | None = None):
        self._kind = kind
        self._id = part_id
        self._slot = slot
        self._details = details or {}
        self._extra = "citations" if kind == "text" else "signature"
        self._extra_delta = self._extra + "_delta"
        self._provider_name: str | None = None
        self._prefix = f'{{"type":"{kind}-delta","id":{json.encode(part_id)},"delta":'

    def begin(self, part: Any) -> list[str]:
        self._details |= present_attributes(
            part, ("id", "provider_name", "provider_details", self._extra)
        )
        self._provider_name = self._details.get("provider_name")
        chunks = [self._chunk("start")]
        if part.content:
            chunks.append(f"{self._prefix}{json.encode(part.content)}}}")
        return chunks

    def more(self, delta: Any) -> MoreText | None:
        """Return a delta that contains only text; None for any other delta."""
        text: str | None = getattr(delta, "content_delta", None)
        if not text or not self._is_plain(delta) or (encoded := json.encode_text(text)) is None:
            return None
        return self._kind, self._id, text, f"{self._prefix}{encoded}}}"

    def delta(self, delta: Any) -> list[str]:
        text = getattr(delta, "content_delta", None) or ""
        if self._is_plain(delta):
            return [f"{self._prefix}{json.encode(text)}}}"] if text else []
        self._learn(delta)
        return [self._chunk("delta", {"delta": text})]

    def may_end(self, part: Any) -> bool:
        return True

    def end(self, part: Any) -> list[str]:
        if part is not None:
            self._details |= present_attributes(
                part, ("id", "provider_name", "provider_details", self._extra)
            )
        return [self._chunk("end")]

    def broken(self) -> list[str]:
        if self._kind == "reasoning":
            self._details["unfinished"] = True
        return [self._chunk("end")]

    def replaced_by(self, part: Any) -> bool:
        return False

    def continued(self) -> ContinuedText:
        return ContinuedText(self._kind, self._id + "-more", self._slot, {"continues": self._slot})

    def _is_plain(self, delta: Any) -> bool:
        return (
            getattr(delta, "provider_details", None) is None
            and getattr(delta, self._extra_delta, None) is None
            and (
                (name := getattr(delta, "provider_name", None)) is None
                or name == self._provider_name
            )
        )

    def _learn(self, delta: Any) -> None:
        details = getattr(delta, "provider_details", None)
        if callable(details):
            try:
                details = details(self._details.get("provider_details"))
            except Exception:
                details = None  # the end of the part contains the result
        if isinstance(details, dict):
            details = {**self._details.get("provider_details", {}), **details}
            self._details |= {"provider_details": details}
        extra = getattr(delta, self._extra_delta, None)
        if extra is not None:
            self._details[self._extra] = extra
        if delta.provider_name is not None:
            self._details["provider_name"] = self._provider_name = delta.provider_name

    def _chunk(self, what: str, fields: Mapping[str, object] = {}) -> str:
        chunk = {"type": f"{self._kind}-{what}", "id": self._id, **fields}
        return encoded({**chunk, **metadata_of(self._details)})


class ContinuedText(OpenText):
    """Text that arrived after the end of its part. Its first delta starts a new part."""

    _begun = False

    def more(self, delta: Any) -> MoreText | None:
        return super().more(delta) if self._begun else None

    def delta(self, delta: Any) -> list[str]:
        if self._begun:
            return super().delta(delta)
        self._begun = True
        return [self._chunk("start"), *super().delta(delta)]


class OpenCall:
    """A tool call: the name comes first, the arguments arrive in pieces."""

    is_whole = False

    def __init__(self, part: Any) -> None:
        self._call_id: str = part.tool_call_id
        self._name: str = part.tool_name
        self._is_native = part.part_kind == "builtin-tool-call"
        self._arguments: list[str] = []
        self._fields: dict[str, Any] = {}  # arguments that arrive as a dict
        self._details: dict[str, Any] = {}

    def begin(self, part: Any) -> list[str]:
        self._learn(part)
        return [self._chunk("tool-input-start"), *self._argued(part.args)]

    def delta(self, delta: Any) -> list[str]:
        self._name += getattr(delta, "tool_name_delta", None) or ""
        details = getattr(delta, "provider_details", None)
        if isinstance(details, dict):
            old = self._details.get("provider_details", {})
            self._details["provider_details"] = {**old, **details}
        if getattr(delta, "provider_name", None) is not None:
            self._details["provider_name"] = delta.provider_name
        return self._argued(getattr(delta, "args_delta", None))

    def may_end(self, part: Any) -> bool:
        return bool(part.args) and plain_object(part.args) is not None

    def end(self, part: Any) -> list[str]:
        arguments: object = self._fields or "".join(self._arguments)
        if part is not None:
            self._name, self._call_id = part.tool_name, part.tool_call_id
            self._learn(part)
            arguments = part.args
        given = plain_object(arguments) if arguments else {}
        if given is None:
            fields = {"input": arguments, "errorText": MALFORMED}
            return [self._chunk("tool-input-error", fields)]
        return [self._chunk("tool-input-available", {"input": given})]

    def broken(self) -> list[str]:
        arguments = self._fields or "".join(self._arguments)
        return [self._chunk("tool-input-error", {"input": arguments, "errorText": BROKEN_OFF})]

    def replaced_by(self, part: Any) -> bool:
        if getattr(part, "tool_call_id", None) != self._call_id:
            return False
        self._name = part.tool_name
        self._learn(part)
        self._arguments = [part.args] if isinstance(part.args, str) else []
        self._fields = part.args if isinstance(part.args, dict) else {}
        return True

    def _argued(self, arguments: object) -> list[str]:
        if isinstance(arguments, dict):
            self._fields = {**self._fields, **arguments}
        if not isinstance(arguments, str) or not arguments:
            return []
        self._arguments.append(arguments)
        chunk = {"type": "tool-input-delta", "toolCallId": self._call_id}
        return [encoded({**chunk, "inputTextDelta": arguments})]

    def _learn(self, part: Any) -> None:
        self._details |= present_attributes(
            part, ("id", "provider_name", "provider_details", "tool_kind")
        )

    def _chunk(self, kind: str, fields: Mapping[str, object] = {}) -> str:
        chunk = {"type": kind, "toolCallId": self._call_id, "toolName": self._name, **fields}
        if self._is_native:
            chunk["providerExecuted"] = True
        return encoded({**chunk, **metadata_of(self._details)})


class OpenFile:
    """A file from the model. A later version may replace it until the next part begins."""

    is_whole = True

    def __init__(self, part: Any) -> None:
        self._part = part

    def begin(self, part: Any) -> list[str]:
        return []

    def delta(self, delta: Any) -> list[str]:
        return []

    def may_end(self, part: Any) -> bool:
        return True

    def end(self, part: Any) -> list[str]:
        file = self._part if part is None else part
        media_type = str(file.content.media_type)
        data = base64.b64encode(file.content.data).decode()
        details = present_attributes(file, ("id", "provider_name", "provider_details"))
        chunk = {"type": "file", "url": f"data:{media_type};base64,{data}", "mediaType": media_type}
        return [encoded({**chunk, **metadata_of(details)})]

    def broken(self) -> list[str]:
        return self.end(None)

    def replaced_by(self, part: Any) -> bool:
        if getattr(part, "part_kind", None) != "file":
            return False
        self._part = part
        return True
