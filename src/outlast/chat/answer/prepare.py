"""Preparation of a turn: its model, prompt, tools and conversation, before the first request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from outlast.agent.part import Parts
from outlast.chat.answer.calls import Calls
from outlast.chat.answer.offer import Offer
from outlast.chat.answer.outputs import ModelOutputs
from outlast.chat.answer.sources import contributions
from outlast.chat.context.hydration import HydrationContext, hydrated
from outlast.chat.context.overflow import ContextOverflow
from outlast.chat.context.prompt import with_capabilities
from outlast.chat.context.view import ModelView
from outlast.chat.message.encoder import Encoder
from outlast.chat.model.client import resolve
from outlast.chat.tools.clashes import ToolClashes
from outlast.chat.tools.toolset import Tools, tool_source
from outlast.chat.turn.part_repair import Repairing
from outlast.chat.turn.turn import PutBack, Turn
from outlast.chat.types.config import TurnConfig, TurnContext
from outlast.chat.types.contexts import PrepareStepContext, StepContext
from outlast.core.hooks import call_hook, is_overridden
from outlast.core.ids import Ids

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.models import Model
    from pydantic_ai.usage import UsageLimits


class Answering(Repairing, Protocol):
    """The settings and hooks of the agent that the loop uses."""

    max_steps: int
    send_reasoning: bool
    max_retries: int
    tool_error_details: bool
    chat_stream_stall_timeout: Any
    telemetry: Any
    context_overflow: ContextOverflow
    usage_limits: UsageLimits | None
    continuation: Any

    def get_model(self) -> Any: ...
    def get_system_prompt(self) -> Any: ...
    def get_tools(self) -> Any: ...
    def hydrate_messages(self, context: HydrationContext) -> Any: ...
    def before_turn(self, context: TurnContext) -> Any: ...
    def before_step(self, context: PrepareStepContext) -> Any: ...
    def before_tool_call(self, context: Any) -> Any: ...
    def after_tool_call(self, context: Any) -> Any: ...
    def on_step_finish(self, context: StepContext) -> Any: ...


@dataclass(slots=True)
class Prepared:
    """A turn that is ready for its first request."""

    agent: Answering
    turn: Turn
    config: TurnConfig
    model: Model
    calls: Calls
    encoder: Encoder
    path: Sequence[dict[str, Any]]
    window: list[dict[str, Any]]
    system: str
    usage: Any
    context: RunContext[Any]
    outputs: ModelOutputs
    reminders: Sequence[str]

    async def leave(self) -> None:
        """Leave the toolsets."""
        await self.calls.offer.tools.leave()


async def prepared(
    parts: Parts, turn: Turn, path: Sequence[dict[str, Any]], client_tools: Sequence[Any]
) -> Prepared:
    """Return everything that a turn needs, from the agent, its parts, its hooks and the request."""
    from pydantic_ai import RunContext
    from pydantic_ai.usage import RunUsage

    agent, view = parts.agent, parts[ModelView]
    with turn.reading_transcript():
        path = await _hydrated(agent, turn, path, parts.activation.ids)
    model: Model = resolve(await call_hook(agent.get_model))
    usage = RunUsage()
    context: RunContext[Any] = RunContext(deps=agent, model=model, usage=usage)
    given = await contributions(parts, turn, client_tools)
    tools = Tools(parts[ToolClashes].report)
    try:
        for source, handed_in in given.tools:
            await tools.add(tool_source(source, handed_in), context)
        offered = await tools.get(context)
        base = given.system
        base = await call_hook(agent.get_system_prompt) if base is None else base
        base = "\n\n".join((base, *given.sections))
        prompt = "\n\n".join((base, *await tools.instructions(context)))
        system = with_capabilities(prompt, tuple(offered), given.capabilities)
        with turn.reading_transcript():
            window = resumed(turn, view.window(path))
        outputs = ModelOutputs(agent)
        config = TurnConfig()
        if is_overridden(agent.before_turn):
            with turn.reading_transcript():
                messages = view.to_model(window, system, await outputs.of(window, offered))
            shown = TurnContext(
                request_id=turn.request_id,
                message_id=turn.message_id,
                origin=turn.entry.origin,
                continuation=turn.is_continuation,
                system=system,
                messages=messages,
                model=model,
                tools={name: each.definition for name, each in offered.items()},
                writer=turn.writer,
                body=turn.body,
                signal=turn.abort,
                attempt=turn.entry.attempt,
                recovering=turn.is_recovered,
            )
            config = _checked(await call_hook(agent.before_turn, shown))
            if turn.is_put_back:
                raise PutBack
        if config.model is not None:
            model = resolve(config.model)
            context = replace(context, model=model)
        if config.tools is not None:
            await tools.add(tool_source("turn", [config.tools]), context)
            prompt = "\n\n".join((base, *await tools.instructions(context)))
            offered, outputs = await tools.get(context), ModelOutputs(agent)
        check_active(config.active_tools, tuple(offered))
        if config.system is not None:
            system = config.system
        elif config.tools is not None or config.active_tools is not None:
            active = config.active_tools
            able = tuple(name for name in offered if active is None or name in active)
            system = with_capabilities(prompt, able, given.capabilities)
        encoder = Encoder(
            send_reasoning=agent.send_reasoning
            if config.send_reasoning is None
            else config.send_reasoning
        )
        calls = Calls(parts, turn, encoder, Offer(tools, context, offered))
        return Prepared(
            agent=agent,
            turn=turn,
            config=config,
            model=model,
            calls=calls,
            encoder=encoder,
            path=path,
            window=window,
            system=system,
            usage=usage,
            context=context,
            outputs=outputs,
            reminders=given.reminders,
        )
    except BaseException:
        await tools.leave()
        raise


async def _hydrated(
    agent: Answering, turn: Turn, path: Sequence[dict[str, Any]], ids: Ids
) -> Sequence[dict[str, Any]]:
    """Return the conversation before this turn's answer: from the application, or the stored one."""
    if not is_overridden(agent.hydrate_messages):
        return path
    entry = turn.entry
    return await hydrated(agent, path, ids, entry.id, entry.kind, entry.attempt, turn.body)


def resumed(turn: Turn, window: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation with the partial answer of an earlier attempt."""
    if turn.resumed is None or turn.is_continuation:
        return window
    return [*window, turn.builder.message()]


def check_active(active: Sequence[str] | None, known: Sequence[str]) -> None:
    """Raise if `active_tools` names an unknown tool."""
    unknown = [] if active is None else [name for name in active if name not in known]
    if unknown:
        raise ValueError(
            f"active_tools must name tools of this turn ({', '.join(sorted(known)) or 'none'}),"
            f" got {', '.join(map(repr, unknown))}"
        )


def _checked(config: Any) -> TurnConfig:
    """Return the result of `before_turn` as a `TurnConfig`."""
    if config is not None and not isinstance(config, TurnConfig):
        raise TypeError(f"before_turn must return a TurnConfig or None, got {config!r}")
    return config or TurnConfig()
