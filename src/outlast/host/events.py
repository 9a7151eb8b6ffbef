"""The events of a host: agents that come and go, and calls to them."""

from __future__ import annotations

from outlast.core.events import Event


class LifecycleEvent(Event):
    """An agent came into memory, or left it."""

    channel = "lifecycle"


class AgentActivated(LifecycleEvent):
    """Its `on_start` has returned; calls reach it now."""

    name = "lifecycle:activated"


class AgentEvicted(LifecycleEvent):
    """Nothing had held it for `idle_timeout`."""

    name = "lifecycle:evicted"


class AgentDiscarded(LifecycleEvent):
    """Its object could not go on: it did not start, a commit failed, or its fence no longer holds."""

    name = "lifecycle:discarded"
    severity = "warning"
    reason: str


class FenceLost(LifecycleEvent):
    """Another host or activation has taken the agent over; this one can write nothing for it."""

    name = "fence:lost"
    severity = "warning"
    reason: str


class AgentDestroyed(LifecycleEvent):
    """The agent and everything that it had stored are gone."""

    name = "destroy"


class RpcEvent(Event):
    """A call through a stub has ended."""

    channel = "rpc"
    method: str
    elapsed_ms: int


class Rpc(RpcEvent):
    """It returned."""

    name = "rpc"


class RpcFailed(RpcEvent):
    """It raised."""

    name = "rpc:error"
    severity = "error"
    error: str
