"""Typed events: what happens to agents and hosts, for code that subscribes.

Each kind of event is a class with a name (`fiber:run:started`), a channel (`fiber`) and its payload as
fields. The classes stand with their owners, for example in `host/events.py` and `agent/events.py`.

`emit` takes the class and its arguments, so an event that has no subscriber is never constructed. Listeners
run synchronously on the event loop and must be quick; an exception in one is logged and affects nothing else.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import (
    Any,
    ClassVar,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    dataclass_transform,
    overload,
)

from outlast.core.clock import Clock, SystemClock

logger = logging.getLogger("outlast")

Severity = Literal["info", "warning", "error"]


@dataclass_transform(frozen_default=True)
class _Record:
    """Give each subclass its annotated fields, as a frozen dataclass would, without compiling methods.

    There are dozens of event classes; as dataclasses they took a tenth of the time to import outlast.
    """

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._fields += tuple(
            name
            for name, type in inspect.get_annotations(cls).items()
            if not str(type).removeprefix("typing.").startswith("ClassVar")
        )

    def __init__(self, *values: Any, **more: Any) -> None:
        given = dict(zip(self._fields, values, strict=False))
        left = self._fields[len(values) :]
        needed = {
            name for name in left if not hasattr(type(self), name)
        }  # the others have defaults
        if len(values) > len(self._fields) or not needed <= {*more} <= {*left}:
            raise TypeError(f"{type(self).__name__} must be given {', '.join(self._fields)}")
        self.__dict__.update(given, **more)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self._fields)))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({values})"


class Event(_Record):
    """An event of an agent (or of the host, when `agent` is None)."""

    name: ClassVar[str]
    channel: ClassVar[str]
    severity: ClassVar[Severity] = "info"

    at: int  # milliseconds since 1970-01-01 UTC, by the host's clock
    agent: str | None

    @property
    def payload(self) -> dict[str, Any]:
        """The fields of this kind of event, besides `at` and `agent`."""
        return {name: getattr(self, name) for name in self._fields[2:]}


E = TypeVar("E", bound=Event)
Arguments = ParamSpec("Arguments")


class Kind(Protocol[Arguments]):
    """An event class; `Arguments` are its fields after `at`."""

    @property
    def name(self) -> str: ...

    @property
    def channel(self) -> str: ...

    def __call__(
        self, at: int, /, *arguments: Arguments.args, **more: Arguments.kwargs
    ) -> Event: ...


class _Subscription:
    __slots__ = ("is_open", "listener", "wanted")

    def __init__(self, wanted: str | type[Event], listener: Callable[[Any], object]) -> None:
        self.wanted = wanted
        self.listener = listener
        self.is_open = True

    def wants(self, kind: Any) -> bool:
        if isinstance(self.wanted, str):
            return self.wanted in ("*", kind.channel, kind.name)
        return issubclass(kind, self.wanted)


class Events:
    """The events of one host.

    ```python
    from outlast.core.events import Event, Events

    class Rang(Event):
        name, channel = "bell:rang", "bell"
        times: int

    events, seen = Events(), []
    stop = events.subscribe("bell", seen.append)        # a channel; or "bell:rang", "*", Rang
    events.emit(Rang, "Door/front", times=2)
    stop()
    events.emit(Rang, "Door/front", times=3)
    assert [(event.agent, event.times) for event in seen] == [("Door/front", 2)]
    ```
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._subscriptions: list[_Subscription] = []
        self._by_kind: dict[Any, list[_Subscription]] = {}  # cached, by event class

    @overload
    def subscribe(self, wanted: str, listener: Callable[[Event], object]) -> Callable[[], None]: ...

    @overload
    def subscribe(self, wanted: type[E], listener: Callable[[E], object]) -> Callable[[], None]: ...

    def subscribe(
        self, wanted: str | type[Event], listener: Callable[[Any], object]
    ) -> Callable[[], None]:
        """Call `listener` with each event of a channel, of a name, or of a class ("*": all events).

        Listeners are called in the order in which they subscribed. Returns a function that unsubscribes.
        """
        if not isinstance(wanted, str) and not (
            inspect.isclass(wanted) and issubclass(wanted, Event)
        ):
            raise TypeError(f"wanted must be a channel, a name or an event class, got {wanted!r}")
        if inspect.iscoroutinefunction(listener):
            raise TypeError(
                f"listener must be a plain function, got {listener!r}; start a task in it for async work"
            )
        subscription = _Subscription(wanted, listener)
        self._subscriptions.append(subscription)
        self._by_kind = {}

        def unsubscribe() -> None:
            if subscription.is_open:
                subscription.is_open = False
                self._subscriptions.remove(subscription)
                self._by_kind = {}

        return unsubscribe

    def emit(
        self, kind: Kind[Arguments], /, *arguments: Arguments.args, **more: Arguments.kwargs
    ) -> None:
        """Construct the event and call its listeners: `events.emit(Rang, "Door/front", times=2)`."""
        if not self._subscriptions:
            return
        found = self._by_kind.get(kind)
        if found is None:
            found = [each for each in self._subscriptions if each.wants(kind)]
            self._by_kind[kind] = found
        if not found:
            return
        event = kind(self.clock.now(), *arguments, **more)
        for subscription in found:
            if subscription.is_open:  # an earlier listener may have ended it
                try:
                    subscription.listener(event)
                except Exception:
                    logger.exception("a listener for %s raised", kind.name)
