"""Tools as users write them: methods marked with `@tool`, what is said of each, and what a call tells."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, TypeVar, overload

from outlast.core.abort import Abort
from outlast.core.clock import seconds
from outlast.core.hooks import call_hook

F = TypeVar("F", bound=Callable[..., Any])
Effect = Literal["read", "idempotent", "once"]
EFFECTS: tuple[Effect, ...] = ("read", "idempotent", "once")

MARK = "__outlast_tool__"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool. A parameter of this type is filled in, and not shown to the model."""

    id: str
    tool_name: str
    input: Mapping[str, Any]
    idempotency_key: str  # the same if the call is ever made again
    request_id: str
    step_number: int = 0
    approved: bool = False  # by the user
    signal: Abort | None = None  # set when the turn is stopped
    context: Any = field(default=None, compare=False, repr=False)  # of `StepConfig`


class NotDone:
    """For `reconcile`: the call that was interrupted has not happened, for certain."""


Asked = Callable[..., Any | Awaitable[Any]] | str  # a function, or the name of a method


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What `@tool` was told."""

    effect: Effect = "once"
    name: str | None = None
    description: str | None = None
    timeout: float | None = None
    needs_approval: bool | Asked = False
    reconcile: Asked | None = None
    idempotency_key: Asked | None = None
    to_model: Asked | None = None
    owner: Any = field(default=None, compare=False, repr=False)  # whose method the function is

    @property
    def asks(self) -> bool:
        """Whether code of the user is to be asked about calls."""
        asked = (self.reconcile, self.idempotency_key, self.to_model)
        return not isinstance(self.needs_approval, bool) or any(each is not None for each in asked)


@overload
def tool(function: F) -> F: ...


@overload
def tool(
    *,
    effect: Effect = "once",
    name: str | None = None,
    description: str | None = None,
    timeout: float | timedelta | None = None,
    needs_approval: bool | Asked = False,
    reconcile: Asked | None = None,
    idempotency_key: Asked | None = None,
    to_model: Asked | None = None,
) -> Callable[[F], F]: ...


def tool(
    function: Any = None,
    *,
    effect: Effect = "once",
    name: str | None = None,
    description: str | None = None,
    timeout: float | timedelta | None = None,
    needs_approval: bool | Asked = False,
    reconcile: Asked | None = None,
    idempotency_key: Asked | None = None,
    to_model: Asked | None = None,
) -> Any:
    """Make a method of an agent one of its tools.

    ```python
    from outlast import Think, ToolCall, tool

    class Assistant(Think):
        @tool(effect="read")
        async def weather(self, city: str) -> str:
            \"\"\"Current weather in a city.\"\"\"
            return f"sunny in {city}"

        @tool(effect="idempotent", timeout=30)
        async def charge(self, amount: int, call: ToolCall) -> str:
            \"\"\"Charge the customer.\"\"\"
            return f"charged {amount}, key {call.idempotency_key}"
    ```

    `effect` says what a second execution would do: "read" (nothing), "idempotent" (nothing, with the same
    key), "once" (it must not happen by itself). When a call of a "once" tool is interrupted, its outcome is
    unknown, and `reconcile` is asked: a function of the call, or the name of a method. It returns what the
    call had returned, `NotDone()` if it has not happened, or None if that cannot be found out.

    `needs_approval` is True, or a function of the call. `idempotency_key` is a function of the call that
    names what it does: a second call with that name and the same input gets the first one's result, in any
    turn. `timeout` is in seconds or a `timedelta`.

    `to_model` is a function of the stored output, or the name of a method. The model is shown what it
    returns in place of the output: a text, JSON, or content of Pydantic AI such as a `BinaryContent`, alone
    or in a list. Clients see the stored output.
    """
    if effect not in EFFECTS:
        raise ValueError(f"a tool's effect is one of {', '.join(EFFECTS)}, not {effect!r}")
    functions = {
        "reconcile": reconcile,
        "idempotency_key": idempotency_key,
        "to_model": to_model,
    }
    for what, asked in functions.items():
        if asked is not None and not callable(asked) and not isinstance(asked, str):
            raise TypeError(f"{what} is a function or the name of a method, not {asked!r}")
    if not (isinstance(needs_approval, bool | str) or callable(needs_approval)):
        raise TypeError(
            f"needs_approval is a bool, a function or the name of a method, not {needs_approval!r}"
        )
    limit = None if timeout is None else seconds(timeout, "timeout")
    spec = ToolSpec(
        effect,
        name,
        description,
        limit,
        needs_approval,
        reconcile,
        idempotency_key,
        to_model,
    )

    def mark(marked: Any) -> Any:
        if not callable(marked):
            raise TypeError(f"@tool marks a function, not {marked!r}")
        setattr(marked, MARK, spec)
        return marked

    return mark if function is None else mark(function)


UNMARKED = ToolSpec()


def spec_of(function: Any) -> ToolSpec:
    """What is known of a function; of a method that is marked, also whose it is."""
    spec = getattr(function, MARK, None)
    if not isinstance(spec, ToolSpec):
        return UNMARKED
    owner = getattr(function, "__self__", None)
    return spec if owner is None or not spec.asks else replace(spec, owner=owner)


def marked_methods(agent: object) -> list[Callable[..., Any]]:
    """The bound methods of an agent that are marked with `@tool`."""
    names = _marked_names(type(agent))  # type: ignore[arg-type]  # a class can be hashed
    return [getattr(agent, name) for name in names]


@lru_cache(maxsize=256)  # looking through a class takes as long as the rest of a short turn
def _marked_names(agent_class: type) -> tuple[str, ...]:
    return tuple(
        name
        for name in dir(agent_class)
        if hasattr(inspect.getattr_static(agent_class, name), MARK)
    )


async def ask(agent: object, spec: ToolSpec, asked: Asked, about: Any) -> Any:
    """Ask a function of the tool about a call or an output; a method is one of the tool's owner."""
    owner = agent if spec.owner is None else spec.owner
    if isinstance(asked, str):
        found = owner if hasattr(owner, asked) else agent
        return await call_hook(getattr(found, asked), about)
    return await (call_hook(asked, owner, about) if _takes_self(asked) else call_hook(asked, about))


def _takes_self(function: Callable[..., Any]) -> bool:
    """Whether it is a function in a class, which is given whose method it is."""
    if inspect.ismethod(function):
        return False
    try:
        return next(iter(inspect.signature(function).parameters), None) == "self"
    except ValueError:  # some functions of Python itself do not tell
        return False


current_call: ContextVar[ToolCall | None] = ContextVar("outlast_tool_call", default=None)
