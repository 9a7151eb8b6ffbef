"""Validation of messages from applications, and removal of the fields that are not stored.

A stored message is a dict in the AI SDK's shape: `{"id", "role", "parts", "metadata"?}`. Invalid input raises
an error that names the place; unknown fields are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.chat.message.results import Message
from outlast.core import json
from outlast.core.ids import Ids
from outlast.core.text import problem_of

ROLES = ("user", "assistant", "system")
RESERVED_METADATA = frozenset({"channel", "turnMetadata"})
"""Metadata that only the server sets."""

# References to data that a provider keeps for a while: once stored, they would outlive it.
_PASSING_METADATA = frozenset({"itemId", "reasoningEncryptedContent"})
_METADATA_FIELDS = ("providerMetadata", "callProviderMetadata", "resultProviderMetadata")


def to_messages(given: object, ids: Ids) -> list[dict[str, Any]]:
    """Convert a string, a message or a list of both to messages as they are stored.

    ```python
    from outlast.chat.message.incoming import to_messages
    from outlast.core.ids import RandomIds

    [message] = to_messages("Hello", RandomIds())
    assert message["role"] == "user"
    assert message["parts"] == [{"type": "text", "text": "Hello"}]
    ```

    A message without an id gets one. Raises `TypeError` or `ValueError` with the place of the mistake.
    """
    many = given if isinstance(given, list | tuple) else [given]
    messages: list[dict[str, Any]] = []
    seen: set[str] = set()
    for index, one in enumerate(many):
        what = f"messages[{index}]" if isinstance(given, list | tuple) else "the message"
        message = _to_message(one, ids, what)
        if message["id"] in seen:
            raise ValueError(f"{what}: duplicate message id {message['id']!r}")
        seen.add(message["id"])
        messages.append(message)
    return messages


def _to_message(given: object, ids: Ids, what: str) -> dict[str, Any]:
    if isinstance(given, str):
        part = {"type": "text", "text": json.mended_text(given)}
        return {"id": ids.new("message"), "role": "user", "parts": [part]}
    if isinstance(given, Message):
        given = given.raw
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a str or a dict, got {type(given).__name__} ({given!r})")
    role, parts = given.get("role"), given.get("parts")
    if role not in ROLES:
        raise ValueError(f"{what}: role must be one of {', '.join(ROLES)}, got {role!r}")
    if not isinstance(parts, list):
        hint = '; put its text into [{"type": "text", "text": …}]' if "content" in given else ""
        raise TypeError(f"{what}: parts must be a list, got {type(parts).__name__}{hint}")
    for index, part in enumerate(parts):
        _check_part(part, f"{what}['parts'][{index}]")
    message_id = given.get("id")
    if message_id is None:
        message_id = ids.new("message")
    problem = problem_of(message_id)
    if problem is not None:
        raise (ValueError if isinstance(message_id, str) else TypeError)(f"{what}: id {problem}")
    # Encoding and decoding makes a private copy, and rejects values that are not JSON.
    message: dict[str, Any] = json.decode(json.encode({**given, "id": message_id}, what))
    return sanitised(message)


def _check_part(part: object, what: str) -> None:
    if not isinstance(part, Mapping):
        raise TypeError(f"{what} must be a dict, got {type(part).__name__} ({part!r})")
    kind = part.get("type")
    if not isinstance(kind, str) or not kind:
        raise TypeError(f"{what}: type must be a str, got {kind!r}")
    if kind in ("text", "reasoning") and not isinstance(part.get("text"), str):
        raise TypeError(f"{what}: text must be a str, got {type(part.get('text')).__name__}")


def sanitised(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message without the fields that are not stored.

    These are reserved metadata and OpenAI's references, which may have expired by the next request. A
    reasoning part that is left with neither text nor metadata is dropped.
    """
    kept = dict(message)
    metadata = kept.get("metadata")
    if isinstance(metadata, Mapping) and not RESERVED_METADATA.isdisjoint(metadata):
        kept["metadata"] = {n: v for n, v in metadata.items() if n not in RESERVED_METADATA}
        if not kept["metadata"]:
            del kept["metadata"]
    if isinstance(kept.get("parts"), list):
        parts = [_sanitised_part(part) for part in kept["parts"]]
        kept["parts"] = [part for part in parts if not _is_hollow(part)]
    return kept


def _sanitised_part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    kept = dict(part)
    for field in _METADATA_FIELDS:
        providers = kept.get(field)
        if not isinstance(providers, Mapping):
            continue
        left = {name: _without_handles(name, fields) for name, fields in providers.items()}
        left = {name: fields for name, fields in left.items() if fields != {}}
        if left:
            kept[field] = left
        else:
            del kept[field]
    return kept


def _without_handles(provider: str, fields: Any) -> Any:
    if provider not in ("openai", "azure") or not isinstance(fields, Mapping):
        return fields
    return {name: value for name, value in fields.items() if name not in _PASSING_METADATA}


def _is_hollow(part: Any) -> bool:
    is_reasoning = isinstance(part, Mapping) and part.get("type") == "reasoning"
    return is_reasoning and not part.get("text") and not part.get("providerMetadata")
