"""The loop: ask the model, run the tools it calls, ask again. On Pydantic AI's model interface."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from outlast.chat.chunks import Encoder
from outlast.chat.config import MAX_STEPS, Step, TurnConfig, TurnContext
from outlast.chat.history import to_model_messages
from outlast.chat.model import open_stream, resolve
from outlast.chat.model_settings import model_settings
from outlast.chat.output import OutputType
from outlast.chat.prompt import with_capabilities
from outlast.chat.shortening import shortened
from outlast.chat.tools import (
    CallResult,
    Toolbox,
    cannot_be_stored,
    marked_methods,
    toolset_of,
)
from outlast.chat.turn import Turn

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings


class Answering(Protocol):
    """What the loop asks of the agent."""

    max_steps: int
    send_reasoning: bool
    max_retries: int
    chat_stream_stall_timeout: Any
    telemetry: Any

    def get_model(self) -> Any: ...
    def get_system_prompt(self) -> str: ...
    def get_tools(self) -> Any: ...
    async def before_turn(self, context: TurnContext) -> TurnConfig | None: ...


class TurnAborted(Exception):
    """The turn was stopped; what it has said is kept. Never leaves `outlast`."""


async def answer(agent: Answering, turn: Turn, path: Sequence[dict[str, Any]]) -> None:
    """Run a turn to its end. Raises `TurnAborted`, or what went wrong."""
    from pydantic_ai import RunContext
    from pydantic_ai.usage import RunUsage

    model: Model = resolve(agent.get_model())
    config = TurnConfig()
    usage = RunUsage()
    toolset = toolset_of(marked_methods(agent), agent.get_tools())
    context: RunContext[Any] = RunContext(deps=agent, model=model, usage=usage)
    names = tuple(each for each in await toolset.get_tools(context))
    system = with_capabilities(agent.get_system_prompt(), names)
    shown = system
    messages = to_model_messages(shortened(path), instructions=shown).messages
    config = await _config(agent, turn, shown, list(messages), names) or config
    if config.model is not None:
        model = resolve(config.model)
        context = replace(context, model=model)
    if config.tools is not None:
        toolset = toolset_of(marked_methods(agent), agent.get_tools(), config.tools)
    if config.tools is not None or config.active_tools is not None:
        active = config.active_tools
        offered = await toolset.get_tools(context)
        names = tuple(each for each in offered if active is None or each in active)
        system = with_capabilities(agent.get_system_prompt(), names)
    if config.system is not None:
        system = config.system
    if config.messages is not None:
        messages = list(config.messages)
    elif system != shown:
        messages = to_model_messages(shortened(path), instructions=system).messages
    async with toolset:
        await _Run(agent, turn, config, model, Toolbox(toolset, context), messages, usage).steps()


async def _config(
    agent: Answering,
    turn: Turn,
    system: str,
    messages: Sequence[ModelMessage],
    names: tuple[str, ...],
) -> TurnConfig | None:
    config: Any = agent.before_turn(
        TurnContext(
            request_id=turn.request_id,
            message_id=turn.message_id,
            origin=turn.entry.origin,
            continuation=turn.is_continuation,
            system=system,
            messages=messages,
            tool_names=names,
            body=turn.body,
            signal=turn.abort,
        )
    )
    if hasattr(config, "__await__"):
        config = await config
    if config is not None and not isinstance(config, TurnConfig):
        raise TypeError(f"before_turn returns a TurnConfig or None, not {config!r}")
    return config


@dataclass(slots=True)
class _Run:
    agent: Answering
    turn: Turn
    config: TurnConfig
    model: Model
    toolbox: Toolbox
    messages: list[ModelMessage]
    usage: Any

    async def steps(self) -> None:
        """Step after step, until the model has nothing left to call or something says stop."""
        turn, config = self.turn, self.config
        hides = config.send_reasoning is False or (
            config.send_reasoning is None and not self.agent.send_reasoning
        )
        encoder = Encoder(send_reasoning=not hides)
        output = None if config.output is None else OutputType(config.output)
        most = config.max_steps or self.agent.max_steps or MAX_STEPS
        first = _steps_of(turn.begun)
        done: list[Step] = []
        # What goes on with a message keeps it; a start with an id begins the message anew.
        turn.emit(encoder.start(None if turn.is_continuation else turn.message_id))
        try:
            while True:
                turn.emit(encoder.start_step(first + len(done) + 1))
                response = await self._ask(encoder, output)
                calls = response.tool_calls
                if calls:
                    await self._call(calls, encoder)
                for chunk in encoder.finish_step(response):
                    turn.emit(chunk)
                done.append(Step(len(done), response, tuple(call.tool_name for call in calls)))
                if not calls or len(done) >= most:
                    break
                if any(condition(done) for condition in config.stop_conditions()):
                    break
                await turn.stream.stored()  # what the tools did is durable before the next request
        except BaseException:
            for chunk in encoder.close():
                turn.emit(chunk)
            raise
        if output is not None:
            turn.output = output.parsed(response.text or "")
        turn.stream.hold()  # a stream that is whole is that of a turn that has ended
        turn.emit(encoder.finish(response.finish_reason, self.usage))

    async def _ask(self, encoder: Encoder, output: OutputType | None) -> ModelResponse:
        turn, config = self.turn, self.config
        retries = config.max_retries
        patience = config.chat_stream_stall_timeout
        telemetry = config.telemetry if config.telemetry is not None else self.agent.telemetry
        async with open_stream(
            self.model,
            self.messages,
            self._settings(),
            await self._parameters(output),
            abort=turn.abort,
            stall_timeout=self.agent.chat_stream_stall_timeout if patience is None else patience,
            max_retries=self.agent.max_retries if retries is None else retries,
            instrument=telemetry,
        ) as stream:
            async for event in stream:
                more = encoder.more_text(event)
                if more is not None:
                    turn.say(*more)
                else:
                    for chunk in encoder.event(event):
                        turn.emit(chunk)
                if turn.is_out_of_breath:
                    await turn.breathe()
        if turn.abort.is_set:
            raise TurnAborted
        for chunk in encoder.end_response():
            turn.emit(chunk)
        response = stream.response
        self.usage.incr(response.usage)
        self.usage.requests += 1
        self.messages.append(response)
        return response

    def _settings(self) -> ModelSettings:
        config = self.config
        return model_settings(
            max_output_tokens=config.max_output_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            presence_penalty=config.presence_penalty,
            frequency_penalty=config.frequency_penalty,
            stop_sequences=config.stop_sequences,
            seed=config.seed,
            timeout=config.timeout,
            headers=config.headers,
            tool_choice=config.tool_choice,
            provider_options=config.provider_options,
        )

    async def _parameters(self, output: OutputType | None) -> ModelRequestParameters:
        from pydantic_ai.models import ModelRequestParameters

        definitions = await self.toolbox.prepare(self.config.active_tools)
        parameters = ModelRequestParameters(function_tools=definitions)
        return parameters if output is None else output.asked_of(self.model, parameters)

    async def _call(self, calls: Sequence[ToolCallPart], encoder: Encoder) -> None:
        """Run the calls of one step side by side; each result is told as it comes."""
        from pydantic_ai.messages import ModelRequest, ToolReturnPart

        turn = self.turn

        async def one(call: ToolCallPart) -> CallResult:
            result = await self.toolbox.call(call)
            if result.error is None:
                try:
                    turn.emit(encoder.tool_output(call.tool_call_id, result.output))
                    return result
                except TypeError as error:
                    result = cannot_be_stored(call.tool_name, error)
            assert result.error is not None
            turn.emit(encoder.tool_error(call.tool_call_id, result.error))
            return result

        results = await _unless_aborted(turn, [one(call) for call in calls])
        parts = [
            ToolReturnPart(
                call.tool_name,
                result.output if result.error is None else result.error,
                call.tool_call_id,
                outcome="success" if result.error is None else "failed",
            )
            for call, result in zip(calls, results, strict=True)
        ]
        self.messages.append(ModelRequest(parts=parts, instructions=_instructions(self.messages)))


async def _unless_aborted(
    turn: Turn, work: Sequence[Coroutine[Any, Any, CallResult]]
) -> list[CallResult]:
    """All of them, or `TurnAborted` as soon as the turn is stopped."""
    running = [asyncio.ensure_future(each) for each in work]

    def stop() -> None:
        for task in running:
            task.cancel()

    forget = turn.abort.listen(stop)
    try:
        return list(await asyncio.gather(*running))
    except asyncio.CancelledError:
        this = asyncio.current_task()
        if turn.abort.is_set and not (this is not None and this.cancelling()):
            raise TurnAborted from None
        raise
    finally:
        forget()
        stop()
        await asyncio.wait(running)


def _instructions(messages: Sequence[ModelMessage]) -> str | None:
    for message in reversed(messages):
        instructions = getattr(message, "instructions", None)
        if instructions is not None:
            return str(instructions)
    return None


def _steps_of(message: dict[str, Any] | None) -> int:
    parts = (message or {}).get("parts") or []
    return sum(isinstance(part, dict) and part.get("type") == "step-start" for part in parts)
