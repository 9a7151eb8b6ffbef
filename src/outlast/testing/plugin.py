"""The pytest plugin. pytest loads it by itself wherever outlast is installed.

Its fixtures: `crash_sweep` and `killable_worker`. See `docs/testing.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from outlast.testing.process import Worker


@pytest.fixture
def crash_sweep() -> Callable[..., Any]:
    """`outlast.testing.crash_sweep`."""
    from outlast.testing.sweep import crash_sweep

    return crash_sweep


@pytest.fixture
def killable_worker(tmp_path: Any) -> Iterator[Callable[..., Worker]]:
    """Makes `outlast.testing.Worker`s on a store of the test's own; none of them survives the test."""
    from outlast.testing.process import Worker

    workers: list[Worker] = []

    def make(**options: Any) -> Worker:
        options.setdefault("store", f"sqlite:///{tmp_path}/worker.db")
        workers.append(Worker(**options))
        return workers[-1]

    yield make
    for worker in workers:
        worker.kill()
