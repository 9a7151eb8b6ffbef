"""The exact requests to models, for the inspector: the last ones, in memory, while it is enabled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from outlast.chat.types.events import ModelAsked
from outlast.core import json
from outlast.core.events import Events

MOST = 500  # requests
MOST_BYTES = 32 * 1024 * 1024  # in total; the newest one is kept whatever its size


class ModelRequests:
    """The requests of one host since it started."""

    def __init__(self) -> None:
        self._kept: deque[tuple[str, str, str]] = deque()  # agent, turn, JSON
        self._bytes = 0

    def attach(self, events: Events) -> Callable[[], None]:
        """Keep the requests from now on. Returns a function that unsubscribes."""
        return events.subscribe(ModelAsked, self._hear)

    def _hear(self, event: ModelAsked) -> None:
        about = {"at": event.at, "step": event.step, "model": event.model}
        text = json.encode({**about, **event.request.as_json()}, "request", json.MAX_DEPTH + 20)
        self._kept.append((str(event.agent), event.request_id, text))
        self._bytes += len(text)
        while len(self._kept) > 1 and (len(self._kept) > MOST or self._bytes > MOST_BYTES):
            self._bytes -= len(self._kept.popleft()[2])

    def of_turn(self, agent: str, turn: str) -> list[dict[str, Any]]:
        """Return the requests of a turn, in order."""
        return [json.decode(text) for each, id, text in self._kept if (each, id) == (agent, turn)]
