"""The events of a host: agents that come and go, and calls to them."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.core.events import Event


@dataclass(frozen=True, slots=True)
class LifecycleEvent(Event):
    """An agent came into memory, or left it."""

    channel = "lifecycle"


@dataclass(frozen=True, slots=True)
class AgentActivated(LifecycleEvent):
    """Its `on_start` has returned; calls reach it now."""

    name = "lifecycle:activated"


@dataclass(frozen=True, slots=True)
class AgentEvicted(LifecycleEvent):
    """Nothing had held it for `idle_timeout`."""

    name = "lifecycle:evicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDiscarded(LifecycleEvent):
    """Its object could not go on: it did not start, a commit failed, or its fence no longer holds."""

    name = "lifecycle:discarded"
    severity = "warning"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceLost(LifecycleEvent):
    """Another host or activation has taken the agent over; this one can write nothing for it."""

    name = "fence:lost"
    severity = "warning"
    reason: str


@dataclass(frozen=True, slots=True)
class AgentDestroyed(LifecycleEvent):
    """The agent and everything that it had stored are gone."""

    name = "destroy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcEvent(Event):
    """A call through a stub has ended."""

    channel = "rpc"
    method: str
    elapsed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc(RpcEvent):
    """It returned."""

    name = "rpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcFailed(RpcEvent):
    """It raised."""

    name = "rpc:error"
    severity = "error"
    error: str
