"""outlast: agents that outlast the process they run in."""

from outlast.agent.agent import Agent
from outlast.agent.backoff import FiberRecovery
from outlast.agent.fiber import FiberContext, FiberHandle
from outlast.agent.keepalive import Lease
from outlast.agent.managed import FiberInspection, FiberStatus
from outlast.agent.recovery import FiberRecoveryContext, FiberResolution
from outlast.agent.rpc import rpc
from outlast.agent.schedules import Schedule
from outlast.agent.storage import Storage
from outlast.agent.subagents import SubAgent
from outlast.agent.timetable import Retry
from outlast.core.errors import (
    ActivationFailed,
    AgentAborted,
    AgentDestroyed,
    CommitFailed,
    CommitRefused,
    CorruptValue,
    FiberCancelled,
    FiberConflict,
    FiberInterrupted,
    HostStopped,
    InvalidName,
    NotInFiber,
    OutlastError,
    OwnershipLost,
    RpcRefused,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
    StoreURLError,
    UnknownAgent,
    ValueTooLarge,
)
from outlast.core.events import Event
from outlast.host.host import Host, HostStatistics
from outlast.store.operations import StoreStatistics

__all__ = [
    "ActivationFailed",
    "Agent",
    "AgentAborted",
    "AgentDestroyed",
    "CommitFailed",
    "CommitRefused",
    "CorruptValue",
    "Event",
    "FiberCancelled",
    "FiberConflict",
    "FiberContext",
    "FiberHandle",
    "FiberInspection",
    "FiberInterrupted",
    "FiberRecovery",
    "FiberRecoveryContext",
    "FiberResolution",
    "FiberStatus",
    "Host",
    "HostStatistics",
    "HostStopped",
    "InvalidName",
    "Lease",
    "NotInFiber",
    "OutlastError",
    "OwnershipLost",
    "Retry",
    "RpcRefused",
    "Schedule",
    "Storage",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "StoreStatistics",
    "StoreTooNew",
    "StoreURLError",
    "StoreUnavailable",
    "SubAgent",
    "UnknownAgent",
    "ValueTooLarge",
    "rpc",
]
