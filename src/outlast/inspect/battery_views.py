"""Views of batteries: tables of an agent as data, for the inspector's page, HTTP and the command line.

A battery names a sequence of views (`Battery.views`), in a module that is imported when they are needed:

```python
from outlast.inspect.battery_views import Column, Detail, View
from outlast.store.operations import Query

VIEWS = [
    View(
        title="Notes",
        columns=[Column("Id", "code"), Column("Text"), Column("Turn", "turn"), Column("Kept", "time")],
        query=Query.same(
            "SELECT id, text, turn, at FROM notes WHERE agent = ? ORDER BY at DESC LIMIT ?"
        ),
        detail=Detail(
            columns=[Column("Text"), Column("Vector")],
            query=Query.same("SELECT text, vector FROM notes WHERE agent = ? AND id = ?"),
        ),
    )
]
```

The first column identifies a row. Values are shown as text, whatever their type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, get_args

from outlast.agent.battery import Battery
from outlast.core import json
from outlast.core.errors import OutlastError
from outlast.core.loading import load
from outlast.core.text import described
from outlast.host.address import Address
from outlast.inspect.batteries import BatteryUnusable
from outlast.inspect.values import NotFound
from outlast.store.catalogue import Reader
from outlast.store.operations import Query

Kind = Literal["text", "code", "number", "time", "size", "state", "json", "turn", "agent"]
PAGE = 100  # rows
CUT = 500  # characters of a value in a table
CUT_DETAIL = 100_000  # characters of a value that is shown alone
PREVIEW = 24  # bytes of a binary value


@dataclass(frozen=True, slots=True)
class Column:
    """A value of each row, and how to show it.

    `time` is in milliseconds, `size` in bytes. `turn` (a request id) and `agent` (an address) are links;
    the turn belongs to the same agent, unless `of` is the label of a column with another address.
    """

    label: str
    kind: Kind = "text"
    of: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(
                f"the kind of the column {self.label!r} must be one of {', '.join(get_args(Kind))},"
                f" got {self.kind!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One row on its own, with its values one below the other."""

    columns: Sequence[Column]
    query: Query  # arguments: the agent's address, and the first value of the row as a str

    def __post_init__(self) -> None:
        _check(self.columns, "a detail")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A table of one agent."""

    title: str  # unique in its battery
    columns: Sequence[Column]
    query: Query  # arguments: the agent's address, and the maximum number of rows
    detail: Detail | None = None  # rows link to it
    is_live: bool = True  # the page reads it every second; False: only when it is opened
    none: str = "Nothing here yet."

    def __post_init__(self) -> None:
        _check(self.columns, f"the view {self.title!r}")


def _check(columns: Sequence[Column], what: str) -> None:
    if not columns:
        raise ValueError(f"{what} must have at least one column")
    labels = [column.label for column in columns]
    for column in columns:
        if column.of is not None and column.of not in labels:
            raise ValueError(
                f"`of` of the column {column.label!r} must be one of {', '.join(labels)}, got"
                f" {column.of!r}"
            )


# --- results -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownColumn:
    label: str
    kind: Kind
    of: int | None  # the index of the column with the address of the turn's agent


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A view with its rows, or with the reason why they are unreadable."""

    title: str
    columns: list[ShownColumn]
    rows: list[list[Any]]
    has_detail: bool
    is_live: bool
    none: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ShownDetail:
    title: str  # of the row's table
    row: str
    columns: list[ShownColumn]
    values: list[Any]


def views_of(battery: Battery) -> tuple[View, ...]:
    """Import the views of a battery."""
    if battery.views is None:
        return ()
    try:
        return _loaded(battery.views)
    except Exception as error:
        raise BatteryUnusable(
            f"cannot load the views of the battery {battery.name!r}: {described(error)}"
        ) from error


@cache
def _loaded(path: str) -> tuple[View, ...]:
    found = load(path)
    views = tuple(found) if isinstance(found, Sequence) else (found,)
    for view in views:
        if not isinstance(view, View):
            raise TypeError(f"{path} must be a sequence of View, got {view!r}")
    return views


def find_view(battery: Battery, title: str) -> View:
    """Return the view with this title."""
    views = views_of(battery)
    for view in views:
        if view.title == title:
            return view
    titles = ", ".join(repr(view.title) for view in views) or "none"
    raise NotFound(f"the battery {battery.name!r} has no view {title!r}; it has {titles}")


async def tables(
    reader: Reader,
    battery: Battery,
    address: Address,
    *,
    only_live: bool = False,
    limit: int = PAGE,
) -> list[ShownTable]:
    """Read the views of a battery. If they cannot be imported, one table contains the error."""
    try:
        views = await asyncio.to_thread(views_of, battery)  # the import may be slow
    except BatteryUnusable as error:
        return [ShownTable(battery.name, [], [], False, False, "", str(error))]
    wanted = [view for view in views if view.is_live or not only_live]
    return [await table(reader, view, address, limit) for view in wanted]


async def table(reader: Reader, view: View, address: Address, limit: int = PAGE) -> ShownTable:
    """Read a view. An error of its query is part of the result, so that other views are unaffected."""
    shown = ShownTable(
        title=view.title,
        columns=_shown_columns(view.columns),
        rows=[],
        has_detail=view.detail is not None,
        is_live=view.is_live,
        none=view.none,
    )
    try:
        found = await _fetch(reader, view.query, len(view.columns), address.text, limit)
    except OutlastError as error:
        return replace(shown, error=str(error))
    rows = [[shown_value(*each) for each in zip(row, view.columns, strict=True)] for row in found]
    for row, values in zip(rows, found, strict=True):
        row[0] = str(values[0])  # uncut: it identifies the row
    return replace(shown, rows=rows)


async def detail(reader: Reader, view: View, address: Address, row: str) -> ShownDetail:
    """Read one row of a view."""
    if view.detail is None:
        raise NotFound(f"rows of {view.title!r} have no details")
    columns = view.detail.columns
    found = await _fetch(reader, view.detail.query, len(columns), address.text, row)
    if not found:
        raise NotFound(f"{address} has no row {row!r} in {view.title!r}")
    values = [shown_value(*each, CUT_DETAIL) for each in zip(found[0], columns, strict=True)]
    return ShownDetail(view.title, row, _shown_columns(columns), values)


async def _fetch(
    reader: Reader, query: Query, columns: int, *arguments: Any
) -> list[tuple[Any, ...]]:
    try:
        # On SQLite a bulk read uses its own connection, which is read-only.
        rows = await reader.fetch(replace(query, bulk=True), *arguments)
    except OutlastError:
        raise
    except Exception as error:  # an error of the driver
        raise BatteryUnusable(f"the query failed: {described(error)}") from error
    if rows and len(rows[0]) != columns:
        raise BatteryUnusable(f"the query must return {columns} columns, got {len(rows[0])}")
    return rows


def _shown_columns(columns: Sequence[Column]) -> list[ShownColumn]:
    places = {column.label: place for place, column in enumerate(columns)}
    return [
        ShownColumn(each.label, each.kind, None if each.of is None else places[each.of])
        for each in columns
    ]


def shown_value(value: Any, column: Column, most: int = CUT) -> Any:
    """Return a value for sending and printing: JSON of limited length.

    ```python
    from outlast.inspect.battery_views import Column, shown_value

    assert shown_value(b"note", Column("Body")) == "4 bytes: 6e6f7465"
    assert shown_value('{"a": 1}', Column("Data", "json")) == {"a": 1}
    assert shown_value("x" * 9, Column("Text"), most=3) == "xxx…"
    ```
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        start = value[:PREVIEW].hex()
        return f"{len(value):,} bytes: {start}{'…' if len(value) > PREVIEW else ''}"
    text = str(value)
    if column.kind in ("turn", "agent"):
        return text
    if column.kind == "json" and len(text) <= most:
        try:
            return json.decode(text)
        except ValueError:
            return text
    return text if len(text) <= most else f"{text[:most]}…"
