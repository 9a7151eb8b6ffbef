"""What a turn leaves behind goes after a while, and never too soon."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import agent_of, answering, counts, inbox, rows, talker

from outlast.agent.agent import parts_of
from outlast.chat.run.retention import ALARM
from outlast.testing import Step
from support import World, alarm_rows, hosting

pytestmark = pytest.mark.virtual_time

MINUTE = 60
DAY = 24 * 3600


async def alarms(host: Any) -> list[Any]:
    return [row for row in await alarm_rows(host) if row[1] == ALARM]


@pytest.mark.invariant("E16", "E23")
async def test_the_stream_of_a_turn_is_gone_ten_minutes_after_its_end(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    await asyncio.sleep(9 * MINUTE)
    assert (await counts(host))["streams"] > 0
    assert len(await alarms(host)) == 1
    await asyncio.sleep(2 * MINUTE)
    left = await counts(host)
    assert (left["streams"], left["messages"], left["inbox"]) == (0, 2, 1)
    assert await alarms(host) == []
    await asyncio.sleep(DAY)
    assert host.statistics().active == 0
    assert len(await a.get_messages()) == 2


@pytest.mark.invariant("E16", "E23")
async def test_streams_stay_bounded_however_many_turns_there_are(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    most = 0
    for n in range(40):
        await a.save_messages(f"u{n}")
        await asyncio.sleep(3 * MINUTE)
        turns = {turn for (turn,) in await rows(host, "streams", "turn")}
        most = max(most, len(turns))
        newest = (await inbox(host, "id"))[-1][0]
        assert newest in turns
        assert len(await alarms(host)) == 1
    assert most <= 7
    await asyncio.sleep(30 * MINUTE)
    assert (await counts(host))["streams"] == 0
    assert await alarms(host) == []


@pytest.mark.invariant("E16")
async def test_the_stream_of_an_open_turn_is_never_taken(world: World) -> None:
    Talker = talker(answering("Hello", Step.text("one ") + Step.stalls(3600) + "two"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    waiting = asyncio.create_task(a.save_messages("u2"))
    await asyncio.sleep(30 * MINUTE)
    turns = {turn for (turn,) in await rows(host, "streams", "turn")}
    assert turns == {(await inbox(host, "id"))[1][0]}
    assert (await waiting).message.text == "one two"
    await asyncio.sleep(11 * MINUTE)
    assert (await counts(host))["streams"] == 0


@pytest.mark.invariant("E16")
async def test_an_interrupted_turn_keeps_its_stream_until_it_has_ended(world: World) -> None:
    Talker = talker(answering(Step.text("one ") + Step.stalls()))
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").submit_messages("u1")
    await asyncio.sleep(1)
    begun = host.clock.now()
    assert await alarms(host) == []
    host = await world.next_life()
    host.clock.set(begun + DAY * 1000)  # type: ignore[attr-defined]
    await host.until_settled()
    assert (await counts(host))["streams"] > 0
    assert len(await alarms(host)) == 1
    await asyncio.sleep(11 * MINUTE)
    assert (await counts(host))["streams"] == 0


@pytest.mark.invariant("O4")
async def test_the_alarm_survives_restarts_and_does_not_multiply(store_url: str) -> None:
    Talker = talker(answering("Hello"))
    for n in range(6):
        async with hosting(Talker, url=store_url, life=f"{n}") as host:
            if n < 3:
                await host.get(Talker, "a").save_messages(f"u{n}")
            assert len(await alarms(host)) == 1
    async with hosting(Talker, url=store_url, life="last") as host:
        await asyncio.sleep(15 * MINUTE)
        await host.until_settled()
        assert (await counts(host))["streams"] == 0
        assert await alarms(host) == []


async def test_entries_go_after_thirty_days_and_submissions_stay(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", idempotency_key="k1")
    submitted = await a.submit_messages("u2", idempotency_key="k2")
    await asyncio.sleep(29 * DAY)
    await a.save_messages("u3")
    await asyncio.sleep(11 * MINUTE)
    assert (await counts(host))["inbox"] == 3
    assert not (await a.save_messages("again", idempotency_key="k1")).accepted
    await asyncio.sleep(2 * DAY)
    await a.save_messages("u4")
    await asyncio.sleep(11 * MINUTE)
    assert [origin for (origin,) in await inbox(host, "origin")] == [
        "submission",
        "save",
        "save",
    ]
    assert (await a.inspect_submission(submitted.id)).status == "completed"
    assert not (await a.submit_messages("again", idempotency_key="k2")).accepted
    assert len(await a.get_messages()) == 8
    assert await alarms(host) == []


async def test_a_turn_that_ends_during_the_clearing_up_is_cleared_up_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker, idle_timeout=DAY)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    await asyncio.sleep(5 * MINUTE)
    agent = agent_of(host, Talker)
    store = parts_of(agent).activation.store
    fetch = store.fetch

    async def slowly(query: Any, *arguments: Any) -> Any:
        found = await fetch(query, *arguments)
        if "min(ended_at)" in query.sqlite:
            monkeypatch.setattr(store, "fetch", fetch)
            await a.save_messages("u2")  # after the look, before the commit
        return found

    monkeypatch.setattr(store, "fetch", slowly)
    await asyncio.sleep(6 * MINUTE)
    assert len(await a.get_messages()) == 4
    assert len(await alarms(host)) == 1
    await asyncio.sleep(15 * MINUTE)
    assert (await counts(host))["streams"] == 0
    assert await alarms(host) == []


async def test_an_agent_without_turns_sets_no_alarm(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.add_messages("u1")
    await a.clear_messages()
    await a.reset_turns()
    assert await a.get_messages() == []
    assert await alarms(host) == []


async def test_what_ends_without_a_turn_is_cleared_up_too(world: World) -> None:
    Talker = talker(answering(Step.stalls()))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("u1")
    waits = await a.submit_messages("u2")
    assert await a.cancel_chat(waits.id)
    assert len(await alarms(host)) == 1


async def test_what_a_reset_gives_up_is_cleared_up_too(world: World) -> None:
    Talker = talker(answering(Step.stalls()))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("u1")
    await a.reset_turns()
    assert len(await alarms(host)) == 1
