"""The tools of a turn, by source, from everything that users may pass as a tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outlast.chat.tools.declare import UNMARKED, ToolSpec, spec_of
from outlast.chat.tools.function import function_tool

if TYPE_CHECKING:
    from pydantic_ai import RunContext, Tool
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset

NEEDS_APPROVAL = "needs_approval"  # in the metadata of the definition of a client's tool

OnClash = Callable[[str, str, str], None]  # a tool's name, the earlier source, the later source


class _AcceptAll:
    """Validates nothing: the client validates the arguments of its tools."""

    def validate_python(self, value: Any) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class External:
    """A tool of the client, with the attributes of a tool that runs here."""

    tool_def: ToolDefinition
    max_retries: int = 0
    args_validator: Any = field(default_factory=_AcceptAll)


@dataclass(frozen=True, slots=True)
class Found:
    """A tool that the model can be offered, and its source."""

    tool: Any  # of its toolset, or `External`
    source: ToolSource

    @property
    def definition(self) -> ToolDefinition:
        definition: ToolDefinition = self.tool.tool_def
        return definition

    @property
    def is_external(self) -> bool:
        """Whether the client runs it."""
        return self.definition.kind == "external"

    @property
    def spec(self) -> ToolSpec:
        return self.source.spec(self.tool)


@dataclass(slots=True)
class ToolSource:
    """The tools of one source: a toolset of those that run here, and those that the client runs."""

    name: str
    toolset: AbstractToolset[Any]
    specs: dict[str, ToolSpec] = field(default_factory=dict)
    external: dict[str, External] = field(default_factory=dict)
    is_empty: bool = False

    async def enter(self, context: RunContext[Any]) -> None:
        """Prepare for a turn, including the first step: a toolset may be created anew for each step."""
        self.toolset = await self.toolset.for_run(context)
        await self.toolset.__aenter__()
        try:
            await self.step(context)
        except BaseException:
            await self.leave()
            raise

    async def step(self, context: RunContext[Any]) -> None:
        """Prepare for the next step."""
        self.toolset = await self.toolset.for_run_step(context)

    async def leave(self) -> None:
        await self.toolset.__aexit__(None, None, None)

    async def get(self, context: RunContext[Any]) -> dict[str, Any]:
        """Return the tools by name. Raises if two tools have the same name."""
        here = await self.toolset.get_tools(context)
        twice = here.keys() & self.external.keys()
        if twice:
            raise ValueError(
                f"the source {self.name!r} has two tools with the name {min(twice)!r}: rename the function,"
                " or the schema of the client's tool"
            )
        return {**self.external, **here}

    def spec(self, tool: Any) -> ToolSpec:
        """Return the settings of a tool; for other toolsets, from the tool's function and metadata."""
        definition: ToolDefinition = tool.tool_def
        known = self.specs.get(definition.name)
        if known is not None:
            return known
        marked = spec_of(_function_of(tool))
        if marked is not UNMARKED:
            needs = definition.kind == "unapproved" or marked.needs_approval
            return replace(marked, needs_approval=needs)
        metadata = definition.metadata or {}
        effect = metadata.get("effect")
        return ToolSpec(
            effect if effect in ("read", "idempotent") else "once",
            needs_approval=definition.kind == "unapproved" or metadata.get(NEEDS_APPROVAL) is True,
        )

    async def instructions(self, context: RunContext[Any]) -> list[str]:
        """Return the toolset's instructions for the model."""
        given = await self.toolset.get_instructions(context)
        parts: Any = given if isinstance(given, list | tuple) else () if given is None else (given,)
        texts = (each if isinstance(each, str) else each.content for each in parts)
        return [text for text in texts if text]


class Tools:
    """The tools of a turn. A tool of a later source replaces one of the same name."""

    def __init__(self, on_clash: OnClash) -> None:
        self._sources: list[ToolSource] = []
        self._entered = AsyncExitStack()
        self._on_clash = on_clash

    @property
    def is_empty(self) -> bool:
        return not self._sources

    async def add(self, source: ToolSource, context: RunContext[Any]) -> None:
        """Add a source after the others, and enter its toolset."""
        if not source.is_empty:
            await source.enter(context)
            self._entered.push_async_callback(source.leave)
            self._sources.append(source)

    async def leave(self) -> None:
        """Leave all toolsets."""
        await self._entered.aclose()

    async def step(self, context: RunContext[Any]) -> None:
        """Prepare for the next step."""
        for source in self._sources:
            await source.step(context)

    async def get(self, context: RunContext[Any]) -> dict[str, Found]:
        """Return the tools by name."""
        found: dict[str, Found] = {}
        for source in self._sources:
            for name, tool in (await source.get(context)).items():
                if name in found:
                    self._on_clash(name, found[name].source.name, source.name)
                found[name] = Found(tool, source)
        return found

    async def instructions(self, context: RunContext[Any]) -> list[str]:
        """Return the instructions of all toolsets for the model."""
        return [text for source in self._sources for text in await source.instructions(context)]


def _function_of(found: Any) -> Any:
    """Return the function that a tool of another toolset calls, or None."""
    while hasattr(found, "source_tool"):
        found = found.source_tool
    called = getattr(found, "call_func", None)
    return getattr(getattr(called, "__self__", None), "function", None)


def tool_source(name: str, given: Sequence[Any]) -> ToolSource:
    """Create a source from functions, tools, toolsets, schemas of client tools, lists and dicts of these."""
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
            tools.append(function_tool(source, name))
            specs[tools[-1].name] = spec_of(source)
        elif isinstance(source, Iterable) and not isinstance(source, str | bytes):
            for each in source:
                take(each)
        else:
            raise TypeError(
                "a tool must be a function, a pydantic_ai.Tool, a toolset or the schema of a client's tool,"
                f" got {source!r}"
            )

    take(given)
    is_empty = not (tools or toolsets or external)
    if tools or not toolsets:
        toolsets.insert(0, FunctionToolset(tools))
    one = toolsets[0] if len(toolsets) == 1 else CombinedToolset(toolsets)
    return ToolSource(name, one, specs, {each.name: External(each) for each in external}, is_empty)


# --- the client's tools --------------------------------------------------------------------------


def is_schema(source: Mapping[Any, Any]) -> bool:
    """Return whether this is the schema of a client's tool, rather than a dict of tools by name."""
    known = ("inputSchema", "parameters", "description")
    return any(not callable(source[name]) for name in known if name in source)


def _as_external(definition: ToolDefinition) -> ToolDefinition:
    """Return the definition as that of a client's tool, which needs an approval if it did before."""
    needs = definition.kind == "unapproved"
    metadata = (
        {**(definition.metadata or {}), NEEDS_APPROVAL: True} if needs else definition.metadata
    )
    return replace(definition, kind="external", metadata=metadata)


def definition_of(schema: Mapping[str, Any]) -> ToolDefinition:
    """Return the definition of a client's tool, from its schema."""
    from pydantic_ai.tools import ToolDefinition

    name, description = schema.get("name"), schema.get("description")
    if not isinstance(name, str) or not name:
        raise ValueError(f"name of a client's tool must be a non-empty str, got {schema!r}")
    if description is not None and not isinstance(description, str):
        raise ValueError(
            f"description of the client's tool {name!r} must be a str, got {description!r}"
        )
    parameters = schema.get("inputSchema", schema.get("parameters"))
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise ValueError(
            f"inputSchema of the client's tool {name!r} must be a dict, got {parameters!r}"
        )
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
