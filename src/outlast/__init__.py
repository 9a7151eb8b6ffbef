"""outlast: agents that outlast the process they run in."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.agent.agent import Agent
    from outlast.agent.backoff import FiberRecovery
    from outlast.agent.fiber import FiberContext, FiberHandle
    from outlast.agent.keepalive import Lease
    from outlast.agent.managed import FiberInspection, FiberStatus
    from outlast.agent.recovery import FiberRecoveryContext, FiberResolution
    from outlast.agent.rpc import Final, rpc
    from outlast.agent.schedules import Schedule
    from outlast.agent.storage import Storage
    from outlast.agent.subagents import SubAgent
    from outlast.agent.timetable import Retry
    from outlast.chat.abort import (
        Abort,
    )
    from outlast.chat.asking import (
        StreamCallback,
    )
    from outlast.chat.config import (
        Debounce,
        StopCondition,
        TurnConfig,
        TurnContext,
        has_tool_call,
        step_count_is,
    )
    from outlast.chat.hooks import (
        Allow,
        Block,
        ChatErrorClassification,
        ChatErrorContext,
        ChatResponseResult,
        ChunkContext,
        PrepareStepContext,
        StepConfig,
        StepContext,
        Substitute,
        ToolCallContext,
        ToolCallDecision,
        ToolCallResultContext,
    )
    from outlast.chat.hydration import (
        HydrationContext,
    )
    from outlast.chat.model_errors import (
        default_context_overflow_classifier,
    )
    from outlast.chat.operating import (
        RecoveryIncident,
    )
    from outlast.chat.overflow import (
        ContextOverflow,
        ProactiveCompaction,
        summarise,
    )
    from outlast.chat.recovery import (
        ChatRecovery,
        ChatRecoveryContext,
        ChatRecoveryOptions,
        KeepRecoveringContext,
        PendingToolCall,
        RecoveryBootEvent,
        RecoveryBootResult,
        RecoveryExhaustedContext,
    )
    from outlast.chat.results import (
        Message,
        Submission,
        TurnResult,
    )
    from outlast.chat.session import (
        Session,
    )
    from outlast.chat.think import (
        Think,
    )
    from outlast.chat.tools import (
        NotDone,
        ToolCall,
        tool,
    )
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
        InsideTurn,
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
        SubmissionConflict,
        UnknownAgent,
        ValueTooLarge,
    )
    from outlast.core.events import Event
    from outlast.host.host import Host, HostStatistics
    from outlast.server import App
    from outlast.store.operations import StoreStatistics

# Everything is loaded with the first use of its name: a command that needs none of it starts at once.
_PLAIN = {
    "App": "server",
    "ActivationFailed": "core.errors",
    "Agent": "agent.agent",
    "AgentAborted": "core.errors",
    "AgentDestroyed": "core.errors",
    "CommitFailed": "core.errors",
    "CommitRefused": "core.errors",
    "CorruptValue": "core.errors",
    "Event": "core.events",
    "FiberCancelled": "core.errors",
    "FiberConflict": "core.errors",
    "FiberContext": "agent.fiber",
    "FiberHandle": "agent.fiber",
    "FiberInspection": "agent.managed",
    "FiberInterrupted": "core.errors",
    "FiberRecovery": "agent.backoff",
    "FiberRecoveryContext": "agent.recovery",
    "FiberResolution": "agent.recovery",
    "FiberStatus": "agent.managed",
    "Final": "agent.rpc",
    "Host": "host.host",
    "HostStatistics": "host.host",
    "HostStopped": "core.errors",
    "InsideTurn": "core.errors",
    "InvalidName": "core.errors",
    "Lease": "agent.keepalive",
    "NotInFiber": "core.errors",
    "OutlastError": "core.errors",
    "OwnershipLost": "core.errors",
    "Retry": "agent.timetable",
    "RpcRefused": "core.errors",
    "Schedule": "agent.schedules",
    "Storage": "agent.storage",
    "StoreClosed": "core.errors",
    "StoreCorrupt": "core.errors",
    "StoreError": "core.errors",
    "StoreFull": "core.errors",
    "StoreLocked": "core.errors",
    "StoreReadOnly": "core.errors",
    "StoreStatistics": "store.operations",
    "StoreTooNew": "core.errors",
    "StoreURLError": "core.errors",
    "StoreUnavailable": "core.errors",
    "SubAgent": "agent.subagents",
    "SubmissionConflict": "core.errors",
    "UnknownAgent": "core.errors",
    "ValueTooLarge": "core.errors",
    "rpc": "agent.rpc",
}
_CHAT = {
    "Abort": "abort",
    "Allow": "hooks",
    "Block": "hooks",
    "ChatErrorClassification": "hooks",
    "ChatErrorContext": "hooks",
    "ChatRecovery": "recovery",
    "ChatRecoveryContext": "recovery",
    "ChatRecoveryOptions": "recovery",
    "ChatResponseResult": "hooks",
    "ChunkContext": "hooks",
    "ContextOverflow": "overflow",
    "Debounce": "config",
    "HydrationContext": "hydration",
    "KeepRecoveringContext": "recovery",
    "Message": "results",
    "NotDone": "tools",
    "PendingToolCall": "recovery",
    "PrepareStepContext": "hooks",
    "ProactiveCompaction": "overflow",
    "RecoveryBootEvent": "recovery",
    "RecoveryBootResult": "recovery",
    "RecoveryExhaustedContext": "recovery",
    "RecoveryIncident": "operating",
    "Session": "session",
    "StepConfig": "hooks",
    "StepContext": "hooks",
    "StopCondition": "config",
    "StreamCallback": "asking",
    "Submission": "results",
    "Substitute": "hooks",
    "Think": "think",
    "ToolCall": "tools",
    "ToolCallContext": "hooks",
    "ToolCallDecision": "hooks",
    "ToolCallResultContext": "hooks",
    "TurnConfig": "config",
    "TurnContext": "config",
    "TurnResult": "results",
    "default_context_overflow_classifier": "model_errors",
    "has_tool_call": "config",
    "step_count_is": "config",
    "summarise": "overflow",
    "tool": "tools",
}


def __getattr__(name: str) -> Any:
    module = _PLAIN.get(name)
    if module is None:
        if name not in _CHAT:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = f"chat.{_CHAT[name]}"
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"outlast.{module}"), name)
    return found


__all__ = [
    "Abort",
    "ActivationFailed",
    "Agent",
    "AgentAborted",
    "AgentDestroyed",
    "Allow",
    "App",
    "Block",
    "ChatErrorClassification",
    "ChatErrorContext",
    "ChatRecovery",
    "ChatRecoveryContext",
    "ChatRecoveryOptions",
    "ChatResponseResult",
    "ChunkContext",
    "CommitFailed",
    "CommitRefused",
    "ContextOverflow",
    "CorruptValue",
    "Debounce",
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
    "Final",
    "Host",
    "HostStatistics",
    "HostStopped",
    "HydrationContext",
    "InsideTurn",
    "InvalidName",
    "KeepRecoveringContext",
    "Lease",
    "Message",
    "NotDone",
    "NotInFiber",
    "OutlastError",
    "OwnershipLost",
    "PendingToolCall",
    "PrepareStepContext",
    "ProactiveCompaction",
    "RecoveryBootEvent",
    "RecoveryBootResult",
    "RecoveryExhaustedContext",
    "RecoveryIncident",
    "Retry",
    "RpcRefused",
    "Schedule",
    "Session",
    "StepConfig",
    "StepContext",
    "StopCondition",
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
    "StreamCallback",
    "SubAgent",
    "Submission",
    "SubmissionConflict",
    "Substitute",
    "Think",
    "ToolCall",
    "ToolCallContext",
    "ToolCallDecision",
    "ToolCallResultContext",
    "TurnConfig",
    "TurnContext",
    "TurnResult",
    "UnknownAgent",
    "ValueTooLarge",
    "default_context_overflow_classifier",
    "has_tool_call",
    "rpc",
    "step_count_is",
    "summarise",
    "tool",
]
