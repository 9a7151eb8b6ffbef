"""What a chat agent is set to, and what of it a user may override. None of it does anything by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from outlast.agent.agent import Agent
from outlast.chat.context.compaction import ContextOverflow
from outlast.chat.context.hydration import HydrationContext
from outlast.chat.context.prompt import DEFAULT
from outlast.chat.context.session import Session
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
    """The part of `Think` that users change: attributes and hooks, with their defaults."""

    model: ClassVar[str | Model | None] = None  # a name, or a model of Pydantic AI
    system_prompt: str | None = None  # None: a careful default
    max_steps: int = MAX_STEPS  # requests to the model in one turn
    max_retries: int = MAX_RETRIES  # of a request that failed before anything of its answer came
    send_reasoning: bool = True  # to clients, as parts of their own
    tool_error_details: bool = False  # the model reads what a tool has raised; clients never do
    message_concurrency: Concurrency = "queue"  # what becomes of messages while a turn runs
    chat_recovery: bool | ChatRecovery = True  # of turns that are interrupted
    continuation: ContinuationWay | Continuation | None = (
        None  # how an interrupted answer is continued
    )
    continuation_style: ContinuationStyle = "append"  # to the same message, or as a "new_message"
    chat_stream_stall_timeout: float | timedelta | None = None  # seconds; None or 0: off
    context_overflow: ContextOverflow = ContextOverflow()  # all of it is off
    usage_limits: UsageLimits | None = None  # Pydantic AI's; of one turn, all its attempts together
    telemetry: Any = None  # Pydantic AI's InstrumentationSettings; None: as that is set up

    def get_model(self) -> str | Model:
        """The model of the next turn."""
        if self.model is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no model: set `model`, or override get_model()"
            )
        return self.model

    def get_system_prompt(self) -> str:
        """The system prompt; what the turn can do is appended to it."""
        return DEFAULT if self.system_prompt is None else self.system_prompt

    def get_tools(self) -> Any:
        """More tools, beside the methods marked with `@tool`: functions, tools, toolsets."""
        return None

    # --- hooks, in the order in which they are called; each may be a plain `def` -----------------

    @hook
    async def configure_session(self, session: Session) -> Session:
        """Called once, when the agent starts: what the model is shown of the conversation."""
        return session

    @hook
    async def hydrate_messages(self, context: HydrationContext) -> Sequence[Any] | None:
        """For applications that keep the conversation themselves: what the model is shown of it.

        Called at the beginning of each turn, and of each further attempt. What is being answered is added if
        it is not part of what is returned, and outcomes of tool calls are taken over. Everything is stored
        here too, for clients and for recovery; `on_recovery_boot` is not asked, as its chain is yours.
        """
        return None

    @hook
    async def before_turn(self, context: TurnContext) -> TurnConfig | None:
        """Called before each turn; what the returned `TurnConfig` sets is used for it."""
        return None

    @hook
    async def before_step(self, context: PrepareStepContext) -> StepConfig | None:
        """Called before each request to the model; what the returned `StepConfig` sets is used for it."""
        return None

    @hook
    async def on_chunk(self, context: ChunkContext) -> None:
        """Told of each chunk, once it is durable. It never holds up the turn, and may lag behind it."""

    @hook
    async def before_tool_call(self, context: ToolCallContext) -> ToolCallDecision | None:
        """Called before a tool runs: `Allow(input=…)`, `Block(reason)`, `Substitute(output)` or None.

        A dict with the `action` "allow", "block" or "substitute" says the same.
        """
        return None

    @hook
    async def after_tool_call(self, context: ToolCallResultContext) -> None:
        """Told what came of a call, whatever that is."""

    @hook
    async def on_step_finish(self, context: StepContext) -> None:
        """Told of each request to the model, when its tools are done too."""

    @hook
    async def on_chat_response(self, result: ChatResponseResult) -> None:
        """Told of each answer that is stored, at least once. It may start a turn, and wait for it."""

    def on_chat_error(self, error: Exception, context: ChatErrorContext) -> Any:
        """Called for every failure of a turn, and for a client's request that cannot be read or stored.

        The text of what it returns is what clients and callers get. If it returns the error itself or None,
        they get a generic text. `messages` ends with the partial answer, if there is one.
        """
        return error

    def classify_chat_error(
        self, error: Exception, context: ChatErrorContext
    ) -> ChatErrorClassification | None:
        """Called once for each error of a turn, if `context_overflow.reactive` is on.

        Only "context_overflow" has an effect: the conversation is shortened, and the turn tried again.
        """
        return None

    @hook
    async def on_chat_recovery(self, context: ChatRecoveryContext) -> ChatRecoveryOptions | None:
        """A turn was interrupted: whether what it had said is kept, and whether it goes on."""
        return None

    @hook
    async def on_recovery_boot(self, event: RecoveryBootEvent) -> RecoveryBootResult | None:
        """A turn was interrupted in the middle of its answer: asked first, about the whole conversation."""
        return None

    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any] | None:
        """Called for each call that the model would be shown as interrupted or unknown, before it is.

        Returns the part with an outcome, or another part in its place; None: it stays an error.
        """
        return None
