"""Files that users hand in, as far as a model can read them. Pure.

The providers' classes refuse what their models do not take, and would go on refusing it for as long as it
is part of the conversation: so it is left out, and named in its place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, UserContent

_FLAGS = {
    "image": "supports_image_input",
    "audio": "supports_audio_file_input",
    "video": "supports_video_input",
}
_IMAGES_OF_GOOGLE = ("image/heic", "image/heif")


def with_readable_files(
    messages: Sequence[ModelMessage], profiles: Sequence[Mapping[str, Any]]
) -> list[ModelMessage]:
    """The same, with a note for each file that not all models of these profiles can read."""
    return _with_content(messages, lambda item: _readable(item, profiles))


def without_links(messages: Sequence[ModelMessage]) -> list[ModelMessage] | None:
    """The same, with a note for each file that has to be fetched; None if there is none."""
    after = _with_content(messages, _unlinked)
    return None if all(map(operator.is_, after, messages)) else after


def _with_content(
    messages: Sequence[ModelMessage], change: Callable[[UserContent], UserContent]
) -> list[ModelMessage]:
    """The same, with each item that is more than a text changed. What does not change stays itself."""
    after = list(messages)
    for place, message in enumerate(messages):
        if message.kind == "request" and any(map(_has_files, message.parts)):
            parts = [_changed(part, change) if _has_files(part) else part for part in message.parts]
            if not all(map(operator.is_, parts, message.parts)):
                after[place] = replace(message, parts=parts)
    return after


def _has_files(part: Any) -> bool:
    return part.part_kind == "user-prompt" and not isinstance(part.content, str)


def _changed(part: Any, change: Callable[[UserContent], UserContent]) -> Any:
    content = [change(item) for item in part.content]
    return part if all(map(operator.is_, content, part.content)) else replace(part, content=content)


def _unlinked(item: UserContent) -> UserContent:
    from pydantic_ai.messages import FileUrl

    return _note(item, _kind(item)) if isinstance(item, FileUrl) else item


def _readable(item: UserContent, profiles: Sequence[Mapping[str, Any]]) -> UserContent:
    from pydantic_ai.messages import BinaryContent, FileUrl

    if not isinstance(item, BinaryContent | FileUrl):
        return item
    kind = _kind(item)
    can_read = all(_can_read(kind, profile) for profile in profiles)
    if isinstance(item, BinaryContent) and _is_text(kind):
        text = _text(item.data)
        if text is not None:
            return item if can_read else f"(a file, {kind}:)\n{text}"
        can_read = False
    return item if can_read else _note(item, kind)


def _can_read(kind: str, profile: Mapping[str, Any]) -> bool:
    from pydantic_ai.messages import AudioMediaType, DocumentMediaType, ImageMediaType

    family = kind.partition("/")[0]
    if family in _FLAGS and not profile.get(_FLAGS[family], True):
        return False
    if family == "image":
        is_google = any(name.startswith("google_") for name in profile)
        return kind in get_args(ImageMediaType) or (is_google and kind in _IMAGES_OF_GOOGLE)
    if family == "audio":
        return kind in get_args(AudioMediaType)
    if family == "video":
        return True
    if not profile.get("supports_document_input", True):
        return False
    return kind in profile.get("supported_document_media_types", get_args(DocumentMediaType))


def _kind(item: Any) -> str:
    """The media type, in small letters and without parameters; "" if nobody knows."""
    try:
        return str(item.media_type).partition(";")[0].strip().lower()
    except ValueError:
        return ""


def _is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind.endswith(("/json", "+json", "/xml", "+xml", "yaml"))


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _note(item: Any, kind: str) -> str:
    url = getattr(item, "url", None)
    what = f"{kind}, {url}" if url and kind else url or f"{kind}, {len(item.data):,} bytes"
    return f"(a file that cannot be read here: {what})"
