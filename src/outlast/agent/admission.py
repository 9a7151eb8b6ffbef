"""What durable work that is admitted from inside other durable work is recognised by.

A schedule's callback, or a fiber, may run again after a death, and then admits again what it had admitted.
Each admission inside gets a key that comes out the same in the second run, so that it joins the first. What
is admitted at different agents is counted apart: which of them is reached first may differ from run to run.

* A callback starts over: its place is the occurrence. A fiber goes on from its snapshot: its place is how
  often it has stashed.
* What is admitted at one place is the same if it has the same name and the same input, and is the n-th of
  those. Other work is never taken for it: to join the wrong one would lose it without a trace.

A schedule's row goes when it has run, so what was scheduled from inside is noted in the table `admissions`
until the work around it has ended, and cannot run again. The note is made in the commit that makes the
schedule, if the row of the work around it is still there, and refuses a second one.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import Protocol

from outlast.agent.commit import Block
from outlast.store.operations import BulkStatement, Operation, Query


class Origin:
    """The work around the running code, and what it has admitted in this run."""

    __slots__ = ("_counts", "_note", "_place", "agent", "has_noted", "scope")

    def __init__(self, agent: str, scope: str, note: Operation, *, place: int) -> None:
        self.agent = agent
        self.scope = scope  # the same for all that it ever admits
        self._note = note  # with what finds its row
        self._place = place  # which occurrence, or how far it had come
        self._counts: dict[str, int] = {}
        self.has_noted = False

    @property
    def origin(self) -> Origin:
        return self

    def key(self, agent: str, kind: str, name: str, input: str | None, block: Block | None) -> str:
        """The key of the next admission of this kind, name and input at `agent`.

        If the block that it is part of is given up, the next one is this one.
        """
        what = digest(agent, kind, name, input or "")
        count = self._counts[what] = self._counts.get(what, 0) + 1
        if block is not None:
            block.undo(lambda: self._take_back(what, count))
        return f"{self.scope}:{self._place}:{what}:{count}"

    def _take_back(self, what: str, count: int) -> None:
        if self._counts[what] == count:  # a later one has its number already
            self._counts[what] = count - 1

    def note(self, key: str) -> Operation:
        """Remember an admission, for as long as the work around it is there."""
        self.has_noted = True
        statement, work = self._note
        return statement, (self.agent, self.scope, key, *work)


class Admitting(Protocol):
    """Work that has an origin; a fiber's is another one after each stash."""

    @property
    def origin(self) -> Origin: ...


class Occurrence:
    """One run of a schedule's callback."""

    def __init__(self, agent: str, id: str, occurrence: int) -> None:
        note = _NOTE_IN_CALLBACK, (agent, id, occurrence)
        self.origin = Origin(agent, schedule_scope(id), note, place=occurrence)


admitting: ContextVar[Admitting | None] = ContextVar("outlast_admitting", default=None)


def current_origin() -> Origin | None:
    """What the running code belongs to; None: to nothing that could run again."""
    around = admitting.get()
    return None if around is None else around.origin


def fiber_origin(agent: str, id: str, root_id: str, stashes: int) -> Origin:
    """Of what a fiber admits until its next stash."""
    note = _NOTE_IN_FIBER, (agent, id)
    return Origin(agent, fiber_scope(root_id), note, place=stashes)


def schedule_scope(id: str) -> str:
    return f"schedule:{id}"


def fiber_scope(root_id: str) -> str:
    return f"fiber:{root_id}"


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


# --- the table -----------------------------------------------------------------------------------


def noting(work: str) -> BulkStatement:
    """Unless the work around has ended, or was cancelled: then nobody would ever forget it."""
    return BulkStatement.same(
        "admissions note",
        "INSERT INTO admissions (agent, origin, key)"
        " SELECT CAST(? AS text), CAST(? AS text), CAST(? AS text)"
        f" WHERE EXISTS (SELECT 1 FROM {work}) ON CONFLICT DO NOTHING",
    )


_NOTE_IN_CALLBACK = noting("schedules WHERE agent = ? AND id = ? AND occurrence = ?")
_NOTE_IN_FIBER = noting("fibers WHERE agent = ? AND id = ? AND settled_at IS NULL")
WAS_ADMITTED = Query.same("SELECT 1 FROM admissions WHERE agent = ? AND origin = ? AND key = ?")
_FORGET = BulkStatement.same(
    "admissions forget", "DELETE FROM admissions WHERE agent = ? AND origin = ?"
)


def forget(agent: str, scope: str) -> Operation:
    """For the commit that ends the work: it cannot run again, so nobody will ask."""
    return _FORGET, (agent, scope)
