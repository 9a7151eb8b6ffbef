"""What hooks see of attempts: which one it is, and steps that are counted across all of them."""

from __future__ import annotations

from typing import Any

import pytest
from conversation import answering, inbox
from interruptions import SLOW, break_off, check_requests, talker, transcript, wait_for

from outlast import ChatRecoveryContext, TurnConfig, step_count_is, tool
from outlast.testing import ScriptedModel, Step
from support import hosting

pytestmark = pytest.mark.virtual_time


@tool(effect="read")
async def look() -> str:
    """Look at something."""
    return "seen"


async def test_a_turn_knows_its_attempt(store_url: str) -> None:
    seen: list[tuple[int, bool]] = []
    Talker = talker(
        ScriptedModel(SLOW),
        before_turn=lambda self, context: seen.append((context.attempt, context.recovering)),
    )
    await break_off(store_url, Talker, "u1")
    await break_off(store_url, Talker, life="2", after=1.5)
    async with hosting(Talker, url=store_url, life="3") as host:
        await wait_for(host, Talker)
        await host.get(Talker, "a").save_messages("u2")
    assert seen == [(1, False), (2, True), (3, True), (1, False)]


async def test_steps_go_on_counting(store_url: str) -> None:
    steps: list[tuple[int, list[tuple[str, ...]]]] = []
    conditions: list[int] = []

    def before_step(self: Any, context: Any) -> None:
        steps.append((context.step_number, [step.tool_names for step in context.steps]))

    def stop(done: Any) -> bool:
        conditions.append(len(done))
        return step_count_is(3)(done)

    calls = [Step.call("look", {}, id=f"c{n}") + Step.text(" ", delay=0) for n in range(9)]
    slow = Step.text("a b c", delay=1) + Step.call("look", {}, id="late")
    Talker = talker(
        model := answering(calls[0], calls[1], slow, slow),
        get_tools=lambda self: [look],
        before_step=before_step,
        before_turn=lambda self, context: TurnConfig(stop_when=stop),
    )
    await break_off(store_url, Talker, "u1", after=1.5)
    assert [number for number, _ in steps] == [0, 1, 2]
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await inbox(host, "outcome") == [("completed",)]
    assert steps[3] == (2, [("look",), ("look",)])
    assert len(steps) == 4, "three steps are enough, by however many attempts"
    assert conditions[-1] == 3
    check_requests(model)


async def test_max_steps_counts_all_attempts(store_url: str) -> None:
    slow = Step.text("a b c", delay=1) + Step.call("look", {}, id="late")
    Talker = talker(
        model := answering(Step.call("look", {}, id="c0"), slow, slow, "never"),
        get_tools=lambda self: [look],
        max_steps=2,
    )
    await break_off(store_url, Talker, "u1", after=1.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await inbox(host, "outcome") == [("completed",)]
        assert "never" not in str(await transcript(host))
    assert len(model.requests) == 3


async def test_before_the_first_token_there_is_no_stream(store_url: str) -> None:
    heard: list[ChatRecoveryContext] = []
    Talker = talker(
        answering(Step.stalls(), "Hi."),
        on_chat_recovery=lambda self, context: heard.append(context),
    )
    await break_off(store_url, Talker, "u1", after=5)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: Hi."]
    [context] = heard
    assert (context.stream_id, context.partial_text, list(context.partial_parts)) == ("", "", [])
    assert context.recovery_kind == "retry"
