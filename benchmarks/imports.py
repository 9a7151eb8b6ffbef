"""Import time, for us and for the peers."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.catalogue import Job

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place

OURS = "from outlast import Agent, Host"
OURS_CHAT = "from outlast import Think, tool"
PYDANTIC_AI = "from pydantic_ai import Agent"
LANGGRAPH = (
    "from langgraph.graph import StateGraph; "
    "from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver"
)


def one(code: str) -> tuple[float, float]:
    """Wall and CPU seconds of a fresh interpreter that runs this and ends."""
    before = os.times()
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=_caching())
    wall = time.perf_counter() - started
    after = os.times()
    spent = after.children_user + after.children_system
    return wall, spent - before.children_user - before.children_system


def _caching() -> dict[str, str]:
    """The environment, without what keeps Python from writing byte code: then it compiles each time."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure(code: str, _: Place, n: int) -> Metrics:
    """Medians of n processes, less the medians of n bare ones, taken in turn."""
    one(code)  # writes the byte code and fills the page cache
    pairs = [(one(code), one("pass")) for _ in range(n)]
    wall, cpu = (
        statistics.median(loaded[k] for loaded, _ in pairs)
        - statistics.median(bare[k] for _, bare in pairs)
        for k in (0, 1)
    )
    return {"wall_ms": wall * 1e3, "cpu_ms": cpu * 1e3}


JOBS = [
    Job(
        "import",
        "langgraph",
        "LangGraph and its SQLite saver",
        "import",
        partial(measure, LANGGRAPH),
        10,
    ),
    Job("import", "dbos", "DBOS", "import", partial(measure, "from dbos import DBOS"), 10),
    Job("import", "restate", "Restate SDK", "import", partial(measure, "import restate"), 10),
    Job("import", "pydantic-ai", "Pydantic AI: Agent", "import", partial(measure, PYDANTIC_AI), 10),
    Job("import", "ours-chat", "outlast: Think, tool", "import", partial(measure, OURS_CHAT), 10),
    Job("import", "ours-import", "outlast: Agent, Host", "import", partial(measure, OURS), 10),
]
