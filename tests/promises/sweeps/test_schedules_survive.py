"""Schedules created, claimed, running, retried, re-armed: killed at every commit."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from outlast import Agent, Host, Retry, Schedule
from outlast.store.operations import Query
from outlast.testing import Outcome
from support import alarm_rows
from sweeps import crash_sweep

calls: list[str] = []


class Diary(Agent):
    async def begin(self) -> None:
        if await self.storage.get("begun"):
            return
        async with self.commit():
            await self.storage.put("begun", True)
            await self.schedule(10, self.note, "once")
            await self.schedule(20, self.flaky, "flaky", retry=Retry(max_attempts=3))
            await self.schedule_every(50, self.beat)
            await self.schedule("* * * * *", self.chime)

    async def note(self, what: str) -> None:
        calls.append(what)
        await self.storage.put(what, await self.storage.get(what, 0) + 1)

    async def flaky(self, what: str) -> None:
        calls.append(what)
        if calls.count(what) % 2:
            raise ValueError("the first time in each life, perhaps")
        await self.storage.put(what, True)

    async def beat(self) -> None:
        calls.append("beat")
        beats = await self.storage.get("beats", 0) + 1
        await self.storage.put("beats", beats)
        if beats >= 3:
            for schedule in await self.get_schedules(kind="interval"):
                await self.cancel_schedule(schedule.id)

    async def chime(self, payload: None, schedule: Schedule) -> None:
        """Which occurrences there were; the first takes so long that the next one is passed over."""
        minute = schedule.time.isoformat()
        calls.append(minute)
        chimes = await self.storage.get("chimes", [])
        if not chimes:
            await asyncio.sleep(100)
        if minute not in chimes:
            chimes.append(minute)
            await self.storage.put("chimes", chimes)
        if len(chimes) >= 3:
            await self.cancel_schedule(schedule.id)

    async def everything(self) -> dict[str, Any]:
        return await self.storage.list()


async def drive(host: Host) -> None:
    await host.get(Diary, "d").begin()
    await asyncio.sleep(1000)
    await host.until_settled()


async def check(outcome: Outcome) -> None:
    stored = await outcome.host.get(Diary, "d").everything()
    deaths = len(outcome.deaths)
    assert 1 <= stored["once"] <= 1 + deaths, "at least once, again only for a death in flight"
    assert stored["flaky"] is True
    assert 3 <= stored["beats"] <= 3 + deaths
    assert calls.count("once") <= 1 + deaths
    chimes = [datetime.fromisoformat(minute) for minute in stored["chimes"]]
    assert [(time.second, time.microsecond) for time in chimes] == [(0, 0)] * 3
    assert chimes == sorted(set(chimes)), "each minute once"
    assert all(calls.count(time) <= 1 + deaths for time in stored["chimes"])
    minute = timedelta(minutes=1)
    assert 2 * minute <= chimes[1] - chimes[0] <= (2 + 2 * deaths) * minute
    assert chimes[2] - chimes[1] == minute, "none is lost"
    left = await outcome.host.store.fetch(Query.same("SELECT id FROM schedules"))
    assert left == [], "nothing is stuck"
    left = await outcome.host.store.fetch(Query.same("SELECT name FROM facts"))
    assert left == [], "what has run is forgotten with its schedule"
    assert await alarm_rows(outcome.host) == []


@pytest.mark.invariant("B1")
@pytest.mark.parametrize("mode", ["commits", "groups", "twice"])
async def test_on_sqlite(mode: Any) -> None:
    report = await crash_sweep(
        agents=[Diary], drive=drive, check=check, reset=calls.clear, outside=[calls], mode=mode
    )
    assert report.deaths >= 2 * report.commits


async def test_on_postgresql(postgres: str) -> None:
    report = await crash_sweep(
        agents=[Diary],
        drive=drive,
        check=check,
        reset=calls.clear,
        outside=[calls],
        store=postgres,
        sample=10,
    )
    assert report.deaths == 10
