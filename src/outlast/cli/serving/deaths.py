"""Why a worker ended, what to say of it, and when to start the next one. Pure."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from outlast.cli.serving.settings import NO_MEMORY
from outlast.host.causes import CRASHED, DEPLOY, OOM

SETTLED = (
    5.0  # seconds of being ready that show a worker to be sound, even if nobody asks it anything
)
STEADY = 1.0  # seconds of being ready that are enough for a worker that has served something
WAITS = (0.0, 0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)  # seconds
HASTY = 20  # workers in a row that may each serve something and die within STEADY before there is a pause
HASTY_WAIT = 1.0  # seconds
POLITE = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended."""

    code: int  # the exit status; a signal's number, negative
    lived: float  # seconds
    ready_for: float | None = 0.0  # seconds since it had opened its store; None: it never had
    has_served: bool = False  # it has answered a request or delivered a chunk
    asked: bool = False  # the supervisor wanted it to stop
    oom_kills: int = 0  # how many processes around it were killed for their memory while it lived

    @property
    def was_ready(self) -> bool:
        return self.ready_for is not None

    @property
    def was_sound(self) -> bool:
        """Whether it lived long enough to show that whatever ended it is not in the way of the next one."""
        enough = STEADY if self.has_served else SETTLED
        return self.ready_for is not None and self.ready_for >= enough


def cause_of(death: Death) -> str:
    """The word for it."""
    if death.asked or death.code == 0 or -death.code in POLITE:
        return DEPLOY
    if death.code == NO_MEMORY or (death.code == -signal.SIGKILL and death.oom_kills > 0):
        return OOM
    return CRASHED


def handed_on(death: Death, told: str | None) -> str:
    """What the next worker is told, when the one that died was told `told`.

    A worker that never got as far as opening the store has interrupted nothing, and could not write down
    what it was told: the next one is told the same.
    """
    return cause_of(death) if death.was_ready or told is None else told


def wait_after(deaths: Sequence[Death]) -> float:
    """Seconds until the next worker starts, after these deaths, the newest last.

    A worker that has served something is replaced at once, however many died before it. One that died
    without having served anything may be unable to: the more of them in a row, the longer the wait. The
    first such death is an accident, and so may be a second.

    Traffic could hide a worker that dies right after each start. So there is a limit to that as well: many in
    a row, none of them ready for `STEADY` seconds, are slowed down to one every `HASTY_WAIT`.
    """
    useless = _in_a_row(deaths, lambda death: not death.has_served and not death.was_sound)
    hasty = _in_a_row(deaths, lambda death: not death.was_sound)
    slowed = HASTY_WAIT if hasty > HASTY else 0.0
    return max(slowed, WAITS[min(max(useless - 1, 0), len(WAITS) - 1)])


def _in_a_row(deaths: Sequence[Death], fits: Callable[[Death], bool]) -> int:
    """How many of the newest fit, without another one in between."""
    return sum(1 for _ in takewhile(fits, reversed(deaths)))


def described(pid: int, death: Death) -> str:
    """What is logged of it."""
    how = f"ended with exit status {death.code}"
    if death.code < 0:
        how = f"was killed by {_name(-death.code)}"
    return f"worker {pid} {how} after {death.lived:.1f} s"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
