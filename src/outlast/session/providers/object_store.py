"""The `SKILL.md` objects of an object store: any object with `list(prefix)` and `get(key)`.

Its methods may be async. Plain ones are called in a thread, and what they return is consumed there: so the
stores of `obstore` work, too. A listing has keys, or objects or dicts with a `key` or a `path`, singly or in
lists. An object is bytes, a str, or something with `bytes()` or `read()`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from outlast.session.providers.thread import OneThread

MAX_LISTED = 10_000  # objects below a prefix
MAX_OBJECT_BYTES = 1_000_000


class ObjectStore(Protocol):
    """Where skills are kept."""

    def list(self, prefix: str, /) -> Any: ...

    def get(self, key: str, /) -> Any: ...


class Listed(NamedTuple):
    """An object of a listing. The stamp changes with its content; None if the store has no such thing."""

    key: str
    stamp: str | None


class ObjectReader:
    """Reads an object store without blocking the event loop."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._thread = OneThread()

    async def list(self, prefix: str) -> list[Listed]:
        """Return the objects below a prefix, ordered by key."""
        return sorted(_listed(await self._called(self._store.list, prefix, _all)))

    async def get(self, key: str) -> bytes:
        """Return the beginning of an object."""
        content = await self._called(self._store.get, key, _content)
        if isinstance(content, str):
            return content.encode("utf-8", "replace")[:MAX_OBJECT_BYTES]
        if not isinstance(content, bytes):
            raise TypeError(f"get() of the object store must return bytes, got {content!r}")
        return content[:MAX_OBJECT_BYTES]

    async def _called(self, method: Any, argument: str, consume: Any) -> Any:
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            found = method(argument)
        else:
            found = await self._thread.run(lambda: consume(method(argument)))
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, AsyncIterable):
            found = [each async for each in _limited(found)]
        rest = consume(found)
        return await rest if inspect.isawaitable(rest) else rest


async def _limited(found: AsyncIterable[Any]) -> Any:
    count = 0
    async for each in found:
        yield each
        count += 1
        if count >= MAX_LISTED:
            return


def _all(found: Any) -> Any:
    """Return a listing as a list. What must be awaited, or is none, stays as it is."""
    if not _is_listing(found) or inspect.isawaitable(found):
        return found
    return [each for each, _ in zip(found, range(MAX_LISTED), strict=False)]


def _content(found: Any) -> Any:
    """Return an object's content as bytes or str; what has to be awaited stays as it is."""
    if isinstance(found, bytes | str):
        return found
    for name in ("bytes", "read"):
        method = getattr(found, name, None)
        if callable(method):
            read = method()
            return read if inspect.isawaitable(read) else _content(read)
    if isinstance(found, bytearray | memoryview) or hasattr(found, "__buffer__"):
        return bytes(found)
    try:
        return bytes(memoryview(found))
    except TypeError:
        return found


def _is_listing(found: Any) -> bool:
    return isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping)


def _listed(found: Any) -> Iterator[Listed]:
    if not _is_listing(found):
        raise TypeError(f"list() of the object store must return keys, got {found!r}")
    for each in found:
        if isinstance(each, list | tuple) and not isinstance(each, Listed):
            yield from _listed(each)
        else:
            yield _one(each)


def _one(each: Any) -> Listed:
    if isinstance(each, str):
        return Listed(each, None)
    key = _field(each, "key") or _field(each, "path")
    if not isinstance(key, str):
        raise TypeError(f"list() of the object store must return keys, got {each!r}")
    stamps = [_field(each, name) for name in ("e_tag", "etag", "last_modified", "size")]
    known = [str(stamp) for stamp in stamps if stamp is not None]
    return Listed(key, " ".join(known) or None)


def _field(each: Any, name: str) -> Any:
    return each.get(name) if isinstance(each, Mapping) else getattr(each, name, None)
