"""What the connections of any agent are told."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from outlast.host.notices import Notice


@dataclass(frozen=True, slots=True)
class StateChanged(Notice):
    """A new state is durable. `source` is the connection that has set it, or `server`."""

    state: str  # JSON
    source: object


@dataclass(frozen=True, slots=True)
class Broadcast(Notice):
    """What the agent's own code sends to its connections."""

    text: str
    without: Collection[str] = ()  # ids of connections that do not get it
