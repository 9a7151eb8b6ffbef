"""Chunks as JSON, and our own metadata in them, which browsers do not need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.core import json

METADATA_KEY = "outlast"
"""The key of our fields in `providerMetadata`."""
FOR_CLIENT = "for_client"
"""The field of a call that the client runs once it is approved."""


def encoded(chunk: dict[str, Any]) -> str:
    """Return the JSON of a chunk. Other values are converted: models to dicts, bytes to base64."""
    try:
        return json.encode(chunk, "chunk")
    except TypeError:
        return json.encode(_plain(chunk), "chunk")


def plain_object(value: object) -> dict[str, Any] | None:
    """Return a tool's input as a dict, given a dict or its JSON; None if it is neither."""
    if isinstance(value, str):
        try:
            value = json.decode(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _plain(value: object) -> Any:
    import pydantic_core

    try:
        text = pydantic_core.to_json(value, inf_nan_mode="null", bytes_mode="base64", fallback=str)
        return json.decode(text.decode())
    except (ValueError, UnicodeEncodeError, RecursionError) as error:
        raise TypeError(f"the value cannot be encoded as JSON: {error}") from error


def present_attributes(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the attributes with these names that are not None."""
    found = {}
    for name in names:
        value = getattr(source, name, None)
        if value is not None:
            found[name] = value
    return found


def metadata_of(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return `providerMetadata` with our details, or an empty dict. Details that are not JSON are omitted."""
    kept: dict[str, Any] = {}
    for name, value in details.items():
        if type(value) is str:
            kept[name] = value
            continue
        try:
            json.encode(value)
            kept[name] = value
        except TypeError:
            try:
                kept[name] = _plain(value)
            except TypeError:
                continue
    return {"providerMetadata": {METADATA_KEY: kept}} if kept else {}
