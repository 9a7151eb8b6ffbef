"""What durable work that is admitted from inside other durable work is recognised by.

A schedule's callback, or a fiber, may run again after a death, and then admits again what it had admitted.
Each admission inside gets a key that comes out the same in the second run, so that it joins the first.

* A callback starts over: the n-th admission of a name in an occurrence is the same in each run of it.
* A fiber goes on from its snapshot: what it admits between two stashes is the same if it has the same name
  and the same input, and is the n-th of those. Other work is never taken for it.

A schedule's row goes when it has run, so what was scheduled from inside is noted in the table `admissions`
until the work around it has ended, and cannot run again.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import Protocol

from outlast.store.operations import BulkStatement, Operation, Query, Statement


class Origin:
    """The work around the running code, and what it has admitted in this run."""

    __slots__ = ("_by_input", "_counts", "_place", "agent", "scope")

    def __init__(self, agent: str, scope: str, *, place: str = "", by_input: bool = False) -> None:
        self.agent = agent
        self.scope = scope  # the same for all that it ever admits
        self._place = place  # how far it had come
        self._by_input = by_input
        self._counts: dict[str, int] = {}

    def key(self, kind: str, name: str, input: str | None) -> str:
        """The key of the next admission of this kind, name and input."""
        what = digest(kind, name, input or "") if self._by_input else digest(kind, name)
        count = self._counts[what] = self._counts.get(what, 0) + 1
        return f"{self.scope}{self._place}:{what}:{count}"


class Admitting(Protocol):
    """Work that has an origin; a fiber's is another one after each stash."""

    @property
    def origin(self) -> Origin: ...


class Occurrence:
    """One run of a schedule's callback."""

    def __init__(self, agent: str, id: str, occurrence: int) -> None:
        self.origin = Origin(agent, occurrence_scope(id, occurrence))


admitting: ContextVar[Admitting | None] = ContextVar("outlast_admitting", default=None)


def current_origin() -> Origin | None:
    """What the running code belongs to; None: to nothing that could run again."""
    around = admitting.get()
    return None if around is None else around.origin


def occurrence_scope(id: str, occurrence: int) -> str:
    return f"schedule:{id}:{occurrence}"


def fiber_scope(agent: str, root_id: str) -> str:
    """Users may give fibers ids of their own: those are unique within the agent only."""
    return f"fiber:{digest(agent, root_id)}"


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


# --- the table -----------------------------------------------------------------------------------

NOTE = Statement(
    "admissions note",
    sqlite="INSERT INTO admissions (agent, origin, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
    postgres="""
        INSERT INTO admissions (agent, origin, key) SELECT u.agent, u.origin, u.key FROM {rows}
        ON CONFLICT DO NOTHING
    """,
    columns=[("agent", "text"), ("origin", "text"), ("key", "text")],
    key=3,
)
WAS_ADMITTED = Query.same("SELECT 1 FROM admissions WHERE agent = ? AND origin = ? AND key = ?")
_FORGET = BulkStatement(
    "admissions forget",
    sqlite="DELETE FROM admissions WHERE agent = ? AND origin = ?",
    postgres="DELETE FROM admissions WHERE agent = $1 AND origin = $2",
)


def forget(agent: str, scope: str) -> Operation:
    """For the commit that ends the work: it cannot run again, so nobody will ask."""
    return _FORGET, (agent, scope)
