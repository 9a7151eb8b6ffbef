"""Whether a provider would take a request, and whether it shows the model what was really said. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from outlast.chat.model.beginnings import asks_to_continue
from outlast.testing.torture.plan import Plan, misplaced, words_in

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart


def problems(messages: Sequence[ModelMessage]) -> list[str]:
    """What is wrong with a request; nothing, if nothing is."""
    return [*_alternation(messages), *_calls(messages), *_said(messages)]


def prompts(message: ModelMessage) -> list[str]:
    """What a user has said in it. A request to go on is not theirs."""
    found = [part.content for part in message.parts if part.part_kind == "user-prompt"]
    return [each for each in found if isinstance(each, str) and not asks_to_continue(each)]


def _alternation(messages: Sequence[ModelMessage]) -> Iterator[str]:
    if not messages or messages[0].kind != "request":
        yield "it does not begin with a request"
    if not messages or messages[-1].kind != "request":
        yield "it does not end with something to answer"
    for before, after in itertools.pairwise(messages):
        if before.kind == after.kind == "response":
            yield "two answers follow one another"
    for message in messages:
        if not message.parts:
            yield f"a {message.kind} is empty"


def _result_of(part: ModelRequestPart) -> str | None:
    """The call that this is the result of."""
    if part.part_kind == "tool-return":
        return part.tool_call_id
    if part.part_kind == "retry-prompt" and part.tool_name is not None:
        return part.tool_call_id
    return None


def _calls(messages: Sequence[ModelMessage]) -> Iterator[str]:
    """Each call has exactly one result, in the request right after it; each result has a call."""
    seen: set[str] = set()
    waiting: set[str] = set()
    for message in messages:
        if message.kind == "response":
            made = [part.tool_call_id for part in message.parts if part.part_kind == "tool-call"]
            for call in made:
                if call in seen or made.count(call) > 1:
                    yield f"the id {call} belongs to two calls"
            waiting = set(made)
            seen |= waiting
            continue
        results = [id for part in message.parts if (id := _result_of(part)) is not None]
        for call in results:
            if call not in waiting:
                why = "a second time" if call in seen else "without a call"
                yield f"there is a result of {call} {why}"
            waiting.discard(call)
        for call in waiting:
            yield f"the call {call} has no result in the request after it"
        waiting = set()
    for call in waiting:
        yield f"the call {call} has no result"


def _said(messages: Sequence[ModelMessage]) -> Iterator[str]:
    """Each turn is asked once, and its words come once, in order."""
    asked: list[str] = []
    texts: dict[str, str] = {}
    for message in messages:
        for prompt in prompts(message):
            plan = Plan.of(prompt)
            if plan is not None:
                asked.append(plan.label)
        for part in message.parts:
            if part.part_kind == "text" and asked:
                texts[asked[-1]] = texts.get(asked[-1], "") + part.content
    for label in {each for each in asked if asked.count(each) > 1}:
        yield f"the user's message {label} stands in it {asked.count(label)} times"
    for label, text in texts.items():
        wrong = misplaced(words_in(text, label))
        if wrong is not None:
            yield f"of what was said in {label}, {wrong}"
