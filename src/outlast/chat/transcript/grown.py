"""Values that are derived from each message of a path, made once as the path grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Message = dict[str, Any]


def new_in(path: list[Message], known: list[Message]) -> int:
    """Return the place of the first message in a path that is not in a known one; 0 if they differ earlier.

    Comparing the same objects is fast, however many there are.
    """
    count = len(known)
    return count if count <= len(path) and path[:count] == known else 0


class Grown(Generic[T]):
    """One value for each message of a path."""

    __slots__ = ("_derive", "_path", "_values")

    def __init__(self, derive: Callable[[Message], T]) -> None:
        self._derive = derive
        self._path: list[Message] = []
        self._values: list[T] = []

    def of(self, path: list[Message]) -> list[T]:
        """Return the values of a path, whose messages and list must not be modified afterwards."""
        if path is not self._path:
            first = new_in(path, self._path)
            self._values = [*self._values[:first], *map(self._derive, path[first:])]
            self._path = path
        return self._values
