"""Stored chunks and messages in their public form, without the fields that only the server needs. Pure.

The store keeps which provider and model answered, its URL, its ids and its signatures under the key
`outlast` of `providerMetadata`. The next request to the model needs them, and the inspector shows them. A
client receives only the fields that it can show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from outlast.chat.message.chunk_json import METADATA_KEY
from outlast.core import json

PUBLIC_FIELDS = frozenset({"outcome"})
"""The fields of our provider metadata that a client can show: that the outcome of a call is unknown."""

_METADATA = ("providerMetadata", "callProviderMetadata", "resultProviderMetadata")
_MARK = f'"{METADATA_KEY}":'  # inside a JSON string its quotes would be escaped


def encode(value: Any) -> str:
    """Encode a stored value, which may be nested deeper in a frame than in the store."""
    try:
        return json.encode(value, "frame")
    except TypeError:
        text: str = to_json(value, inf_nan_mode="null").decode()
        return text


def public_chunk(text: str) -> str:
    """Return a chunk in its public form. It is decoded only if it has metadata of ours, as few deltas do.

    ```python
    from outlast.server.public import public_chunk

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
    """Return a message in its public form; the same object if there is nothing to remove."""
    parts = message.get("parts")
    if not isinstance(parts, list):
        return message
    public = [_public(part) for part in parts]
    is_same = all(new is old for new, old in zip(public, parts, strict=True))
    return message if is_same else {**message, "parts": public}


def _public(value: Any) -> Any:
    """Return a part or a chunk without our metadata; the same object if it has none."""
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
