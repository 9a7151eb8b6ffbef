"""Why a worker ended, how to log it, and when to start the next one. Pure."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from outlast.cli.serving.settings import NO_MEMORY
from outlast.host.causes import CRASHED, DEPLOY, OOM

SETTLED = 5.0  # seconds of readiness after which a worker counts as sound, even without requests
STEADY = 1.0  # seconds of readiness that suffice for a worker that served a client
WAITS = (0.0, 0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)  # seconds
HASTY = 20  # consecutive workers that may serve and crash within STEADY before a pause
HASTY_WAIT = 1.0  # seconds
POLITE = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """The exit of a worker."""

    code: int  # the exit status, or the negative number of a signal
    lived: float  # seconds
    ready_for: float | None = 0.0  # seconds since it opened its store; None: it never did
    has_served: bool = False  # it responded to a request or delivered a chunk
    asked: bool = False  # the supervisor asked it to stop
    oom_kills: int = 0  # OOM kills in its control group during its lifetime

    @property
    def was_ready(self) -> bool:
        return self.ready_for is not None

    @property
    def was_sound(self) -> bool:
        """Whether it ran long enough to show that the cause of its end does not affect the next worker."""
        enough = STEADY if self.has_served else SETTLED
        return self.ready_for is not None and self.ready_for >= enough


def cause_of(exit_: WorkerExit) -> str:
    """Classify the exit."""
    if exit_.asked or exit_.code == 0 or -exit_.code in POLITE:
        return DEPLOY
    if exit_.code == NO_MEMORY or (exit_.code == -signal.SIGKILL and exit_.oom_kills > 0):
        return OOM
    return CRASHED


def cause_for_next(exit_: WorkerExit, previous: str | None) -> str:
    """Return the cause to pass to the next worker, when this one received `previous`.

    A worker that never opened the store interrupted nothing, and could not record the cause it received: the
    next one receives the same.
    """
    return cause_of(exit_) if exit_.was_ready or previous is None else previous


def wait_after(exits: Sequence[WorkerExit]) -> float:
    """Return the seconds until the next worker starts, after these exits, the newest last.

    A worker that served a client is replaced at once, however many crashed before it. A worker that served
    nobody may be unable to: the more of them in a row, the longer the wait. The first two do not count.

    Traffic could hide a worker that crashes right after each start. So there is another limit: after many
    in a row, none of them ready for `STEADY` seconds, one starts every `HASTY_WAIT`.
    """
    useless = _in_a_row(exits, lambda exit_: not exit_.has_served and not exit_.was_sound)
    hasty = _in_a_row(exits, lambda exit_: not exit_.was_sound)
    slowed = HASTY_WAIT if hasty > HASTY else 0.0
    return max(slowed, WAITS[min(max(useless - 1, 0), len(WAITS) - 1)])


def _in_a_row(exits: Sequence[WorkerExit], fits: Callable[[WorkerExit], bool]) -> int:
    """Count the newest exits that fit, up to the first that does not."""
    return sum(1 for _ in takewhile(fits, reversed(exits)))


def described(pid: int, exit_: WorkerExit) -> str:
    """Return the log line about an exit."""
    how = f"ended with exit status {exit_.code}"
    if exit_.code < 0:
        how = f"was killed by {_name(-exit_.code)}"
    return f"worker {pid} {how} after {exit_.lived:.1f} s"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
