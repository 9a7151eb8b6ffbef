"""Turns that are too long for the model by their own work, and errors that say what is too long."""

from __future__ import annotations

from typing import Any

import pytest
from conversation import reasons
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.usage import RequestUsage

from outlast import BareThink, ContextOverflow, ProactiveCompaction, tool
from outlast.chat.answer.overflow import CONVERSATION, fixed_part_error, reported_excess
from outlast.chat.context.shorten import with_shortened_steps
from outlast.testing import ScriptedModel, Step
from support import World

LOOKS = 6
PAGE = "x" * 4000


def results(messages: Any) -> list[str]:
    return [
        str(part.content)
        for message in messages
        for part in message.parts
        if part.part_kind == "tool-return"
    ]


def reader(most: int, **members: Any) -> tuple[type[Any], list[int]]:
    """An agent that looks at pages until it has seen enough; its model takes so many characters."""
    looked: list[int] = []

    @tool(effect="once")
    async def look(n: int) -> str:
        """Look at a page."""
        looked.append(n)
        return f"{n} {PAGE}"

    def answer(messages: Any) -> Step:
        seen = results(messages)
        size = sum(map(len, seen))
        if size > most:
            text = f"prompt is too long: {size} tokens > {most} maximum"
            return Step.fails(ModelHTTPError(400, "m", {"error": {"message": text}}))
        usage = RequestUsage(input_tokens=size, output_tokens=1)
        if len(seen) < LOOKS:
            call = Step.call("look", {"n": len(seen)})
            return Step(call.pieces, call.finish_reason, usage)
        return Step.text("Done.", usage=usage)

    given = {"model": ScriptedModel.answering(answer), "get_tools": lambda self: [look], **members}
    return type("Reader", (BareThink,), given), looked


@pytest.mark.parametrize(
    ("overflow", "most"),
    [
        (ContextOverflow(reactive=True), 18_000),
        (
            ContextOverflow(
                proactive=ProactiveCompaction(max_input_tokens=18_000, headroom=0.8), max_retries=0
            ),
            18_000,
        ),
    ],
    ids=["reactive", "proactive"],
)
async def test_older_steps_of_a_turn_are_truncated_and_no_tool_runs_again(
    world: World, overflow: ContextOverflow, most: int
) -> None:
    Reader, looked = reader(most, context_overflow=overflow)
    host = await world.host(Reader)
    turn = await host.get(Reader, "a").save_messages("Read")
    assert (turn.status, turn.message.text) == ("completed", "Done."), turn.error
    assert looked == list(range(LOOKS))
    stored = [part["output"] for part in turn.message.parts if part["type"] == "tool-look"]
    assert stored == [f"{n} {PAGE}" for n in range(LOOKS)], "what is stored stays whole"
    seen = results(Reader.model.requests[-1].messages)
    assert "truncated" in seen[0]
    assert seen[-1] == f"{LOOKS - 1} {PAGE}", "the newest stays whole"


async def test_when_nothing_helps_the_error_says_what_is_too_long_and_by_how_much(
    sqlite_world: World,
) -> None:
    Reader, looked = reader(3000, context_overflow=ContextOverflow(reactive=True))
    host = await sqlite_world.host(Reader)
    turn = await host.get(Reader, "a").save_messages("Read")
    assert turn.status == "error"
    assert looked == [0]
    assert turn.error == "The conversation is too long for the model."
    (reason,) = await reasons(host)
    assert reason is not None
    assert "is too long for the model by 1,002 tokens" in reason
    assert "this turn's own work has about 1,0" in reason


@pytest.mark.parametrize(
    ("text", "excess"),
    [
        ("prompt is too long: 215000 tokens > 200000 maximum", (215_000, 200_000)),
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in"
            " 140,321 tokens.",
            (140_321, 128_000),
        ),
        (
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            (1_200_000, 1_048_576),
        ),
        (
            "the request (5000 tokens) exceeds the available context size (4096 tokens)",
            (5000, 4096),
        ),
        ("prompt is too long: 5 tokens > 9 maximum", None),
        ("too long", None),
    ],
)
def test_the_excess_is_read_from_the_error_of_the_provider(
    text: str, excess: tuple[int, int] | None
) -> None:
    assert reported_excess(text) == excess


def test_nothing_is_said_of_fixed_parts_if_the_conversation_is_larger() -> None:
    assert fixed_part_error({CONVERSATION: 1000, "the system prompt": 999}, None) is None
    assert fixed_part_error({}, None) is None
    error = fixed_part_error({CONVERSATION: 10, "the system prompt": 400}, (120, 100))
    assert error is not None
    assert "by 20 tokens" in error
    assert "the system prompt has about 100 tokens" in error


def test_a_message_of_one_step_is_not_truncated() -> None:
    call = {"type": "tool-look", "state": "output-available", "output": PAGE}
    one = {"id": "m", "parts": [{"type": "step-start"}, call]}
    assert with_shortened_steps(one) is one
    two = {"id": "m", "parts": [*one["parts"], {"type": "step-start"}, call]}
    first, second = [part for part in with_shortened_steps(two)["parts"] if "output" in part]
    assert len(first["output"]) < 600
    assert second is call
