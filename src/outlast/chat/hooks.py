"""The settings and hooks of a chat agent, with defaults that users override."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from outlast.agent.agent import Agent
from outlast.chat.context.hydration import HydrationContext
from outlast.chat.context.overflow import ContextOverflow
from outlast.chat.context.prompt import DEFAULT
from outlast.chat.inbox.concurrency import Concurrency
from outlast.chat.types.config import MAX_STEPS, TurnConfig, TurnContext
from outlast.chat.types.contexts import (
    ChatErrorClassification,
    ChatErrorContext,
    ChatResponseResult,
    ChunkContext,
    PrepareStepContext,
    StepConfig,
    StepContext,
    ToolCallContext,
    ToolCallDecision,
    ToolCallResultContext,
)
from outlast.chat.types.continuation import Continuation, ContinuationWay
from outlast.chat.types.recovery import (
    ChatRecovery,
    ChatRecoveryContext,
    ChatRecoveryOptions,
    ContinuationStyle,
    RecoveryBootEvent,
    RecoveryBootResult,
)
from outlast.core.hooks import defaults, hook

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.usage import UsageLimits

MAX_RETRIES = 2


@defaults
class Overridable(Agent):
    """The part of `Think` that users override: attributes and hooks, with their defaults."""

    model: ClassVar[str | Model | None] = None  # a name, or a model of Pydantic AI
    system_prompt: str | None = None  # None: a careful default
    max_steps: int = MAX_STEPS  # requests to the model in one turn
    max_retries: int = MAX_RETRIES  # of a request that failed before its answer began
    send_reasoning: bool = True  # to clients, as parts of their own
    tool_error_details: bool = False  # the model sees exceptions of tools; clients never do
    message_concurrency: Concurrency = "queue"  # how messages are handled while a turn runs
    chat_recovery: bool | ChatRecovery = True  # of interrupted turns
    continuation: ContinuationWay | Continuation | None = None  # of an interrupted answer
    continuation_style: ContinuationStyle = "append"  # to the same message, or as a "new_message"
    chat_stream_stall_timeout: float | timedelta | None = None  # seconds; None or 0: off
    context_overflow: ContextOverflow = ContextOverflow()  # off
    usage_limits: UsageLimits | None = None  # Pydantic AI's, for one turn with all its attempts
    telemetry: Any = None  # Pydantic AI's InstrumentationSettings; None: its default

    def get_model(self) -> str | Model:
        """Return the model of the next turn."""
        if self.model is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no model: set `model`, or override get_model()"
            )
        return self.model

    def get_system_prompt(self) -> str:
        """Return the system prompt; the capabilities of the turn are appended to it."""
        return DEFAULT if self.system_prompt is None else self.system_prompt

    def get_tools(self) -> Any:
        """Return more tools, besides the methods marked with `@tool`: functions, tools, toolsets."""
        return None

    # --- hooks, in the order in which they are called; each may be a plain `def` -----------------

    @hook
    async def hydrate_messages(self, context: HydrationContext) -> Sequence[Any] | None:
        """For applications that store the conversation themselves: return the messages for the model.

        Called at the beginning of each turn, and of each further attempt. The messages to answer are added
        if they are missing in the result, and outcomes of tool calls are merged. Everything is stored here,
        too, for clients and for recovery; `on_recovery_boot` is not called, because the chain is yours.
        """
        return None

    @hook
    async def before_turn(self, context: TurnContext) -> TurnConfig | None:
        """Called before each turn; the returned `TurnConfig` applies to it."""
        return None

    @hook
    async def before_step(self, context: PrepareStepContext) -> StepConfig | None:
        """Called before each request to the model; the returned `StepConfig` applies to it."""
        return None

    @hook
    async def on_chunk(self, context: ChunkContext) -> None:
        """Called with each chunk, once it is durable. It never delays the turn, and may lag behind."""

    @hook
    async def before_tool_call(self, context: ToolCallContext) -> ToolCallDecision | None:
        """Called before a tool runs: `Allow(input=…)`, `Block(reason)`, `Substitute(output)` or None.

        A dict with the `action` "allow", "block" or "substitute" is equivalent.
        """
        return None

    @hook
    async def after_tool_call(self, context: ToolCallResultContext) -> None:
        """Called with the outcome of each call."""

    @hook
    async def on_step_finish(self, context: StepContext) -> None:
        """Called after each request to the model, once its tools are done."""

    @hook
    async def on_chat_response(self, result: ChatResponseResult) -> None:
        """Called with each stored answer, at least once. It may start a turn and wait for it."""

    def on_chat_error(self, error: Exception, context: ChatErrorContext) -> Any:
        """Called for every failure of a turn, and for a client's request that cannot be read or stored.

        Clients and callers receive the message of the result. If this returns the error itself or None, they
        receive a generic message. `messages` ends with the partial answer, if there is one.
        """
        return error

    def classify_chat_error(
        self, error: Exception, context: ChatErrorContext
    ) -> ChatErrorClassification | None:
        """Called once for each error of a turn, if `context_overflow.reactive` is on.

        Only "context_overflow" has an effect: the conversation is compacted, and the turn retried.
        """
        return None

    @hook
    async def on_chat_recovery(self, context: ChatRecoveryContext) -> ChatRecoveryOptions | None:
        """Called for an interrupted turn: decide whether to keep its partial answer, and to continue."""
        return None

    @hook
    async def on_recovery_boot(self, event: RecoveryBootEvent) -> RecoveryBootResult | None:
        """Called first for a turn interrupted in its answer, with the whole conversation."""
        return None

    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any] | None:
        """Called for each call that the model would see as interrupted or unknown.

        Return the part with an outcome, another part in its place, or None to keep the error.
        """
        return None
