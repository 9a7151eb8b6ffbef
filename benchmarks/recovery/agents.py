"""What `outlast serve` serves: an agent that says words, and notes when what happened.

`BENCH_STORE` is its store; `BENCH_MARKS` a file with a line for each thing that happened, and the time.
"""

from __future__ import annotations

import os
import time

BEGAN = time.monotonic()

from collections.abc import AsyncIterator  # noqa: E402
from contextlib import asynccontextmanager  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks.recovery.words import model  # noqa: E402
from outlast import App, Think  # noqa: E402

MARKS = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def mark(what: str, at: float | None = None) -> None:
    """Note that this has happened just now."""
    os.write(MARKS, f"{what} {time.monotonic() if at is None else at:.6f} {os.getpid()}\n".encode())


def born() -> float:
    """When this process began, to a hundredth of a second."""
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


class Words(Think):
    """Answers with words."""

    model = model(mark)

    async def on_start(self) -> None:
        mark("woken")


class Marked(App):
    """An application that says when its host starts, and has started."""

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        mark("starting")
        async with super().lifespan():
            mark("started")
            yield


app = Marked([Words], os.environ["BENCH_STORE"])
app.host.events.subscribe("chat:recovery:decision", lambda _: mark("decided"))
mark("born", born())
mark("module", BEGAN)
mark("loaded")
