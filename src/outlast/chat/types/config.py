"""The settings of one turn, and its stop conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outlast.chat.types.contexts import Step
from outlast.chat.types.continuation import Continuation, ContinuationWay, continuation_of
from outlast.chat.types.data_parts import DataWriter
from outlast.core.abort import Abort
from outlast.core.clock import seconds

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.usage import UsageLimits

MAX_STEPS = 10


StopCondition = Callable[[Sequence[Step]], bool]


def has_tool_call(name: str) -> StopCondition:
    """Stop after a step that called this tool."""
    return lambda steps: bool(steps) and name in steps[-1].tool_names


def step_count_is(count: int) -> StopCondition:
    """Stop after this many steps."""
    return lambda steps: len(steps) >= count


def check_max_steps(given: Any) -> None:
    """Raise unless this is at least one step; `active_tools=[]` makes a turn without tools."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"max_steps must be an int of at least 1, got {given!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnConfig:
    """What `before_turn` may return: settings for this turn only."""

    model: str | Model | None = None
    system: str | None = None
    messages: Sequence[ModelMessage] | None = None  # instead of the conversation
    tools: Any = None  # added to the agent's own tools
    active_tools: Sequence[str] | None = None  # the only tools shown to the model
    tool_choice: str | Sequence[str] | None = None  # "auto", "none", "required", or names
    max_steps: int | None = None
    stop_when: StopCondition | Sequence[StopCondition] | None = None  # in addition to `max_steps`
    send_reasoning: bool | None = None
    output: Any = None  # a type: the answer is JSON of this type
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop_sequences: Sequence[str] | None = None
    seed: int | None = None
    max_retries: int | None = None
    usage_limits: UsageLimits | None = None  # instead of those of the class
    timeout: float | timedelta | None = None
    headers: Mapping[str, str] | None = None
    provider_options: Mapping[str, Any] | None = None
    telemetry: Any = None  # Pydantic AI's InstrumentationSettings, or False
    chat_stream_stall_timeout: float | timedelta | None = None  # 0: off for this turn
    continuation: ContinuationWay | Continuation | None = (
        None  # how an interrupted answer is continued
    )

    def __post_init__(self) -> None:
        if self.max_steps is not None:
            check_max_steps(self.max_steps)
        for name in ("timeout", "chat_stream_stall_timeout"):
            if (given := getattr(self, name)) is not None:
                seconds(given, name)
        if continuation_of(self.continuation).way == "new_message":
            raise ValueError(
                "continuation='new_message' must be set on the agent: it is decided before before_turn is"
                " called"
            )

    def stop_conditions(self) -> tuple[StopCondition, ...]:
        if self.stop_when is None:
            return ()
        return (self.stop_when,) if callable(self.stop_when) else tuple(self.stop_when)


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The argument of `before_turn`."""

    request_id: str
    message_id: str
    origin: str
    continuation: bool
    system: str
    messages: Sequence[ModelMessage]
    model: Model
    tools: Mapping[str, ToolDefinition]
    writer: DataWriter
    body: Mapping[str, Any] = field(default_factory=dict)
    signal: Abort = field(default_factory=Abort)
    attempt: int = 1  # of the turn: 2 after it was interrupted for the first time
    recovering: bool = False  # the turn continues or repeats an interrupted answer

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(self.tools)


@dataclass(frozen=True, slots=True)
class Debounce:
    """For `message_concurrency`: wait until no message arrived for this long, then answer the newest."""

    seconds: float | timedelta = 0.75

    def __post_init__(self) -> None:
        seconds(self.seconds, "seconds")
