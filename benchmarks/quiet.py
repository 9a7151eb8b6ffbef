"""Whether the machine is quiet enough to measure, and waiting until it is.

Figures and pictures for the README are made on a machine that does nothing else: a busy one shows the wrong
milliseconds, in tables and on screenshots.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Verdict = Literal["run", "wait", "refuse"]

LIMIT = 1.0  # the load average of the last minute must be below this
PATIENCE = 10.0  # minutes, unless told otherwise
LOOK_EVERY = 5.0  # seconds


class TooBusy(Exception):
    """The machine did not become quiet in time; the message says what to do."""


def verdict(load: float, waited: float, patience: float) -> Verdict:
    """What to do at this load average, after `waited` of `patience` seconds."""
    if load < LIMIT:
        return "run"
    return "wait" if waited < patience else "refuse"


def until_quiet(
    minutes: float,
    *,
    load: Callable[[], float] = lambda: os.getloadavg()[0],
    sleep: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> float:
    """Wait until the machine is quiet. Its load by then; `TooBusy` if that takes longer than `minutes`."""
    waited = 0.0
    while True:
        now = load()
        match verdict(now, waited, minutes * 60):
            case "run":
                return now
            case "refuse":
                raise TooBusy(
                    f"the load average must be below {LIMIT:g}, and still is {now:.2f} after"
                    f" {minutes:g} minutes. Stop what else runs on this machine, or wait longer:"
                    f" --quiet {max(1, 2 * minutes):g}"
                )
        if waited == 0:
            say(f"the load average is {now:.2f}; waiting for less than {LIMIT:g}")
        sleep(LOOK_EVERY)
        waited += LOOK_EVERY


def conditions() -> dict[str, str | int | float]:
    """When and where something was measured, and how busy the machine was."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{platform.node()}, {processor()}",
        "cores": os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    """Its name, as the kernel has it."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def described(found: dict[str, str | int | float]) -> str:
    """The conditions as a line of a report."""
    return "{date}, {machine}, {cores} cores, load average {load:.2f} at the start".format(**found)
