"""Values of user-defined types as JSON: plain JSON values, dataclasses and Pydantic models.

Pydantic dumps and loads typed values by field name, ignoring aliases. A value that would not load as it was
raises when it is dumped. Pydantic is imported with the first typed value.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any

from outlast.core import json

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


def dump(kind: type[Any] | None, value: object, what: str) -> str:
    """Return the JSON of a value, which `load` turns back into an equal value.

    Raises `TypeError` if the value cannot be stored, `ValueError` if it does not validate as its type.

    ```python
    from dataclasses import dataclass
    from datetime import date
    from outlast.agent.state import typed

    @dataclass
    class Trip:
        days: tuple[date, ...]

    text = typed.dump(Trip, Trip((date(2026, 5, 1),)), "state")
    assert text == '{"days":["2026-05-01"]}'
    assert typed.load(Trip, text) == Trip((date(2026, 5, 1),))
    ```
    """
    if kind is None:
        return json.encode(value, what)
    if not isinstance(value, kind):
        raise TypeError(
            f"{what} must be a {kind.__name__}, got {type(value).__name__} ({value!r:.200})"
        )
    plain = _plain(kind, value, what)
    text = json.encode(plain, what)
    try:
        back = load(kind, text)
    except ValueError as error:
        raise ValueError(f"{what} does not validate as {kind.__name__}: {error}") from None
    if json.decode(text) == plain:  # otherwise the encoder replaced a lone surrogate
        difference = _difference(value, back, what)
        if difference is not None:
            raise ValueError(f"{what} does not validate as {kind.__name__}: {difference}")
    return text


def load(kind: Any, text: str) -> Any:
    """Decode JSON, as a `kind` if one is given. Raises `ValueError` if it does not validate."""
    if kind is None:
        return json.decode(text)
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(text, by_alias=False, by_name=True)
    except ValidationError as error:
        raise ValueError(_one_line(error)) from None


def _plain(kind: Any, value: object, what: str) -> Any:
    from pydantic import PydanticUserError

    try:
        return _adapter(kind).dump_python(
            value, mode="json", by_alias=False, round_trip=True, warnings=False
        )
    except (PydanticUserError, NameError) as error:
        why = str(error).partition("\n")[0]
        raise TypeError(f"{kind!r} cannot be used as the type of the {what}: {why}") from None
    except ValueError as error:
        raise TypeError(f"{what} cannot be stored: {error}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Cached, because creating an adapter takes longer than using it a thousand times."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _one_line(error: ValidationError) -> str:
    """Return the locations and messages of a validation error on one line."""
    return "; ".join(
        ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"])))
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    )


def _difference(given: Any, back: Any, where: str) -> str | None:
    """Describe the first difference, or return None if there is none that can be compared."""
    if given == back or (given != given and back != back):
        return None
    kind: Any = type(given)
    can_be_compared = kind.__eq__ is not object.__eq__
    if kind is type(back):
        parts, others = _parts(given), _parts(back)
        if parts is None and not can_be_compared:
            return None
        if parts is not None and others is not None and parts.keys() == others.keys():
            found = (_difference(part, others[at], where + at) for at, part in parts.items())
            return next((one for one in found if one is not None), None)
    return f"{where} is {given!r:.200}, but would load as {back!r:.200}"


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the components of a value, keyed by the expression that selects each; None if it has none."""
    from pydantic import BaseModel

    if isinstance(value, dict):
        return {f"[{key!r}]": item for key, item in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{index}]": item for index, item in enumerate(value)}
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        names = [name for name, field in fields if not field.exclude] + [*(value.model_extra or ())]
        return {f".{name}": getattr(value, name) for name in names}
    if dataclasses.is_dataclass(value):
        return {f".{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)}
    return None
