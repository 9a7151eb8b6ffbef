"""SIGKILL for real: a worker with twenty fibers, killed at random and at named points."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, FiberContext, FiberRecoveryContext, Host
from outlast.testing import Worker, WorkerFailed

FIBERS = 20
STEPS = 40


class Crew(Agent):
    """Each fiber: an effect in a file, then the same step in the store together with the stash."""

    async def begin(self, folder: str) -> None:
        for number in range(FIBERS):
            await self.start_fiber(
                "crew",
                self.work,
                {"file": f"{folder}/{number}", "number": number, "done": 0},
                id=f"crew-{number}",
            )

    async def work(self, fiber: FiberContext, plan: dict[str, Any]) -> None:
        while plan["done"] < STEPS:
            step = plan["done"] + 1
            with open(plan["file"], "a") as file:
                file.write(f"{step}\n")
            async with self.commit():
                key = f"{plan['number']:02} {step:03}"
                await self.storage.put(key, await self.storage.get(key, 0) + 1)
                plan["done"] = step
                await fiber.stash(plan)

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.work)

    async def report(self) -> dict[str, int]:
        return await self.storage.list()


async def drive(host: Host, folder: str) -> None:
    await host.get(Crew, "crew").begin(folder)


def check(folder: Path, stored: dict[str, int], kills: int) -> None:
    assert stored == {
        f"{number:02} {step:03}": 1 for number in range(FIBERS) for step in range(1, STEPS + 1)
    }, "in the store: exactly once"
    repeats = 0
    for number in range(FIBERS):
        steps = [int(line) for line in (folder / str(number)).read_text().split()]
        assert sorted(set(steps)) == list(range(1, STEPS + 1)), "outside: at least once"
        assert steps == sorted(steps), "and only the step that was in flight again"
        repeats += sum(count - 1 for count in Counter(steps).values())
    assert repeats <= kills * FIBERS


@pytest.mark.invariant("A1", "A3", "A8")
@pytest.mark.parametrize("engine", ["sqlite_url", "postgres_url"])
def test_random_kills(
    engine: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    killable_worker: Callable[..., Worker],
) -> None:
    url = request.getfixturevalue(engine)
    chance = random.Random(7)
    worker = killable_worker(agents=[Crew], drive=drive, store=url, arguments=[str(tmp_path)])
    kills = 0
    for _ in range(5):
        kills += worker.run(kill_after=chance.uniform(0.0, 0.15)).killed
    worker.run()
    check(tmp_path, _stored(url), kills)


def test_named_points(tmp_path: Path, killable_worker: Callable[..., Worker]) -> None:
    url = f"sqlite:///{tmp_path}/named.db"
    worker = killable_worker(agents=[Crew], drive=drive, store=url, arguments=[str(tmp_path)])
    for point in ("before commit 1", "after commit 1", "before commit 2", "after commit 9"):
        assert worker.run(kill_at=point).killed, point
    assert not worker.run().killed
    check(tmp_path, _stored(url), 4)


async def explode(host: Host) -> None:
    raise ValueError("the drive failed")


def test_a_worker_that_fails_by_itself_is_reported_with_its_output(
    killable_worker: Callable[..., Worker],
) -> None:
    with pytest.raises(WorkerFailed, match="the drive failed"):
        killable_worker(agents=[Crew], drive=explode).run()


def test_what_another_process_cannot_import_is_refused(
    killable_worker: Callable[..., Worker],
) -> None:
    async def local(host: Host) -> None: ...

    with pytest.raises(ValueError, match="define it at the top of a module"):
        killable_worker(agents=[Crew], drive=local)
    with pytest.raises(ValueError, match="kill_at is"):
        killable_worker(agents=[Crew], drive=drive).run(kill_at="sometime")


def _stored(url: str) -> dict[str, int]:
    import asyncio

    async def read() -> dict[str, int]:
        async with Host([Crew], url) as host:
            return await host.get(Crew, "crew").report()

    return asyncio.run(read())
