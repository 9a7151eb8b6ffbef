"""What is said of an interrupted turn agrees with itself: its events, and who hears that it is given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import answering
from interruptions import Told, break_off, talker, tell_nobody, wait_for

from outlast import ChatRecovery
from outlast.testing import Step
from support import forever, hosting

pytestmark = pytest.mark.virtual_time

SAYING = Step.text(chunks=["one "]) + Step.stalls()
SILENT = Step.stalls()


async def interrupt_again(url: str, Talker: type[Any], life: str) -> None:
    async with hosting(Talker, url=url, life=life, shutdown_timeout=0):
        await asyncio.sleep(31)


@pytest.mark.parametrize(("first", "kind"), [(SAYING, "continue"), (SILENT, "retry")])
@pytest.mark.parametrize(
    "reason", ["max_attempts_exceeded", "stale", "no_progress_timeout", "boot_strikes"]
)
async def test_a_turn_that_is_given_up_is_told_as_it_was(
    store_url: str, reason: str, first: Step, kind: str
) -> None:
    heard: list[Any] = []
    settings: dict[str, Any] = {
        "max_attempts_exceeded": {"max_attempts": 2},
        "stale": {"max_age": 3600.0},
        "no_progress_timeout": {"no_progress_timeout": 40.0},
        "boot_strikes": {},
    }[reason]

    async def configure_session(self: Any, session: Any) -> Any:
        if type(self).is_broken:
            await forever()
        return session

    Talker = talker(
        answering(first, SILENT),
        chat_recovery=ChatRecovery(on_exhausted=heard.append, **settings),
        configure_session=configure_session,
        is_broken=False,
    )
    await break_off(store_url, Talker, "u1", after=1)
    if reason == "stale":
        await asyncio.sleep(3601)
    elif reason == "boot_strikes":
        Talker.is_broken = True
        for life in range(2, 6):
            async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0) as host:
                tell_nobody(host)
                await asyncio.sleep(1)
        Talker.is_broken = False
    else:
        for life in ("2", "3"):
            await interrupt_again(store_url, Talker, life)
    async with hosting(Talker, url=store_url, life="9") as host:
        told = Told(host)
        await wait_for(host, Talker)
        [event] = told("chat:recovery:exhausted")
    [context] = heard
    assert (context.reason, context.recovery_kind) == (reason, kind)
    assert (event.reason, event.recovery_kind) == (reason, kind)
    assert (event.attempt, event.max_attempts) == (context.attempt, context.max_attempts)
    assert context.partial_text == ("one " if kind == "continue" else "")
    is_spent = context.attempt > context.max_attempts
    assert is_spent is (reason == "max_attempts_exceeded"), "the number does not contradict it"
    assert context.incident_id == context.request_id == event.incident_id == "s1"


async def test_every_event_of_a_recovery_names_its_incident(store_url: str) -> None:
    Talker = talker(answering(SAYING, "two."))
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        names = ("detected", "attempt", "decision", "scheduled", "completed")
        found = [told(f"chat:recovery:{name}") for name in names]
    assert [event.payload["incident_id"] for (event,) in found] == ["s1"] * len(names)
