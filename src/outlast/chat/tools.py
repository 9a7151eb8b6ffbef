"""Tools: what the model may call. Functions, methods marked with `@tool`, Pydantic AI's own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from outlast.core.text import described

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset

F = TypeVar("F", bound=Callable[..., Any])
Effect = Literal["read", "idempotent", "once"]
EFFECTS: tuple[Effect, ...] = ("read", "idempotent", "once")

_MARK = "__outlast_tool__"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What `@tool` was told."""

    effect: Effect = "once"
    name: str | None = None
    description: str | None = None
    timeout: float | None = None


@overload
def tool(function: F) -> F: ...


@overload
def tool(
    *,
    effect: Effect = "once",
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Callable[[F], F]: ...


def tool(
    function: Any = None,
    *,
    effect: Effect = "once",
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Make a method of an agent one of its tools.

    ```python
    from outlast import Think, tool

    class Assistant(Think):
        @tool(effect="read")
        async def weather(self, city: str) -> str:
            \"\"\"Current weather in a city.\"\"\"
            return f"sunny in {city}"
    ```

    `effect` says what a second execution would do: "read" (nothing), "idempotent" (nothing, with the same
    key), "once" (it must not happen by itself).
    """
    if effect not in EFFECTS:
        raise ValueError(f"a tool's effect is one of {', '.join(EFFECTS)}, not {effect!r}")
    spec = ToolSpec(effect, name, description, timeout)

    def mark(marked: Any) -> Any:
        if not callable(marked):
            raise TypeError(f"@tool marks a function, not {marked!r}")
        setattr(marked, _MARK, spec)
        return marked

    return mark if function is None else mark(function)


def marked_methods(agent: object) -> list[Callable[..., Any]]:
    """The bound methods of an agent that are marked with `@tool`."""
    names = _marked_names(type(agent))  # type: ignore[arg-type]  # a class can be hashed
    return [getattr(agent, name) for name in names]


@lru_cache(maxsize=256)  # looking through a class takes as long as the rest of a short turn
def _marked_names(agent_class: type) -> tuple[str, ...]:
    return tuple(
        name
        for name in dir(agent_class)
        if hasattr(inspect.getattr_static(agent_class, name), _MARK)
    )


def toolset_of(*sources: Any) -> AbstractToolset[Any]:
    """One toolset of everything: functions, tools, toolsets, lists and dicts of them, None."""
    from pydantic_ai import Tool
    from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, FunctionToolset

    tools: list[Tool[Any]] = []
    toolsets: list[AbstractToolset[Any]] = []

    def take(source: Any, name: str | None = None) -> None:
        if source is None:
            return
        if isinstance(source, AbstractToolset):
            toolsets.append(source)
        elif isinstance(source, Tool):
            tools.append(source)
        elif isinstance(source, Mapping):
            for key, each in source.items():
                take(each, key)
        elif callable(source):
            spec: ToolSpec = getattr(source, _MARK, ToolSpec())
            tools.append(
                Tool(
                    source,
                    name=spec.name or name,
                    description=spec.description,
                    timeout=spec.timeout,
                )
            )
        elif isinstance(source, Iterable) and not isinstance(source, str | bytes):
            for each in source:
                take(each)
        else:
            raise TypeError(
                f"a tool is a function, a pydantic_ai.Tool or a toolset, not {source!r}"
            )

    for source in sources:
        take(source)
    if tools:
        toolsets.insert(0, FunctionToolset(tools))
    return CombinedToolset(toolsets)


@dataclass(frozen=True, slots=True)
class CallResult:
    """What came of a call: a value, or what the model is told instead."""

    output: Any = None
    error: str | None = None


class Toolbox:
    """The tools of one turn, as the model sees them in one step."""

    def __init__(self, toolset: AbstractToolset[Any], context: RunContext[Any]) -> None:
        self._toolset = toolset
        self._context = context
        self._tools: dict[str, Any] = {}

    async def prepare(self, active: Sequence[str] | None) -> list[ToolDefinition]:
        """What is offered to the model; `active`: only these."""
        self._tools = await self._toolset.get_tools(self._context)
        if active is not None:
            self._tools = {name: self._tools[name] for name in self._tools if name in active}
        return [each.tool_def for each in self._tools.values()]

    async def call(self, call: ToolCallPart) -> CallResult:
        """Execute a call. Whatever goes wrong is something that the model can read."""
        from pydantic import ValidationError
        from pydantic_ai import ModelRetry, ToolReturn
        from pydantic_ai.exceptions import ToolFailed

        name = call.tool_name
        found = self._tools.get(name)
        if found is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return CallResult(error=f"There is no tool {name!r}. There are: {known}.")
        context = replace(
            self._context,
            tool_call_id=call.tool_call_id,
            tool_name=name,
            max_retries=found.max_retries,
        )
        try:
            validator = found.args_validator
            arguments = (
                validator.validate_json(call.args or "{}")
                if isinstance(call.args, str | type(None))
                else validator.validate_python(call.args)
            )
            async with asyncio.timeout(found.tool_def.timeout):
                output = await self._toolset.call_tool(name, arguments, context, found)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return CallResult(error=f"The arguments do not fit: {problems}")
        except (ModelRetry, ToolFailed) as error:
            return CallResult(error=error.message)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                raise
            return CallResult(error=f"The tool {name!r} was cancelled.")
        except TimeoutError:
            return CallResult(error=f"The tool {name!r} took too long and was stopped.")
        except Exception as error:
            return CallResult(error=described(error))
        if isinstance(output, ToolReturn):
            output = output.return_value
        return _as_json(output, name)


def _as_json(output: Any, name: str) -> CallResult:
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return CallResult(output=to_jsonable_python(output))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        return cannot_be_stored(name, error)


def cannot_be_stored(name: str, error: Exception) -> CallResult:
    return CallResult(
        error=f"The tool {name!r} has run, but its result cannot be stored: {described(error)}"
    )
