"""Medians, and the tables made of them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.catalogue import WORKLOADS, Job
from benchmarks.meter import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from benchmarks.runner import Outcome

FAULTS = ("lost", "twice", "stuck")
AT = "at_"  # a metric that begins like this is a moment
Medians = dict[tuple[str, str], Metrics]
"""(workload, system) to its metrics."""


@dataclass(frozen=True)
class Column:
    """One metric of a table; with `ratios`, also as a multiple of the floor's and of ours."""

    title: str
    metric: str
    ratios: bool = True


EACH = (Column("wall µs", "wall_us"), Column("CPU µs", "cpu_us"))
RATE = Column("per s", "per_s", ratios=False)
STREAMED = (
    Column("deltas/s", "per_s"),
    Column("CPU µs", "cpu_us"),
    Column("p50 ms", "p50_ms", ratios=False),
    Column("p99 ms", "p99_ms", ratios=False),
)
SPENT = (
    Column("host ms", "host_ms", ratios=False),
    Column("database ms", "database_ms", ratios=False),
    Column("CPU ms", "cpu_ms"),
    Column("turns/s", "per_s", ratios=False),
)
WIRED = STREAMED[:2]
RECOVERED = (
    Column("median ms", "wall_ms"),
    Column("most", "most_ms", ratios=False),
    Column("fixed loops", "loops", ratios=False),
    Column("CPU ms", "cpu_ms", ratios=False),
    Column("lost", "lost", ratios=False),
    Column("twice", "twice", ratios=False),
    Column("stuck", "stuck", ratios=False),
)
SEARCHED = (
    Column("p50 ms", "p50_ms"),
    Column("p99 ms", "p99_ms"),
    Column("mean ms", "wall_ms", ratios=False),
    Column("found %", "hits_pct", ratios=False),
    Column("index CPU µs a message", "index_cpu_us", ratios=False),
)
COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "w1": EACH,
    "w1b": (
        Column("p50 ms", "p50_ms", ratios=False),
        Column("p99 ms", "p99_ms"),
        Column("max ms", "max_ms", ratios=False),
        RATE,
    ),
    "w1c": (*EACH, RATE),
    "w2": EACH,
    "w2c": (*EACH, RATE),
    "w3": STREAMED,
    "w3c": STREAMED,
    "w3t": (Column("wall ms", "wall_ms"), Column("CPU ms", "cpu_ms")),
    "turncpu": SPENT,
    "turncpuc": SPENT,
    "w3b": (
        Column("at the end", "ended_x", ratios=False),
        Column("after retention", "kept_x", ratios=False),
    ),
    "w3x": (Column("CPU µs, ten in a step", "cpu_us"), Column("alone", "alone_us")),
    "w3s": tuple(
        Column(f"{title}, {when}", f"{metric}_{suffix}", ratios=False)
        for title, metric in (
            ("commits", "commits"),
            ("statements", "statements"),
            ("CPU ms", "cpu_ms"),
        )
        for when, suffix in (("10 turns", "few"), ("500 turns", "many"))
    ),
    "w3f": (
        Column("commits an answer", "commits", ratios=False),
        Column("CPU ms", "cpu_ms", ratios=False),
    ),
    "w4": RECOVERED,
    "w4ten": RECOVERED,
    "w4cold": RECOVERED,
    "seam": (
        Column("answers", "answers", ratios=False),
        Column("perfect %", "perfect_pct", ratios=False),
        Column("replaced %", "replaced_pct", ratios=False),
        Column("paragraph %", "paragraph_pct", ratios=False),
        Column("twice", "twice", ratios=False),
        Column("lost", "lost", ratios=False),
        Column("stuck", "stuck", ratios=False),
        Column("held ms", "held_ms", ratios=False),
        Column("most", "held_most_ms", ratios=False),
    ),
    "w5": (
        Column("RSS MB", "rss_mb", ratios=False),
        Column("idle CPU %", "idle_cpu_pct", ratios=False),
        Column("wake ms", "wake_ms", ratios=False),
    ),
    "wire": WIRED,
    "wirec": WIRED,
    "wiret": (Column("wall ms", "wall_ms"), Column("CPU ms", "cpu_ms")),
    "load": (
        RATE,
        Column("p50 ms", "p50_ms", ratios=False),
        Column("p99 ms", "p99_ms"),
        Column("max ms", "max_ms", ratios=False),
        Column("CPU %", "cpu_pct"),
        Column("RSS MB", "rss_mb"),
    ),
    "idle": (Column("KB each", "each_kb"), Column("idle CPU %", "idle_cpu_pct", ratios=False)),
    "open": (
        Column("first ms", "first_ms", ratios=False),
        Column("median ms", "wall_ms", ratios=False),
        Column("GET ms", "get_ms", ratios=False),
        Column("max ms", "max_ms", ratios=False),
        Column("told MB", "told_mb", ratios=False),
    ),
    "tabs": (
        Column("CPU ms a turn", "cpu_ms", ratios=False),
        Column("MB a turn", "told_mb", ratios=False),
        Column("last told, ms", "wall_ms", ratios=False),
        Column("max ms", "max_ms", ratios=False),
    ),
    "catchup": (
        Column("median ms", "wall_ms", ratios=False),
        Column("max ms", "max_ms", ratios=False),
    ),
    "search": SEARCHED,
    "searchmany": SEARCHED,
    "import": (Column("wall ms", "wall_ms"), Column("CPU ms", "cpu_ms")),
}

MOMENTS = {
    "closed_ms": "the client sees that its connection has ended",
    "born_ms": "the next process begins (to 10 ms)",
    "module_ms": "it imports the module of the application",
    "loaded_ms": "it has done so",
    "starting_ms": "its event loop runs, and the host starts",
    "started_ms": "the store is open",
    "connected_ms": "the client is connected again",
    "woken_ms": "the agent is in memory",
    "decided_ms": "it is decided that the turn goes on",
    "asked_ms": "the decision is stored, and the model asked",
    "said_ms": "the model says the next word",
    "offered_ms": "the client is offered what it has missed",
    "continued_ms": "the client is shown a word that it has not seen",
}


def medians(outcomes: Iterable[Outcome]) -> Medians:
    """The median of each metric over the repeats that worked; of what must not happen, the most."""
    runs: dict[tuple[str, str], list[Metrics]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.metrics:
            runs[outcome.job.workload, outcome.job.system].append(outcome.metrics)
    return {
        key: {
            name: (max if name in FAULTS else statistics.median)(
                [one[name] for one in several if name in one]
            )
            for name in several[0]
        }
        for key, several in runs.items()
    }


def number(value: float) -> str:
    """Three significant digits or so, with thousands separated."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ratio(value: float, base: float | None) -> str:
    """How many times the base, or nothing to compare with."""
    return f"{number(value / base)}x" if base else ""


def spread(outcomes: list[Outcome], metric: str) -> str:
    """From the least to the most of the repeats, if there were several."""
    values = [one.metrics[metric] for one in outcomes if one.metrics]
    return f"{number(min(values))}-{number(max(values))}" if len(values) > 1 else ""


def heads(workload: str) -> list[str]:
    """The titles of a table's columns."""
    titles = ["system"]
    for column in COLUMNS[workload]:
        titles += [column.title, *(["min-max", "x floor", "x ours"] if column.ratios else [])]
    return titles


def cells(job: Job, outcomes: list[Outcome], found: Medians) -> list[str]:
    """A job's row: its label, then for each column the median and what goes with it."""
    row = [job.label]
    mine = found[job.workload, job.system]
    for column in COLUMNS[job.workload]:
        value = mine.get(column.metric)
        row.append("" if value is None else number(value))
        if value is None:
            row += [""] * (3 if column.ratios else 0)
            continue
        if column.ratios:
            row.append(spread(outcomes, column.metric))
            for other in ("floor", "ours"):
                theirs = found.get((job.workload, f"{other}-{job.against}"), {})
                row.append(ratio(value, theirs.get(column.metric)))
    return row


def aligned(rows: list[list[str]]) -> list[str]:
    """Lines of text, without the columns that have a title only."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    padded = []
    for k, column in enumerate(columns):
        width = max(map(len, column))
        padded.append([f"{cell:<{width}}" if k == 0 else f"{cell:>{width}}" for cell in column])
    return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]


def timeline(job: Job, found: Medians) -> str:
    """When what happened in a job that has noted it, and how long after what came before."""
    mine = found.get((job.workload, job.system), {})
    moments = sorted(
        (at, name.removeprefix(AT)) for name, at in mine.items() if name.startswith(AT)
    )
    lines, before = [f"{job.name}: {job.label}"], 0.0
    for at, name in moments:
        lines.append(f"{at:9.1f} ms  {at - before:+8.1f}  {MOMENTS.get(name, name)}")
        before = at
    return "\n  ".join(lines) if moments else ""


def table(workload: str, outcomes: list[Outcome], found: Medians) -> str:
    """One workload as text; jobs without metrics follow, and say why."""
    by_job: dict[Job, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_job[outcome.job].append(outcome)
    measured = [job for job in by_job if (workload, job.system) in found]
    rows = [heads(workload), *(cells(job, by_job[job], found) for job in measured)]
    lines = aligned(rows) if measured else []
    lines += [f"{job.label}: {by_job[job][-1].problem}" for job in by_job if job not in measured]
    return "\n  ".join([f"{workload.upper()}  {WORKLOADS[workload]}", *lines])
