"""A part: one concern of one agent in memory; and the parts that an agent is made of.

An agent is a list of parts in a fixed order. A part knows its own rows, and the parts before it in the list,
by their type: `parts[Inbox]`. What happens to the agent (it starts, its alarm is due, the host stops, a
client joins) is a loop over the list. A part that has nothing to say to a moment is not asked.
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
    """Mark a method of a base class that does nothing: parts that do not override it are not called."""
    function.__default__ = function  # type: ignore[attr-defined]
    return function


class Part:
    """One concern of one agent. Every method does nothing by default."""

    first_reads: ClassVar[tuple[Query, ...]] = ()  # of the agent's address, read in one go at start
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
        """Read what is needed, before `on_start`. A part that the agent does not use reads nothing."""

    @moment
    async def start(self) -> None:
        """Take up unfinished work, after `on_start`."""

    @moment
    async def start_failed(self) -> None:
        """An exception ended the start: that is not a crash."""

    @moment
    async def wake(self, source: str) -> None:
        """An alarm of this part is due. Its row must have been moved or removed when this returns."""

    @moment
    async def set_right(self) -> None:
        """The clock may have gone back: bring nearer what would wait for too long."""

    @moment
    async def host_stops(self, cause: str) -> None:
        """The host is about to stop: note what that interrupts."""

    @moment
    def leave(self, reason: Exception) -> None:
        """This activation is over; everybody who waits here must be released."""

    @moment
    async def fiber_recovered(self, fiber: Any) -> Any:
        """A fiber of this part's battery was interrupted: as `Agent.on_fiber_recovered`."""
        return None

    # --- clients ---------------------------------------------------------------------------------

    @moment
    def greeting(self) -> Iterable[str]:
        """Return frames for a connection that joins."""
        return ()

    @moment
    async def frame(self, connection: Any, frame: dict[str, Any]) -> bool:
        """Handle a frame of a client whose type is not part of the protocol. False: it is not ours."""
        return False

    @moment
    async def request(self, request: Any, rest: str) -> Any:
        """Answer an HTTP request below the path of this part's battery. None: there is no such page."""
        return None


class Layout:
    """Which kinds of parts an agent has, in order, and which of them take part in what.

    It is the same for all agents of a class that have the same parts, and made once for them.
    """

    def __init__(self, kinds: tuple[type[Part], ...]) -> None:
        self.places = {kind: place for place, kind in enumerate(kinds)}
        self._kinds = kinds
        self._having: dict[str, tuple[int, ...]] = {}

    def having(self, name: str) -> tuple[int, ...]:
        """Return the places of the parts that have a method of this name of their own."""
        found = self._having.get(name)
        if found is None:
            methods = ((place, getattr(kind, name, None)) for kind, place in self.places.items())
            found = tuple(
                place for place, each in methods if isfunction(each) and is_overridden(each)
            )
            self._having[name] = found
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
        """Add a part behind those that it needs; None: this agent does not use it."""
        if part is not None:
            if battery is not None:
                self._check_kind(type(part))
                part.battery = battery
            self._all.append(part)

    def _check_kind(self, kind: type[Part]) -> None:
        if any(type(part) is kind for part in self._all):
            raise TypeError(
                f"{type(self.agent).__name__} has two parts of the class {kind.__name__}; derive a class"
                f" for each battery that uses it"
            )

    def complete(self, layouts: dict[tuple[type[Part], ...], Layout]) -> None:
        """All parts are there. `layouts` are those of the agent's class."""
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

    def having(self, name: str) -> list[MethodType]:
        """Return the methods of this name of the parts that have one of their own, in order."""
        return [getattr(self._all[place], name) for place in self._layout.having(name)]

    def owner_of(self, name: str) -> tuple[Part, str] | None:
        """Return the part that a stored name belongs to, and the name as that part knows it.

        None: it is a name of the agent's own. A name of a battery that the agent does not use raises
        `LookupError`.
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
        """Let the parts add to a commit, each with its method of this name. Returns their results.

        A battery that raises adds nothing, and harms nobody else: its error is reported.
        """
        results = []
        for place in self._layout.having(name):
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

    def woken_by(self, source: str) -> Part:
        """Return the part whose alarm this is."""
        namespace = source.partition(":")[0]
        for part in self._all:
            if source in part.alarms or part.battery == namespace:
                return part
        raise LookupError(f"no part of {type(self.agent).__name__} has an alarm {source!r}")


def report_failure(part: Part, what: str, error: Exception) -> None:
    """Log and emit an error of a part that must not fail the agent."""
    name = part.battery or type(part).__name__
    logger.error("%s: %s of %s failed", part.address, what, name, exc_info=error)
    part.activation.events.emit(BatteryFailed, part.address, name, described(error))
