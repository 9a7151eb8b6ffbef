"""What `outlast` offers by name, to people and to tools."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any, Literal, get_args, get_origin

import outlast
from outlast.host.life.stub import Stub
from public_surface import Parameter, mentioned, parameters, public


def test_dir_lists_what_can_be_imported() -> None:
    assert dir(outlast) == sorted(outlast.__all__)
    assert [name for name in outlast.__all__ if not hasattr(outlast, name)] == []
    assert "Any" not in dir(outlast)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert outlast.__version__ == version("outlast")


def test_what_is_for_the_host_alone_is_not_public() -> None:
    for name in ("unfinished_work", "for_operators"):
        assert not hasattr(outlast.Think, name)


# How outlast makes what users are only given; what is handed on and never called by users; what one part of
# outlast offers another, and the docs do not mention.
NOT_FOR_USERS = re.compile(
    r"(FiberContext|FiberHandle|FiberRecoveryContext|Lease|LiveSession|Session|Storage)\(.*"
    r"|Store[.(].*"
    r"|(App.base_of|App.token|Events.emit|Host.classes|Host.using|Step)\((target|kind|return|pieces)\)"
)


def test_every_type_that_a_public_signature_mentions_is_public() -> None:
    exported = list(public().values())
    hidden = {
        f"{owner}({name}): {type_name}"
        for parameter in parameters()
        for type_name, thing in mentioned(parameter)
        for owner, name in [parameter[:2]]
        if not NOT_FOR_USERS.fullmatch(f"{owner}({name})")
        if any(one not in exported for one in types_in(thing))
    }
    assert sorted(hidden) == []


def types_in(thing: Any) -> list[Any]:
    """The types of outlast that a name stands for: itself, or those of an alias of others."""
    if inspect.isclass(thing):
        return [thing] if thing.__module__.startswith("outlast") else []
    if get_origin(thing) is Literal:
        return [thing]
    inner = [one for one in get_args(thing) if one is not thing]
    flat = [each for one in inner for each in (one if isinstance(one, list) else [one])]
    return [found for one in flat for found in types_in(one)]


def test_a_type_that_is_not_public_would_be_noticed() -> None:
    hidden = Parameter("Host.get", "stub", "Stub", "outlast.host.life.host")
    alias = Parameter("Think.chat", "executor", "Executor", "outlast.chat.think")
    assert [types_in(thing) for _, thing in mentioned(hidden)] == [[Stub]]
    assert [types_in(thing) for _, thing in mentioned(alias)] == [[outlast.ToolCall]]


def test_all_public_names_are_there_for_type_checkers_too() -> None:
    source = inspect.getsource(outlast)
    checked = source[source.index("if TYPE_CHECKING") : source.index("# Everything is loaded")]
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(checked))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported | {"__version__"} == set(outlast.__all__)
