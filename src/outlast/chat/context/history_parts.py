"""Converts stored parts to parts of model messages.

Stored parts may be old, foreign or damaged: invalid ones are skipped, and nothing raises.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urlsplit

from outlast.chat.context.content import MAX_RESULT_CHARACTERS, holds_files
from outlast.chat.context.shorten import shortened_value
from outlast.chat.message.chunk_json import METADATA_KEY, plain_object
from outlast.chat.message.tool_part import is_settled, tool_name

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_ai.messages import (
        BinaryContent,
        ModelRequestPart,
        ModelResponse,
        ModelResponsePart,
        ToolReturnPart,
        UserContent,
    )

DENIED = "The user did not allow this call."
WORDLESS = "(a message without text)"

_RESPONSE_FIELDS = (
    "model_name",
    "provider_name",
    "provider_url",
    "canonical_system",
    "provider_response_id",
)
_MEDIA_TYPES = {  # as browsers and people write them, and as providers want them
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
}
_FINISH_REASONS = ("stop", "length", "content_filter", "tool_call", "error")


# --- users and systems ---------------------------------------------------------------------------


def user_parts(parts: list[Any]) -> list[ModelRequestPart]:
    """Return a user's texts and files; a placeholder if there are none."""
    from pydantic_ai.messages import UserPromptPart

    content: list[UserContent] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and _has_words(part.get("text")):
            content.append(part["text"])
        elif kind == "file":
            file = _user_file(part)
            if file is not None:
                content.append(file)
    only = content[0] if content else WORDLESS
    return [UserPromptPart(only if len(content) <= 1 and isinstance(only, str) else content)]


def system_parts(parts: list[Any]) -> list[ModelRequestPart]:
    from pydantic_ai.messages import SystemPromptPart

    texts = [p.get("text") for p in parts if isinstance(p, dict) and p.get("type") == "text"]
    text = "\n\n".join(text for text in texts if isinstance(text, str) and _has_words(text))
    return [SystemPromptPart(text)] if text else []


def _has_words(text: object) -> bool:
    """Return whether a text is more than white space, which some providers reject."""
    return isinstance(text, str) and bool(text) and not text.isspace()


def _user_file(part: dict[str, Any]) -> UserContent | None:
    from pydantic_ai.messages import AudioUrl, DocumentUrl, ImageUrl, VideoUrl

    url, media_type = part.get("url"), part.get("mediaType")
    if not isinstance(url, str):
        return None
    if url.startswith("data:"):
        return _data_of(url, media_type)
    if not url.startswith(("https://", "http://")):
        return None
    if not isinstance(media_type, str) or "/" not in media_type:
        media_type = _guessed_type(url)
        if media_type is None:
            return f"(a file: {url})"
    media_type = _MEDIA_TYPES.get(media_type, media_type)
    kinds: dict[str, Any] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
    file: UserContent = kinds.get(media_type.split("/")[0], DocumentUrl)(url, media_type=media_type)
    return file


def _guessed_type(url: str) -> str | None:
    """Return the media type of a URL by its file extension, or None."""
    try:
        return mimetypes.guess_type(urlsplit(url).path)[0]
    except ValueError:
        return None


def _data_of(url: str, media_type: object = None) -> BinaryContent | None:
    """Return the bytes of a data URL, or None if it is invalid."""
    from pydantic_ai.messages import BinaryContent

    head, comma, body = url.removeprefix("data:").partition(",")
    if not comma:
        return None
    kind, *flags = head.split(";")
    try:
        data = unquote_to_bytes(body)
        if "base64" in flags:
            data = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    if "/" not in kind:
        kind = media_type if isinstance(media_type, str) and "/" in media_type else "text/plain"
    kind = _MEDIA_TYPES.get(kind, kind)
    return BinaryContent.narrow_type(BinaryContent(data=data, media_type=kind))


# --- the assistant -------------------------------------------------------------------------------


def steps(parts: list[Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the parts of each step. Without step markers, a step ends where a text follows a result."""
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    is_marked = "step-start" in kinds
    step: list[dict[str, Any]] = []
    has_result = False
    for part in parts:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind == "step-start" or (not is_marked and has_result and kind in ("text", "reasoning")):
            yield step
            step, has_result = [], False
        step.append(part)
        is_ours = part.get("providerExecuted") is not True
        has_result = has_result or (tool_name(part) is not None and is_ours and is_settled(part))
    yield step


class Answer:
    """One answer of the model, built from the parts of its step."""

    def __init__(self, outputs: Mapping[str, Any]) -> None:
        self._outputs = outputs
        self.dropped: list[str] = []
        self.returns: list[ToolReturnPart] = []
        self._slots: list[ModelResponsePart | None] = []  # None: a part that is not sent
        self._late: list[tuple[int, ModelResponsePart]] = []
        self._origin: dict[str, Any] = {}

    def add(self, part: dict[str, Any]) -> None:
        kind = part.get("type")
        if kind == "step-start":
            self._origin = _ours(part)
        elif kind in ("text", "reasoning"):
            self._say(part, _text_part if kind == "text" else _thinking_part)
        elif kind == "file":
            self._slots.append(_file_part(part))
        elif tool_name(part) is not None:
            self._call(part)

    def response(self) -> ModelResponse | None:
        from pydantic_ai.messages import ModelResponse

        for slot, part in sorted(self._late, key=lambda late: late[0]):
            self._slots.insert(slot, part)
        parts = [part for part in self._slots if part is not None]
        if not parts:
            return None
        origin = _texts(self._origin, *_RESPONSE_FIELDS)
        origin |= _objects(self._origin, "provider_details")
        if self._origin.get("finish_reason") in _FINISH_REASONS:
            origin["finish_reason"] = self._origin["finish_reason"]
        return ModelResponse(parts=parts, **origin)

    def _say(self, part: dict[str, Any], make: Any) -> None:
        continues = _ours(part).get("continues")
        if not isinstance(continues, int) or not 0 <= continues < len(self._slots):
            self._slots.append(make(part))
            return
        more, before = make(part), self._slots[continues]
        self._slots[continues] = _joined(before, more) if before is not None else more

    def _call(self, part: dict[str, Any]) -> None:
        call_id, name = part.get("toolCallId"), tool_name(part)
        if not isinstance(call_id, str) or not call_id or not name:
            return
        is_native = part.get("providerExecuted") is True
        if not is_settled(part) or (is_native and part.get("state") != "output-available"):
            self._slots.append(None)
            self.dropped.append(call_id)
        elif is_native:
            self._native_call(part, name, call_id)
        else:
            from pydantic_ai.messages import ToolCallPart

            call = ToolCallPart(name, _arguments(part), call_id, **_call_details(part))
            self._slots.append(ToolCallPart.narrow_type(call))
            self.returns.append(tool_return(part, self._outputs))

    def _native_call(self, part: dict[str, Any], name: str, call_id: str) -> None:
        from pydantic_ai.messages import NativeToolCallPart, NativeToolReturnPart

        call = NativeToolCallPart(name, _arguments(part), call_id, **_call_details(part))
        self._slots.append(NativeToolCallPart.narrow_type(call))
        ours = _ours(part, "resultProviderMetadata")
        outcome = ours.get("outcome")
        returned = NativeToolReturnPart(
            name,
            part.get("output"),
            call_id,
            outcome=outcome if outcome in ("failed", "denied", "interrupted") else "success",
            **_texts(ours, "provider_name", "tool_kind"),
            **_objects(ours, "provider_details"),
        )
        slot = ours.get("slot")
        returned = NativeToolReturnPart.narrow_type(returned)
        if isinstance(slot, int) and slot >= 0:
            self._late.append((slot, returned))
        else:
            self._slots.append(returned)


def _text_part(part: dict[str, Any]) -> ModelResponsePart | None:
    from pydantic_ai.messages import TextPart

    ours, text = _ours(part), part.get("text")
    if not isinstance(text, str) or (not text and not ours):
        return None
    details = {**_texts(ours, "id", "provider_name"), **_objects(ours, "provider_details")}
    return TextPart(text, citations=_citations(ours.get("citations")), **details)


def _thinking_part(part: dict[str, Any]) -> ModelResponsePart | None:
    from pydantic_ai.messages import ThinkingPart

    ours, text = _ours(part) or _anthropic(part), part.get("text")
    is_unfinished = ours.get("unfinished") is True and "signature" not in ours
    if not isinstance(text, str) or is_unfinished or (not text and not ours):
        return None
    details = _texts(ours, "id", "signature", "provider_name")
    return ThinkingPart(text, **details, **_objects(ours, "provider_details"))


def _file_part(part: dict[str, Any]) -> ModelResponsePart | None:
    from pydantic_ai.messages import FilePart

    url, ours = part.get("url"), _ours(part)
    data = _data_of(url, part.get("mediaType")) if isinstance(url, str) else None
    if data is None:
        return None
    details = {**_texts(ours, "id", "provider_name"), **_objects(ours, "provider_details")}
    return FilePart(data, **details)


def tool_return(
    part: Mapping[str, Any], outputs: Mapping[str, Any] = MappingProxyType({})
) -> ToolReturnPart:
    """Return the result of a settled call for the model: the same live and from the store.

    A long result is truncated, and keeps its structure; the stored one is not changed. `outputs` is what the
    model sees in place of outputs, by call.
    """
    from pydantic_ai.messages import ToolReturnPart

    name, call_id = tool_name(dict(part)) or "", str(part.get("toolCallId") or "")
    state = part.get("state")
    if state == "output-available":
        kind = _texts(_ours(part, "callProviderMetadata"), "tool_kind")
        content = outputs[call_id] if call_id in outputs else _tool_content(part.get("output"))
        return ToolReturnPart.narrow_type(ToolReturnPart(name, content, call_id, **kind))
    if state == "output-denied":
        approval = part.get("approval")
        reason = approval.get("reason") if isinstance(approval, dict) else None
        return ToolReturnPart(name, _text_or(reason, DENIED), call_id, outcome="denied")
    # An "unknown" outcome is a failure, too: its text says what is unknown.
    ours = _ours(part, "resultProviderMetadata")
    is_retried = ours.get("outcome") == "retried"
    text = _text_or(part.get("errorText"), "The call failed.")
    if ours.get("for_model") is True and isinstance(ours.get("detail"), str):
        text = f"{text} {ours['detail']}"
    return ToolReturnPart(name, text, call_id, outcome="retried" if is_retried else "failed")


def _text_or(text: object, otherwise: str) -> str:
    if not isinstance(text, str) or not text:
        return otherwise
    return str(shortened_value(text, MAX_RESULT_CHARACTERS))


def _tool_content(output: Any) -> Any:
    """Return a tool's output: with files restored, otherwise truncated."""
    if _may_hold_media(output):
        try:
            content = _media().validate_python(output)
        except (ValueError, RecursionError):  # a ValidationError is a ValueError
            content = None
        if holds_files(content):
            return content
    return shortened_value(output, MAX_RESULT_CHARACTERS)


@cache
def _media() -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from pydantic_ai.messages import ToolReturnContent

    return TypeAdapter(ToolReturnContent)


def _may_hold_media(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_may_hold_media, value))
    if not isinstance(value, dict):
        return False
    is_media = "kind" in value and ("url" in value or "data" in value or "file_id" in value)
    return is_media or any(map(_may_hold_media, value.values()))


def _arguments(part: dict[str, Any]) -> dict[str, Any] | str:
    raw = part.get("rawInput")
    given = plain_object(part.get("input")) or {}
    # The model's own input, if it was not an object: the model should see its mistake.
    return raw if not given and isinstance(raw, str) and raw else given


def _call_details(part: dict[str, Any]) -> dict[str, Any]:
    ours = _ours(part, "callProviderMetadata")
    texts = _texts(ours, "id", "provider_name", "tool_kind")
    return {**texts, **_objects(ours, "provider_details")}


def _joined(before: ModelResponsePart, more: ModelResponsePart | None) -> ModelResponsePart:
    """Append text that arrived after the end of its part."""
    from dataclasses import replace

    from pydantic_ai.messages import TextPart, ThinkingPart

    if not isinstance(before, TextPart | ThinkingPart) or type(more) is not type(before):
        return before
    assert isinstance(more, TextPart | ThinkingPart)
    changes: dict[str, Any] = {"content": before.content + more.content}
    changes["provider_name"] = more.provider_name or before.provider_name
    details = {**(before.provider_details or {}), **(more.provider_details or {})}
    changes["provider_details"] = details or None
    if isinstance(more, TextPart) and isinstance(before, TextPart):
        changes["citations"] = more.citations or before.citations
    elif isinstance(more, ThinkingPart) and isinstance(before, ThinkingPart):
        changes["signature"] = more.signature or before.signature
    return replace(before, **changes)


def _citations(stored: object) -> Any:
    if not isinstance(stored, list) or not stored:
        return None
    from pydantic import TypeAdapter, ValidationError
    from pydantic_ai.messages import Citation

    try:
        return TypeAdapter(list[Citation]).validate_python(stored)
    except ValidationError:
        return None


def _ours(part: Mapping[str, Any], name: str = "providerMetadata") -> dict[str, Any]:
    """Return the details that our encoder stored with this part."""
    metadata = part.get(name)
    ours = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    return ours if isinstance(ours, dict) else {}


def _anthropic(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of a part that the AI SDK stored for Anthropic."""
    metadata = part.get("providerMetadata")
    theirs = metadata.get("anthropic") if isinstance(metadata, dict) else None
    if not isinstance(theirs, dict):
        return {}
    if isinstance(theirs.get("signature"), str):
        return {"signature": theirs["signature"], "provider_name": "anthropic"}
    if isinstance(theirs.get("redactedData"), str):
        redacted = {"id": "redacted_thinking", "signature": theirs["redactedData"]}
        return {**redacted, "provider_name": "anthropic"}
    return {}


def _texts(source: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: source[name] for name in names if isinstance(source.get(name), str)}


def _objects(source: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: source[name] for name in names if isinstance(source.get(name), dict)}
