"""The events of a host: activations, evictions, and calls to agents."""

from __future__ import annotations

from outlast.core.events import Event


class LifecycleEvent(Event):
    """An agent entered or left memory."""

    channel = "lifecycle"


class AgentActivated(LifecycleEvent):
    """Its `on_start` returned; calls can reach it now."""

    name = "lifecycle:activated"


class AgentEvicted(LifecycleEvent):
    """It was idle for `idle_timeout`."""

    name = "lifecycle:evicted"


class AgentDiscarded(LifecycleEvent):
    """Its object is unusable: it did not start, a commit failed, or its fence no longer holds."""

    name = "lifecycle:discarded"
    severity = "warning"
    reason: str


class FenceLost(LifecycleEvent):
    """Another host or activation took over the agent; this one can no longer write for it."""

    name = "fence:lost"
    severity = "warning"
    reason: str


class AgentDestroyed(LifecycleEvent):
    """The agent and all its rows were deleted."""

    name = "destroy"


class RpcEvent(Event):
    """A call through a stub ended."""

    channel = "rpc"
    method: str
    elapsed_ms: int


class Rpc(RpcEvent):
    """The call returned."""

    name = "rpc"


class RpcFailed(RpcEvent):
    """The call raised."""

    name = "rpc:error"
    severity = "error"
    error: str
