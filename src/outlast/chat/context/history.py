"""Converts stored messages to model messages.

An assistant message of several steps becomes alternating messages again: an answer, the results of its calls,
the next answer. With the details that `outlast.chat.message.encoder` stores with the parts, the rebuilt
answers produce the same request as the live ones. Stored messages may be old, foreign or damaged: invalid
parts are skipped, and nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outlast.chat.context.content import MAX_RESULT_CHARACTERS, shortened_content
from outlast.chat.context.history_parts import (
    DENIED,
    WORDLESS,
    Answer,
    steps,
    system_parts,
    tool_return,
    user_parts,
)
from outlast.chat.context.shorten import older_of, shortened_message
from outlast.chat.model.beginnings import with_beginning

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart

__all__ = [
    "DENIED",
    "MAX_RESULT_CHARACTERS",
    "WORDLESS",
    "History",
    "HistoryCache",
    "ends_with_assistant",
    "to_model_messages",
    "tool_return",
]


Outputs = Mapping[str, Mapping[str, Any]]
"""What the model sees in place of the outputs of tools, by message and call."""


@dataclass
class History:
    """Model messages, and the calls that were dropped because they have no outcome."""

    messages: list[ModelMessage] = field(default_factory=list)
    dropped_calls: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Converted:
    """The conversion of one message."""

    source: Mapping[str, Any]  # referenced, so that its id() is not reused
    is_short: bool
    messages: list[ModelMessage] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def shows(self, message: Mapping[str, Any], is_short: bool) -> bool:
        """Return whether this is the conversion for `is_short` as well: few messages are truncated."""
        if shortened_message(message) is not message:
            return False
        self.is_short = is_short
        return True


class HistoryCache:
    """Conversions of the messages of the last turn, kept for the next turn.

    Messages are cached by identity, so a changed message must be a new dict. All turns share the model
    messages, which must not be modified either.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[int, _Converted] = {}

    def converted(
        self, messages: Iterable[Mapping[str, Any]], older: int, outputs: Outputs
    ) -> Iterable[_Converted]:
        """Convert each message; the first `older` ones are shortened."""
        kept: dict[int, _Converted] = {}
        for place, message in enumerate(messages):
            own = outputs.get(_id_of(message)) if outputs else None
            if own:  # for this turn only, and may be large
                yield _converted(message, place < older, own)
                continue
            found, is_short = self._kept.get(id(message)), place < older
            if found is None or not (found.is_short is is_short or found.shows(message, is_short)):
                found = _converted(message, is_short, {})
            kept[id(message)] = found
            yield found
        self._kept = kept


def to_model_messages(
    messages: Iterable[Mapping[str, Any]],
    *,
    instructions: str | None = None,
    cache: HistoryCache | None = None,
    shorten: bool = False,
    outputs: Outputs = MappingProxyType({}),
) -> History:
    """Convert a transcript to model messages. The last request carries the `instructions`.

    The result always has something to answer, or an answer to continue. `shorten` truncates long texts and
    outputs in all but the last few messages. With a `cache`, only new messages are converted. `outputs` is
    what the model sees in place of the outputs of tools.

    ```python
    from outlast.chat.context.history import to_model_messages

    stored = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
    [request] = to_model_messages([stored], instructions="Be brief.").messages
    assert request.parts[0].content == "Hello"
    ```
    """
    messages = list(messages)
    older = older_of(len(messages)) if shorten else 0
    history = History()
    calls: set[str] = set()
    for each in (cache or HistoryCache()).converted(messages, older, outputs):
        history.dropped_calls += each.dropped
        own = set(each.calls)
        if len(own) < len(each.calls) or not calls.isdisjoint(own):
            history.messages += _with_own_ids(each.messages, calls)
        else:
            calls |= own
            history.messages += each.messages
    history.messages = _instructed(with_beginning(history.messages), instructions)
    return history


def ends_with_assistant(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last message is the assistant's, so that a request needs `with_continuation`."""
    last = messages[-1] if messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def _instructed(messages: list[ModelMessage], instructions: str | None) -> list[ModelMessage]:
    """Set the instructions of the last request, which is where models look for them."""
    if instructions is None:
        return messages
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.kind == "request":
            messages[place] = replace(message, instructions=instructions)
            break
    return messages


# --- one message ---------------------------------------------------------------------------------


def _id_of(message: Any) -> str:
    id = message.get("id") if isinstance(message, Mapping) else None
    return id if isinstance(id, str) else ""


def _converted(message: Any, is_short: bool, outputs: Mapping[str, Any]) -> _Converted:
    made = _Converted(message, is_short)
    if not isinstance(message, Mapping):
        return made
    if is_short:
        outputs = {call: shortened_content(content) for call, content in outputs.items()}
    shown = shortened_message(message) if is_short else message
    role, parts = shown.get("role"), shown.get("parts")
    parts = parts if isinstance(parts, list) else []
    if role == "user":
        _add_request(made, user_parts(parts))
    elif role == "system":
        _add_request(made, system_parts(parts))
    elif role == "assistant":
        for step in steps(parts):
            answer = Answer(outputs)
            for part in step:
                answer.add(part)
            response = answer.response()
            if response is not None:
                made.messages.append(response)
            made.dropped += answer.dropped
            made.calls += [each.tool_call_id for each in answer.returns]
            _add_request(made, answer.returns)
    return made


def _add_request(made: _Converted, parts: Sequence[ModelRequestPart]) -> None:
    from pydantic_ai.messages import ModelRequest

    if parts:
        made.messages.append(ModelRequest(parts=parts))


def _with_own_ids(messages: Sequence[ModelMessage], taken: set[str]) -> list[ModelMessage]:
    """Give calls unique ids: some providers number the calls of each answer from 0."""
    from pydantic_ai.messages import ToolCallPart, ToolReturnPart

    made: list[ModelMessage] = []
    ids: list[str] = []  # of the calls whose returns come next, in their order
    for message in messages:
        if message.kind == "response":
            parts = []
            ids = []
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    ids.append(_free(part.tool_call_id, taken))
                    part = replace(part, tool_call_id=ids[-1])
                parts.append(part)
            made.append(replace(message, parts=parts))
        else:
            returns = [part for part in message.parts if isinstance(part, ToolReturnPart)]
            pairs = zip(returns, ids, strict=True)
            renamed = [replace(part, tool_call_id=call_id) for part, call_id in pairs]
            made.append(replace(message, parts=renamed))
    return made


def _free(call_id: str, taken: set[str]) -> str:
    free, number = call_id, 1
    while free in taken:
        number += 1
        free = f"{call_id}_{number}"
    taken.add(free)
    return free
