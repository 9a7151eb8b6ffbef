"""Remote calls: the network may call methods marked with `@rpc`, and no others.

Code in the same process can call every public async method through a stub, with any arguments. A call from a
browser or another host is checked here: the method must be marked, and arguments and results must be strict
JSON, so that they mean the same on both ends.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from outlast.core import json
from outlast.core.errors import RpcRefused

F = TypeVar("F", bound=Callable[..., Any])


class Final:
    """The last item of a streaming method, if the call should have a value besides its items.

    ```python
    from outlast import Agent, Final, rpc

    class Counter(Agent):
        @rpc
        async def count(self, to: int):
            for n in range(1, to + 1):
                yield n
            yield Final({"total": to})
    ```
    """

    def __init__(self, value: Any) -> None:
        self.value = value


class FinalText(str):
    """The JSON text of a `Final`."""


_MARK = "__outlast_rpc__"


def rpc(method: F) -> F:
    """Let the network call this method of an agent.

    ```python
    from outlast import Agent, rpc

    class Counter(Agent):
        @rpc
        async def add(self, n: int) -> int:          # a browser may call it
            total = (await self.storage.get("total") or 0) + n
            await self.storage.put("total", total)
            return total

        @rpc
        async def count(self, to: int):              # an async generator streams its results
            for n in range(to):
                yield n

        async def reset(self) -> None:               # only code in this process may call it
            await self.storage.delete("total")
    ```
    """
    name = getattr(method, "__name__", repr(method))
    if not (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)):
        raise TypeError(f"an @rpc method must be async; make {name} async")
    if name.startswith("_"):
        raise TypeError(f"an @rpc method must be public, but {name} is private; rename it")
    setattr(method, _MARK, True)
    return method


def rpc_methods(agent_class: type) -> dict[str, Callable[..., Any]]:
    """Return the `@rpc` methods of a class, by name. An override must be marked as well."""
    found = {}
    for name in dir(agent_class):
        method = inspect.getattr_static(agent_class, name)
        if getattr(method, _MARK, False):
            found[name] = method
    return found


async def call_method(agent: object, name: str, arguments: str) -> AsyncIterator[str]:
    """Call a marked method with JSON arguments, and yield its results as JSON.

    A coroutine has one result, an async generator one per item. Raises `RpcRefused` if the method does not
    exist or the arguments do not fit; exceptions of the method itself propagate.
    """
    kind = type(agent)
    method = rpc_methods(kind).get(name)
    if method is None:
        raise RpcRefused(
            f"{kind.__name__} has no remote method {name!r}; remote methods must be marked with @rpc"
        )
    call = getattr(agent, name)(*_decoded_arguments(agent, method, arguments))
    what = f"the result of {kind.__name__}.{name}"
    if inspect.isasyncgen(call):
        async with aclosing(call) as results:
            async for result in results:
                if isinstance(result, Final):
                    yield FinalText(json.encode(result.value, what))
                    return
                yield json.encode(result, what)
    else:
        yield json.encode(await call, what)


def _decoded_arguments(agent: object, method: Callable[..., Any], text: str) -> list[Any]:
    where = method.__qualname__
    try:
        arguments = json.decode(text)
    except ValueError as error:
        raise RpcRefused(f"{where}: arguments must be JSON: {error}") from None
    if not isinstance(arguments, list):
        raise RpcRefused(f"{where}: arguments must be a JSON array, got {text[:100]}")
    try:
        inspect.signature(method).bind(agent, *arguments)
    except TypeError as error:
        raise RpcRefused(f"{where}: {error}") from None
    return arguments
