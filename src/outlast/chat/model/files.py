"""Replaces files of users that a model cannot read with notes. Pure.

The providers' classes reject unsupported files, and would reject every later request, because the file stays
in the conversation.
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
    """Replace each file that a model of these profiles cannot read with a note."""
    return _with_content(messages, lambda item: _readable(item, profiles))


def without_links(messages: Sequence[ModelMessage]) -> list[ModelMessage] | None:
    """Replace each linked file with a note; None if there are no links."""
    after = _with_content(messages, _unlinked)
    return None if all(map(operator.is_, after, messages)) else after


def _with_content(
    messages: Sequence[ModelMessage], change: Callable[[UserContent], UserContent]
) -> list[ModelMessage]:
    """Apply a change to each item of the users' contents. Unchanged messages keep their identity."""
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
    """Return the media type in lower case and without parameters; "" if unknown."""
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
    return f"(a file that this model cannot read: {what})"
