"""Why an application failed to start: one line for people, and the supervisor's next step.

A worker that cannot start reports a `Failure` over its lifeline. The supervisor prints it once, and stops,
waits for a change, or retries.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from outlast.cli.load.errors import error_text, own_place, relative
from outlast.cli.load.load import CannotLoad, InvalidTarget
from outlast.core.errors import StoreError, StoreLocked, StoreUnavailable

Kind = Literal[
    "code",  # the user's module is broken: an edit fixes it
    "target",  # the command line names nothing to serve
    "store",  # corrupt or refused: a person has to act
    "locked",  # by the last worker of a killed supervisor, which is about to stop
    "passing",  # the database is unreachable: the next attempt may succeed
]
Next = Literal["stop", "wait", "again"]

LONGEST = 2000  # characters of a line
HINT = "--log-level debug shows the traceback"
# SQLSTATE classes after which a later connection may succeed: connection, resources, operator, locks.
_PASSING_STATES = ("08", "53", "55", "57", "40")


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed start."""

    kind: Kind
    text: str

    def encode(self) -> bytes:
        """Encode it for the lifeline."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Decode a report; None if the worker died before it was complete."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None


def next_step(
    failure: Failure, *, was_ever_ready: bool, watches: bool, has_waited: bool = False
) -> Next:
    """Decide what the supervisor does after a failed start.

    `was_ever_ready`: an earlier worker of this supervisor served. `watches`: a change of a file starts the
    next worker (`outlast dev`). `has_waited`: another server has had enough time to stop.
    """
    if failure.kind == "passing" or (failure.kind == "locked" and not has_waited):
        return "again"
    if watches and (failure.kind == "code" or (failure.kind == "target" and was_ever_ready)):
        return "wait"
    return "again" if was_ever_ready else "stop"


def failure_of(error: BaseException, doing: str) -> Failure:
    """Describe an error that ended a start; `doing` names the step: `import probe.py`, `start`."""
    if isinstance(error, InvalidTarget):
        return Failure("target", str(error))
    if isinstance(error, CannotLoad):
        return Failure("code", str(error))
    if isinstance(error, StoreError):
        kind: Kind = "passing" if is_passing(error) else "store"
        if isinstance(error, StoreLocked) and is_orphan(error.pid):
            kind = "locked"
        return Failure(kind, _line(f"{type(error).__name__}: {error}"))
    place = own_place(error)
    where = "" if place is None else f" ({relative(place[0])}:{place[1]})"
    return Failure("code", _line(f"cannot {doing}: {error_text(error)}{where}; {HINT}"))


def is_passing(error: StoreError) -> bool:
    """Return whether a store that cannot be opened now may open later without intervention."""
    if not isinstance(error, StoreUnavailable) or error.__cause__ is None:
        return False
    state = getattr(error.__cause__, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_PASSING_STATES)
    return isinstance(error.__cause__, OSError) or type(error.__cause__).__module__.startswith(
        "asyncpg"
    )


def is_orphan(pid: int | None) -> bool:
    """Return whether the parent of a process is gone. Known on Linux only."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[1] == "1"


def _line(text: str) -> str:
    """Reduce a text to one line, short enough for a terminal and the lifeline."""
    joined = " ".join(text.split())
    return joined if len(joined) <= LONGEST else f"{joined[:LONGEST]}…"
