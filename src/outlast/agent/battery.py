"""A battery: a feature as data, which extends agents, the store, servers and the command line.

A battery is a folder with a `Battery` value, a part for agents in memory, and a mixin that users see:

```python
from outlast import Agent, Host
from outlast.agent.battery import Battery
from outlast.agent.part import Part

class CounterPart(Part):
    count = 0

class HasCounter(Agent):
    battery = Battery(name="counter", part=CounterPart)

    async def increment(self) -> int:
        part = self._parts[CounterPart]
        part.count += 1
        return part.count

class Clicker(HasCounter): ...

async with Host(agents=[Clicker], store="sqlite:///clicks.db") as host:
    assert await host.get(Clicker, "a").increment() == 1
```

The name is the namespace of everything that is stored or sent: tables are `<name>_…`, alarms, fibers and
schedules `<name>:…`, routes `…/<name>/…`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.agent.fibers.fiber import FiberHandle
from outlast.agent.fibers.fibers import UNSET, FiberFunction, Fibers
from outlast.agent.part import NAMESPACE, Part, Parts
from outlast.agent.schedules.schedules import Schedule, Schedules
from outlast.core.loading import check_path
from outlast.store.operations import Query
from outlast.store.schema import FOUNDATION, Schema

if TYPE_CHECKING:
    from outlast.agent.agent import Agent

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Tables, alarms and paths of outlast itself.
_TAKEN = frozenset({*FOUNDATION.owned, FOUNDATION.name, "agents", "meta"})
_TAKEN |= {"chat", "rpc", "sub", "submissions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxOrigin:
    """Where requests of a chat agent come from, and how they are treated."""

    name: str
    goes_first: bool = False  # before all queued requests
    is_listed: bool = False  # a submission: can be looked up by its id, and is kept until deleted
    keeps_messages: bool = True  # its messages stay in the conversation even if unanswered
    is_held: bool = True  # it waits while the last answer has pending tool calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Battery:
    """One feature. Only the name and the part are required."""

    name: str
    part: Callable[[Parts], Part | None]  # None: this agent does not use it, and it costs nothing
    needs: tuple[str, ...] = ()  # names of other batteries, whose parts come first
    schema: Schema | None = None  # its tables
    first_reads: tuple[Query, ...] = ()  # by the agent's address, fetched together at its start
    unfinished_work: tuple[Query, ...] = ()  # which agents to wake when a host starts
    origins: tuple[InboxOrigin, ...] = ()
    paths: tuple[str, ...] = ()  # of HTTP requests, besides `…/<name>/…`
    operators: tuple[str, ...] = ()  # methods that may be called through the admin socket
    # "package.module:NAME", imported on first use:
    views: str | None = None  # a sequence of `outlast.inspect.battery_views.View`
    commands: str | None = None  # a Typer application

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"the name of a battery must be lower-case letters, digits and _, got {self.name!r}"
            )
        if self.name in _TAKEN:
            raise ValueError(
                f"the name of a battery must not be {self.name!r}, which is reserved; choose another"
            )
        for path in (path for path in self.paths if path in _TAKEN or not _NAME.fullmatch(path)):
            raise ValueError(
                f"a path of the battery {self.name!r} must be a free name in lower-case letters, digits"
                f" and _, got {path!r}"
            )
        check_path(self.views, f"views of the battery {self.name!r}")
        check_path(self.commands, f"commands of the battery {self.name!r}")
        if self.schema is not None and self.schema.name != self.name:
            raise ValueError(
                f"the schema of the battery {self.name!r} must have its name, got"
                f" {self.schema.name!r}"
            )


class BatteryPart(Part):
    """The part of a battery, with fibers and schedules of its own.

    They are stored under the battery's name, so they cannot clash with the agent's own, and never reach its
    `on_fiber_recovered`.
    """

    def run_fiber(
        self, name: str, function: FiberFunction[T], input: Any = UNSET
    ) -> FiberHandle[T]:
        """Start durable work; override `fiber_recovered` to resume it after a crash."""
        return self.parts[Fibers].run(f"{NAMESPACE}:{self.battery}:{name}", function, input)

    async def schedule(
        self,
        when: float | timedelta | datetime | str,
        callback: Callable[..., Any],
        payload: Any = None,
        *,
        idempotent: bool | None = None,
        timezone: str | None = None,
    ) -> Schedule:
        """Call a method of this part later: see `Agent.schedule`."""
        return await self.parts[Schedules].once_or_by_cron(
            when, callback, payload, None, idempotent, timezone
        )

    def own_name(self, stored: str) -> str:
        """Return the name that was passed to `run_fiber`."""
        owner = self.parts.owner_of(stored)
        return stored if owner is None else owner[1]


def batteries_of(
    bases: Iterable[type[Agent]], where: str, *, is_mixin: bool = False
) -> tuple[Battery, ...]:
    """Return the batteries of classes, each after the ones it needs, otherwise in the order of the bases.

    A mixin may lack the batteries that its own needs: the class that uses it adds them.
    """
    found: dict[str, Battery] = {}
    for base in bases:
        battery = vars(base).get("battery")
        if battery is None:
            continue
        if not isinstance(battery, Battery):
            raise TypeError(f"{base.__name__}.battery must be a Battery, got {battery!r}")
        known = found.setdefault(battery.name, battery)
        if known is not battery:
            raise TypeError(f"{where} has two batteries named {battery.name!r}; rename one")
    if not is_mixin:
        _check_needs(found, where)
    return tuple(_ordered(found))


def _check_needs(batteries: Mapping[str, Battery], where: str) -> None:
    for battery in batteries.values():
        for name in battery.needs:
            if name not in batteries:
                raise TypeError(
                    f"the battery {battery.name!r} of {where} needs {name!r}: add its base class"
                )


def _ordered(batteries: Mapping[str, Battery]) -> list[Battery]:
    ordered: dict[str, Battery] = {}

    def add(battery: Battery, above: tuple[str, ...]) -> None:
        if battery.name in ordered:
            return
        for name in battery.needs:
            if name in (*above, battery.name):
                raise TypeError(f"the batteries {battery.name!r} and {name!r} need each other")
            if name in batteries:
                add(batteries[name], (*above, battery.name))
        ordered[battery.name] = battery

    for battery in batteries.values():
        add(battery, ())
    return list(ordered.values())
