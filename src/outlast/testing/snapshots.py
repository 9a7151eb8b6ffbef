"""A crash sweep that runs its first life once, and takes a snapshot of the world at each of its commits.

`crash_sweep` replays the first life for every point of death, because it knows nothing of what is outside
the store. Here the caller names it: `outside` are the lists, sets and dicts that stand for it. A snapshot is
a copy of these, of the store, and the time. Each run then begins with its second life, from a snapshot.

Two snapshots that are equal are one world: what follows from them is the same, and runs once. *After commit
n* and *before commit n + 1* are equal when nothing has happened outside between them.

In mode "commits" on SQLite, one run of each sweep is replayed as well, and must leave the same rows:
otherwise something is missing in `outside`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.testing.archives import Archive, PostgresArchive, SqliteArchive, rows_of
from outlast.testing.death import Death, Drive, Life
from outlast.testing.sweep import Check, Plan, Sweep, SweepMode, SweepReport, modelled
from outlast.testing.virtual import START

State = list[Any] | set[Any] | dict[Any, Any]


async def snapshot_sweep(
    *,
    agents: Sequence[type[Any]],
    drive: Drive,
    check: Check,
    outside: Sequence[State] = (),
    reset: Callable[[], Any] | None = None,
    model: Any = None,
    store: str | None = None,
    mode: SweepMode = "commits",
    seed: int = 0,
    sample: int | None = None,
    host_options: dict[str, Any] | None = None,
) -> SweepReport:
    """`crash_sweep`, from snapshots. Its report counts the points that were covered, as that one does."""
    sweep = SnapshotSweep(agents, drive, check, reset, store, mode, seed, sample, host_options)
    sweep.outside = outside
    with modelled(agents, model):
        return await asyncio.to_thread(sweep.run)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The world at a point of death."""

    commits: int  # which the store holds
    outside: list[Any]
    time: int  # in milliseconds: when the next life begins


class SnapshotSweep(Sweep):
    """A sweep whose runs begin with their second life."""

    outside: Sequence[State] = ()
    _archive: Archive | None = None

    def run(self) -> SweepReport:
        self._snapshots: dict[Death, Snapshot] = {}
        try:
            return super().run()
        finally:
            if self._archive is not None:
                self._archive.close()

    def _first_life(self) -> Life:
        url = self._empty_store()
        if self._store is None:
            self._archive = SqliteArchive(url)
        else:
            self._archive = PostgresArchive(self._store, url, self._schemas[-1])
        life = self._life(url, 1, None, START)
        life.dies_at = lambda point: self._keep(point, life)
        return life

    def _keep(self, point: Death, life: Life) -> bool:
        """Take a snapshot; the life goes on."""
        assert self._archive is not None
        commits = point.commit - (point.moment == "before")
        self._archive.keep(commits)
        self._snapshots[point] = Snapshot(commits, copied([*self.outside]), life.next_start)
        return False

    def _die_at_each(self, plans: Sequence[Plan]) -> None:
        is_compared = self._mode == "commits" and self._store is None
        compared = plans[len(plans) // 2] if is_compared else None
        before: Snapshot | None = None
        for plan in plans:
            self._runs += 1
            snapshot = self._snapshots[plan[0]]
            if len(plan) == 1 and snapshot == before and plan != compared:
                self._deaths += 1
                continue
            left = self._resume(plan)
            before = snapshot
            if plan == compared:
                self._compare(plan, left)

    def _resume(self, plan: Plan) -> str:
        """One run, from the snapshot at its first death on: the URL of the store that it leaves."""
        assert self._archive is not None
        snapshot = self._snapshots[plan[0]]
        put_back(self.outside, snapshot.outside)
        url = self._archive.put_back(snapshot.commits)
        self._live_on(url, plan, snapshot.time)
        return url

    def _compare(self, plan: Plan, left: str) -> None:
        """Replay a run. It must leave the same rows as from a snapshot."""
        found, deaths = rows_of(left), self._deaths
        expected = rows_of(self._die_at(plan))
        self._deaths = deaths
        if found != expected:
            differing = [table for table in expected if expected[table] != found[table]]
            raise AssertionError(
                f"after dying {plan[0]}, a run from a snapshot must leave the same rows as a replay, but does"
                f" not in {', '.join(differing)}. Name all that is outside the store in `outside`"
            )


def copied(state: Any) -> Any:
    """A copy of lists, sets and dicts, at all depths; whatever else they hold is taken to stay as it is."""
    if isinstance(state, list):
        return [copied(each) for each in state]
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return set(state) if isinstance(state, set) else state


def put_back(outside: Sequence[State], kept: Sequence[Any]) -> None:
    """Let these objects hold again what they held then."""
    for state, then in zip(outside, kept, strict=True):
        if isinstance(state, list):
            state[:] = copied(then)
        else:
            state.clear()
            state.update(copied(then))
