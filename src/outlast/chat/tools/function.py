"""A function as a tool: the parameters that the model sees, and those that outlast fills in."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from outlast.chat.tools.declare import ToolCall, current_call, spec_of

if TYPE_CHECKING:
    from pydantic_ai import Tool

KEY = "idempotency_key"  # the name of a parameter that is filled in
_SCHEMA = "__outlast_schema__"  # the attribute that caches a schema: building one takes 9 ms


def function_tool(function: Callable[..., Any], name: str | None) -> Tool[Any]:
    from pydantic_ai import Tool

    spec = spec_of(function)
    plain = getattr(function, "__func__", function)
    kept: tuple[Any, tuple[str, ...]] | None = getattr(plain, _SCHEMA, None)
    if kept is None:
        filled = _filled_in(function)
        whole = Tool(_shown(function, filled)).function_schema
        kept = (whole, filled)
        if inspect.isfunction(plain):
            setattr(plain, _SCHEMA, kept)
    schema, filled = kept
    is_stream = inspect.isasyncgenfunction(function)
    called = _filling(function, filled) if filled or is_stream else function
    return Tool(
        called,
        name=spec.name or name or getattr(function, "__name__", None),
        description=spec.description,
        function_schema=replace(
            schema, function=called, is_async=inspect.iscoroutinefunction(called)
        ),
    )


def _filled_in(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters that the model does not see."""
    hints: dict[str, Any] = {}
    try:
        hints = get_type_hints(function)
    except Exception:  # building the schema reports hints that cannot be resolved
        hints = dict(getattr(function, "__annotations__", {}))
    return tuple(
        name
        for name in inspect.signature(function).parameters
        if name == KEY or _is_call(hints.get(name))
    )


def _is_call(hint: Any) -> bool:
    if isinstance(hint, str):  # it could not be resolved
        return re.search(r"\bToolCall\b", hint) is not None
    return hint is ToolCall or ToolCall in get_args(hint)


def _shown(function: Callable[..., Any], filled: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function with the parameters that the model sees."""
    is_stream = inspect.isasyncgenfunction(function)
    if not filled and not is_stream:
        return function

    @wraps(function)
    def stand_in(*arguments: Any, **more: Any) -> Any: ...

    stand_in.__signature__ = _without(inspect.signature(function), filled)  # type: ignore[attr-defined]
    if is_stream:  # a schema cannot describe the result of an iterator
        hints = {name: hint for name, hint in stand_in.__annotations__.items() if name != "return"}
        stand_in.__annotations__ = hints
    return stand_in


def _without(signature: inspect.Signature, filled: tuple[str, ...]) -> inspect.Signature:
    shown = [each for each in signature.parameters.values() if each.name not in filled]
    return signature.replace(parameters=shown)


def _filling(function: Callable[..., Any], filled: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function that fills in the parameters that the model does not see."""

    signature = inspect.signature(function)
    shown = _without(signature, filled)

    def call(*arguments: Any, **more: Any) -> Any:
        made = current_call.get()
        assert made is not None
        given = dict(shown.bind(*arguments, **more).arguments)
        given |= {name: made.idempotency_key if name == KEY else made for name in filled}
        ordered = {name: given[name] for name in signature.parameters if name in given}
        bound = inspect.BoundArguments(signature, ordered)
        return function(*bound.args, **bound.kwargs)

    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):

        async def called(*arguments: Any, **more: Any) -> Any:
            begun = call(*arguments, **more)
            return await begun if inspect.isawaitable(begun) else begun

        return called
    return call
