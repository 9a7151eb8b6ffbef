"""Ways to break outlast on purpose, inside the worker: the checker must find each of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

from outlast.agent import admission
from outlast.agent.agent import Agent
from outlast.agent.fibers import fiber
from outlast.agent.schedules import sql as schedule_rows
from outlast.agent.state import facts
from outlast.agent.subagents import subagents
from outlast.host.life import family
from outlast.store.operations import BulkStatement, Query


def _replace(owner: Any, name: str, new: Any) -> None:
    setattr(owner, name, new)


def _nothing(name: str) -> tuple[BulkStatement, tuple[()]]:
    sql = "DELETE FROM admissions WHERE 1 = 0"
    return BulkStatement(name, sql, sql), ()


def _forget() -> None:
    """Notes of what was admitted are kept when the work around them has ended."""
    every = admission._FORGET
    none = BulkStatement(every.name, f"{every.sqlite} AND 1 = 0", f"{every.postgres} AND 1 = 0")
    _replace(admission, "_FORGET", none)


def _note() -> None:
    """What a callback or a fiber has scheduled is not noted, and scheduled again by the next run."""
    nothing = _nothing("admissions note")
    _replace(admission.Origin, "note", lambda self, key: nothing)


def _key() -> None:
    """Work that is admitted from inside other work gets another key in each run."""
    numbers = itertools.count()
    key: Any = admission.Origin.key

    def other(*arguments: Any) -> str:
        return f"{key(*arguments)} {os.getpid()} {next(numbers)}"

    _replace(admission.Origin, "key", other)


def _stash() -> None:
    """A stash is not stored."""

    async def stash(self: Any, data: Any) -> None: ...

    _replace(fiber.Fiber, "stash", stash)


def _state() -> None:
    """The state is a commit of its own, also inside a block."""

    async def set(self: Any, name: str, text: str, then: Any = None) -> None:
        self._stored[name] = text
        await self.commits.commit([(facts._SET, (self.address, name, text))])

    _replace(facts.Facts, "set", set)


def _deletion() -> None:
    """The rows of a removed agent go, but for those of its schedules."""
    deletion: Any = subagents.deletion

    def some(*arguments: Any) -> Any:
        return [one for one in deletion(*arguments) if one[0].name != "schedules delete"]

    _replace(subagents, "deletion", some)


def _two_commits() -> None:
    """A sub-agent is deleted in two commits: some of its rows, then the others."""
    commit: Any = family.FamilyRemoval.commit

    async def twice(self: Any, operations: list[Any], *, with_root: bool) -> Any:
        if not with_root:
            await commit(self, operations[:2], with_root=False)
            operations = operations[2:]
        return await commit(self, operations, with_root=with_root)

    _replace(family.FamilyRemoval, "commit", twice)


def _alarm() -> None:
    """The alarm of schedules is set when there is none, and then left alone."""
    nothing = _nothing("alarms clear")
    arm, unless = schedule_rows.ARM, " ON CONFLICT DO NOTHING"
    once = BulkStatement(arm.name, arm.sqlite + unless, arm.postgres + unless)
    _replace(schedule_rows, "rearm", lambda agent: [nothing, (once, (agent, agent))])


def _claimed() -> None:
    """A callback that was running when the process died is not run again."""
    of_fibers = tuple(one for one in Agent._unfinished_work if "fibers" in one.sqlite)
    due = schedule_rows.DUE.sqlite
    unclaimed = due.replace("claimed_at IS NOT NULL OR", "claimed_at IS NULL AND")
    assert unclaimed != due
    _replace(Agent, "_unfinished_work", of_fibers)
    _replace(schedule_rows, "DUE", Query.same(unclaimed, bulk=True))


SABOTAGES: dict[str, Callable[[], None]] = {
    "forget": _forget,
    "note": _note,
    "key": _key,
    "stash": _stash,
    "state": _state,
    "deletion": _deletion,
    "two-commits": _two_commits,
    "alarm": _alarm,
    "claimed": _claimed,
}


def apply(name: str | None) -> None:
    """Break it in this process; None: leave it as it is."""
    if name is not None:
        SABOTAGES[name]()
