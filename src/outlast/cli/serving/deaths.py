"""Why a worker ended, what to say of it, and when to start the next one. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.cli.serving.settings import NO_MEMORY
from outlast.host.causes import CRASHED, DEPLOY, OOM

SETTLED = 30.0  # seconds after which a worker is not held to be one that cannot live
WAITS = (0.0, 0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)  # seconds
POLITE = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended."""

    code: int  # the exit status; a signal's number, negative
    lived: float  # seconds
    was_ready: bool = True  # it had opened its store
    asked: bool = False  # the supervisor wanted it to stop
    oom_kills: int = 0  # how many processes around it were killed for their memory while it lived


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


def wait_after(lives: Sequence[float]) -> float:
    """Seconds until the next worker starts, when these have lived for so long, the newest last.

    Those count that died soon, one after the other. One death is an accident, and so may be a second.
    """
    in_a_row = 0
    for lived in reversed(lives):
        if lived >= SETTLED:
            break
        in_a_row += 1
    return WAITS[min(max(in_a_row - 1, 0), len(WAITS) - 1)]


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
