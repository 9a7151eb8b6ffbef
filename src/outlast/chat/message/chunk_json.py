"""Chunks as JSON text, and what of them is ours: the details that a browser has no use for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.core import json

METADATA_KEY = "outlast"
"""Whose fields of `providerMetadata` are ours."""
FOR_CLIENT = "for_client"
"""The field of a call that the client runs once somebody has approved it."""


def encoded(chunk: dict[str, Any]) -> str:
    """A chunk's JSON text. What JSON lacks becomes what comes nearest: a model a dict, bytes base64."""
    try:
        return json.encode(chunk, "chunk")
    except TypeError:
        return json.encode(_plain(chunk), "chunk")


def plain_object(value: object) -> dict[str, Any] | None:
    """A tool's input as a plain object: a dict, or the text of one; None when it is neither."""
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
        raise TypeError(f"this cannot be JSON: {error}") from error


def known(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    """The attributes of these names that are set."""
    found = {}
    for name in names:
        value = getattr(source, name, None)
        if value is not None:
            found[name] = value
    return found


def metadata_of(details: Mapping[str, Any]) -> dict[str, Any]:
    """`providerMetadata` with our details, or nothing. A detail that cannot be JSON is left out."""
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
