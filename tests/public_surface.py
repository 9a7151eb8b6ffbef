"""Everything that users may import, and what its signatures say."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("outlast", "outlast.server", "outlast.client", "outlast.testing", "outlast.observe")


class Parameter(NamedTuple):
    """One parameter, field, attribute or result of something public."""

    owner: str  # "Host.stop"
    name: str  # "timeout"; "return" for a result
    annotation: str
    module: str  # where the annotation stands


def public() -> dict[str, Any]:
    """What is public, by the name under which it is imported."""
    return {
        f"{package}.{name}": getattr(importlib.import_module(package), name)
        for package in PACKAGES
        for name in importlib.import_module(package).__all__
    }


def parameters() -> list[Parameter]:
    """Of everything public, and of its public members."""
    found: dict[Parameter, None] = {}
    for thing in public().values():
        if inspect.isclass(thing):
            found |= dict.fromkeys(_of_class(thing))
        elif inspect.isfunction(thing):
            found |= dict.fromkeys(_of_function(thing.__name__, thing))
    return list(found)


def _of_class(thing: type) -> Iterator[Parameter]:
    for base in thing.__mro__:
        if not base.__module__.startswith("outlast"):
            continue
        for name, annotation in vars(base).get("__annotations__", {}).items():
            if not name.startswith("_") and isinstance(annotation, str):
                yield Parameter(thing.__name__, name, annotation, base.__module__)
        for name, member in vars(base).items():
            if name.startswith("_") and (name != "__init__" or dataclasses.is_dataclass(base)):
                continue
            if isinstance(member, property):
                member = member.fget
            member = inspect.unwrap(getattr(member, "__func__", member))
            if inspect.isfunction(member):
                owner = thing.__name__ if name == "__init__" else f"{thing.__name__}.{name}"
                yield from _of_function(owner, member)


def _of_function(owner: str, function: Any) -> Iterator[Parameter]:
    for name, annotation in function.__annotations__.items():
        yield Parameter(owner, name, str(annotation), function.__module__)


def mentioned(parameter: Parameter) -> Iterator[tuple[str, Any]]:
    """The names in an annotation that are defined in outlast, with what they stand for."""
    for node in ast.walk(ast.parse(parameter.annotation, mode="eval")):
        if isinstance(node, ast.Name):
            thing = _named(parameter.module, node.id)
            if thing is not None and not isinstance(thing, typing.TypeVar | typing.ParamSpec):
                yield node.id, thing


def _named(module: str, name: str) -> Any:
    """What a name stands for in a module; None: something that is not outlast's."""
    home, original = _imports(module).get(name, (module, name))
    if not home.startswith("outlast"):
        return None
    if (home, original) != (module, name):
        return getattr(importlib.import_module(home), original)
    thing = getattr(sys.modules[module], name, None)
    return None if thing is None or hasattr(typing, name) else thing


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Where the names of a module come from, those for type checkers alone included."""
    source = Path(str(importlib.import_module(module).__file__)).read_text()
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
