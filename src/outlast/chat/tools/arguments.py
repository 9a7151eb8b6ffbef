"""The arguments of a call, as the model wrote them and as the tool expects them. Pure."""

from __future__ import annotations

from typing import Any

from outlast.core import json


def as_object(arguments: Any) -> dict[str, Any]:
    """Return arguments as a dict, given a dict or JSON; empty if they are neither."""
    try:
        given = json.decode(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def plain(arguments: Any) -> Any:
    """Return arguments from code as a JSON value."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(arguments, inf_nan_mode="null", bytes_mode="base64")
    except (PydanticSerializationError, RecursionError, ValueError) as error:
        raise TypeError(
            f"arguments must be JSON, got {type(arguments).__name__}: {error}"
        ) from None


def checked(tool: Any, arguments: Any) -> tuple[dict[str, Any], Any, str | None]:
    """Return the arguments as a dict, validated for the tool, and the error if they are invalid."""
    from pydantic import ValidationError

    text = arguments if isinstance(arguments, str) else None
    try:
        given = json.decode(text or "{}") if arguments is None or text is not None else arguments
    except ValueError as error:
        return {}, None, f"The arguments are invalid: they must be JSON ({error})"
    if not isinstance(given, dict):
        return {}, None, "The arguments are invalid: they must be a JSON object"
    try:
        return given, tool.args_validator.validate_python(given), None
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        return given, None, f"The arguments are invalid: {problems}"
