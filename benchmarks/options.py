"""The command line: what was asked for, and the plan that follows from it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.catalogue import WORKLOADS, Job, jobs
from benchmarks.quiet import LIMIT, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

QUICK_SHARE = 10


@dataclass(frozen=True)
class Options:
    """What to run."""

    plan: tuple[Job, ...]
    reps: int
    quick: bool
    plan_only: bool
    verbose: bool = False
    quiet: float | None = None
    """Minutes to wait for a quiet machine; None: any will do."""

    def size(self, job: Job) -> int:
        """How much of this job to measure."""
        return max(job.size // QUICK_SHARE, 1) if self.quick else job.size


def matches(job: Job, wanted: str) -> bool:
    """Whether the job's system is the wanted one or of the wanted family."""
    return job.system == wanted or job.system.startswith(f"{wanted}-")


def chosen(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def at_least_one(text: str) -> int:
    """A count for `--reps`."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return count


def minutes(text: str) -> float:
    """A time for `--quiet`."""
    try:
        found = float(text)
    except ValueError:
        found = -1
    if not 0 <= found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of minutes")
    return found


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Reads the command line; leaves with a message and status 2 when it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="script/bench",
        description="Measures outlast beside its peers and beside the floor, in one run.",
        epilog="workloads: " + "; ".join(f"{key}: {text}" for key, text in WORKLOADS.items()),
    )
    parser.add_argument("--only", metavar="W1,W2", help="only these workloads")
    parser.add_argument(
        "--systems", metavar="A,B", help="only these systems or families (ours, floor, dbos, ...)"
    )
    parser.add_argument(
        "--reps", metavar="N", type=at_least_one, help="times each job is run (3; quick: 1)"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"1/{QUICK_SHARE} of the size, to see that it works"
    )
    parser.add_argument("--plan", action="store_true", help="list the jobs and stop")
    parser.add_argument(
        "--verbose", action="store_true", help="also tell what recovery has spent its time on"
    )
    parser.add_argument(
        "--quiet",
        metavar="MINUTES",
        type=minutes,
        nargs="?",
        const=PATIENCE,
        help=f"wait for a load average below {LIMIT:g}, at most so long ({PATIENCE:g}), then refuse",
    )
    given = parser.parse_args(arguments)

    plan = jobs()
    if given.only is not None:
        workloads = chosen(given.only.lower())
        for name in workloads:
            if name not in WORKLOADS:
                parser.error(f"--only: no workload {name!r}; there are {', '.join(WORKLOADS)}")
        plan = [job for job in plan if job.workload in workloads]
    if given.systems is not None:
        systems = chosen(given.systems.lower())
        for name in systems:
            if not any(matches(job, name) for job in plan):
                there = ", ".join(dict.fromkeys(job.system for job in plan))
                parser.error(f"--systems: no system or family {name!r} here; there are {there}")
        plan = [job for job in plan if any(matches(job, name) for name in systems)]
    if not plan:
        parser.error("nothing to run: --only or --systems names nothing")
    reps = given.reps or (1 if given.quick else 3)
    return Options(tuple(plan), reps, given.quick, given.plan, given.verbose, given.quiet)
