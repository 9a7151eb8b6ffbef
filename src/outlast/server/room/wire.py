"""Stored chunks and messages as the clients of a chat get them: without what only the server needs. Pure.

The store keeps which provider and model answered, its URL, its ids and its signatures under the key `outlast`
of `providerMetadata`. The next request to the model needs them, and the inspector shows them. A client gets
only the fields that it can show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from outlast.chat.message.chunk_json import METADATA_KEY
from outlast.core import json

PUBLIC_FIELDS = frozenset({"outcome"})
"""Of our provider metadata, what a client can show: that nobody knows how a call of a tool ended."""

_METADATA = ("providerMetadata", "callProviderMetadata", "resultProviderMetadata")
_MARK = f'"{METADATA_KEY}":'  # inside a JSON string its quotes would be escaped


def encode(value: Any) -> str:
    """The JSON text of something stored, which may stand deeper in a frame than in the store."""
    try:
        return json.encode(value, "frame")
    except TypeError:
        text: str = to_json(value, inf_nan_mode="null").decode()
        return text


def public_chunk(text: str) -> str:
    """A chunk as clients get it. It is decoded only if it carries metadata of ours: a delta rarely does.

    ```python
    from outlast.server.room.wire import public_chunk

    stored = '{"type":"finish-step","providerMetadata":{"outlast":{"model_name":"m"}}}'
    assert public_chunk(stored) == '{"type":"finish-step"}'
    ```
    """
    if _MARK not in text:
        return text
    chunk = json.decode(text)
    public = _public(chunk)
    return text if public is chunk else encode(public)


def public_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as clients get it; the same object if there is nothing to leave out."""
    parts = message.get("parts")
    if not isinstance(parts, list):
        return message
    public = [_public(part) for part in parts]
    is_same = all(new is old for new, old in zip(public, parts, strict=True))
    return message if is_same else {**message, "parts": public}


def _public(value: Any) -> Any:
    """A part or a chunk without our details; the same object if it has none."""
    if not isinstance(value, Mapping):
        return value
    for field in _METADATA:
        providers = value.get(field)
        if isinstance(providers, Mapping) and METADATA_KEY in providers:
            value = _with_field(value, field, _public_providers(providers))
    return value


def _public_providers(providers: Mapping[str, Any]) -> dict[str, Any]:
    ours = providers[METADATA_KEY]
    fields = ours.items() if isinstance(ours, Mapping) else ()
    kept = {name: value for name, value in fields if name in PUBLIC_FIELDS}
    others = {name: value for name, value in providers.items() if name != METADATA_KEY}
    return {**others, METADATA_KEY: kept} if kept else others


def _with_field(value: Mapping[str, Any], field: str, providers: dict[str, Any]) -> dict[str, Any]:
    if providers:
        return {**value, field: providers}
    return {name: each for name, each in value.items() if name != field}
