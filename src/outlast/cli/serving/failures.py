"""Why an application could not start: one line for people, and what the supervisor does next.

A worker that cannot start reports a `Failure` over its lifeline. The supervisor prints it once, and stops,
waits for a change, or tries again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from outlast.cli.load.load import CannotLoad, NoTarget
from outlast.cli.load.places import named, own_place, shown
from outlast.core.errors import StoreError, StoreLocked, StoreUnavailable

Kind = Literal[
    "code",  # the user's module does not work: an edit mends it
    "target",  # the command line names nothing that can be served
    "store",  # corrupt, refused: a person has to act
    "locked",  # by the last worker of a supervisor that was killed: it is about to stop
    "passing",  # the database cannot be reached: the next attempt may succeed
]
Next = Literal["stop", "wait", "again"]

LONGEST = 2000  # characters of a line
HINT = "--log-level debug shows the traceback"
# Classes of SQLSTATE after which a later connection may work: connection, resources, operator, locks.
_PASSING_STATES = ("08", "53", "55", "57", "40")


@dataclass(frozen=True, slots=True)
class Failure:
    """A start that failed."""

    kind: Kind
    text: str

    def encode(self) -> bytes:
        """For the lifeline."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """None: the worker died before the report was complete."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None


def next_step(
    failure: Failure, *, was_ever_ready: bool, watches: bool, has_waited: bool = False
) -> Next:
    """What the supervisor does after a failed start.

    `was_ever_ready`: a worker of this supervisor has served before. `watches`: a change of a file starts the
    next worker (`outlast dev`). `has_waited`: long enough for another server to stop.
    """
    if failure.kind == "passing" or (failure.kind == "locked" and not has_waited):
        return "again"
    if watches and (failure.kind == "code" or (failure.kind == "target" and was_ever_ready)):
        return "wait"
    return "again" if was_ever_ready else "stop"


def failure_of(error: BaseException, doing: str) -> Failure:
    """Describe an error that ended a start; `doing` says at what: `import probe.py`, `start`."""
    if isinstance(error, NoTarget):
        return Failure("target", str(error))
    if isinstance(error, CannotLoad):
        return Failure("code", str(error))
    if isinstance(error, StoreError):
        kind: Kind = "passing" if is_passing(error) else "store"
        if isinstance(error, StoreLocked) and is_orphan(error.pid):
            kind = "locked"
        return Failure(kind, _line(f"{type(error).__name__}: {error}"))
    place = own_place(error)
    where = "" if place is None else f" ({shown(place[0])}:{place[1]})"
    return Failure("code", _line(f"cannot {doing}: {named(error)}{where}; {HINT}"))


def is_passing(error: StoreError) -> bool:
    """Whether a store that cannot be opened now may be opened later without anybody acting."""
    if not isinstance(error, StoreUnavailable) or error.__cause__ is None:
        return False
    state = getattr(error.__cause__, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_PASSING_STATES)
    return isinstance(error.__cause__, OSError) or type(error.__cause__).__module__.startswith(
        "asyncpg"
    )


def is_orphan(pid: int | None) -> bool:
    """Whether the process that started this one is gone. Known on Linux only."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[1] == "1"


def _line(text: str) -> str:
    """One line, of a length that a terminal and the lifeline can take."""
    joined = " ".join(text.split())
    return joined if len(joined) <= LONGEST else f"{joined[:LONGEST]}…"
