"""The embedded model: a real Pydantic AI model that answers from `script`, word by word."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    RetryPromptPart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage

from outlast.chat.model.beginnings import asks_to_continue
from outlast.core import json
from outlast.demo.script import Result, Said, answer

UNKNOWN = "The outcome of this call is unknown"


@dataclass
class Situation:
    """The situation in a turn: the prompt, the answer so far, and the results of tools."""

    prompt: str = ""
    files: int = 0
    said: str = ""  # since the last tool result
    results: dict[str, Result] = field(default_factory=dict)


def situation(messages: Sequence[ModelMessage]) -> Situation:
    """Derive the situation from the messages. An instruction to continue is not a prompt."""
    now = Situation()
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                if not asks_to_continue(part.content):
                    now = _asked(part.content)
            elif isinstance(part, TextPart):
                now.said += part.content
            elif isinstance(part, ToolReturnPart):
                now.results[part.tool_name] = _result(part.content, part.outcome)
                now.said = ""
            elif isinstance(part, RetryPromptPart) and part.tool_name is not None:
                now.results[part.tool_name] = _result(part.content, "failed")
                now.said = ""
    return now


def _asked(content: Any) -> Situation:
    if isinstance(content, str):
        return Situation(content)
    texts = [each for each in content if isinstance(each, str)]
    return Situation(" ".join(texts), files=len(content) - len(texts))


def _result(content: Any, outcome: str) -> Result:
    if UNKNOWN in str(content):
        return Result(None)
    if isinstance(content, str):
        with contextlib.suppress(ValueError):
            content = json.decode(content)
    return Result(outcome == "success", content)


def left_of(said: Said, begun: str) -> Said:
    """Return the rest of an answer of which a beginning was already given."""
    if not begun:
        return said
    rest = said.text.removeprefix(begun) if said.text.startswith(begun) else ""
    return Said(rest, call=said.call, arguments=said.arguments)


class EmbeddedModel(Model[None]):
    """Answers at reading speed: `pace` seconds per word."""

    def __init__(self, pace: float) -> None:
        profile = ModelProfile(supports_inline_system_prompts=True)
        super().__init__(profile=profile)
        self._pace = pace

    @property
    def model_name(self) -> str:
        return "embedded"

    @property
    def system(self) -> str:
        return "outlast-demo"

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
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        now = situation(messages)
        wanted = answer(now.prompt, now.results, now.files)
        yield _Stream(
            model_request_parameters=parameters, said=left_of(wanted, now.said), pace=self._pace
        )


@dataclass
class _Stream(StreamedResponse):
    """One streaming answer."""

    said: Said
    pace: float
    _timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        parts, count = self._parts_manager, 0
        for word in _words(self.said.thoughts):
            await asyncio.sleep(self.pace * 0.6)
            for event in parts.handle_thinking_delta(vendor_part_id="thoughts", content=word):
                yield event
            count += 1
        for word in _words(self.said.text):
            await asyncio.sleep(self.pace)
            for event in parts.handle_text_delta(vendor_part_id="text", content=word):
                yield event
            count += 1
        if self.said.call is not None:
            for event in parts.handle_tool_call_delta_events(
                vendor_part_id="call",
                tool_name=self.said.call,
                args=json.encode(dict(self.said.arguments or {})),
                tool_call_id=f"call_{os.urandom(6).hex()}",
            ):
                yield event
        self.finish_reason = "tool_call" if self.said.call is not None else "stop"
        self._usage = RequestUsage(input_tokens=1, output_tokens=count)

    async def close_stream(self) -> None:
        pass  # it has no connection

    @property
    def model_name(self) -> str:
        return "embedded"

    @property
    def provider_name(self) -> str:
        return "outlast-demo"

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._timestamp


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text)
