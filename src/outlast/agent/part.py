"""Parts: an agent is an ordered list of them, and each is one concern of the agent in memory.

A part knows its own rows, and the parts before it in the list, by type: `parts[Inbox]`. Each moment of the
agent (it starts, its alarm is due, the host stops, a client joins) is a loop over the parts that override the
method of that moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from inspect import isfunction
from types import MethodType
from typing import Any, ClassVar, TypeVar, cast

from outlast.agent.commit import Commit, Commits
from outlast.agent.events import BatteryFailed
from outlast.core.hooks import is_overridden
from outlast.core.text import described
from outlast.host.life.activation import Activation
from outlast.store.operations import Query

logger = logging.getLogger("outlast.agent")

NAMESPACE = "battery"  # fibers and callbacks of a battery are stored as `battery:<name>:<own name>`

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P", bound="Part")


def moment(function: F) -> F:
    """Mark a method of a base class as a no-op that is called only on parts that override it."""
    function.__default__ = function  # type: ignore[attr-defined]
    return function


class Part:
    """One concern of one agent. Every method is a no-op by default."""

    first_reads: ClassVar[
        tuple[Query, ...]
    ] = ()  # by the agent's address, fetched together at start
    alarms: ClassVar[tuple[str, ...]] = ()  # the sources of its alarms; a battery's are `name:…`

    battery: str | None = None  # the name of the battery that it belongs to

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.activation = parts.activation
        self.commits = parts.commits
        self.address = parts.activation.address.text

    # --- life ------------------------------------------------------------------------------------

    @moment
    async def load(self) -> None:
        """Read the part's rows, before `on_start`. An unused part must read nothing."""

    @moment
    async def start(self) -> None:
        """Resume unfinished work, after `on_start`."""

    @moment
    async def start_failed(self) -> None:
        """An exception ended the start, which does not count as a crash."""

    @moment
    async def wake(self, source: str) -> None:
        """Handle a due alarm of this part. On return, its row must have been moved or removed."""

    @moment
    async def clock_set_back(self) -> None:
        """The clock may have been set back: move alarms that are now too far in the future."""

    @moment
    async def host_stops(self, cause: str) -> None:
        """The host is about to stop: record what that interrupts."""

    @moment
    def leave(self, reason: Exception) -> None:
        """This activation is over: release every waiter."""

    @moment
    async def fiber_recovered(self, fiber: Any) -> Any:
        """Recover an interrupted fiber of this part's battery, as `Agent.on_fiber_recovered` does."""
        return None

    # --- clients ---------------------------------------------------------------------------------

    @moment
    def greeting(self) -> Iterable[str]:
        """Return frames for a connection that joins."""
        return ()

    @moment
    async def frame(self, connection: Any, frame: dict[str, Any]) -> bool:
        """Handle a client frame whose type is not part of the protocol. False if it is another part's."""
        return False

    @moment
    async def request(self, request: Any, rest: str) -> Any:
        """Answer an HTTP request below the path of this part's battery. None if no such page exists."""
        return None


class Layout:
    """The classes of an agent's parts, in order, and which of them override which method.

    All agents of a class that have the same parts share one layout.
    """

    def __init__(self, kinds: tuple[type[Part], ...]) -> None:
        self.places = {kind: place for place, kind in enumerate(kinds)}
        self._kinds = kinds
        self._overriding: dict[str, tuple[int, ...]] = {}

    def overriding(self, name: str) -> tuple[int, ...]:
        """Return the places of the parts that override the method of this name."""
        found = self._overriding.get(name)
        if found is None:
            methods = ((place, getattr(kind, name, None)) for kind, place in self.places.items())
            found = tuple(
                place for place, each in methods if isfunction(each) and is_overridden(each)
            )
            self._overriding[name] = found
        return found


class Parts:
    """The parts of one agent, in order."""

    __slots__ = ("_all", "_layout", "activation", "agent", "commits")

    def __init__(self, agent: Any, activation: Activation) -> None:
        self.agent = agent
        self.activation = activation
        self.commits = Commits(activation)
        self._all: list[Part] = []
        self._layout = Layout(())

    def add(self, part: Part | None, battery: str | None = None) -> None:
        """Add a part after the ones it needs. None means that this agent does not use it."""
        if part is not None:
            if battery is not None:
                self._check_kind(type(part))
                part.battery = battery
            self._all.append(part)

    def _check_kind(self, kind: type[Part]) -> None:
        if any(type(part) is kind for part in self._all):
            raise TypeError(
                f"{type(self.agent).__name__} has two parts of the class {kind.__name__}; derive a class"
                f" for each battery"
            )

    def complete(self, layouts: dict[tuple[type[Part], ...], Layout]) -> None:
        """Set the layout once all parts are added; `layouts` caches those of the agent's class."""
        kinds = tuple(map(type, self._all))
        layout = layouts.get(kinds)
        if layout is None:
            layout = layouts[kinds] = Layout(kinds)
        self._layout = layout

    def __getitem__(self, kind: type[P]) -> P:
        place = self._layout.places.get(kind)
        found = self.get(kind) if place is None else self._all[place]
        if found is None:
            raise KeyError(f"{type(self.agent).__name__} has no part {kind.__name__}")
        return cast(P, found)

    def get(self, kind: type[P]) -> P | None:
        """Return a part, or None if this agent does not have it."""
        place = self._layout.places.get(kind)
        if place is not None:
            return cast(P, self._all[place])
        return next((part for part in self._all if type(part) is kind), None)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._all)

    def overriding(self, name: str) -> list[MethodType]:
        """Return the bound methods of the parts that override this name, in order."""
        return [getattr(self._all[place], name) for place in self._layout.overriding(name)]

    def owner_of(self, name: str) -> tuple[Part, str] | None:
        """Return the part that owns a stored name, and the name within that part.

        None if the agent itself owns it. Raises `LookupError` if the agent does not use the battery.
        """
        match name.split(":", 2):
            case [mark, battery, own] if mark == NAMESPACE:
                part = self.of_battery(battery)
            case _:
                return None
        if part is None:
            raise LookupError(
                f"{name!r} belongs to the battery {battery!r}, which {type(self.agent).__name__} does not"
                f" use"
            )
        return part, own

    def of_battery(self, name: str) -> Part | None:
        """Return the part of a battery, or None if this agent does not use it."""
        return next((part for part in self._all if part.battery == name), None)

    def join(self, name: str, commit: Commit, *details: Any) -> list[Any]:
        """Call the method of this name of each part, which may add to the commit. Returns the results.

        A battery that raises adds nothing; its exception is reported and does not affect the others.
        """
        results = []
        for place in self._layout.overriding(name):
            part = self._all[place]
            method = getattr(part, name)
            if part.battery is None:
                results.append(method(commit, *details))
            else:
                results.append(self._join_battery(part, method, commit, details))
        return results

    def _join_battery(
        self, part: Part, method: MethodType, commit: Commit, details: tuple[Any, ...]
    ) -> Any:
        own = self.commits.new()
        try:
            result = method(own, *details)
        except Exception as error:
            report_failure(part, method.__name__, error)
            return None
        commit.write(*own.operations)
        commit.follow(own)
        return result

    def alarm_owner(self, source: str) -> Part:
        """Return the part that owns the alarms of a source."""
        namespace = source.partition(":")[0]
        for part in self._all:
            if source in part.alarms or part.battery == namespace:
                return part
        raise LookupError(f"no part of {type(self.agent).__name__} has an alarm {source!r}")


def report_failure(part: Part, what: str, error: Exception) -> None:
    """Log and emit an exception of a part that must not fail the agent."""
    name = part.battery or type(part).__name__
    logger.error("%s: %s of %s failed", part.address, what, name, exc_info=error)
    part.activation.events.emit(BatteryFailed, part.address, name, described(error))
