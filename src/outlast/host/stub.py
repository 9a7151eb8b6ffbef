"""What `host.get()` returns: an object that stands for an agent, here or not."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from outlast.host.address import Address

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
        described = f"{self._class.__name__}.{name}"
        method = getattr(self._class, name, None)
        if not callable(method):
            raise AttributeError(
                f"{described} is not a method. A stub stands for an agent that may not be in memory:"
                f" only its async methods can be reached. Add one that returns what you need."
            )
        if not inspect.iscoroutinefunction(method):
            raise TypeError(
                f"{described} is not async, so it cannot be called through a stub; make it async"
            )
        host, address = self._host, self._address

        async def call(*arguments: Any, **keywords: Any) -> Any:
            async with host.using(address) as agent:
                return await getattr(agent, name)(*arguments, **keywords)

        call.__name__ = name
        call.__qualname__ = described
        return call

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
