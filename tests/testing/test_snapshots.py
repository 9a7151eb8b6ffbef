"""Sweeps from snapshots: they find what `crash_sweep` finds, and see whether their world is complete."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Agent, FiberContext, FiberRecoveryContext, Host
from outlast.testing import Death, Outcome, crash_sweep
from outlast.testing.snapshots import copied, put_back, snapshot_sweep

sent: list[str] = []  # the world outside


class Sender(Agent):
    """Sends two letters, and notes after each how many letters there are outside."""

    async def begin(self) -> None:
        await self.start_fiber("send", self.send, 0, id="s", wait=True)

    async def send(self, fiber: FiberContext, n: int) -> None:
        while n < 2:
            n += 1
            sent.append(f"letter {n}")
            await self.storage.put(f"sent {n}", len(sent))
            await fiber.stash(n)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.send)

    async def notes(self) -> dict[str, int]:
        return await self.storage.list("sent ")


async def drive(host: Host) -> None:
    await host.get(Sender, "a").begin()


async def notes_after(sweep: Any, **options: Any) -> dict[tuple[Death, ...], dict[str, int]]:
    """What each run leaves, by its deaths."""
    found: dict[tuple[Death, ...], dict[str, int]] = {}

    async def look(outcome: Outcome) -> None:
        found[outcome.deaths] = await outcome.host.get(Sender, "a").notes()
        assert found[outcome.deaths]["sent 2"] == len(sent)

    report = await sweep(agents=[Sender], drive=drive, check=look, reset=sent.clear, **options)
    assert report.runs == 1 + 2 * report.commits
    return found


@pytest.mark.parametrize("mode", ["commits", "groups", "twice", "thrice"])
async def test_every_run_leaves_what_it_leaves_when_it_is_replayed(mode: str) -> None:
    replayed = await notes_after(crash_sweep, mode=mode, seed=3)
    resumed = await notes_after(snapshot_sweep, outside=[sent], mode=mode, seed=3)
    assert resumed.items() <= replayed.items()
    assert {tuple(notes.items()) for notes in resumed.values()} == {
        tuple(notes.items()) for notes in replayed.values()
    }
    assert len(replayed) - len(resumed) == (4 if mode in ("commits", "groups") else 0)


async def test_an_equal_world_is_counted_and_runs_once() -> None:
    seen: list[tuple[Death, ...]] = []

    async def look(outcome: Outcome) -> None:
        seen.append(outcome.deaths)

    report = await snapshot_sweep(
        agents=[Sender], drive=drive, check=look, reset=sent.clear, outside=[sent]
    )
    assert (report.commits, report.runs, report.deaths) == (7, 15, 14)
    left_out = {
        (Death(n, moment),)  # type: ignore[arg-type]
        for n in range(1, 8)
        for moment in ("before", "after")
    } - {*seen}
    assert left_out == {(Death(n, "before"),) for n in (2, 4, 6, 7)}, "all but those with a letter"


async def test_on_postgresql_too(postgres: str) -> None:
    replayed = await notes_after(crash_sweep, store=postgres)
    resumed = await notes_after(snapshot_sweep, outside=[sent], store=postgres)
    assert resumed.items() <= replayed.items()
    assert len(resumed) == len(replayed) - 4


async def test_what_is_missing_outside_is_found_out() -> None:
    async def fine(outcome: Outcome) -> None: ...

    with pytest.raises(
        AssertionError, match="must leave the same rows as a replay, but does not in"
    ):
        await snapshot_sweep(agents=[Sender], drive=drive, check=fine, reset=sent.clear)


async def test_a_failure_names_its_deaths() -> None:
    async def once(outcome: Outcome) -> None:
        assert sent == ["letter 1", "letter 2"]

    with pytest.raises(AssertionError) as caught:
        await snapshot_sweep(
            agents=[Sender], drive=drive, check=once, reset=sent.clear, outside=[sent]
        )
    assert caught.value.__notes__ == ["after dying before commit 3"]


def test_what_is_put_back_is_what_there_was_at_all_depths() -> None:
    log, known, told = [1], {"a"}, {"x": {"y": [1]}}
    outside = [log, known, told]
    kept = copied(outside)
    log.append(2)
    known.clear()
    told["x"]["y"].append(2)
    told["z"] = {}
    for _ in range(2):
        put_back(outside, kept)
        assert outside == [[1], {"a"}, {"x": {"y": [1]}}]
        assert (outside[0], outside[1], outside[2]) == (log, known, told)
        told["x"]["y"].append(3)
