"""Answers of models: whether one is complete, and how to join one that came in pieces. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import (
        ModelResponse,
        ModelResponsePart,
        ModelResponseStreamEvent,
        TextPart,
    )
    from pydantic_ai.models import StreamedResponse

# Streams of the providers that always send a finish reason.
_WITH_A_REASON = {"OpenAIStreamedResponse", "AnthropicStreamedResponse", "GeminiStreamedResponse"}
_OPT_OUT = "openai_chat_streaming_requires_finish_reason"


def is_truncated(
    stream: StreamedResponse, response: ModelResponse, profiles: Iterable[Mapping[str, Any]]
) -> bool:
    """Return whether an answer that ended without an error was cut off all the same.

    A connection that is closed too early looks like the end of the answer. Some OpenAI-compatible servers
    never send a finish reason: if the model's profile says so, with
    `openai_chat_streaming_requires_finish_reason: False`, the end is trusted.
    """
    if response.state == "incomplete":
        return True
    if response.state != "complete" or response.finish_reason == "content_filter":
        return False
    if _WITH_A_REASON.isdisjoint([class_.__name__ for class_ in type(stream).__mro__]):
        return False
    # The provider's own reason; Pydantic AI sets a default if there is none.
    if "finish_reason" in (response.provider_details or {}):
        return False
    return not any(profile.get(_OPT_OUT) is False for profile in profiles)


def is_polled(response: ModelResponse) -> bool:
    """Return whether the provider generates this answer in the background, to be polled as a whole."""
    if response.state != "suspended" or response.provider_response_id is None:
        return False
    return bool((response.provider_details or {}).get("background"))


def without_cursor(response: ModelResponse) -> ModelResponse:
    """Return the response without its stream position: resuming there would lose the beginning."""
    details = response.provider_details
    if not details or "last_sequence_number" not in details:
        return response
    kept = {key: value for key, value in details.items() if key != "last_sequence_number"}
    return replace(response, provider_details=kept)


def joined(before: ModelResponse | None, after: ModelResponse) -> ModelResponse:
    """Join a suspended answer and the result of the next request."""
    if before is None:
        return after
    if is_polled(before):
        return after if after.parts or after.state == "complete" else before
    return replace(after, parts=[*before.parts, *after.parts], usage=before.usage + after.usage)


def shifted(event: ModelResponseStreamEvent, offset: int) -> ModelResponseStreamEvent:
    """Return the event of a later request, with the index of its part in the whole answer."""
    from pydantic_ai.messages import PartDeltaEvent, PartEndEvent, PartStartEvent

    if isinstance(event, PartStartEvent | PartDeltaEvent | PartEndEvent):
        return replace(event, index=event.index + offset)
    return event


def catch_up(
    old: Sequence[ModelResponsePart], new: ModelResponse
) -> Iterator[ModelResponseStreamEvent]:
    """Yield the events that lead from the known parts of a polled answer to its current parts."""
    from pydantic_ai.messages import PartDeltaEvent, PartEndEvent, PartStartEvent

    is_over = new.state != "suspended"
    last = len(new.parts) - 1
    for index, part in enumerate(new.parts):
        if index >= len(old):
            yield PartStartEvent(index=index, part=part)
        elif index == len(old) - 1:
            delta = _delta(old[index], part)
            if delta is not None:
                yield PartDeltaEvent(index=index, delta=delta)
        else:
            continue
        if index < last or is_over:
            following = new.parts[index + 1].part_kind if index < last else None
            yield PartEndEvent(index=index, part=part, next_part_kind=following)


def _delta(old: ModelResponsePart, new: ModelResponsePart) -> Any:
    """Return what was added to the open part, or None."""
    from pydantic_ai.messages import (
        TextPart,
        TextPartDelta,
        ThinkingPart,
        ThinkingPartDelta,
        ToolCallPart,
        ToolCallPartDelta,
    )

    match old, new:
        case TextPart(), TextPart():
            rest = _rest(old.content, new.content)
            return TextPartDelta(rest) if rest else None
        case ThinkingPart(), ThinkingPart():
            rest = _rest(old.content, new.content)
            signature = new.signature if new.signature != old.signature else None
            if rest or signature:
                return ThinkingPartDelta(content_delta=rest or None, signature_delta=signature)
        case ToolCallPart(), ToolCallPart():
            rest = _rest(old.args_as_json_str() if old.args else "", new.args_as_json_str())
            return ToolCallPartDelta(args_delta=rest) if rest else None
    return None


def _rest(old: str, new: str) -> str:
    return new[len(old) :] if new.startswith(old) else ""


class AnswersByCall:
    """Turns calls of output tools into texts, so that no other code has to know about output tools."""

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools
        self._places: set[int] = set()  # the indexes of such calls

    def event(self, event: ModelResponseStreamEvent) -> ModelResponseStreamEvent:
        """Return the event; an event of an output tool becomes one of a text."""
        if not self._tools:
            return event
        from pydantic_ai.messages import (
            PartDeltaEvent,
            PartEndEvent,
            PartStartEvent,
            TextPartDelta,
            ToolCallPartDelta,
        )

        if isinstance(event, PartStartEvent):
            self._places.discard(event.index)
            if self._is_answer(event.part):
                self._places.add(event.index)
                return replace(event, part=self._text(event.part))
        elif isinstance(event, PartEndEvent) and self._is_answer(event.part):
            return replace(event, part=self._text(event.part))
        elif isinstance(event, PartDeltaEvent) and event.index in self._places:
            more = event.delta.args_delta if isinstance(event.delta, ToolCallPartDelta) else ""
            return replace(event, delta=TextPartDelta(more if isinstance(more, str) else ""))
        return event

    def response(self, response: ModelResponse) -> ModelResponse:
        """Return the response, with calls of output tools as texts."""
        if not self._tools or not any(map(self._is_answer, response.parts)):
            return response
        parts = [self._text(part) if self._is_answer(part) else part for part in response.parts]
        after = replace(response, parts=parts)
        if after.finish_reason == "tool_call" and not after.tool_calls:
            after = replace(after, finish_reason="stop")
        return after

    def _is_answer(self, part: Any) -> bool:
        from pydantic_ai.messages import ToolCallPart

        return isinstance(part, ToolCallPart) and part.tool_name in self._tools

    def _text(self, call: Any) -> TextPart:
        from pydantic_ai.messages import TextPart

        return TextPart(call.args if isinstance(call.args, str) else _json_of(call))


def _json_of(call: Any) -> str:
    return str(call.args_as_json_str()) if call.args else ""
