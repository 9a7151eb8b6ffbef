"""What happened, for those who listen.

An event has a dotted channel before the first colon of its name (`fiber:run:started` is of the channel
`fiber`). Emitting costs a dictionary look-up when nobody listens. A listener that raises is logged and
harms nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

logger = logging.getLogger("outlast")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an agent (or to the host, when `agent` is None)."""

    name: str
    agent: str | None
    payload: Mapping[str, object] = field(default_factory=dict)

    @property
    def channel(self) -> str:
        return self.name.partition(":")[0]


Listener = Callable[[Event], None]


class Events:
    """The events of one host.

    ```python
    from outlast.core.events import Events
    events, seen = Events(), []
    stop = events.subscribe("fiber", seen.append)
    events.emit("fiber:run:started", "Agent/alice", fiber_id="f1")
    stop()
    events.emit("fiber:run:completed", "Agent/alice", fiber_id="f1")
    assert [event.name for event in seen] == ["fiber:run:started"]
    ```
    """

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}

    def subscribe(self, channel: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each event of `channel` ("*": of all); returns what ends that."""
        self._listeners.setdefault(channel, []).append(listener)
        ended = False

        def unsubscribe() -> None:
            nonlocal ended
            if not ended:  # once: the same listener may be subscribed a second time
                ended = True
                self._listeners[channel].remove(listener)
                if not self._listeners[channel]:
                    del self._listeners[channel]

        return unsubscribe

    def emit(self, name: str, agent: str | None = None, **payload: object) -> None:
        """Tell those who listen to the channel of `name`."""
        if not self._listeners:
            return
        listeners = [
            *self._listeners.get(name.partition(":")[0], ()),
            *self._listeners.get("*", ()),
        ]
        if not listeners:
            return
        event = Event(name, agent, payload)
        for listener in listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("a listener for %s raised", name)
