"""The tools of a turn, from everything that users may hand in, as Pydantic AI's toolsets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from outlast.chat.tools.declare import MARK, ToolCall, ToolSpec, current_call, spec_of

if TYPE_CHECKING:
    from pydantic_ai import RunContext, Tool
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset

_SCHEMA = "__outlast_schema__"  # where a function keeps its schema: making one takes 9 ms
KEY = "idempotency_key"  # a parameter of this name is filled in
NEEDS_APPROVAL = "needs_approval"  # of a client's tool, in the metadata of its definition


class _Anything:
    """The client checks what its tools are given."""

    def validate_python(self, value: Any) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class External:
    """A tool of the client, in the shape of those that run here."""

    tool_def: ToolDefinition
    max_retries: int = 0
    args_validator: Any = field(default_factory=_Anything)


@dataclass(slots=True)
class Tools:
    """One toolset of everything that runs here, what is known of the tools, and those of the client."""

    toolset: AbstractToolset[Any]
    specs: dict[str, ToolSpec] = field(default_factory=dict)
    external: dict[str, External] = field(default_factory=dict)
    is_empty: bool = False

    async def get(self, context: RunContext[Any]) -> dict[str, Any]:
        """By name. A tool that runs here goes before one of the client that has its name."""
        return {**self.external, **await self.toolset.get_tools(context)}

    def spec(self, name: str, found: Any) -> ToolSpec:
        """What is known of a tool; of those of others, what their function and their metadata say."""
        known = self.specs.get(name)
        if known is not None:
            return known
        definition: ToolDefinition = found.tool_def
        marked = getattr(_function_of(found), MARK, None)
        if isinstance(marked, ToolSpec):
            needs = definition.kind == "unapproved" or marked.needs_approval
            return replace(marked, needs_approval=needs)
        said = definition.metadata or {}
        effect = said.get("effect")
        return ToolSpec(
            effect if effect in ("read", "idempotent") else "once",
            needs_approval=definition.kind == "unapproved" or said.get(NEEDS_APPROVAL) is True,
        )


def _function_of(found: Any) -> Any:
    """The function that is called by a tool of somebody else's toolset, if that is what it does."""
    while hasattr(found, "source_tool"):
        found = found.source_tool
    called = getattr(found, "call_func", None)
    return getattr(getattr(called, "__self__", None), "function", None)


def tools_of(*sources: Any) -> Tools:
    """Functions, tools, toolsets, schemas of the client's tools, lists and dicts of them, None."""
    from pydantic_ai import Tool
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, FunctionToolset

    tools: list[Tool[Any]] = []
    toolsets: list[AbstractToolset[Any]] = []
    external: list[ToolDefinition] = []
    specs: dict[str, ToolSpec] = {}

    def take(source: Any, name: str | None = None) -> None:
        if source is None:
            return
        if isinstance(source, AbstractToolset):
            toolsets.append(source)
        elif isinstance(source, Tool):
            tools.append(source)
        elif isinstance(source, ToolDefinition):
            external.append(_as_external(source))
        elif isinstance(source, Mapping):
            if is_schema(source):
                external.append(definition_of({"name": name, **source}))
                return
            for key, each in source.items():
                take(each, key)
        elif inspect.isroutine(source):
            tools.append(_tool(source, name))
            specs[tools[-1].name] = spec_of(source)
        elif isinstance(source, Iterable) and not isinstance(source, str | bytes):
            for each in source:
                take(each)
        else:
            raise TypeError(
                "a tool is a function, a pydantic_ai.Tool, a toolset or the schema of a client's tool,"
                f" not {source!r}"
            )

    for source in sources:
        take(source)
    is_empty = not (tools or toolsets or external)
    if tools or not toolsets:
        toolsets.insert(0, FunctionToolset(tools))
    one = toolsets[0] if len(toolsets) == 1 else CombinedToolset(toolsets)
    return Tools(one, specs, {each.name: External(each) for each in external}, is_empty)


# --- the client's tools --------------------------------------------------------------------------


def is_schema(source: Mapping[Any, Any]) -> bool:
    """Whether this describes a tool of the client, rather than tools by their names."""
    known = ("inputSchema", "parameters", "description")
    return any(not callable(source[name]) for name in known if name in source)


def _as_external(definition: ToolDefinition) -> ToolDefinition:
    """The definition of a tool that runs elsewhere; one that needs an approval needs it there too."""
    needs = definition.kind == "unapproved"
    metadata = (
        {**(definition.metadata or {}), NEEDS_APPROVAL: True} if needs else definition.metadata
    )
    return replace(definition, kind="external", metadata=metadata)


def definition_of(schema: Mapping[str, Any]) -> ToolDefinition:
    """A client's tool as the model is told of it."""
    from pydantic_ai.tools import ToolDefinition

    name, description = schema.get("name"), schema.get("description")
    if not isinstance(name, str) or not name:
        raise ValueError(f"a client's tool needs a name: {schema!r}")
    if description is not None and not isinstance(description, str):
        raise ValueError(f"the description of the client's tool {name!r} is not a text")
    parameters = schema.get("inputSchema", schema.get("parameters"))
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"the schema of the client's tool {name!r} is not an object")
    needs = schema.get("needsApproval", schema.get(NEEDS_APPROVAL, False))
    if not isinstance(needs, bool):
        raise ValueError(
            f"needsApproval of the client's tool {name!r} must be a bool, got {needs!r}"
        )
    return ToolDefinition(
        name=name,
        description=description,
        parameters_json_schema=dict(parameters),
        kind="external",
        metadata={NEEDS_APPROVAL: True} if needs else None,
    )


# --- functions -----------------------------------------------------------------------------------


def _tool(function: Callable[..., Any], name: str | None) -> Tool[Any]:
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
    """The parameters that the model does not see."""
    hints: dict[str, Any] = {}
    try:
        hints = get_type_hints(function)
    except Exception:  # what cannot be resolved here is told by whoever makes the schema
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
    """The function as the model sees it."""
    is_stream = inspect.isasyncgenfunction(function)
    if not filled and not is_stream:
        return function

    @wraps(function)
    def stand_in(*arguments: Any, **more: Any) -> Any: ...

    stand_in.__signature__ = _without(inspect.signature(function), filled)  # type: ignore[attr-defined]
    if is_stream:  # no schema says what an iterator returns
        hints = {name: hint for name, hint in stand_in.__annotations__.items() if name != "return"}
        stand_in.__annotations__ = hints
    return stand_in


def _without(signature: inspect.Signature, filled: tuple[str, ...]) -> inspect.Signature:
    shown = [each for each in signature.parameters.values() if each.name not in filled]
    return signature.replace(parameters=shown)


def _filling(function: Callable[..., Any], filled: tuple[str, ...]) -> Callable[..., Any]:
    """The function, called with what the model does not see."""

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
