"""The jobs of outlast, of LangGraph and of the floors over the wire."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from benchmarks.catalogue import Job
from benchmarks.deltas import AT_ONCE, DELTAS
from benchmarks.wire.conversations import DELTA_QUERY, idle_in, many_tabs, opening
from benchmarks.wire.workloads import catch_up, idle, load, python, streams, turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.meter import Metrics
    from benchmarks.place import Place

STORED = 4000  # deltas to catch up with
LOAD_SECONDS = 20
OPENINGS = 10
SMALL_TURNS = 20
LARGE = (
    ("outputs", "50 MB, most of it tool outputs"),
    ("pages", "50 MB in 500 messages"),
    ("many", "10,000 small messages"),
)


def measured(function: Any, *first: Any) -> Callable[[Place, int], Metrics]:
    """A job's function out of an async one; the client runs on uvloop, as the servers do."""

    def run(place: Place, n: int) -> Metrics:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            metrics: Metrics = runner.run(function(*first, place, n))
        return metrics

    return run


SYSTEMS = (
    ("floor", "full", "bare WebSocket and group commit, FULL"),
    ("floor", "normal", "bare WebSocket and group commit, NORMAL"),
    ("langgraph", "full", "LangGraph SQLite, stores the whole"),
    ("ours", "full", "outlast SQLite, FULL"),
    ("ours", "normal", "outlast SQLite, NORMAL"),
)


def named(system: str, durability: str) -> str:
    """The name of a job's system."""
    return "langgraph-sqlite" if system == "langgraph" else f"{system}-{durability}"


JOBS = [
    *(
        Job(
            workload,
            named(system, durability),
            label,
            durability,
            measured(streams, python(system, durability), at_once, DELTAS),
            size,
        )
        for workload, at_once, size in (("wire", 1, 40), ("wirec", AT_ONCE, 200))
        for system, durability, label in SYSTEMS
    ),
    *(
        Job(
            "wiret",
            named(system, durability),
            label,
            durability,
            measured(turns, python(system, durability)),
            300,
        )
        for system, durability, label in SYSTEMS
    ),
    *(
        Job(
            "load",
            f"{system}-full",
            label,
            "full",
            measured(load, python(system, pace="steady")),
            LOAD_SECONDS,
        )
        for system, durability, label in SYSTEMS
        if system != "langgraph" and durability == "full"
    ),
    Job("idle", "floor-full", "bare WebSocket", "full", measured(idle, python("floor")), 1000),
    Job("idle", "ours-full", "outlast", "full", measured(idle, python("ours")), 1000),
    *(
        Job(
            "idle",
            f"ours-{history}",
            f"outlast, all on {label}",
            "full",
            measured(idle_in, python("ours"), history),
            200,
        )
        for history, label in LARGE
    ),
    *(
        Job(
            "open",
            f"ours-{history}",
            f"outlast, {label}",
            history,
            measured(opening, python("ours"), history),
            OPENINGS,
        )
        for history, label in LARGE
    ),
    *(
        Job(
            "tabs",
            f"ours-{kind}",
            label,
            kind,
            measured(many_tabs, python("ours"), query),
            SMALL_TURNS,
        )
        for kind, label, query in (
            ("whole", "outlast, clients as Cloudflare's", ""),
            ("delta", "outlast, clients that ask for changes", DELTA_QUERY),
        )
    ),
    Job(
        "catchup",
        "ours-live",
        "outlast, an answer under way",
        "live",
        measured(catch_up, python("ours", pace="holds"), True),
        STORED,
    ),
    Job(
        "catchup",
        "ours-stored",
        "outlast, an answer that is over",
        "stored",
        measured(catch_up, python("ours"), False),
        STORED,
    ),
]
