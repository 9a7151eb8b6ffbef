"""A model that says what a test tells it to: `ScriptedModel`.

It is a real Pydantic AI model, so that everything between your code and the provider runs as it does in
production. A script is a list of answers (`Step`); which one is given is decided by how far the current
turn has come, so that a turn that is taken up again after a death gets the same answer again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeGuard

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponseStreamEvent,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage

from outlast.chat.context.tool_prompt import ToolPrompt
from outlast.chat.model.beginnings import asks_to_continue
from outlast.chat.seam.instruct import is_begin_again
from outlast.testing.steps import Call, Failure, Fault, Step, Text, Thought, Wait


class ScriptExhausted(AssertionError):
    """The model was asked more often than its script has answers."""


Answer = str | Step | BaseException | Callable[[list[ModelMessage]], "str | Step | BaseException"]


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """What a `ScriptedModel` was shown in one request."""

    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters

    @property
    def tools(self) -> list[str]:
        """The names of the tools that were offered."""
        return [tool.name for tool in self.parameters.function_tools]

    @property
    def instructions(self) -> str | None:
        parts = self.parameters.instruction_parts
        return None if parts is None else "\n\n".join(part.content for part in parts)


# --- the model -----------------------------------------------------------------------------------


class ScriptedModel(Model[None]):
    """A model that answers from a script, and writes down what it was asked (`requests`).

    Each turn starts at the beginning of the script: the first answer is for the user's message, the next
    for the results of the tools that it called, and so on. With `by="request"` the answers are given in
    order, once, no matter who asks. A request beyond the last answer raises `ScriptExhausted`; with
    `repeat=True` the last answer is given again and again. An answer is a text, a `Step`, an exception, or
    a function of the messages.

    A model that is asked to continue what was cut off goes on where that text stops.

    ```python
    from pydantic_ai.messages import ModelRequest
    from outlast.chat.model.client import open_stream
    from outlast.testing import ScriptedModel, Step

    model = ScriptedModel.calls("send_mail", to="a@b.c", body="hi").then("Done.")
    async with open_stream(model, [ModelRequest.user_text_prompt("mail them")]) as stream:
        events = [event async for event in stream]
    assert stream.response.tool_calls[0].args_as_dict() == {"to": "a@b.c", "body": "hi"}
    assert len(model.requests) == 1

    both_at_once = ScriptedModel(Step.calls("look", at="left") + Step.calls("look", at="right"), "I see.")
    ```
    """

    def __init__(
        self,
        *answers: Answer,
        by: Literal["turn", "request"] = "turn",
        repeat: bool = False,
        name: str = "scripted",
        profile: ModelProfile | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        default = ModelProfile(
            supports_inline_system_prompts=True,  # the messages stay as they are
            supports_json_schema_output=True,
            supports_json_object_output=True,
        )
        super().__init__(settings=settings, profile={**default, **(profile or {})})
        self.answers: list[Answer] = list(answers)
        self.requests: list[ScriptedRequest] = []
        self._by = by
        self._repeat = repeat
        self._name = name

    @classmethod
    def text(
        cls, text: str = "", *, chunks: Sequence[str] | None = None, delay: float | timedelta = 0
    ) -> ScriptedModel:
        """A model that answers with a text: see `Step.text`."""
        return cls(Step.text(text, chunks=chunks, delay=delay))

    @classmethod
    def reasoning(
        cls, text: str = "", *, chunks: Sequence[str] | None = None, delay: float | timedelta = 0
    ) -> ScriptedModel:
        """A model that thinks first; add what it says with `also`."""
        return cls(Step.reasoning(text, chunks=chunks, delay=delay))

    @classmethod
    def calls(cls, tool: str, /, **arguments: Any) -> ScriptedModel:
        """A model that calls a tool; add what it says to the result with `then`."""
        return cls(Step.calls(tool, **arguments))

    @classmethod
    def fails(
        cls,
        error: BaseException | Failure = "overloaded",
        *,
        retry_after: float | timedelta | None = None,
    ) -> ScriptedModel:
        """A model that fails: see `Step.fails`."""
        return cls(Step.fails(error, retry_after=retry_after))

    @classmethod
    def stalls(cls, seconds: float | timedelta | None = None) -> ScriptedModel:
        """A model that is silent for a while, or for ever; add what comes before or after with `also`."""
        return cls(Step.stalls(seconds))

    @classmethod
    def answering(cls, answer: Callable[[list[ModelMessage]], str | Step]) -> ScriptedModel:
        """A model whose every answer is a function of the messages that it is shown."""
        return cls(answer, repeat=True)

    def then(self, answer: Answer) -> ScriptedModel:
        """The next answer of the script."""
        self.answers.append(answer)
        return self

    def also(self, addition: str | Step) -> ScriptedModel:
        """More of the last answer."""
        last = self.answers[-1] if self.answers else Step()
        last = Step.text(last) if isinstance(last, str) else last
        if not isinstance(last, Step):
            raise TypeError("only a text or a Step can be added to")
        self.answers[-1:] = [last + addition]
        return self

    # --- as Pydantic AI sees it ---

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def system(self) -> str:
        return "scripted"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async with self.request_stream(
            messages, model_settings, model_request_parameters
        ) as stream:
            async for _ in stream:
                pass
        return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        self.requests.append(
            ScriptedRequest(list(messages), settings or ModelSettings(), parameters)
        )
        step = self._answer(messages)
        if step.pieces and isinstance(step.pieces[0], Fault):
            raise step.pieces[0].error.with_traceback(None)  # as a refused request does
        yield _ScriptedStream(
            model_request_parameters=parameters,
            step=step,
            name=self._name,
            input_tokens=len(messages),
        )

    def _answer(self, messages: list[ModelMessage]) -> Step:
        position, start = turn_position(messages)
        if self._by == "request":
            position = len(self.requests) - 1
        if self._repeat:
            position = min(position, len(self.answers) - 1)
        if not 0 <= position < len(self.answers):
            where = "the current turn" if self._by == "turn" else "this model"
            raise ScriptExhausted(
                f"the script has {len(self.answers)} answer(s), and {where} asks for"
                f" number {position + 1}; add one with then(), or use repeat=True"
            )
        answer = self.answers[position]
        if callable(answer):
            answer = answer(messages)
        if isinstance(answer, str):
            answer = Step.text(answer)
        elif isinstance(answer, BaseException):
            answer = Step.fails(answer)
        return answer.without(start) if start else answer


def turn_position(messages: Sequence[ModelMessage]) -> tuple[int, str]:
    """How many whole answers the current turn holds, and how much text there is of the next one.

    Responses that follow one another are one answer: it was interrupted, and continued.
    """
    position, start, text = 0, "", ""
    previous: ModelMessage | None = None
    for message in messages:
        if isinstance(message, ModelResponse):
            text = (text if isinstance(previous, ModelResponse) else "") + (message.text or "")
            if message.state in ("incomplete", "interrupted"):
                start = text
            elif start or not isinstance(previous, ModelResponse):
                position, start = position + 1, ""
        elif isinstance(message, ModelRequest):
            prompts = [part.content for part in message.parts if _is_of_user(part)]
            if any(map(asks_to_continue, prompts)):
                if not start and isinstance(previous, ModelResponse):
                    position, start = position - 1, text  # it was not whole, whatever it says
                if any(map(is_begin_again, prompts)):
                    start = ""
            elif prompts:
                position, start = 0, ""
        previous = message
    return position, start


def _is_of_user(part: ModelRequestPart) -> TypeGuard[UserPromptPart]:
    return isinstance(part, UserPromptPart) and not isinstance(part, ToolPrompt)


@dataclass
class _ScriptedStream(StreamedResponse):
    """One answer, on its way."""

    step: Step
    name: str
    input_tokens: int
    _timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        step, parts = self.step, self._parts_manager
        self._usage = step.usage or RequestUsage(input_tokens=self.input_tokens)
        text, thought = parts.handle_text_delta, parts.handle_thinking_delta
        count = 0
        for piece in step.pieces:
            count += 1
            match piece:
                case Text():
                    for event in text(vendor_part_id=None, content=piece.text):
                        yield event
                case Thought():
                    for event in thought(
                        vendor_part_id=None,
                        content=piece.text,
                        signature=piece.signature,
                        provider_name="scripted",
                    ):
                        yield event
                case Call():
                    for event in parts.handle_tool_call_delta_events(
                        vendor_part_id=f"call {count}",
                        tool_name=piece.tool,
                        args=piece.arguments,
                        tool_call_id=piece.id or f"call_{os.urandom(6).hex()}",
                    ):
                        yield event
                case Wait(seconds=None):
                    await asyncio.get_running_loop().create_future()
                case Wait():
                    await asyncio.sleep(piece.seconds or 0)
                    count -= 1
                case Fault():
                    raise piece.error.with_traceback(None)
        if step.is_truncated:
            self.state = "incomplete"
            return
        has_calls = any(isinstance(piece, Call) for piece in step.pieces)
        self.finish_reason = step.finish_reason or ("tool_call" if has_calls else "stop")
        if step.usage is None:
            self._usage = RequestUsage(input_tokens=self.input_tokens, output_tokens=count)

    async def close_stream(self) -> None:
        pass  # there is no connection

    @property
    def model_name(self) -> str:
        return self.name

    @property
    def provider_name(self) -> str:
        return "scripted"

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._timestamp
