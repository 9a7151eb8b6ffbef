"""The stub that `host.get()` returns: it stands for an agent that may not be in memory.

It is typed as the agent's class, which is nearly true: only async methods are reachable through it.
docs/decisions/0025-a-stub-is-typed-as-its-agent.md explains why.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, cast

from outlast.core.text import described
from outlast.host.address import Address
from outlast.host.events import Rpc, RpcFailed

if TYPE_CHECKING:
    from outlast.host.life.host import Host


class Stub:
    """Calls the public async methods of an agent, activating it first. Creating a stub does no I/O.

    `name`, `self_path` and `parent_path` are available without a call.
    """

    __slots__ = ("_address", "_class", "_host")

    def __init__(self, host: Host, agent_class: type, address: Address) -> None:
        self._host = host
        self._class = agent_class
        self._address = address

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(f"{name} is private; a stub reaches public async methods only")
        where = f"{self._class.__name__}.{name}"
        method = getattr(self._class, name, None)
        call: Any
        if inspect.isasyncgenfunction(method):
            call = _stream_call(self._host, self._address, name)
        elif inspect.iscoroutinefunction(method):
            call = _call(self._host, self._address, name)
        else:
            kind = TypeError if callable(method) else AttributeError
            raise kind(_refusal(self._class, name, is_method=callable(method)))
        call.__name__ = name
        call.__qualname__ = where
        return cast(Callable[..., Awaitable[Any]], call)

    @property
    def name(self) -> str:
        return self._address.name

    @property
    def self_path(self) -> tuple[tuple[str, str], ...]:
        return self._address.path

    @property
    def parent_path(self) -> tuple[tuple[str, str], ...]:
        return self._address.path[:-1]

    def __dir__(self) -> list[str]:
        return sorted(["name", "parent_path", "self_path", *_reachable(self._class)])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Stub)
            and self._address == other._address
            and self._host is other._host
        )

    def __hash__(self) -> int:
        return hash(self._address)

    def __repr__(self) -> str:
        return f"<stub of {self._address}>"


def _reachable(agent_class: type) -> list[str]:
    """Return the names of the methods that a stub can call."""
    public = (name for name in dir(agent_class) if not name.startswith("_"))
    return [name for name in public if _is_async(getattr(agent_class, name, None))]


def _is_async(method: object) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def _refusal(agent_class: type, name: str, *, is_method: bool) -> str:
    where = f"{agent_class.__name__}.{name}"
    what = "is not async" if is_method else "is not a method"
    instead = getattr(agent_class, "_through_a_stub", {}).get(name)
    if instead is not None:
        advice = f"Use `await stub.{instead}()`"
    elif _is_of_outlast(agent_class, name):  # the user cannot make it async
        advice = f"Use it in an async method of {agent_class.__name__}, and call that method"
    elif is_method:
        advice = "Make it async"
    else:
        advice = "Add an async method that returns it"
    return (
        f"{where} {what}. A stub stands for an agent that may not be in memory, so only async"
        f" methods are reachable. {advice}."
    )


def _is_of_outlast(agent_class: type, name: str) -> bool:
    """Return whether outlast declares this name, even if a class of the application overrides it."""
    bases = (base for base in agent_class.__mro__ if base.__module__.startswith("outlast."))
    return name == "storage" or any(name in vars(base) for base in bases)


def _call(host: Host, address: Address, name: str) -> Callable[..., Any]:
    async def call(*arguments: Any, **keywords: Any) -> Any:
        with _emitting(host, address, name):
            async with host.using(address) as agent:
                return await getattr(agent, name)(*arguments, **keywords)

    return call


def _stream_call(host: Host, address: Address, name: str) -> Callable[..., Any]:
    async def call(*arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
        with _emitting(host, address, name):
            async with host.using(address) as agent:
                async with aclosing(getattr(agent, name)(*arguments, **keywords)) as results:
                    async for result in results:
                        yield result

    return call


@contextmanager
def _emitting(host: Host, address: Address, name: str) -> Iterator[None]:
    """Emit an event when the call inside the block ends."""
    events = host.events
    started = host.clock.now()
    try:
        yield
    except Exception as error:
        elapsed = host.clock.now() - started
        events.emit(
            RpcFailed, address.text, method=name, elapsed_ms=elapsed, error=described(error)
        )
        raise
    events.emit(Rpc, address.text, method=name, elapsed_ms=host.clock.now() - started)
