"""Tools as users write them: methods marked with `@tool`, their settings, and the facts of a call."""

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
    """One call of a tool. A parameter of this type receives it; the model does not see the parameter."""

    id: str
    tool_name: str
    input: Mapping[str, Any]
    idempotency_key: str  # the same if the call runs again
    request_id: str
    step_number: int = 0
    approved: bool = False  # by the user
    signal: Abort | None = None  # set when the turn is stopped
    context: Any = field(default=None, compare=False, repr=False)  # of `StepConfig`


class NotDone:
    """Returned by `reconcile` if the interrupted call certainly had no effect."""


Asked = Callable[..., Any | Awaitable[Any]] | str  # a function, or the name of a method


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The arguments of `@tool`."""

    effect: Effect = "once"
    name: str | None = None
    description: str | None = None
    timeout: float | None = None
    needs_approval: bool | Asked = False
    reconcile: Asked | None = None
    idempotency_key: Asked | None = None
    to_model: Asked | None = None
    owner: Any = field(
        default=None, compare=False, repr=False
    )  # the object that the method is bound to

    @property
    def asks(self) -> bool:
        """Whether any setting is a function of the user."""
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
    """Mark a method of an agent as one of its tools.

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

    `effect` is the effect of running a call a second time: "read" (it has none), "idempotent" (it has none
    with the same key), "once" (it repeats the effect, so outlast never does it). When a call of a "once" tool
    is interrupted, its outcome is unknown, and outlast calls `reconcile`: a function of the call, or the name
    of a method. It returns the result of the call, `NotDone()` if the call had no effect, or None if it
    cannot tell.

    `needs_approval` is True, or a function of the call. `idempotency_key` is a function of the call that
    returns a name for its effect: a second call with the same name and input gets the result of the first,
    in any turn. `timeout` is in seconds or a `timedelta`.

    `to_model` is a function of the stored output, or the name of a method. The model sees its result in
    place of the output: a str, a JSON value, or content of Pydantic AI such as a `BinaryContent`, alone or in
    a list. Clients see the stored output.
    """
    if effect not in EFFECTS:
        raise ValueError(f"effect must be one of {', '.join(EFFECTS)}, got {effect!r}")
    functions = {
        "reconcile": reconcile,
        "idempotency_key": idempotency_key,
        "to_model": to_model,
    }
    for what, asked in functions.items():
        if asked is not None and not callable(asked) and not isinstance(asked, str):
            raise TypeError(f"{what} must be a function or the name of a method, got {asked!r}")
    if not (isinstance(needs_approval, bool | str) or callable(needs_approval)):
        raise TypeError(
            "needs_approval must be a bool, a function or the name of a method,"
            f" got {needs_approval!r}"
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
            raise TypeError(f"@tool must mark a function, got {marked!r}")
        setattr(marked, MARK, spec)
        return marked

    return mark if function is None else mark(function)


UNMARKED = ToolSpec()


def spec_of(function: Any) -> ToolSpec:
    """Return the settings of a function. Those of a marked method include the object it is bound to."""
    spec = getattr(function, MARK, None)
    if not isinstance(spec, ToolSpec):
        return UNMARKED
    owner = getattr(function, "__self__", None)
    return spec if owner is None or not spec.asks else replace(spec, owner=owner)


def marked_methods(agent: object) -> list[Callable[..., Any]]:
    """Return the bound methods of an agent that are marked with `@tool`."""
    names = _marked_names(type(agent))  # type: ignore[arg-type]  # a class can be hashed
    return [getattr(agent, name) for name in names]


@lru_cache(maxsize=256)  # searching a class takes as long as the rest of a short turn
def _marked_names(agent_class: type) -> tuple[str, ...]:
    return tuple(
        name
        for name in dir(agent_class)
        if hasattr(inspect.getattr_static(agent_class, name), MARK)
    )


async def ask(agent: object, spec: ToolSpec, asked: Asked, about: Any) -> Any:
    """Call a function of the tool with a call or an output. A name refers to a method of the tool's owner."""
    owner = agent if spec.owner is None else spec.owner
    if isinstance(asked, str):
        found = owner if hasattr(owner, asked) else agent
        return await call_hook(getattr(found, asked), about)
    return await (call_hook(asked, owner, about) if _takes_self(asked) else call_hook(asked, about))


def _takes_self(function: Callable[..., Any]) -> bool:
    """Return whether a function is an unbound method, which expects `self`."""
    if inspect.ismethod(function):
        return False
    try:
        return next(iter(inspect.signature(function).parameters), None) == "self"
    except ValueError:  # some built-in functions have no signature
        return False


current_call: ContextVar[ToolCall | None] = ContextVar("outlast_tool_call", default=None)
