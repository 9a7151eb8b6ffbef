"""What commands print: tables for people, JSON for programs, one line for what went wrong."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from outlast.core.errors import OutlastError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

PIPED = 200  # columns of what is not shown on a terminal
GOOD, BAD, DIM, BUSY = "green", "red", "dim", "yellow"
STYLES = {
    "completed": GOOD,
    "done": GOOD,
    "error": BAD,
    "failed": BAD,
    "exhausted": BAD,
    "stuck": BAD,
    "unknown": BAD,
    "interrupted": BUSY,
    "recovering": BUSY,
    "open": BUSY,
    "running": BUSY,
    "answering": BUSY,
    "begun": BUSY,
    "waiting": BUSY,
    "accepted": BUSY,
    "idle": DIM,
    "skipped": DIM,
    "aborted": DIM,
}


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do it, and say in one line what is wrong if it cannot be done."""
    try:
        return asyncio.run(work)
    except OutlastError as error:
        fail(str(error.args[0]) if error.args else type(error).__name__)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def fail(text: str, code: int = 1) -> NoReturn:
    """Say what is wrong, and end."""
    complain(text)
    raise typer.Exit(code)


def complain(text: str) -> None:
    typer.secho(f"outlast: {text}", err=True, fg=typer.colors.RED)


def console() -> Console:
    """Where things are printed. What is piped is not wrapped to some terminal's width."""
    from rich.console import Console

    made = Console(highlight=False, soft_wrap=False)
    return made if made.is_terminal else Console(highlight=False, width=PIPED, soft_wrap=False)


def as_json(view: Any) -> None:
    """Print a view, its texts as they are."""
    from outlast.inspect.values import as_json as shaped

    text = json.dumps(shaped(view), indent=2, ensure_ascii=False)
    sys.stdout.write(text.encode("utf-8", "replace").decode() + "\n")


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, none: str, wide: Iterable[str] = ()
) -> None:
    """A table, or a line that says that there is nothing. `wide` columns give way first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = list(rows)
    if not found:
        console().print(none, style=DIM)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    stretched = set(wide)
    for name in columns:
        is_number = all(isinstance(row[columns.index(name)], int) for row in found)
        table.add_column(
            name,
            justify="right" if is_number else "left",
            overflow="ellipsis" if name in stretched else "fold",
            no_wrap=name in stretched,
            ratio=1 if name in stretched else None,
        )
    for row in found:
        table.add_row(*(Text(shown(each), style=STYLES.get(str(each), "")) for each in row))
    console().print(table)


def shown(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def ago(at: int | None) -> str:
    """How long ago that was; for a time to come, in how long.

    ```python
    import time
    from outlast.cli.output import ago
    assert ago(int(time.time() * 1000) - 90_000) == "1 min 30 s ago"
    ```
    """
    from outlast.inspect.words import duration

    if at is None:
        return "-"
    since = int(time.time() * 1000) - at
    if abs(since) < 1000:
        return "now"
    return f"{duration(since)} ago" if since > 0 else f"in {duration(-since)}"


def size(count: int) -> str:
    """Bytes, for people."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def clock(at: int) -> str:
    """The time of day, here, to the millisecond."""
    return datetime.fromtimestamp(at / 1000).strftime("%H:%M:%S.%f")[:-3]


def day(at: int) -> str:
    return datetime.fromtimestamp(at / 1000).strftime("%Y-%m-%d")
