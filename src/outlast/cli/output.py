"""What commands print: tables for people, JSON for programs, one line for an error."""

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

PIPED = 200  # columns of output that does not go to a terminal
LEAST = 20  # minimum width of a column that is cut
SHORT_ID = 18  # characters of an id
GOOD, BAD, DIM, BUSY = "green", "red", "dim", "yellow"
STYLES = {
    "completed": GOOD,
    "done": GOOD,
    "error": BAD,
    "failed": BAD,
    "exhausted": BAD,
    "given up": BAD,
    "recovered": GOOD,
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
    """Run a command; on an error, print one line and exit."""
    try:
        return asyncio.run(work)
    except OutlastError as error:
        fail(str(error.args[0]) if error.args else type(error).__name__)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def fail(text: str, code: int = 1) -> NoReturn:
    """Print an error and exit."""
    complain(text)
    raise typer.Exit(code)


def complain(text: str) -> None:
    typer.secho(f"outlast: {text}", err=True, fg=typer.colors.RED)


def console() -> Console:
    """Return the console. Piped output is not wrapped to the width of a terminal."""
    from rich.console import Console

    made = Console(highlight=False, soft_wrap=False)
    return made if made.is_terminal else Console(highlight=False, width=PIPED, soft_wrap=False)


def as_json(view: Any) -> None:
    """Print a view as JSON, without escaping its text."""
    from outlast.inspect.values import as_json as shaped

    text = json.dumps(shaped(view), indent=2, ensure_ascii=False)
    sys.stdout.write(text.encode("utf-8", "replace").decode() + "\n")


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    none: str,
    wide: str | None = None,
    drop: Sequence[str] = (),
) -> None:
    """Print a table, or a line that says that it is empty.

    If it does not fit, the columns to `drop` are left out, the first one first, and the `wide` column is cut.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = [list(row) for row in rows]
    to = console()
    if not found:
        to.print(none, style=DIM)
        return
    texts = [[shown(each) for each in row] for row in found]
    kept = fitting(columns, texts, to.width, wide, drop)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for place in kept:
        is_number = all(isinstance(row[place], int) for row in found)
        table.add_column(
            columns[place],
            justify="right" if is_number else "left",
            overflow="ellipsis",
            no_wrap=True,
            min_width=None if columns[place] == wide else max(len(row[place]) for row in texts),
        )
    for row, text in zip(found, texts, strict=True):
        cells = [Text(text[place], style=STYLES.get(str(row[place]), "")) for place in kept]
        table.add_row(*cells)
    to.print(table)


def fitting(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    wide: str | None,
    drop: Sequence[str],
) -> list[int]:
    """Return the indexes of the columns that fit. Pure.

    ```python
    from outlast.cli.output import fitting
    rows = [["request_1", "completed", "x" * 50]]
    assert fitting(["turn", "outcome", "asked"], rows, 80, "asked", ["outcome"]) == [0, 1, 2]
    assert fitting(["turn", "outcome", "asked"], rows, 40, "asked", ["outcome"]) == [0, 2]
    ```
    """
    kept = list(range(len(columns)))

    def needed() -> int:
        widths = []
        for place in kept:
            natural = max(len(columns[place]), *(len(row[place]) for row in rows))
            widths.append(min(natural, LEAST) if columns[place] == wide else natural)
        return sum(widths) + 3 * len(widths)

    for name in drop:
        if needed() <= width:
            break
        kept.remove(list(columns).index(name))
    return kept


def short_id(id: str) -> str:
    """Shorten a long id for a terminal: commands accept the beginning of an id."""
    return id[:SHORT_ID] if len(id) > SHORT_ID + 4 and sys.stdout.isatty() else id


def shown(value: Any) -> str:
    """Format a value for a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def ago(at: int | None) -> str:
    """Format how long ago a time was, or how far in the future it is.

    ```python
    import time
    from outlast.cli.output import ago
    assert ago(int(time.time() * 1000) - 90_000) == "1 min ago"
    ```
    """
    if at is None:
        return "-"
    since = time.time() - at / 1000
    amount, unit = abs(since), "s"
    for most, bigger in ((60, "min"), (60, "h"), (24, "d")):
        if amount < most:
            break
        amount, unit = amount / most, bigger
    if abs(since) < 1:
        return "now"
    return f"{int(amount)} {unit} ago" if since > 0 else f"in {int(amount)} {unit}"


def size(count: int) -> str:
    """Format a number of bytes."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def clock(at: int) -> str:
    """Format the local time of day, to the millisecond."""
    return datetime.fromtimestamp(at / 1000).strftime("%H:%M:%S.%f")[:-3]


def day(at: int) -> str:
    return datetime.fromtimestamp(at / 1000).strftime("%Y-%m-%d")
