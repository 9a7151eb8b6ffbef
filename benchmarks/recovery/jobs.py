"""The jobs of outlast, of the floors, and of the peers that are Python."""

from __future__ import annotations

from benchmarks.catalogue import Job
from benchmarks.recovery.workloads import cold, outlast, run, run_in_a_row, shell, supervised

DEATHS, IN_A_ROW, COLD_STARTS = 7, 10, 5

JOBS = [
    Job(
        "w4",
        "floor-full",
        "bare supervisor, socket and rows",
        "full",
        run(supervised, shell("floor-full", has_supervisor=True)),
        DEATHS,
    ),
    Job(
        "w4", "langgraph-sqlite", "LangGraph SQLite", "full", run(supervised, shell("langgraph")), 3
    ),
    Job("w4", "dbos-sqlite-wal", "DBOS SQLite, in WAL", "full", run(supervised, shell("dbos")), 3),
    Job("w4", "ours-full", "outlast serve", "full", run(supervised, outlast()), DEATHS),
    Job(
        "w4",
        "ours-preload",
        "outlast serve --preload",
        "full",
        run(supervised, outlast("--preload")),
        DEATHS,
    ),
    Job("w4ten", "ours-full", "outlast serve", "full", run_in_a_row(outlast()), IN_A_ROW),
    Job(
        "w4cold",
        "floor-full",
        "bare socket and rows, Pydantic AI's models",
        "full",
        run(cold, shell("floor-full")),
        COLD_STARTS,
    ),
    Job(
        "w4cold",
        "floor-no-model",
        "bare socket and rows, no model",
        "full",
        run(cold, shell("floor-no-model")),
        COLD_STARTS,
    ),
    Job("w4cold", "langgraph-sqlite", "LangGraph SQLite", "full", run(cold, shell("langgraph")), 3),
    Job("w4cold", "dbos-sqlite-wal", "DBOS SQLite, in WAL", "full", run(cold, shell("dbos")), 3),
    Job(
        "w4cold",
        "ours-full",
        "outlast serve --no-supervisor",
        "full",
        run(cold, outlast("--no-supervisor", has_supervisor=False)),
        COLD_STARTS,
    ),
]
