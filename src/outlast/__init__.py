"""outlast: agents that outlast the process they run in."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

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
    from outlast.agent.timetable import Retry, ScheduleKind
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
    from outlast.chat.data_parts import DataWriter
    from outlast.chat.hooks import (
        Allow,
        Block,
        ChatErrorClassification,
        ChatErrorContext,
        ChatErrorStage,
        ChatResponseResult,
        ChunkContext,
        PrepareStepContext,
        Step,
        StepConfig,
        StepContext,
        Substitute,
        ToolCallContext,
        ToolCallDecision,
        ToolCallResultContext,
        ToolResult,
    )
    from outlast.chat.hydration import (
        HydrationContext,
    )
    from outlast.chat.model_ask import ModelAsk
    from outlast.chat.model_errors import Kind as ModelFailureKind
    from outlast.chat.model_errors import (
        ModelFailed,
        default_context_overflow_classifier,
    )
    from outlast.chat.operating import (
        RecoveryIncident,
    )
    from outlast.chat.output import OutputInvalid
    from outlast.chat.overflow import (
        ContextOverflow,
        ProactiveCompaction,
        summarise,
    )
    from outlast.chat.recovery import Cause as InterruptionCause
    from outlast.chat.recovery import (
        ChatRecovery,
        ChatRecoveryContext,
        ChatRecoveryOptions,
        ContinuationStyle,
        KeepRecoveringContext,
        PendingToolCall,
        RecoveryBootEvent,
        RecoveryBootResult,
        RecoveryExhaustedContext,
        RecoveryKind,
        RecoveryWriter,
    )
    from outlast.chat.recovery import Reason as ExhaustedReason
    from outlast.chat.results import (
        Message,
        Submission,
        SubmissionStatus,
        TurnResult,
        TurnStatus,
    )
    from outlast.chat.session import (
        Session,
    )
    from outlast.chat.think import (
        Think,
    )
    from outlast.chat.tools import Effect as ToolEffect
    from outlast.chat.tools import (
        NotDone,
        ToolCall,
        tool,
    )
    from outlast.core.clock import Clock
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
        PublicError,
        RpcError,
        RpcRefused,
        StoreClosed,
        StoreCorrupt,
        StoreError,
        StoreFull,
        StoreGone,
        StoreLocked,
        StoreReadOnly,
        StoreTooNew,
        StoreUnavailable,
        StoreURLError,
        SubmissionConflict,
        ToolError,
        TurnFailed,
        UnknownAgent,
        ValueTooLarge,
    )
    from outlast.core.events import Event, Events
    from outlast.core.events import Severity as EventSeverity
    from outlast.core.ids import Ids
    from outlast.host.address import Address
    from outlast.host.host import Host, HostStatistics
    from outlast.server import App, Auth
    from outlast.store.base import Store
    from outlast.store.operations import StoreStatistics

# Everything is loaded with the first use of its name: a command that needs none of it starts at once.
# What has a longer name out here than at home is given as `module:name`.
_PLAIN = {
    "ActivationFailed": "core.errors",
    "Address": "host.address",
    "Agent": "agent.agent",
    "AgentAborted": "core.errors",
    "AgentDestroyed": "core.errors",
    "App": "server",
    "Auth": "server",
    "Clock": "core.clock",
    "CommitFailed": "core.errors",
    "CommitRefused": "core.errors",
    "CorruptValue": "core.errors",
    "Event": "core.events",
    "EventSeverity": "core.events:Severity",
    "Events": "core.events",
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
    "Ids": "core.ids",
    "InsideTurn": "core.errors",
    "InvalidName": "core.errors",
    "Lease": "agent.keepalive",
    "NotInFiber": "core.errors",
    "OutlastError": "core.errors",
    "OwnershipLost": "core.errors",
    "PublicError": "core.errors",
    "Retry": "agent.timetable",
    "RpcError": "core.errors",
    "RpcRefused": "core.errors",
    "Schedule": "agent.schedules",
    "ScheduleKind": "agent.timetable",
    "Storage": "agent.storage",
    "Store": "store.base",
    "StoreClosed": "core.errors",
    "StoreCorrupt": "core.errors",
    "StoreError": "core.errors",
    "StoreFull": "core.errors",
    "StoreGone": "core.errors",
    "StoreLocked": "core.errors",
    "StoreReadOnly": "core.errors",
    "StoreStatistics": "store.operations",
    "StoreTooNew": "core.errors",
    "StoreURLError": "core.errors",
    "StoreUnavailable": "core.errors",
    "SubAgent": "agent.subagents",
    "SubmissionConflict": "core.errors",
    "ToolError": "core.errors",
    "TurnFailed": "core.errors",
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
    "ChatErrorStage": "hooks",
    "ChatRecovery": "recovery",
    "ChatRecoveryContext": "recovery",
    "ChatRecoveryOptions": "recovery",
    "ChatResponseResult": "hooks",
    "ChunkContext": "hooks",
    "ContextOverflow": "overflow",
    "ContinuationStyle": "recovery",
    "DataWriter": "data_parts",
    "Debounce": "config",
    "ExhaustedReason": "recovery:Reason",
    "HydrationContext": "hydration",
    "InterruptionCause": "recovery:Cause",
    "KeepRecoveringContext": "recovery",
    "Message": "results",
    "ModelAsk": "model_ask",
    "ModelFailed": "model_errors",
    "ModelFailureKind": "model_errors:Kind",
    "NotDone": "tools",
    "OutputInvalid": "output",
    "PendingToolCall": "recovery",
    "PrepareStepContext": "hooks",
    "ProactiveCompaction": "overflow",
    "RecoveryBootEvent": "recovery",
    "RecoveryBootResult": "recovery",
    "RecoveryExhaustedContext": "recovery",
    "RecoveryIncident": "operating",
    "RecoveryKind": "recovery",
    "RecoveryWriter": "recovery",
    "Session": "session",
    "Step": "hooks",
    "StepConfig": "hooks",
    "StepContext": "hooks",
    "StopCondition": "config",
    "StreamCallback": "asking",
    "Submission": "results",
    "SubmissionStatus": "results",
    "Substitute": "hooks",
    "Think": "think",
    "ToolCall": "tools",
    "ToolCallContext": "hooks",
    "ToolCallDecision": "hooks",
    "ToolCallResultContext": "hooks",
    "ToolEffect": "tools:Effect",
    "ToolResult": "hooks",
    "TurnConfig": "config",
    "TurnContext": "config",
    "TurnResult": "results",
    "TurnStatus": "results",
    "default_context_overflow_classifier": "model_errors",
    "has_tool_call": "config",
    "step_count_is": "config",
    "summarise": "overflow",
    "tool": "tools",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("outlast")
    module = _PLAIN.get(name)
    if module is None:
        if name not in _CHAT:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = f"chat.{_CHAT[name]}"
    from importlib import import_module

    home, _, original = module.partition(":")
    found = globals()[name] = getattr(import_module(f"outlast.{home}"), original or name)
    return found


__all__ = [
    "Abort",
    "ActivationFailed",
    "Address",
    "Agent",
    "AgentAborted",
    "AgentDestroyed",
    "Allow",
    "App",
    "Auth",
    "Block",
    "ChatErrorClassification",
    "ChatErrorContext",
    "ChatErrorStage",
    "ChatRecovery",
    "ChatRecoveryContext",
    "ChatRecoveryOptions",
    "ChatResponseResult",
    "ChunkContext",
    "Clock",
    "CommitFailed",
    "CommitRefused",
    "ContextOverflow",
    "ContinuationStyle",
    "CorruptValue",
    "DataWriter",
    "Debounce",
    "Event",
    "EventSeverity",
    "Events",
    "ExhaustedReason",
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
    "Ids",
    "InsideTurn",
    "InterruptionCause",
    "InvalidName",
    "KeepRecoveringContext",
    "Lease",
    "Message",
    "ModelAsk",
    "ModelFailed",
    "ModelFailureKind",
    "NotDone",
    "NotInFiber",
    "OutlastError",
    "OutputInvalid",
    "OwnershipLost",
    "PendingToolCall",
    "PrepareStepContext",
    "ProactiveCompaction",
    "PublicError",
    "RecoveryBootEvent",
    "RecoveryBootResult",
    "RecoveryExhaustedContext",
    "RecoveryIncident",
    "RecoveryKind",
    "RecoveryWriter",
    "Retry",
    "RpcError",
    "RpcRefused",
    "Schedule",
    "ScheduleKind",
    "Session",
    "Step",
    "StepConfig",
    "StepContext",
    "StopCondition",
    "Storage",
    "Store",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreGone",
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
    "SubmissionStatus",
    "Substitute",
    "Think",
    "ToolCall",
    "ToolCallContext",
    "ToolCallDecision",
    "ToolCallResultContext",
    "ToolEffect",
    "ToolError",
    "ToolResult",
    "TurnConfig",
    "TurnContext",
    "TurnFailed",
    "TurnResult",
    "TurnStatus",
    "UnknownAgent",
    "ValueTooLarge",
    "__version__",
    "default_context_overflow_classifier",
    "has_tool_call",
    "rpc",
    "step_count_is",
    "summarise",
    "tool",
]
