"""The notices that any agent sends to its connections."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from outlast.host.notices import Notice


@dataclass(frozen=True, slots=True)
class StateChanged(Notice):
    """A new state is durable. `source` is the connection that set it, or `server`."""

    state: str  # JSON
    source: object


@dataclass(frozen=True, slots=True)
class Broadcast(Notice):
    """A message from the agent's own code."""

    text: str
    without: Collection[str] = ()  # ids of connections to skip
