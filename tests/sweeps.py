"""The crash sweeps of this suite: from snapshots, so that they are quick, and each day with other seeds."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from outlast.testing import SweepMode, SweepReport
from outlast.testing.snapshots import snapshot_sweep

SEED = "OUTLAST_SWEEP_SEED"  # all processes of a test run use the same


def seed_of_the_run() -> int:
    """Today's date, unless a run is repeated that another day has made."""
    os.environ.setdefault(SEED, f"{datetime.now(UTC):%Y%m%d}")
    return int(os.environ[SEED])


async def crash_sweep(*, mode: SweepMode = "commits", seed: int = 0, **rest: Any) -> SweepReport:
    """`outlast.testing.snapshots.snapshot_sweep`. `seed` is added to that of the run."""
    run = seed_of_the_run()
    try:
        return await snapshot_sweep(mode=mode, seed=run + seed, **rest)
    except BaseException as error:
        if mode != "commits":
            error.add_note(f"{SEED}={run} repeats this sweep")
        raise
