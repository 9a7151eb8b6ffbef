"""The arguments of a call, as the model wrote them and as the tool takes them. Pure."""

from __future__ import annotations

from typing import Any

from outlast.core import json


def as_object(arguments: Any) -> dict[str, Any]:
    """What the model has said, as far as it is an object."""
    try:
        given = json.decode(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def plain(arguments: Any) -> Any:
    """Return arguments that code has given as JSON has them."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(arguments, inf_nan_mode="null", bytes_mode="base64")
    except (PydanticSerializationError, RecursionError, ValueError) as error:
        raise TypeError(
            f"arguments must be JSON, got {type(arguments).__name__}: {error}"
        ) from None


def checked(tool: Any, arguments: Any) -> tuple[dict[str, Any], Any, str | None]:
    """The arguments as an object, as the tool takes them, and what is wrong with them."""
    from pydantic import ValidationError

    text = arguments if isinstance(arguments, str) else None
    try:
        given = json.decode(text or "{}") if arguments is None or text is not None else arguments
    except ValueError as error:
        return {}, None, f"The arguments do not fit: they are not JSON ({error})"
    if not isinstance(given, dict):
        return {}, None, "The arguments do not fit: they are not an object"
    try:
        return given, tool.args_validator.validate_python(given), None
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        return given, None, f"The arguments do not fit: {problems}"
