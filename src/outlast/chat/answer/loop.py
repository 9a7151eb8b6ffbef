"""The loop: ask the model, run the tools that it calls, ask again. Uses Pydantic AI's model interface."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlast.agent.part import Parts
from outlast.chat.answer.continued_text import ContinuedText, RestRequest
from outlast.chat.answer.conversation import Conversation
from outlast.chat.answer.place import Called
from outlast.chat.answer.prepare import Prepared, check_active, prepared
from outlast.chat.answer.steps import count_steps, due_calls, earlier_steps, left_calls
from outlast.chat.answer.usage import Spending
from outlast.chat.context.history import tool_return
from outlast.chat.message.partial import RESET_STEP, Partial
from outlast.chat.message.tool_part import Part, is_settled
from outlast.chat.model.background import fetchable, is_stored, note_of
from outlast.chat.model.call_ids import CallIds
from outlast.chat.model.client import open_stream, resolve
from outlast.chat.model.continuation import Refusals
from outlast.chat.model.errors import ModelFailed, is_passing
from outlast.chat.model.output import OutputType
from outlast.chat.model.settings import model_settings
from outlast.chat.tools.outcome import CallEnd
from outlast.chat.turn.part_repair import with_replaced, without_calls
from outlast.chat.turn.turn import BREATHE_AFTER, Turn, TurnAborted
from outlast.chat.types.config import MAX_STEPS
from outlast.chat.types.contexts import (
    PrepareStepContext,
    Step,
    StepConfig,
    StepContext,
    ToolResult,
)
from outlast.chat.types.continuation import continuation_of
from outlast.chat.types.events import ModelAsked, TranscriptRepaired
from outlast.chat.types.model_ask import ModelAsk
from outlast.core.hooks import call_hook, is_overridden

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelRequestPart, ModelResponse, ToolCallPart
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition

    from outlast.chat.context.tool_prompt import ToolPrompt

logger = logging.getLogger("outlast.chat")


async def answer(
    parts: Parts, turn: Turn, path: Sequence[dict[str, Any]], client_tools: Sequence[Any]
) -> None:
    """Run a turn to its end. Raises `TurnAborted`, or the error that ended it."""
    ready = await turn.unless_stopped(prepared(parts, turn, path, client_tools))
    loop = Loop(parts, ready)
    try:
        await loop.steps()
    except ModelFailed:
        if ready.agent.context_overflow.reactive:
            turn.request_sizes = loop.conversation.sizes()
            turn.request_path = ready.path
        raise
    finally:
        await ready.leave()


class Loop:
    """One attempt at the answer of a turn."""

    def __init__(self, parts: Parts, ready: Prepared) -> None:
        self._emit = parts.activation.events.emit
        self.conversation = Conversation(parts, ready)
        self._refusals = parts.activation.shared.setdefault(Refusals, Refusals())
        self.agent, self.turn, self.config = ready.agent, ready.turn, ready.config
        self.model, self.calls, self.encoder = ready.model, ready.calls, ready.encoder
        self.system = ready.system
        self.usage, self.context, self._outputs = ready.usage, ready.context, ready.outputs
        self.step = 0  # its number in the message, from 1
        self.asked: ModelAsk | None = None  # the last request, for `on_step_finish`
        self.noted = 0  # the last step with a note about its response
        self._is_stored = False  # the provider stores the response of this step
        limits = self.config.usage_limits or self.agent.usage_limits
        self.spending = Spending(limits, self.usage)

    async def steps(self) -> None:
        """Make steps until the model calls no more tools, or a limit or condition stops it."""
        turn, config, encoder = self.turn, self.config, self.encoder
        output = None if config.output is None else OutputType(config.output)
        most = config.max_steps or self.agent.max_steps or MAX_STEPS
        first = count_steps(turn.begun)
        done: list[Step] = []  # the steps of this turn, of all attempts
        resumes = False  # whether it continues in the middle of a step
        if turn.resumed is None:
            # A start with an id drops the parts of the message, so a continuation sends one without.
            turn.begin(encoder.start(None if turn.is_continuation else turn.message_id))
        else:
            turn.begin()
        turn.stage = "stream"
        try:
            if turn.resumed is None:
                await self._call_approved(first)
                for message in turn.earlier:
                    self.spending.count(message)
                    done += earlier_steps(message, len(done))
            else:
                if not await self._call_left(turn.resumed):
                    self._finish("tool_call")
                    return
                self.spending.count(turn.resumed.raw)
                resumes = self._resume_step(turn.resumed, output)
                if resumes:
                    asked = self.conversation.window[:-1]
                    self.spending.count_interrupted(asked, turn.resumed.last_step)
                whole = earlier_steps(turn.resumed.raw, -first)
                done = whole[first : turn.resumed.steps - resumes]
            before = len(done)  # the steps of earlier attempts
            first += before if turn.resumed is not None else 0
            await self.conversation.begin()
            while True:
                if len(done) > before:
                    await self.conversation.shorten(done[-1])
                self.step = first + len(done) - before + 1
                if resumes and len(done) == before:
                    response = await self._rest(output, done)
                else:
                    turn.emit(encoder.start_step(self.step))
                    response = await self._ask(output, done)
                called = response.tool_calls
                self.spending.before_calls(len(called))
                ends = await self._call(called, len(done)) if called else []
                for chunk in encoder.finish_step(response, self.spending.note(response)):
                    turn.emit(chunk)
                done.append(Step(len(done), response, tuple(call.tool_name for call in called)))
                if called:
                    await (
                        turn.stream.stored()
                    )  # results of tools are durable before the next request
                await self._finished(response, called, ends, len(done) - 1)
                if turn.abort.is_set:
                    raise TurnAborted
                if not called or len(done) >= most or any(end.state == "open" for end in ends):
                    break
                if any(condition(done) for condition in config.stop_conditions()):
                    break
        except BaseException as failure:
            if is_passing(failure):  # recovery may continue in the middle of the step
                turn.loose_ends = encoder.close
                raise
            for chunk in encoder.close():
                turn.emit(chunk)
            raise
        if output is not None:
            turn.output = output.value_of(response)
        self._finish(response.finish_reason)

    def _finish(self, reason: str | None) -> None:
        self.turn.stream.hold()  # the last chunk is stored with the end of the turn
        self.turn.emit(self.encoder.finish(reason, self.usage))

    # --- after an interruption -------------------------------------------------------------------

    async def _call_left(self, partial: Partial) -> bool:
        """Make the calls that did not run, or may run again. Returns False if any call waits."""
        turn, parts = self.turn, partial.calls
        turn.open_calls |= {
            part["toolCallId"] for part in parts if part.get("state") == "approval-requested"
        }
        left = left_calls(parts, max(0, partial.steps - 1), turn.lost_tools)
        if left:
            await turn.unless_stopped(self.calls.offered(self.config.active_tools))
            await self._run_earlier(left)
        if turn.abort.is_set:
            raise TurnAborted
        if partial.is_step_open and partial.last_calls:
            partial.is_step_open = False
            for chunk in self.encoder.finish_step():
                turn.emit(chunk)
        return not turn.open_calls

    def _note_held(self, response: ModelResponse) -> None:
        """Store how a response that the provider keeps can be fetched, with its first chunk."""
        note = note_of(response, self.step, is_stored=self._is_stored)
        if note is not None and self.turn.on_held is not None:
            self.noted = self.step
            self.turn.stream.attach(self.turn.on_held(note))

    async def _rest(self, output: OutputType | None, done: Sequence[Step]) -> ModelResponse:
        """Return the rest of the step in whose middle the turn was interrupted."""
        fetched = await self._fetched(output)
        if fetched is not None:
            return fetched
        text = None
        if output is None and self.turn.resumed is not None:
            given = self.config.continuation
            wanted = continuation_of(self.agent.continuation if given is None else given)
            partial = self.turn.resumed
            text = ContinuedText.of(self.turn, self.encoder, partial, wanted, self._refusals)
        return await self._ask(output, done, text)

    async def _fetched(self, output: OutputType | None) -> ModelResponse | None:
        """Fetch the rest of a response that the provider keeps. None if it keeps none, or no longer."""
        partial = self.turn.resumed
        held = None if partial is None else fetchable(self.turn.held, partial, self.model)
        if held is None or partial is None or output is not None:
            return None
        ids = partial.part_ids
        if len(ids) != len(held.parts):
            return None
        conversation = self.conversation
        asked, before = conversation.messages, self.turn.builder.message()
        label = f"{partial.steps}a{self.turn.entry.attempt}"
        self.encoder.resume_parts(label, ids)
        conversation.messages = [*await conversation.to_model(conversation.window[:-1]), held]
        self.turn.seam = {"way": "retrieve"}
        try:
            response = await self._ask(output, [])
        except ModelFailed as failure:
            is_running = self.turn.held.get("is_running", True)
            if self.turn.builder.message() != before or (is_running and is_passing(failure)):
                raise
            logger.warning("%s: %s; asking the model to continue", self.turn.agent, failure)
            conversation.messages, self.turn.seam = asked, None
            self._resume_step(partial, output)
            return None
        conversation.messages.remove(held)
        return response

    def _resume_step(self, partial: Partial, output: OutputType | None) -> bool:
        """Continue in the middle of a step. Returns False if it was not interrupted there."""
        if not partial.is_step_open:
            return False
        open_text, slots = partial.open_text, len(partial.last_step)
        if output is not None:  # a partial typed answer is of no use
            self.turn.emit(RESET_STEP)
            open_text, slots = None, 0
        label = f"{partial.steps}a{self.turn.entry.attempt}"
        self.encoder.resume_step(label, open_text, slots)
        return True

    # --- the model -------------------------------------------------------------------------------

    async def _ask(
        self, output: OutputType | None, done: Sequence[Step], text: ContinuedText | None = None
    ) -> ModelResponse:
        """Ask the model for its next response, or for the rest of a text."""
        turn, config, encoder = self.turn, self.config, self.encoder
        self.spending.before_request()
        step = await self._step_config(done)
        model = self.model if step.model is None else resolve(step.model)
        messages = self.conversation.messages if step.messages is None else list(step.messages)
        patience = config.chat_stream_stall_timeout
        turn.patience = self.agent.chat_stream_stall_timeout if patience is None else patience
        ids = CallIds(lambda id: turn.builder.call(id) is not None)
        settings, parameters = self._settings(step), await self._parameters(output, step, model)
        turn.offered = tuple(each.name for each in parameters.function_tools)
        instructions = self.system if step.system is None else step.system
        while True:
            rest = RestRequest(model, messages, settings)
            if text is not None:
                rest = text.request(model, messages, settings)
            ask = ModelAsk(rest.messages, rest.settings, parameters, instructions)
            try:
                response = await self._stream(rest, ask, ids, text)
                break
            except ModelFailed as failure:
                if text is None or not text.gives_way(failure):
                    raise
        if turn.abort.is_set:
            raise TurnAborted
        turn.has_answer = True
        for chunk in encoder.end_response():
            turn.emit(chunk)
        response = ids.response(response)
        turn.last_usage = response.usage
        self.spending.after_request(response)
        if text is None:
            self.conversation.messages.append(response)
        else:
            self.conversation.messages, response = text.joined(self.conversation.messages, response)
        return response

    async def _stream(
        self, request: RestRequest, ask: ModelAsk, ids: CallIds, text: ContinuedText | None
    ) -> ModelResponse:
        """Make one request, and show the response while it streams."""
        turn, config, encoder = self.turn, self.config, self.encoder
        if is_overridden(self.agent.on_step_finish):  # `messages` grows with the turn
            self.asked = replace(ask, messages=tuple(ask.messages))
        named = request.model.model_name
        self._emit(
            ModelAsked, turn.agent, turn.request_id, step=self.step, model=named, request=ask
        )
        self._is_stored = is_stored(request.model, request.settings)
        retries = config.max_retries
        telemetry = config.telemetry if config.telemetry is not None else self.agent.telemetry
        async with open_stream(
            request.model,
            ask.messages,
            request.settings,
            ask.parameters,
            abort=turn.abort,
            stall_timeout=turn.patience,
            max_retries=self.agent.max_retries if retries is None else retries,
            instrument=telemetry,
            instructions=ask.instructions,
            is_prefilled=request.is_prefilled,
        ) as stream:

            def show(event: Any) -> None:
                for chunk in encoder.event(ids.event(event)):
                    turn.emit(chunk)
                if (stream.is_suspended or self._is_stored) and self.noted < self.step:
                    self._note_held(stream.response)

            events = aiter(stream)
            if text is not None:
                await text.join(events, show)
            async for event in events:
                more = encoder.more_text(event)
                if more is not None:
                    turn.say(*more)
                else:
                    show(event)
                if turn.said_in_a_row >= BREATHE_AFTER:
                    await turn.breathe()
        return stream.response

    async def _step_config(self, done: Sequence[Step]) -> StepConfig:
        hook = self.agent.before_step
        if not is_overridden(hook):
            return StepConfig()
        offering = self.calls.offered(self.config.active_tools)
        offered = await self.turn.unless_stopped(offering)
        context = PrepareStepContext(
            self.turn.request_id,
            len(done),
            tuple(done),
            self.model,
            list(self.conversation.messages),
            tuple(each.name for each in offered),
            self.turn.abort,
            self.turn.writer,
            self.calls.offer.given,
        )
        config = await self.turn.unless_stopped(call_hook(hook, context))
        if config is not None and not isinstance(config, StepConfig):
            raise TypeError(f"before_step must return a StepConfig or None, got {config!r}")
        if config is not None and config.context is not None:
            self.calls.offer.given = config.context
        return config or StepConfig()

    def _settings(self, step: StepConfig) -> ModelSettings:
        config = self.config
        choice = config.tool_choice if step.tool_choice is None else step.tool_choice
        options = config.provider_options
        if step.provider_options is not None:
            options = {**(options or {}), **step.provider_options}
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
            tool_choice=choice,
            provider_options=options,
        )

    async def _parameters(
        self, output: OutputType | None, step: StepConfig, model: Model
    ) -> ModelRequestParameters:
        from pydantic_ai.models import ModelRequestParameters

        active = self.config.active_tools if step.active_tools is None else step.active_tools
        if step.active_tools is not None:
            check_active(step.active_tools, tuple(await self.calls.offer.tools.get(self.context)))
        definitions: list[ToolDefinition] = []
        if not self.calls.offer.tools.is_empty:
            self.context = replace(
                self.context,
                model=model,
                messages=self.conversation.messages,
                run_step=self.context.run_step + 1,
            )
            offering = self.calls.offered(active, self.context)
            definitions = await self.turn.unless_stopped(offering)
        parameters = ModelRequestParameters(function_tools=definitions)
        return parameters if output is None else output.asked_of(model, parameters)

    # --- tools -----------------------------------------------------------------------------------

    async def _call_approved(self, step: int) -> None:
        """Run the calls that the user approved after the message was stored."""
        parts = (self.turn.begun or {}).get("parts") or []
        approved = due_calls(parts, max(0, step - 1))
        if not approved:
            return
        await self.turn.unless_stopped(self.calls.offered(None))
        await self._run_earlier(approved)
        if self.turn.abort.is_set:
            raise TurnAborted

    async def _run_earlier(self, calls: Sequence[Called]) -> None:
        """Run calls that the message already contains."""
        messages = await self.conversation.so_far()
        ends = await self.calls.run([replace(call, messages=messages) for call in calls])
        self.conversation.tool_prompts += _prompts_of(ends)
        self._show_replaced()
        await self.turn.stream.stored()

    async def _call(self, called: Sequence[ToolCallPart], step: int) -> list[CallEnd]:
        """Run the calls of one step concurrently, and add their results to the messages."""
        from pydantic_ai.messages import ModelRequest, ModelResponse

        messages = tuple(self.conversation.messages)
        calls = [
            Called(each.tool_call_id, each.tool_name, each.args, step=step, messages=messages)
            for each in called
        ]
        ends = await self.calls.run(calls)
        replaced = self._show_replaced()
        if replaced:
            response = self.conversation.messages[-1]
            assert isinstance(response, ModelResponse)
            self.conversation.messages[-1] = without_calls(response, replaced)
        parts = [self.turn.builder.call(each.id) for each in calls]
        settled = [part for part in parts if part is not None and is_settled(part)]
        if settled:
            id = self.turn.message_id
            making = self._outputs.of([{"id": id, "parts": settled}], self.calls.offer.known)
            outputs = (await self.turn.unless_stopped(making)).get(id, {})
            request: list[ModelRequestPart] = [tool_return(part, outputs) for part in settled]
            request += _prompts_of(ends)
            self.conversation.messages.append(ModelRequest(parts=request, instructions=self.system))
        return ends

    def _show_replaced(self) -> dict[str, Part]:
        """Show the repaired parts in place of calls with an unknown outcome, and return them."""
        replaced, self.calls.replaced = self.calls.replaced, {}
        if replaced:
            for chunk in with_replaced(self.turn.builder.message(), replaced):
                self.turn.emit(chunk)
            id, ids = self.turn.request_id, tuple(replaced)
            self._emit(TranscriptRepaired, self.turn.agent, id, tool_call_ids=ids)
        return replaced

    async def _finished(
        self,
        response: ModelResponse,
        called: Sequence[ToolCallPart],
        ends: Sequence[CallEnd],
        step: int,
    ) -> None:
        hook = self.agent.on_step_finish
        if not is_overridden(hook):
            return
        results = [
            ToolResult(
                call.tool_call_id,
                call.tool_name,
                end.input,
                end.output,
                end.error,
                is_open=end.state == "open",
            )
            for call, end in zip(called, ends, strict=True)
        ]
        context = StepContext(
            self.turn.request_id,
            step,
            response,
            results,
            self.turn.writer,
            self.asked,
            self.calls.offer.given,
        )
        if self.turn.following is not None:
            await self.turn.stream.stored()
            await self.turn.following.caught_up()
        try:
            await self.turn.unless_stopped(call_hook(hook, context))
        except TurnAborted:
            raise
        except Exception:
            logger.exception("%s: on_step_finish raised", self.turn.agent)


def _prompts_of(ends: Sequence[CallEnd]) -> list[ToolPrompt]:
    """Return the content for the model that calls returned besides their results."""
    if all(end.content is None for end in ends):
        return []
    from outlast.chat.context.tool_prompt import tool_prompts

    return [part for end in ends for part in tool_prompts(end.content)]
