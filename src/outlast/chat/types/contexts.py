"""The arguments and results of a chat agent's hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from outlast.chat.message.results import Message, TurnStatus
from outlast.chat.types.data_parts import DataWriter
from outlast.chat.types.model_ask import ModelAsk
from outlast.core.abort import Abort

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ThinkingPart
    from pydantic_ai.models import Model
    from pydantic_ai.usage import RequestUsage


# --- steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One model request of a turn, and its tool calls."""

    number: int  # 0 is the first
    response: ModelResponse
    tool_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PrepareStepContext:
    """The argument of `before_step`."""

    request_id: str
    step_number: int  # 0 is the first
    steps: Sequence[Step]  # the earlier steps
    model: Model
    messages: Sequence[ModelMessage]
    tool_names: tuple[str, ...]
    signal: Abort
    writer: DataWriter
    context: Any = None  # the `StepConfig.context` of an earlier step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """What `before_step` may return: settings for this step only."""

    model: str | Model | None = None
    system: str | None = None
    messages: Sequence[ModelMessage] | None = None  # instead of the messages so far
    active_tools: Sequence[str] | None = None
    tool_choice: str | Sequence[str] | None = None
    provider_options: Mapping[str, Any] | None = None
    # Any value, for the tools and hooks of this step and of later ones. It is kept in memory only: a turn
    # that is resumed in another process starts without it.
    context: Any = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of a call, for `on_step_finish`."""

    tool_call_id: str
    tool_name: str
    input: Any
    output: Any = None
    error: str | None = None
    is_open: bool = False  # it waits for an approval, or for the client


@dataclass(frozen=True, slots=True)
class StepContext:
    """The argument of `on_step_finish`: a finished request to the model, with its tool results."""

    request_id: str
    step_number: int
    response: ModelResponse
    tool_results: Sequence[ToolResult]
    writer: DataWriter
    request: ModelAsk | None = None  # the request to the model
    context: Any = None  # the value of `StepConfig.context`

    @property
    def text(self) -> str:
        return self.response.text or ""

    @property
    def reasoning(self) -> Sequence[ThinkingPart]:
        """The reasoning parts, in order."""
        return [part for part in self.response.parts if part.part_kind == "thinking"]

    @property
    def reasoning_text(self) -> str:
        return self.response.thinking or ""

    @property
    def sources(self) -> Sequence[Any]:
        """The web pages and documents that the text cites, without duplicates."""
        texts = (part for part in self.response.parts if part.part_kind == "text")
        citations = (each for part in texts for each in getattr(part, "citations", None) or ())
        found: list[Any] = []
        for source in (source for citation in citations for source in citation.sources):
            if source not in found:
                found.append(source)
        return found

    @property
    def warnings(self) -> Sequence[Any]:
        """The provider's warnings, if Pydantic AI has them in `provider_details`."""
        given = (self.response.provider_details or {}).get("warnings")
        return given if isinstance(given, list | tuple) else []

    @property
    def files(self) -> Sequence[Any]:
        return self.response.files

    @property
    def tool_calls(self) -> Sequence[Any]:
        return self.response.tool_calls

    @property
    def finish_reason(self) -> str | None:
        return self.response.finish_reason

    @property
    def usage(self) -> RequestUsage:
        return self.response.usage

    @property
    def provider_metadata(self) -> dict[str, Any] | None:
        return self.response.provider_details


@dataclass(frozen=True, slots=True)
class ChunkContext:
    """The argument of `on_chunk`: a durable chunk, which clients may have received already."""

    request_id: str
    seq: int
    chunk: dict[str, Any]


# --- tools ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Allow:
    """Run the call; with `input`, as if the model had given that input."""

    input: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Do not call the tool: the model receives the reason as the result."""

    reason: str = "This call was not allowed."


@dataclass(frozen=True, slots=True)
class Substitute:
    """Do not call the tool: use this result."""

    output: Any


# Or an equivalent dict: {"action": "allow", "input": …}, {"action": "block", "reason": …} or
# {"action": "substitute", "output": …}.
ToolCallDecision = Allow | Block | Substitute | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCallContext:
    """The argument of `before_tool_call`."""

    tool_name: str
    input: Mapping[str, Any]
    tool_call_id: str
    request_id: str
    step_number: int
    messages: Sequence[ModelMessage]
    signal: Abort
    writer: DataWriter
    context: Any = None  # the value of `StepConfig.context`


@dataclass(frozen=True, slots=True)
class ToolCallResultContext:
    """The argument of `after_tool_call`, for every outcome."""

    tool_name: str
    input: Mapping[str, Any]
    tool_call_id: str
    request_id: str
    step_number: int
    messages: Sequence[ModelMessage]
    writer: DataWriter
    duration_ms: float
    success: bool  # also True for blocked and substituted calls: the model got a valid result
    output: Any = None
    error: Exception | str | None = None  # without success: the exception, or why it failed
    unknown: bool = False  # it began, and its outcome is unknown
    context: Any = None  # the value of `StepConfig.context`


# --- the end -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatResponseResult:
    """The argument of `on_chat_response`: a turn has ended, and its answer is stored."""

    request_id: str
    message: Message
    status: TurnStatus
    continuation: bool = False
    error: str | None = None


ChatErrorStage = Literal["parse", "persist", "turn", "stream", "recovery", "transcript"]
ChatErrorClassification = Literal["context_overflow", "rate_limit", "transient", "fatal", "unknown"]


@dataclass(frozen=True, slots=True)
class ChatErrorContext:
    """The context of an error, for `on_chat_error` and `classify_chat_error`."""

    request_id: str | None  # None if the request has no readable id
    stage: ChatErrorStage
    messages_persisted: bool = True  # the user's messages are stored
    classification: ChatErrorClassification | None = None
