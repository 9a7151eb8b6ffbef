"""outlast: agents that outlast the process they run in."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from outlast.agent.agent import Agent
    from outlast.agent.fibers.backoff import FiberRecovery
    from outlast.agent.fibers.fiber import FiberContext, FiberHandle
    from outlast.agent.fibers.managed import FiberInspection, FiberStatus
    from outlast.agent.fibers.recovery import FiberRecoveryContext, FiberResolution
    from outlast.agent.keepalive import Lease
    from outlast.agent.rpc import Final, rpc
    from outlast.agent.schedules.schedules import Schedule
    from outlast.agent.schedules.timetable import Retry, ScheduleKind
    from outlast.agent.state.storage import Storage
    from outlast.agent.subagents.subagents import SubAgent
    from outlast.chat.admission import (
        StreamCallback,
    )
    from outlast.chat.context.hydration import (
        HydrationContext,
    )
    from outlast.chat.context.overflow import ContextOverflow, ProactiveCompaction
    from outlast.chat.message.results import (
        Message,
        Submission,
        SubmissionStatus,
        TurnResult,
        TurnStatus,
    )
    from outlast.chat.model.errors import Kind as ModelFailureKind
    from outlast.chat.model.errors import (
        ModelFailed,
        default_context_overflow_classifier,
    )
    from outlast.chat.model.output import OutputInvalid
    from outlast.chat.recovery.operators import (
        RecoveryIncident,
    )
    from outlast.chat.think import Think as BareThink
    from outlast.chat.tools.declare import Effect as ToolEffect
    from outlast.chat.tools.declare import (
        NotDone,
        ToolCall,
        tool,
    )
    from outlast.chat.turn.state import TurnStatistics
    from outlast.chat.types.config import (
        Debounce,
        StopCondition,
        TurnConfig,
        TurnContext,
        has_tool_call,
        step_count_is,
    )
    from outlast.chat.types.contexts import (
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
    from outlast.chat.types.continuation import Continuation, ContinuationWay
    from outlast.chat.types.data_parts import DataWriter
    from outlast.chat.types.model_ask import ModelAsk
    from outlast.chat.types.recovery import Cause as InterruptionCause
    from outlast.chat.types.recovery import (
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
    from outlast.chat.types.recovery import Reason as ExhaustedReason
    from outlast.core.abort import (
        Abort,
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
    from outlast.host.life.host import Host, HostStatistics
    from outlast.server import App, Auth
    from outlast.session.block import ContextBlock as ContextBlock
    from outlast.session.block import ContextBlockError as ContextBlockError
    from outlast.session.block import ContextBlockFull as ContextBlockFull
    from outlast.session.block import Kind as ContextBlockKind
    from outlast.session.block import WhenChanged as WhenChanged
    from outlast.session.builder import Session
    from outlast.session.compaction.function import CompactionContext as CompactionContext
    from outlast.session.compaction.function import summarise
    from outlast.session.live import LiveSession as LiveSession
    from outlast.session.live import RecentHistory as RecentHistory
    from outlast.session.live import TokenUsage as TokenUsage
    from outlast.session.providers.directory import DirectoryProvider as DirectoryProvider
    from outlast.session.providers.file import FileProvider as FileProvider
    from outlast.session.providers.function import FunctionProvider as FunctionProvider
    from outlast.session.providers.object_store import ObjectStore as ObjectStore
    from outlast.session.providers.skills import SkillProvider as SkillProvider
    from outlast.session.search.search import SearchHit as SearchHit
    from outlast.session.search.snippet import SearchSnippet
    from outlast.store.base import Store
    from outlast.store.operations import StoreStatistics
    from outlast.think import Think

# Everything is loaded with the first use of its name: a command that needs none of it starts at once.
# What has a longer name out here than at home is given as `module:name`.
_HOMES = {
    "Abort": "core.abort",
    "ActivationFailed": "core.errors",
    "Address": "host.address",
    "Agent": "agent.agent",
    "AgentAborted": "core.errors",
    "AgentDestroyed": "core.errors",
    "Allow": "chat.types.contexts",
    "App": "server",
    "Auth": "server",
    "BareThink": "chat.think:Think",
    "Block": "chat.types.contexts",
    "ChatErrorClassification": "chat.types.contexts",
    "ChatErrorContext": "chat.types.contexts",
    "ChatErrorStage": "chat.types.contexts",
    "ChatRecovery": "chat.types.recovery",
    "ChatRecoveryContext": "chat.types.recovery",
    "ChatRecoveryOptions": "chat.types.recovery",
    "ChatResponseResult": "chat.types.contexts",
    "ChunkContext": "chat.types.contexts",
    "Clock": "core.clock",
    "CommitFailed": "core.errors",
    "CommitRefused": "core.errors",
    "CompactionContext": "session.compaction.function",
    "ContextBlock": "session.block",
    "ContextBlockError": "session.block",
    "ContextBlockFull": "session.block",
    "ContextBlockKind": "session.block:Kind",
    "ContextOverflow": "chat.context.overflow",
    "Continuation": "chat.types.continuation",
    "ContinuationStyle": "chat.types.recovery",
    "ContinuationWay": "chat.types.continuation",
    "CorruptValue": "core.errors",
    "DataWriter": "chat.types.data_parts",
    "Debounce": "chat.types.config",
    "DirectoryProvider": "session.providers.directory",
    "Event": "core.events",
    "EventSeverity": "core.events:Severity",
    "Events": "core.events",
    "ExhaustedReason": "chat.types.recovery:Reason",
    "FiberCancelled": "core.errors",
    "FiberConflict": "core.errors",
    "FiberContext": "agent.fibers.fiber",
    "FiberHandle": "agent.fibers.fiber",
    "FiberInspection": "agent.fibers.managed",
    "FiberInterrupted": "core.errors",
    "FiberRecovery": "agent.fibers.backoff",
    "FiberRecoveryContext": "agent.fibers.recovery",
    "FiberResolution": "agent.fibers.recovery",
    "FiberStatus": "agent.fibers.managed",
    "FileProvider": "session.providers.file",
    "Final": "agent.rpc",
    "FunctionProvider": "session.providers.function",
    "Host": "host.life.host",
    "HostStatistics": "host.life.host",
    "HostStopped": "core.errors",
    "HydrationContext": "chat.context.hydration",
    "Ids": "core.ids",
    "InsideTurn": "core.errors",
    "InterruptionCause": "chat.types.recovery:Cause",
    "InvalidName": "core.errors",
    "KeepRecoveringContext": "chat.types.recovery",
    "Lease": "agent.keepalive",
    "LiveSession": "session.live",
    "Message": "chat.message.results",
    "ModelAsk": "chat.types.model_ask",
    "ModelFailed": "chat.model.errors",
    "ModelFailureKind": "chat.model.errors:Kind",
    "NotDone": "chat.tools.declare",
    "NotInFiber": "core.errors",
    "ObjectStore": "session.providers.object_store",
    "OutlastError": "core.errors",
    "OutputInvalid": "chat.model.output",
    "OwnershipLost": "core.errors",
    "PendingToolCall": "chat.types.recovery",
    "PrepareStepContext": "chat.types.contexts",
    "ProactiveCompaction": "chat.context.overflow",
    "PublicError": "core.errors",
    "RecentHistory": "session.live",
    "RecoveryBootEvent": "chat.types.recovery",
    "RecoveryBootResult": "chat.types.recovery",
    "RecoveryExhaustedContext": "chat.types.recovery",
    "RecoveryIncident": "chat.recovery.operators",
    "RecoveryKind": "chat.types.recovery",
    "RecoveryWriter": "chat.types.recovery",
    "Retry": "agent.schedules.timetable",
    "RpcError": "core.errors",
    "RpcRefused": "core.errors",
    "Schedule": "agent.schedules.schedules",
    "ScheduleKind": "agent.schedules.timetable",
    "SearchHit": "session.search.search",
    "SearchSnippet": "session.search.snippet",
    "Session": "session.builder",
    "SkillProvider": "session.providers.skills",
    "Step": "chat.types.contexts",
    "StepConfig": "chat.types.contexts",
    "StepContext": "chat.types.contexts",
    "StopCondition": "chat.types.config",
    "Storage": "agent.state.storage",
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
    "StreamCallback": "chat.admission",
    "SubAgent": "agent.subagents.subagents",
    "Submission": "chat.message.results",
    "SubmissionConflict": "core.errors",
    "SubmissionStatus": "chat.message.results",
    "Substitute": "chat.types.contexts",
    "Think": "think",
    "TokenUsage": "session.live",
    "ToolCall": "chat.tools.declare",
    "ToolCallContext": "chat.types.contexts",
    "ToolCallDecision": "chat.types.contexts",
    "ToolCallResultContext": "chat.types.contexts",
    "ToolEffect": "chat.tools.declare:Effect",
    "ToolError": "core.errors",
    "ToolResult": "chat.types.contexts",
    "TurnConfig": "chat.types.config",
    "TurnContext": "chat.types.config",
    "TurnFailed": "core.errors",
    "TurnResult": "chat.message.results",
    "TurnStatistics": "chat.turn.state",
    "TurnStatus": "chat.message.results",
    "UnknownAgent": "core.errors",
    "ValueTooLarge": "core.errors",
    "WhenChanged": "session.block",
    "default_context_overflow_classifier": "chat.model.errors",
    "has_tool_call": "chat.types.config",
    "rpc": "agent.rpc",
    "step_count_is": "chat.types.config",
    "summarise": "session.compaction.function",
    "tool": "chat.tools.declare",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("outlast")
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
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
    "BareThink",
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
    "CompactionContext",
    "ContextBlock",
    "ContextBlockError",
    "ContextBlockFull",
    "ContextBlockKind",
    "ContextOverflow",
    "Continuation",
    "ContinuationStyle",
    "ContinuationWay",
    "CorruptValue",
    "DataWriter",
    "Debounce",
    "DirectoryProvider",
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
    "FileProvider",
    "Final",
    "FunctionProvider",
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
    "LiveSession",
    "Message",
    "ModelAsk",
    "ModelFailed",
    "ModelFailureKind",
    "NotDone",
    "NotInFiber",
    "ObjectStore",
    "OutlastError",
    "OutputInvalid",
    "OwnershipLost",
    "PendingToolCall",
    "PrepareStepContext",
    "ProactiveCompaction",
    "PublicError",
    "RecentHistory",
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
    "SearchHit",
    "SearchSnippet",
    "Session",
    "SkillProvider",
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
    "TokenUsage",
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
    "TurnStatistics",
    "TurnStatus",
    "UnknownAgent",
    "ValueTooLarge",
    "WhenChanged",
    "__version__",
    "default_context_overflow_classifier",
    "has_tool_call",
    "rpc",
    "step_count_is",
    "summarise",
    "tool",
]
