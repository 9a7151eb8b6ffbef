"""SIGKILL for real: a worker with twenty fibers, killed at random and at named points."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, FiberContext, FiberRecoveryContext, Host
from outlast.testing import Worker, WorkerFailed

pytestmark = pytest.mark.usefixtures("forks")

FIBERS = 20


class Crew(Agent):
    """Each fiber: an effect in a file, then the same step in the store together with the stash."""

    async def begin(self, folder: str) -> None:
        for number in range(FIBERS):
            await self.start_fiber(
                "crew",
                self.work,
                {"folder": folder, "number": number, "done": 0},
                id=f"crew-{number}",
            )

    async def work(self, fiber: FiberContext, plan: dict[str, Any]) -> None:
        folder, number = Path(plan["folder"]), plan["number"]
        while True:
            is_last = (folder / "stop").exists()
            step = plan["done"] + 1
            with open(folder / str(number), "a") as file:
                file.write(f"{step}\n")
            await asyncio.sleep(0.001)
            async with self.commit():
                key = f"{number:02} {step:06}"
                await self.storage.put(key, await self.storage.get(key, 0) + 1)
                plan["done"] = step
                await fiber.stash(plan)
            if is_last:
                return

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> None:
        fiber.resume(self.work)

    async def report(self) -> tuple[dict[str, int], dict[int, int], set[str]]:
        """What stands in the store, how far each fiber has come, and how they ended."""
        fibers = await self.list_fibers(limit=100)
        done = {one.snapshot["number"]: one.snapshot["done"] for one in fibers}
        return await self.storage.list(), done, {one.status for one in fibers}


async def drive(host: Host, folder: str) -> None:
    await host.get(Crew, "crew").begin(folder)


def check(folder: Path, url: str, kills: int) -> int:
    """Returns how many steps were made in all."""
    stored, done, statuses = asyncio.run(_report(url))
    assert statuses == {"completed"}
    assert len(done) == FIBERS
    expected = {
        f"{number:02} {step:06}": 1
        for number, steps in done.items()
        for step in range(1, steps + 1)
    }
    assert stored == expected, "in the store: exactly once"
    for number, steps in done.items():
        made = [int(line) for line in (folder / str(number)).read_text().split()]
        assert sorted(set(made)) == list(range(1, steps + 1)), "outside: at least once"
        assert made == sorted(made), "and only the step that was in flight again"
        assert len(made) - steps <= kills, "once a kill"
    return len(expected)


async def _report(url: str) -> Any:
    async with Host([Crew], url) as host:
        return await host.get(Crew, "crew").report()


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
    for _ in range(5):
        assert worker.run(kill_after=chance.uniform(0.0, 0.15)).killed
    (tmp_path / "stop").touch()
    assert not worker.run().killed
    check(tmp_path, url, kills=5)


def test_named_points(tmp_path: Path, killable_worker: Callable[..., Worker]) -> None:
    url = f"sqlite:///{tmp_path}/named.db"
    worker = killable_worker(agents=[Crew], drive=drive, store=url, arguments=[str(tmp_path)])
    for point in ("before commit 1", "after commit 1", "before commit 2", "after commit 99"):
        assert worker.run(kill_at=point).killed, point
    (tmp_path / "stop").touch()
    assert not worker.run().killed
    assert check(tmp_path, url, kills=4) > 0


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
