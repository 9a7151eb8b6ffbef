"""The harness itself: does it find what is wrong, and is dead really dead?"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from outlast import Agent, FiberContext, FiberRecoveryContext, Host, Think, tool
from outlast.testing import Death, Outcome, ScriptedModel, crash_sweep
from outlast.testing.death import Life

acts: list[str] = []


class Careless(Agent):
    """Counts in one commit and stashes in another: a death between them counts twice."""

    async def begin(self) -> None:
        await self.start_fiber("count", self.count, 0, id="c", wait=True)

    async def count(self, fiber: FiberContext, n: int) -> None:
        while n < 3:
            n += 1
            await self.storage.put("total", await self.storage.get("total", 0) + 1)
            await fiber.stash(n)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.count)

    async def total(self) -> int:
        return int(await self.storage.get("total"))


async def drive(host: Host) -> None:
    await host.get(Careless, "a").begin()


async def check(outcome: Outcome) -> None:
    assert await outcome.host.get(Careless, "a").total() == 3


async def test_a_count_that_is_not_atomic_is_found_and_the_point_is_named() -> None:
    with pytest.raises(AssertionError) as caught:
        await crash_sweep(agents=[Careless], drive=drive, check=check)
    assert caught.value.__notes__ == ["after dying after commit 3"]


async def test_lost_work_is_found() -> None:
    class Forgetful(Careless):
        async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None: ...

    async def drive(host: Host) -> None:
        await host.get(Forgetful, "a").begin()

    async def check(outcome: Outcome) -> None:
        assert await outcome.host.get(Forgetful, "a").total() == 3

    with pytest.raises((AssertionError, TypeError)) as caught:
        await crash_sweep(agents=[Forgetful], drive=drive, check=check)
    assert "after dying" in caught.value.__notes__[0]


class Sleeper(Agent):
    async def begin(self) -> None:
        await self.storage.put("n", await self.storage.get("n", 0) + 1)
        asyncio.get_running_loop().call_later(5, acts.append, "timer")
        self.task = asyncio.create_task(self.sleep())
        await self.storage.put("m", 1)
        try:
            await asyncio.sleep(1)
            acts.append("caller woke")
        finally:
            acts.append("caller's finally")

    async def sleep(self) -> None:
        try:
            await asyncio.sleep(1)
            acts.append("task woke")
        finally:
            acts.append("task's finally")


def test_nothing_acts_after_death(tmp_path: Any) -> None:
    acts.clear()

    async def begin(host: Host) -> None:
        await host.get(Sleeper, "s").begin()

    life = Life([Sleeper], f"sqlite:///{tmp_path}/s.db", number=1, death=Death(2, "after"))
    life.run(begin)
    assert life.died
    del life
    gc.collect()
    assert acts == [], "no timer, no task, no finally"
    second = Life([Sleeper], f"sqlite:///{tmp_path}/s.db", number=2)
    second.run(begin)
    assert "caller woke" in acts
    assert "task woke" in acts


async def test_the_store_of_a_dead_host_refuses_everything(tmp_path: Any) -> None:
    from outlast.core.errors import StoreClosed
    from outlast.store import fencing
    from outlast.store.operations import Fence

    async def begin(host: Host) -> None:
        await host.get(Sleeper, "s").begin()

    def live() -> Life:
        life = Life([Sleeper], f"sqlite:///{tmp_path}/s.db", number=1, death=Death(1, "before"))
        life.run(begin)
        return life

    store = (await asyncio.to_thread(live))._store
    assert store is not None
    with pytest.raises(StoreClosed, match="the host died"):
        store.submit(Fence.after("A/x", "me", None), [])
    with pytest.raises(StoreClosed, match="the host died"):
        await store.fetch(fencing.READ, "A/x")


@pytest.mark.parametrize(("moment", "stored"), [("before", None), ("after", 1)])
async def test_before_and_after_commit_are_what_they_say(
    moment: Any, stored: int | None, tmp_path: Any
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    found: list[Any] = []

    class Reader(Sleeper):
        async def n(self) -> Any:
            return await self.storage.get("n")

    Reader.__name__ = "Sleeper"

    async def begin(host: Host) -> None:
        await host.get(Sleeper, "s").begin()

    async def look(host: Host) -> None:
        found.append(await host.get(Reader, "s").n())

    def live() -> None:
        Life([Sleeper], url, number=1, death=Death(1, moment)).run(begin)
        Life([Reader], url, number=2).run(look)

    await asyncio.to_thread(live)
    assert found == [stored]


async def test_a_sweep_covers_both_moments_of_every_commit_and_counts_them() -> None:
    seen: list[tuple[Death, ...]] = []

    async def look(outcome: Outcome) -> None:
        seen.append(outcome.deaths)

    report = await crash_sweep(agents=[Careless], drive=drive, check=look)
    assert report.commits == 9, "accept, claim, three times count and stash, settle"
    assert seen[0] == ()
    assert set(seen[1:]) == {
        (Death(n, moment),)  # type: ignore[arg-type]
        for n in range(1, 10)
        for moment in ("before", "after")
    }
    assert (report.runs, report.deaths) == (19, 18)


async def test_twice_kills_the_second_life_too_and_a_sample_is_smaller() -> None:
    seen: list[tuple[Death, ...]] = []

    async def look(outcome: Outcome) -> None:
        seen.append(outcome.deaths)

    await crash_sweep(agents=[Careless], drive=drive, check=look, mode="twice", sample=6)
    assert len(seen) == 7
    assert any(len(deaths) == 2 for deaths in seen)


async def test_thrice_kills_the_third_life_too() -> None:
    seen: list[tuple[Death, ...]] = []

    async def look(outcome: Outcome) -> None:
        seen.append(outcome.deaths)

    report = await crash_sweep(agents=[Careless], drive=drive, check=look, mode="thrice", sample=6)
    assert len(seen) == 7
    assert any(len(deaths) == 3 for deaths in seen)
    assert report.deaths == sum(map(len, seen))


async def test_errors_of_the_caller_are_explained() -> None:
    async def idle(_: Any) -> None: ...

    with pytest.raises(ValueError, match="drive commits nothing"):
        await crash_sweep(agents=[Careless], drive=idle, check=idle)
    with pytest.raises(ValueError, match="mode is commits, groups, twice or thrice"):
        await crash_sweep(agents=[Careless], drive=drive, check=check, mode="x")  # type: ignore[arg-type]


async def test_a_run_that_differs_each_time_is_refused() -> None:
    runs: list[int] = []

    async def fickle(host: Host) -> None:
        runs.append(1)
        if len(runs) == 1:
            await host.get(Careless, "a").begin()

    async def fine(outcome: Outcome) -> None: ...

    with pytest.raises(AssertionError, match="not the same in every run"):
        await crash_sweep(agents=[Careless], drive=fickle, check=fine)


class Mailer(Think):
    model = ScriptedModel("never asked")

    @tool
    async def send_mail(self, to: str) -> str:
        outbox.append(to)
        return "sent"


outbox: list[str] = []


async def test_the_model_of_a_sweep_is_another_one() -> None:
    model = ScriptedModel.calls("send_mail", to="a@b.c").then("Done.")
    most = 0

    async def drive(host: Host) -> None:
        await host.get(Mailer, "a").submit_messages("mail them", idempotency_key="m1")
        await host.until_settled()

    def check(outcome: Outcome) -> None:
        nonlocal most
        assert len(outbox) <= 1
        most = max(most, len(outbox))

    await crash_sweep(agents=[Mailer], model=model, drive=drive, check=check, reset=outbox.clear)
    assert most == 1
    assert Mailer.model.requests == []
