"""Stored messages become what a model is sent.

An assistant message that took several steps becomes the alternation that it was: an answer, the
results of its calls, the next answer. With the details that `outlast.chat.chunks` has put beside the
parts, the rebuilt answers make the same request as the live ones did. What is stored may be old,
foreign or broken: what cannot be understood is skipped, and nothing raises.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from outlast.chat.chunk_json import METADATA_KEY, plain_object
from outlast.chat.tool_parts import is_settled, tool_name

if TYPE_CHECKING:
    from pydantic_ai.messages import (
        BinaryContent,
        ModelMessage,
        ModelRequestPart,
        ModelResponse,
        ModelResponsePart,
        UserContent,
    )

CONTINUE = "Continue exactly where you stopped. Do not repeat anything that you have already said."
DENIED = "The user did not allow this call."

_RESPONSE_FIELDS = (
    "model_name",
    "provider_name",
    "provider_url",
    "canonical_system",
    "provider_response_id",
)
_FINISH_REASONS = ("stop", "length", "content_filter", "tool_call", "error")


@dataclass
class History:
    """What a model is sent, and the calls that had to be left out since they have no outcome."""

    messages: list[ModelMessage] = field(default_factory=list)
    dropped_calls: list[str] = field(default_factory=list)


def to_model_messages(
    messages: Iterable[Mapping[str, Any]], *, instructions: str | None = None
) -> History:
    """The model's view of a transcript; every request in it carries the `instructions`.

    ```python
    from outlast.chat.history import to_model_messages

    stored = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
    [request] = to_model_messages([stored], instructions="Be brief.").messages
    assert request.parts[0].content == "Hello"
    ```
    """
    from pydantic_ai.messages import ModelRequest

    history = History()

    def request(parts: Sequence[ModelRequestPart]) -> None:
        if parts:
            history.messages.append(ModelRequest(parts=parts, instructions=instructions))

    for message in messages:
        parts = _parts_of(message)
        role = message.get("role") if isinstance(message, Mapping) else None
        if role == "user":
            request(_user_parts(parts))
        elif role == "system":
            request(_system_parts(parts))
        elif role == "assistant":
            for step in _steps(parts):
                answer = _Answer()
                for part in step:
                    answer.add(part)
                response = answer.response()
                if response is not None:
                    history.messages.append(response)
                history.dropped_calls += answer.dropped
                request(answer.returns)
    return history


def ends_with_assistant(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the model had the last word: then a request needs `with_continuation`."""
    last = messages[-1] if messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def with_continuation(
    messages: Sequence[ModelMessage], *, text: str = CONTINUE, instructions: str | None = None
) -> list[ModelMessage]:
    """The same, ending with a request: providers refuse one that ends with the model's own words.

    The request to go on is for this one call and is never stored.
    """
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    if not messages or messages[-1].kind != "response":
        return list(messages)
    return [*messages, ModelRequest(parts=[UserPromptPart(text)], instructions=instructions)]


# --- users and systems ---------------------------------------------------------------------------


def _user_parts(parts: list[Any]) -> list[ModelRequestPart]:
    from pydantic_ai.messages import UserPromptPart

    content: list[UserContent] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str) and part["text"]:
            content.append(part["text"])
        elif kind == "file":
            file = _user_file(part)
            if file is not None:
                content.append(file)
    if not content:
        return []
    only = content[0]
    return [UserPromptPart(only if len(content) == 1 and isinstance(only, str) else content)]


def _system_parts(parts: list[Any]) -> list[ModelRequestPart]:
    from pydantic_ai.messages import SystemPromptPart

    texts = [p.get("text") for p in parts if isinstance(p, dict) and p.get("type") == "text"]
    text = "\n\n".join(text for text in texts if isinstance(text, str) and text)
    return [SystemPromptPart(text)] if text else []


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
        return None
    kinds: dict[str, Any] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
    file: UserContent = kinds.get(media_type.split("/")[0], DocumentUrl)(url, media_type=media_type)
    return file


def _data_of(url: str, media_type: object = None) -> BinaryContent | None:
    """The bytes of a data URL; None when it is broken."""
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
    return BinaryContent.narrow_type(BinaryContent(data=data, media_type=kind))


# --- the assistant -------------------------------------------------------------------------------


def _steps(parts: list[Any]) -> Iterator[list[dict[str, Any]]]:
    """The parts of each step. In a message without marks, a step ends where a text follows a result."""
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


class _Answer:
    """One answer of the model, put together from the parts of its step."""

    def __init__(self) -> None:
        self.dropped: list[str] = []
        self.returns: list[ModelRequestPart] = []
        self._slots: list[ModelResponsePart | None] = []  # None: shown, and not worth sending
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
            self.returns.append(_tool_return(part, name, call_id))

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


def _tool_return(part: dict[str, Any], name: str, call_id: str) -> ModelRequestPart:
    from pydantic_ai.messages import ToolReturnPart

    state = part.get("state")
    if state == "output-available":
        kind = _texts(_ours(part, "callProviderMetadata"), "tool_kind")
        content = _tool_content(part.get("output"))
        return ToolReturnPart.narrow_type(ToolReturnPart(name, content, call_id, **kind))
    if state == "output-denied":
        approval = part.get("approval")
        reason = approval.get("reason") if isinstance(approval, dict) else None
        text = reason if isinstance(reason, str) and reason else DENIED
        return ToolReturnPart(name, text, call_id, outcome="denied")
    error = part.get("errorText")
    is_retried = _ours(part, "resultProviderMetadata").get("outcome") == "retried"
    text = error if isinstance(error, str) and error else "The call failed."
    return ToolReturnPart(name, text, call_id, outcome="retried" if is_retried else "failed")


def tool_return(part: Mapping[str, Any]) -> ModelRequestPart:
    """The result of a settled call, as the model reads it."""
    return _tool_return(dict(part), tool_name(part) or "", str(part.get("toolCallId")))


def _tool_content(output: Any) -> Any:
    """A tool's output, with pictures and the like as what they were."""
    if not _may_hold_media(output):
        return output
    from pydantic import TypeAdapter, ValidationError
    from pydantic_ai.messages import ToolReturnContent

    try:
        return TypeAdapter(ToolReturnContent).validate_python(output)
    except (ValidationError, ValueError, RecursionError):
        return output


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
    # What the model said, if it was no object: it should see what was wrong.
    return raw if not given and isinstance(raw, str) and raw else given


def _call_details(part: dict[str, Any]) -> dict[str, Any]:
    ours = _ours(part, "callProviderMetadata")
    texts = _texts(ours, "id", "provider_name", "tool_kind")
    return {**texts, **_objects(ours, "provider_details")}


def _joined(before: ModelResponsePart, more: ModelResponsePart | None) -> ModelResponsePart:
    """What came for a text after its end, added to it."""
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
    """The details that our encoder has put beside this part."""
    metadata = part.get(name)
    ours = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    return ours if isinstance(ours, dict) else {}


def _anthropic(part: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a message that the AI SDK has made with Anthropic."""
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


def _parts_of(message: object) -> list[Any]:
    parts = message.get("parts") if isinstance(message, Mapping) else None
    return parts if isinstance(parts, list) else []
