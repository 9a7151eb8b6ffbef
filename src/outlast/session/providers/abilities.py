"""What a provider of a context block can do. Any object with these methods is one; they may be async."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from outlast.session.block import Kind
from outlast.session.providers.function import FunctionProvider, TextProvider

T = TypeVar("T")
MaybeAsync: TypeAlias = T | Awaitable[T]
Hits: TypeAlias = str | Iterable[tuple[str, str]] | None  # as text, or each with its key


@runtime_checkable
class ReadableProvider(Protocol):
    """A read-only block. `init(label)` is called before the first use, if there is such a method."""

    def get(self) -> MaybeAsync[str | None]: ...


@runtime_checkable
class WritableProvider(ReadableProvider, Protocol):
    """A block that the model writes as a whole."""

    def set(self, content: str, /) -> MaybeAsync[None]: ...


@runtime_checkable
class LoadableProvider(Protocol):
    """A collection whose entries the model loads.

    `get()` returns the catalogue, if there is such a method: a text, or the keys with their descriptions.
    With `set(key, content, description)`, the model adds entries.
    """

    def load(self, key: str, /) -> MaybeAsync[str | None]: ...


@runtime_checkable
class SearchableProvider(Protocol):
    """A collection that the model searches.

    `get()` returns what the prompt says of it, if there is such a method. With `set(key, content)`, the model
    adds entries.
    """

    def search(self, query: str, /) -> MaybeAsync[Hits]: ...


@dataclass(frozen=True, slots=True)
class Abilities:
    """The kind of a provider, and which methods it has."""

    kind: Kind
    can_get: bool
    can_set: bool
    can_load: bool
    can_search: bool
    can_append: bool = False  # a writable block that can add to its content by itself

    @property
    def is_keyed(self) -> bool:
        """Whether its content are entries with keys."""
        return self.can_load or self.can_search


def as_provider(label: str, given: Any) -> Any:
    """Return the provider that was passed as an object, a str or a function."""
    if isinstance(given, str):
        return TextProvider(given)
    if isinstance(given, type):
        raise TypeError(
            f"provider of {label!r} must be an object, got the class {given.__name__}; call it"
        )
    if callable(given) and not any(_has(given, name) for name in ("get", "load", "search")):
        if not _takes(given, ()):
            raise TypeError(f"a function as provider of {label!r} must take (), got {given!r}")
        return FunctionProvider(given)
    return given


def abilities_of(label: str, provider: Any) -> Abilities:
    """Return what a provider can do, or raise an error if that is nothing."""
    has = {name: _has(provider, name) for name in ("get", "set", "load", "search", "append")}
    if not (has["get"] or has["load"] or has["search"]):
        raise TypeError(
            f"provider of {label!r} must have get(), or search(), or load(), got {provider!r}"
        )
    kind = _kind(has)
    _check_arguments(label, provider, kind, has)
    can_append = kind == "writable" and has["append"]
    return Abilities(kind, has["get"], has["set"], has["load"], has["search"], can_append)


def _has(provider: Any, name: str) -> bool:
    return callable(getattr(provider, name, None))


def _kind(has: Mapping[str, bool]) -> Kind:
    if has["load"]:
        return "loadable"
    if has["search"]:
        return "searchable"
    return "writable" if has["set"] else "readonly"


_SET: dict[Kind, tuple[str, ...]] = {
    "readonly": (),
    "writable": ("content",),
    "loadable": ("key", "content", "description"),
    "searchable": ("key", "content"),
}


def _check_arguments(label: str, provider: Any, kind: Kind, has: Mapping[str, bool]) -> None:
    """Raise an error if a method does not take what it will be given: `dict` has a `get`, too."""
    expected = {"get": (), "set": _SET[kind], "load": ("key",), "search": ("query",)}
    for name, arguments in expected.items():
        if has[name] and not _takes(getattr(provider, name), arguments):
            raise TypeError(
                f"{name}() of the provider of {label!r} must take"
                f" ({', '.join(arguments)}), got {provider!r}"
            )


def _takes(method: Any, arguments: tuple[str, ...]) -> bool:
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # some built-in functions have none
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
