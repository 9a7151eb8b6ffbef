"""Values of a user's own type, kept as JSON: plain JSON, a dataclass or a Pydantic model."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from outlast.core import json


def dump(value: object, what: str) -> str:
    """The JSON text of a value; a `TypeError` says where something is not JSON."""
    return json.encode(_plain(value), what)


def load(kind: type[Any] | None, text: str) -> Any:
    """The value of a JSON text, as a `kind` if one is given."""
    return _of(kind, json.decode(text))


def check(kind: type[Any] | None, value: object, what: str) -> None:
    """Raise when a typed value is not of its type. Plain JSON is given to the type itself."""
    if kind is not None and not isinstance(value, kind):
        raise TypeError(f"{what} is a {kind.__name__} here, not {type(value).__name__} ({value!r})")


def _plain(value: object) -> object:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    if type(value) is list:
        return [_plain(item) for item in value]
    return value


def _of(kind: Any, value: Any) -> Any:
    """A plain value as `kind`. Fields that the type no longer has are dropped: code moves on."""
    if kind is None:
        return value
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        make: Any = kind
        hints = get_type_hints(kind)
        known = {field.name for field in dataclasses.fields(kind) if field.init}
        return make(
            **{
                name: _of(hints[name] if dataclasses.is_dataclass(hints.get(name)) else None, item)
                for name, item in value.items()
                if name in known
            }
        )
    return value
