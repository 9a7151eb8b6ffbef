"""Keys for durable work that is admitted by other durable work.

A schedule's callback, or a fiber, may run again after a crash, and then repeats its admissions. Each one has
a key that is the same in the second run, so that it joins the first. Admissions are counted per target
agent: the order in which different agents are reached may differ from run to run.

* A callback starts over: its place is the occurrence. A fiber resumes from its snapshot: its place is the
  number of stashes.
* Two admissions at one place are the same if they have the same name, the same input and the same ordinal
  among those. A key never matches other work: joining the wrong work would lose the right one silently.

A schedule's row is deleted once it has run, so the table `admissions` records what was scheduled by a fiber
or a callback until that work ends. The record is written in the commit that creates the schedule, if the row
of the surrounding work still exists, and prevents a second schedule.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import Protocol

from outlast.agent.commit import Block
from outlast.store.operations import BulkStatement, Operation, Query


class Origin:
    """The durable work that the running code belongs to, and its admissions in this run."""

    __slots__ = ("_counts", "_note", "_place", "agent", "has_noted", "scope")

    def __init__(self, agent: str, scope: str, note: Operation, *, place: int) -> None:
        self.agent = agent
        self.scope = scope  # the same for all admissions of this work
        self._note = note  # its arguments find the row of the work
        self._place = place  # the occurrence, or the number of stashes
        self._counts: dict[str, int] = {}
        self.has_noted = False

    @property
    def origin(self) -> Origin:
        return self

    def key(self, agent: str, kind: str, name: str, input: str | None, block: Block | None) -> str:
        """Return the key of the next admission of this kind, name and input at `agent`.

        If the `block` around it is rolled back, the next admission gets the same key.
        """
        what = digest(agent, kind, name, input or "")
        count = self._counts[what] = self._counts.get(what, 0) + 1
        if block is not None:
            block.undo(lambda: self._take_back(what, count))
        return f"{self.scope}:{self._place}:{what}:{count}"

    def _take_back(self, what: str, count: int) -> None:
        if self._counts[what] == count:  # otherwise a later admission has the next number
            self._counts[what] = count - 1

    def note(self, key: str) -> Operation:
        """Return the operation that records an admission until the work ends."""
        self.has_noted = True
        statement, work = self._note
        return statement, (self.agent, self.scope, key, *work)


class DurableWork(Protocol):
    """Work that may run again after a crash. A fiber has a new origin after each stash."""

    @property
    def origin(self) -> Origin: ...


class Occurrence:
    """One run of a schedule's callback."""

    def __init__(self, agent: str, id: str, occurrence: int) -> None:
        note = _NOTE_IN_CALLBACK, (agent, id, occurrence)
        self.origin = Origin(agent, schedule_scope(id), note, place=occurrence)


current_work: ContextVar[DurableWork | None] = ContextVar("outlast_current_work", default=None)


def current_origin() -> Origin | None:
    """Return the origin of the running code; None if no durable work surrounds it."""
    work = current_work.get()
    return None if work is None else work.origin


def fiber_origin(agent: str, id: str, root_id: str, stashes: int) -> Origin:
    """Return the origin of a fiber's admissions until its next stash."""
    note = _NOTE_IN_FIBER, (agent, id)
    return Origin(agent, fiber_scope(root_id), note, place=stashes)


def schedule_scope(id: str) -> str:
    return f"schedule:{id}"


def fiber_scope(root_id: str) -> str:
    return f"fiber:{root_id}"


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


# --- the table -----------------------------------------------------------------------------------


def note_statement(work: str) -> BulkStatement:
    """Insert nothing if the surrounding work has ended: no commit would delete the row."""
    return BulkStatement.same(
        "admissions note",
        "INSERT INTO admissions (agent, origin, key)"
        " SELECT CAST(? AS text), CAST(? AS text), CAST(? AS text)"
        f" WHERE EXISTS (SELECT 1 FROM {work}) ON CONFLICT DO NOTHING",
    )


_NOTE_IN_CALLBACK = note_statement("schedules WHERE agent = ? AND id = ? AND occurrence = ?")
_NOTE_IN_FIBER = note_statement("fibers WHERE agent = ? AND id = ? AND settled_at IS NULL")
WAS_ADMITTED = Query.same("SELECT 1 FROM admissions WHERE agent = ? AND origin = ? AND key = ?")
_FORGET = BulkStatement.same(
    "admissions forget", "DELETE FROM admissions WHERE agent = ? AND origin = ?"
)


def forget(agent: str, scope: str) -> Operation:
    """Return the operation for the commit that ends the work: it cannot run again."""
    return _FORGET, (agent, scope)
