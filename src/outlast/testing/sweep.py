"""`crash_sweep`: dies once at every commit, and sees whether the next life makes it good."""

from __future__ import annotations

import asyncio
import inspect
import random
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from outlast.host.life.host import Host
from outlast.testing.death import Death, Drive, Life
from outlast.testing.virtual import START

SweepMode = Literal["commits", "groups", "twice", "thrice"]
MODES: tuple[SweepMode, ...] = ("commits", "groups", "twice", "thrice")
GROUP_SIZES = (2, 3, 5, 1000)
SOON = 12  # commits of a life that dies again soon


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `check` is given: the host of the last life, and the deaths that it came after."""

    host: Host
    deaths: tuple[Death, ...]


@dataclass(frozen=True, slots=True)
class SweepReport:
    """How much a sweep has covered."""

    commits: int  # of an undisturbed run
    runs: int
    deaths: int


Plan = tuple[Death, ...]  # where the lives of one run end, one after another; the last one does not
Check = Callable[[Outcome], Awaitable[None] | None]


async def crash_sweep(
    *,
    agents: Sequence[type[Any]],
    drive: Drive,
    check: Check,
    reset: Callable[[], Any] | None = None,
    model: Any = None,
    store: str | None = None,
    mode: SweepMode = "commits",
    seed: int = 0,
    sample: int | None = None,
    host_options: dict[str, Any] | None = None,
) -> SweepReport:
    """Run `drive` once undisturbed, then once per commit with the host dead at that point.

    Each time: `reset` (for what lives outside the store), an empty store, `drive(host)` until the host
    dies; then a new host on the same store, `drive(host)` again to its end, and `check(outcome)`. A host
    dies twice per commit, before COMMIT and after it. Time is virtual, ids are the same in every run.

    `model` is the model of all chat agents among them, for as long as the sweep takes.
    `store`: none for a temporary SQLite file, or a PostgreSQL URL (each run gets a schema of its own).
    `mode`: "commits" gives every batch its own transaction, so that the points are the same in every
    run; "groups" commits in real groups, of sizes that `seed` decides; "twice" dies again in the second
    life, at a commit that `seed` decides; "thrice" dies soon in the second life and soon in the third, in
    the middle of what they make good. `sample` takes so many of the points, evenly, instead of all.

    ```python
    from outlast import Agent
    from outlast.testing import crash_sweep

    class Steps(Agent):
        async def begin(self) -> None:
            await self.start_fiber("steps", self.steps, 0, id="steps", wait=True)

        async def steps(self, fiber, n: int) -> None:
            while n < 3:
                n += 1
                async with self.commit():                  # the effect and the position, together
                    await self.storage.put(f"step {n}", (await self.storage.get(f"step {n}") or 0) + 1)
                    await fiber.stash(n)

        async def on_fiber_recovered(self, fiber) -> None:
            fiber.resume(self.steps)

        async def done(self) -> dict:
            return await self.storage.list("step ")

    async def drive(host) -> None:
        await host.get(Steps, "a").begin()

    async def check(outcome) -> None:
        assert await outcome.host.get(Steps, "a").done() == {"step 1": 1, "step 2": 1, "step 3": 1}

    report = await crash_sweep(agents=[Steps], drive=drive, check=check)
    assert report.deaths == 2 * report.commits
    ```
    """
    sweep = Sweep(agents, drive, check, reset, store, mode, seed, sample, host_options)
    with modelled(agents, model):
        return await asyncio.to_thread(sweep.run)


@contextmanager
def modelled(agents: Sequence[type[Any]], model: Any) -> Iterator[None]:
    """The same classes, with another model."""
    with ExitStack() as stack:
        for each in agents:
            if model is not None and hasattr(each, "get_model"):
                stack.enter_context(patch.object(each, "model", model))
        yield


class Sweep:
    """One sweep: its plans, its runs, and what they have covered so far."""

    def __init__(
        self,
        agents: Sequence[type[Any]],
        drive: Drive,
        check: Check,
        reset: Callable[[], Any] | None,
        store: str | None,
        mode: SweepMode,
        seed: int,
        sample: int | None,
        host_options: dict[str, Any] | None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is commits, groups, twice or thrice, not {mode!r}")
        self._agents = agents
        self._drive = drive
        self._check = check
        self._reset = reset
        self._store = store
        self._mode = mode
        self._random = random.Random(seed)
        self._sample = sample
        self._host_options = host_options
        self._max_group = self._random.choice(GROUP_SIZES) if mode == "groups" else 1
        self._deaths = 0
        self._runs = 0
        self._stores = 0
        self._schemas: list[str] = []

    def run(self) -> SweepReport:
        with tempfile.TemporaryDirectory(prefix="outlast-sweep-", dir=_fast_folder()) as folder:
            self._folder = Path(folder)
            try:
                commits = self._undisturbed()
                self._die_at_each(self._plans(commits))
            finally:
                if self._schemas:
                    asyncio.run(self._drop_schemas())
        return SweepReport(commits, self._runs, self._deaths)

    def _undisturbed(self) -> int:
        self._runs += 1
        life = self._first_life()
        life.run(self._drive, self._checking(()))
        if not life.commits:
            raise ValueError("drive commits nothing, so there is no point at which to die")
        return life.commits

    def _first_life(self) -> Life:
        return self._life(self._empty_store(), 1, None, START)

    def _plans(self, commits: int) -> list[Plan]:
        """Where the lives of each run end."""
        points = [
            Death(commit, moment)
            for commit in range(1, commits + 1)
            for moment in ("before", "after")
        ]
        latest = min(commits, SOON) if self._mode == "thrice" else commits
        return [(first, *self._further(latest)) for first in _sampled(points, self._sample)]

    def _further(self, latest: int) -> Iterator[Death]:
        for _ in range({"twice": 1, "thrice": 2}.get(self._mode, 0)):
            moment = self._random.choice(("before", "after"))
            yield Death(self._random.randint(1, latest), moment)  # type: ignore[arg-type]

    def _die_at_each(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            self._runs += 1
            self._die_at(plan)

    def _die_at(self, plan: Plan) -> str:
        """One run, from an empty store on: the URL of the store that it leaves."""
        url = self._empty_store()
        first = self._life(url, 1, plan[0], START)
        first.run(self._drive)
        if not first.died and self._store is None:
            raise AssertionError(
                f"the run has no commit {plan[0].commit} this time: it is not the same in"
                f" every run. Does it use real time, threads or randomness?"
            )
        self._live_on(url, plan, first.next_start, has_died=first.died)
        return url

    def _live_on(self, url: str, plan: Plan, start: int, *, has_died: bool = True) -> None:
        """The lives after the first one. The last of them is checked."""
        deaths = [plan[0]] if has_died else []
        for number, death in enumerate(plan[1:], 2):
            if len(deaths) < number - 1:  # the life before this one has come to its end
                break
            life = self._life(url, number, death, start)
            with _NoteDeaths(deaths):
                life.run(self._drive)
            start = life.next_start
            if life.died:
                deaths.append(death)
        self._deaths += len(deaths)
        with _NoteDeaths(deaths):
            last = self._life(url, len(plan) + 1, None, start)
            last.run(self._drive, self._checking(tuple(deaths)))

    def _life(self, url: str, number: int, death: Death | None, start: int) -> Life:
        return Life(
            self._agents,
            url,
            number=number,
            death=death,
            max_group=self._max_group,
            start=start,
            host_options=self._host_options,
        )

    def _checking(self, deaths: tuple[Death, ...]) -> Drive:
        async def act(host: Host) -> None:
            await host.until_settled()
            answer = self._check(Outcome(host, deaths))
            if inspect.isawaitable(answer):
                await answer

        return act

    def _empty_store(self) -> str:
        if self._reset is not None:
            self._reset()
        self._stores += 1
        if self._store is None:
            return f"sqlite:///{self._folder}/{self._stores}.db?synchronous=off"
        return self._new_schema()

    def _new_schema(self) -> str:
        separator = "&" if "?" in (self._store or "") else "?"
        self._schemas.append(f"sweep_{secrets.token_hex(8)}")
        return f"{self._store}{separator}schema={self._schemas[-1]}"

    async def _drop_schemas(self) -> None:
        import asyncpg

        connection = await asyncpg.connect(self._store)
        try:
            for schema in self._schemas:
                await connection.execute("SET client_min_messages = error")
                await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        finally:
            await connection.close()


class _NoteDeaths:
    """Add to an error the deaths that it came after."""

    def __init__(self, deaths: Sequence[Death]) -> None:
        self._deaths = deaths

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self._deaths:
            error.add_note(f"after dying {', then '.join(map(str, self._deaths))}")


def _sampled(points: list[Death], sample: int | None) -> Iterator[Death]:
    if sample is None or sample >= len(points):
        yield from points
    else:
        for index in range(sample):
            yield points[index * len(points) // sample]


def _fast_folder() -> str | None:
    """Memory rather than disk, where there is such a folder: process death needs no fsync."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
