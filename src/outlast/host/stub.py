"""What `host.get()` returns: an object that stands for an agent, here or not."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, cast

from outlast.core.text import described
from outlast.host.address import Address
from outlast.host.events import Rpc, RpcFailed

if TYPE_CHECKING:
    from outlast.host.host import Host


class Stub:
    """Calls the public async methods of an agent, activating it first. Making one does no I/O."""

    __slots__ = ("_address", "_class", "_host")

    def __init__(self, host: Host, agent_class: type, address: Address) -> None:
        self._host = host
        self._class = agent_class
        self._address = address

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(f"{name} is private and cannot be called through a stub")
        where = f"{self._class.__name__}.{name}"
        method = getattr(self._class, name, None)
        if not callable(method):
            raise AttributeError(
                f"{where} is not a method. A stub stands for an agent that may not be in memory:"
                f" only its async methods can be reached. Add one that returns what you need."
            )
        call: Any
        if inspect.isasyncgenfunction(method):
            call = _streaming(self._host, self._address, name)
        elif inspect.iscoroutinefunction(method):
            call = _calling(self._host, self._address, name)
        else:
            raise TypeError(
                f"{where} is not async, so it cannot be called through a stub; make it async"
            )
        call.__name__ = name
        call.__qualname__ = where
        return cast(Callable[..., Awaitable[Any]], call)

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


def _calling(host: Host, address: Address, name: str) -> Callable[..., Any]:
    async def call(*arguments: Any, **keywords: Any) -> Any:
        with _told(host, address, name):
            async with host.using(address) as agent:
                return await getattr(agent, name)(*arguments, **keywords)

    return call


def _streaming(host: Host, address: Address, name: str) -> Callable[..., Any]:
    async def call(*arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
        with _told(host, address, name):
            async with host.using(address) as agent:
                async with aclosing(getattr(agent, name)(*arguments, **keywords)) as results:
                    async for result in results:
                        yield result

    return call


@contextmanager
def _told(host: Host, address: Address, name: str) -> Iterator[None]:
    """Tell those who listen how a call has ended."""
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
