"""The budgets of recovery over several lives of a host."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from conversation import answering, inbox
from interruptions import (
    SLOW,
    Told,
    break_off,
    incidents,
    talker,
    tell_nobody,
    wait_for,
)

from outlast import ChatRecovery
from outlast.chat.types.recovery import KeepRecoveringContext
from outlast.testing import ScriptedModel, Step
from support import hosting

pytestmark = pytest.mark.virtual_time

GIVEN_UP = "I could not go on."


def stuck(**options: Any) -> ChatRecovery:
    """A recovery that gives up what is interrupted twice without progress."""
    return ChatRecovery(max_attempts=1, terminal_message=GIVEN_UP, **options)


async def interrupt_again(url: str, Talker: type[Any], life: str, after: float = 31) -> None:
    """A life in which the turn goes on and says nothing."""
    async with hosting(Talker, url=url, life=life, shutdown_timeout=0):
        await asyncio.sleep(after)


SILENT = Step.text(chunks=["one "]) + Step.stalls()


@pytest.mark.invariant("G2")
async def test_a_turn_that_is_stuck_is_given_up_in_time(store_url: str) -> None:
    Talker = talker(model := answering(SILENT, Step.stalls()))
    await break_off(store_url, Talker, "u1", after=1)
    for life in range(2, 5):
        await interrupt_again(store_url, Talker, str(life), after=120)
    async with hosting(Talker, url=store_url, life="9") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told("chat:recovery:exhausted")[0].reason == "no_progress_timeout"
    assert len(model.requests) == 4


@pytest.mark.invariant("G3")
async def test_restarts_in_quick_succession_count_once(store_url: str) -> None:
    Talker = talker(answering(SILENT, Step.stalls()), chat_recovery=stuck())
    await break_off(store_url, Talker, "u1", after=1)
    for life in range(2, 9):
        await interrupt_again(store_url, Talker, str(life), after=3)
    async with hosting(Talker, url=store_url, life="9", shutdown_timeout=0) as host:
        told = Told(host)
        await asyncio.sleep(1)
        assert told.decided == [(17, "continue", "deploy")]
        [(body,)] = await incidents(host, "body")
        assert json.loads(body)["attempt"] == 1
        assert json.loads(body)["attempts"] == 8


@pytest.mark.invariant("G9")
@pytest.mark.parametrize("partial", [True, False])
async def test_what_runs_out_of_memory_goes_on_later_and_not_for_ever(
    store_url: str, partial: bool
) -> None:
    """Progress does not help: it would run out again."""
    words = Step.text(chunks=[f"{n} " for n in range(99)], delay=1)
    Talker = talker(
        model := ScriptedModel(words if partial else Step.stalls()),
        chat_recovery=ChatRecovery(max_oom_retries=2),
    )
    await break_off(store_url, Talker, "u1", after=1.5, killed=True)
    for life in range(2, 4):
        async with hosting(
            Talker, url=store_url, life=str(life), shutdown_timeout=0, cause="oom"
        ) as host:
            tell_nobody(host)
            told = Told(host)
            await asyncio.sleep(2.5)
            assert told.decided == [(26, "continue", "oom") if partial else (25, "retry", "oom")]
            assert len(model.requests) == life - 1, "it waits a little"
            await asyncio.sleep(3)
            assert len(model.requests) == life
    async with hosting(Talker, url=store_url, life="9", cause="oom") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(8, "seal", "oom")]
        assert told("chat:recovery:exhausted")[0].reason == "out_of_memory"
        assert await inbox(host, "outcome") == [("error",)]
    assert len(model.requests) == 3


@pytest.mark.invariant("G12")
async def test_should_keep_recovering_is_asked_from_the_second_time_on(store_url: str) -> None:
    heard: list[KeepRecoveringContext] = []
    answers: list[Any] = [None, "raise", 0, False]

    def should_keep_recovering(context: KeepRecoveringContext) -> Any:
        heard.append(context)
        answer = answers.pop(0)
        if answer == "raise":
            raise RuntimeError("no idea")
        return answer

    config = ChatRecovery(
        should_keep_recovering=should_keep_recovering, no_progress_timeout=10_000.0
    )
    Talker = talker(model := answering(SILENT, Step.stalls()), chat_recovery=config)
    await break_off(store_url, Talker, "u1", after=1)
    await interrupt_again(store_url, Talker, "2")
    assert heard == [], "not the first time"
    for life in range(3, 6):
        await interrupt_again(store_url, Talker, str(life))
        assert len(heard) == life - 2
    async with hosting(Talker, url=store_url, life="9") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told("chat:recovery:exhausted")[0].reason == "recovery_aborted"
    assert [context.attempt for context in heard] == [2, 3, 4, 5]
    assert heard[-1].recovery_kind == "continue"
    assert heard[-1].work == 0
    assert heard[-1].age.total_seconds() == pytest.approx(124, abs=2)
    assert len(model.requests) == 5


@pytest.mark.invariant("G12")
async def test_nobody_is_asked_about_what_is_spent(store_url: str) -> None:
    heard: list[Any] = []
    config = stuck(should_keep_recovering=lambda context: heard.append(context))
    Talker = talker(answering(SILENT, Step.stalls()), chat_recovery=config)
    await break_off(store_url, Talker, "u1", after=1)
    await interrupt_again(store_url, Talker, "2")
    async with hosting(Talker, url=store_url, life="3") as host:
        await wait_for(host, Talker)
        assert await inbox(host, "outcome") == [("error",)]
    assert heard == []


@pytest.mark.invariant("G5")
async def test_an_interruption_is_one_incident_whatever_kind_it_is(store_url: str) -> None:
    """Nothing was said, then something; first it is tried again, and then gone on with."""
    Talker = talker(ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", after=0.5)
    for life, (after, attempts) in enumerate([(0.5, 1), (1.5, 2), (1.5, 3)], 2):
        async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0) as host:
            await asyncio.sleep(after)
            [(turn, state, body)] = await incidents(host, "turn, state, body")
            assert (turn, state) == ("s1", "open")
            assert json.loads(body)["attempts"] == attempts
            assert json.loads(body)["row"] == (17 if life == 4 else 14)
