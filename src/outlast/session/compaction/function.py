"""The function that summarises old messages, and the one that asks a model for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.chat.context.shorten import shortened_value
from outlast.chat.message.results import Message
from outlast.chat.message.tool_part import tool_name
from outlast.core import json
from outlast.core.hooks import call_hook
from outlast.session.compaction.overlay import HEADING

CompactionFunction = Callable[..., Any]
"""Takes messages, and a `CompactionContext` if it has a second parameter; returns a summary, or None."""

MAX_CALL_CHARACTERS = 500  # of the input or output of a tool in the prompt of a summary
MAX_TEXT_CHARACTERS = 20_000
MAX_PROMPT_CHARACTERS = 300_000  # of the conversation in one request for a summary
LEAST_BUDGET = 100  # tokens


@dataclass(frozen=True, slots=True)
class CompactionContext:
    """What a compaction function may want to know besides the messages."""

    previous: str | None  # the summary of everything before the messages
    max_tokens: int  # a longer summary is of no use


def check_function(function: CompactionFunction) -> CompactionFunction:
    if not callable(function):
        raise TypeError(f"a compaction must be a function, got {function!r}")
    return function


async def call_function(
    function: CompactionFunction, messages: Sequence[Message], context: CompactionContext
) -> str | None:
    """Call a compaction function. Raises `TypeError` if it does not return a summary.

    One that takes only messages is given the previous summary as the first of them.
    """
    if _takes_context(function):
        summary = await call_hook(function, messages, context)
    else:
        earlier = [] if context.previous is None else [_earlier(context.previous)]
        summary = await call_hook(function, [*earlier, *messages])
    if summary is not None and not isinstance(summary, str):
        raise TypeError(f"a compaction function must return a str or None, got {summary!r}")
    return summary


def _earlier(summary: str) -> Message:
    parts = [{"type": "text", "text": f"{HEADING}\n\n{summary}"}]
    return Message({"id": "summary", "role": "user", "parts": parts})


def _takes_context(function: CompactionFunction) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return False
    by_place = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return len(by_place) > 1 or any(each.kind is each.VAR_POSITIONAL for each in parameters)


def summarise(model: Any, *, words: int = 300) -> CompactionFunction:
    """Return a compaction function that asks a model for a summary.

    ```python
    from outlast import Session, summarise

    session = Session().on_compaction(summarise("openai:gpt-5-mini", words=200))
    ```
    """

    async def summary(messages: Sequence[Message], context: CompactionContext) -> str | None:
        from pydantic_ai.direct import model_request
        from pydantic_ai.messages import ModelRequest

        from outlast.chat.model.client import resolve

        limit = min(words, max(1, int(context.max_tokens / 1.5)))
        found = context.previous
        for piece in in_pieces(filter(None, map(_told, messages))):
            prompt = summary_prompt(piece, found, limit)
            answer = await model_request(resolve(model), [ModelRequest.user_text_prompt(prompt)])
            found = (answer.text or "").strip()
            if not found:
                return None
        return found

    return summary


def in_pieces(told: Iterable[str], most: int = MAX_PROMPT_CHARACTERS) -> Iterator[list[str]]:
    """Yield a conversation in pieces that a model can read at once: at least one, which may be empty."""
    piece: list[str] = []
    size = 0
    for each in told:
        if piece and size + len(each) > most:
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += len(each)
    yield piece


def summary_prompt(told: Sequence[str], previous: str | None, words: int) -> str:
    """Return the text that asks a model for a summary."""
    asked = (
        f"Summarise this conversation in at most {words} words, for the assistant that will continue it."
        " Keep every fact, name, number and decision that is needed, under these headings: Topic, Key"
        " points, Current state, Open items. Answer with the summary only."
    )
    before = "" if previous is None else f"\n\nSummary of what came before:\n{previous}"
    conversation = "\n\n".join(told)
    return f"{asked}{before}\n\nConversation:\n{conversation}"


def _told(message: Message) -> str:
    lines = [line for part in message.parts if (line := _line(part))]
    return f"{message.role}: " + "\n".join(lines) if lines else ""


def _line(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    name = tool_name(part)
    if name is not None:
        given = _clipped(part.get("input"))
        outcome = part.get("errorText") or _clipped(part.get("output"))
        return f"[called {name} with {given}: {outcome}]"
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(shortened_value(part["text"], MAX_TEXT_CHARACTERS))
    if part.get("type") == "file":
        return f"[file {part.get('filename') or part.get('mediaType') or ''}]"
    return ""


def _clipped(value: Any) -> str:
    short = shortened_value(value, MAX_CALL_CHARACTERS)
    return short if isinstance(short, str) else json.encode(short, "value", json.MAX_DEPTH + 10)
