"""The messages of one attempt at an answer, as the model is sent them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlast.agent.part import Parts
from outlast.chat.answer.overflow import CONVERSATION, shorten
from outlast.chat.answer.prepare import Prepared
from outlast.chat.context.shorten import with_shortened_steps
from outlast.chat.context.view import ModelView
from outlast.chat.types.contexts import Step
from outlast.core import json

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart


class Conversation:
    """The conversation before a turn, followed by the turn's own answers and tool results."""

    def __init__(self, parts: Parts, ready: Prepared) -> None:
        self._parts = parts
        self._ready = ready
        self._view = parts[ModelView]
        self._turn = ready.turn
        self._head = 0  # how many of the messages came before this turn
        self._compactions = 0  # in this attempt
        self.window = ready.window
        self.messages: list[ModelMessage] = []
        self.tool_prompts: list[ModelRequestPart] = []  # content of tools besides their results

    async def begin(self) -> None:
        """Convert the stored conversation for the first request."""
        with self._turn.reading_transcript():
            messages = await self.so_far()
        self.messages = self._with_more(messages)
        self._head = len(self.messages)

    async def so_far(self) -> list[ModelMessage]:
        """Return the stored conversation, with what this turn has said already."""
        given = self._ready.config.messages
        if given is not None:
            return list(given)
        window = self.window
        if self._turn.is_continuation or self._turn.resumed is not None:
            window = [*window[:-1], self._running()]
        return await self.to_model(window)

    async def to_model(self, window: Sequence[dict[str, Any]]) -> list[ModelMessage]:
        ready, turn = self._ready, self._turn
        making = ready.outputs.of(window, ready.calls.offer.known)
        return self._view.to_model(window, ready.system, await turn.unless_stopped(making))

    def _running(self) -> dict[str, Any]:
        """Return the message of this turn, as far as it is."""
        message = self._turn.builder.message()
        return with_shortened_steps(message) if self._turn.is_condensed else message

    def _with_more(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """Append reminders, and the content of tools besides their results, to the last request."""
        from pydantic_ai.messages import UserPromptPart

        prompts, self.tool_prompts = self.tool_prompts, []
        if not messages or messages[-1].kind != "request":
            return messages
        reminders = (
            [UserPromptPart("\n\n".join(self._ready.reminders))] if self._ready.reminders else []
        )
        if not prompts and not reminders:
            return messages
        parts = [*messages[-1].parts, *prompts, *reminders]
        return [*messages[:-1], replace(messages[-1], parts=parts)]

    # --- too long --------------------------------------------------------------------------------

    async def shorten(self, step: Step) -> None:
        """Shorten the conversation before the next step, if the last one came near the model's limit."""
        ready, turn = self._ready, self._turn
        wanted = ready.agent.context_overflow.proactive
        if wanted is None or self._compactions >= wanted.max_compactions:
            return
        if not wanted.is_near(step.response.usage) or ready.config.messages is not None:
            return
        self._compactions += 1
        work = shorten(self._parts, turn, ready.path, "proactive", self._compactions)
        if not await turn.unless_stopped(work):
            return
        window = self._view.window(ready.path)
        if turn.is_condensed or turn.is_continuation or turn.resumed is not None:
            before = window[:-1] if turn.is_continuation else window
            self.window = [*before, self._running()]
            self.messages = self._with_more(await self.to_model(self.window))
        else:
            tail = self.messages[self._head :]
            self.window, head = window, self._with_more(await self.to_model(window))
            self.messages, self._head = [*head, *tail], len(head)

    def sizes(self) -> dict[str, int]:
        """Return the characters of each piece of the last request, for an error about its length."""
        ready = self._ready
        window = [each for each in self.window if each.get("id") != self._turn.message_id]
        tools = [
            each.definition.parameters_json_schema for each in ready.calls.offer.known.values()
        ]
        return {
            CONVERSATION: sum(map(_size, window[:-1])),
            "the last message": sum(map(_size, window[-1:])),
            "this turn's own work": _size(self._turn.builder.message()),
            "the system prompt": len(ready.system),
            "the description of the tools": sum(map(_size, tools)),
        }


def _size(value: Any) -> int:
    return len(json.encode(value, "value", json.MAX_DEPTH + 10))
