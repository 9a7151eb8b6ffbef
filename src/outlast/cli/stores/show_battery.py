"""The output of `outlast inspect battery`: the views of a battery, with or without a host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outlast.agent.battery import Battery
from outlast.cli.output import ago, as_json, clock, complain, console, day, show_table, size
from outlast.cli.stores.find import find_agent
from outlast.cli.suggest import suggestion
from outlast.core import json
from outlast.host.address import Address
from outlast.inspect import battery_views as views
from outlast.inspect.batteries import installed, load_battery
from outlast.inspect.battery_views import ShownColumn, ShownDetail, ShownTable, View
from outlast.inspect.reader import reading
from outlast.inspect.values import NotFound
from outlast.inspect.words import short
from outlast.inspect.words import value as as_text
from outlast.store.catalogue import Reader, meta_of
from outlast.store.upgrade import version_of

MOST = 80  # characters of a text in a table


async def show(
    url: str | None,
    is_json: bool,
    given: str,
    kind: str,
    name: str | None,
    title: str | None,
    row: str | None,
    limit: int,
) -> None:
    battery = _battery(given)
    async with reading(url) as reader:
        address = await find_agent(reader, kind, name)
        await _check_tables(reader, battery)
        if row is not None:
            view = _only_view(battery, title)
            detail = await views.detail(reader, view, address, row)
            if is_json:
                as_json(detail)
            else:
                _show_detail(detail)
            return
        found = await _tables(reader, battery, address, title, limit)
    if is_json:
        as_json(found)
    else:
        _show_tables(found)


def _battery(given: str) -> Battery:
    """Return the battery with this name or path."""
    if ":" in given:
        sys.path.insert(0, str(Path.cwd()))
        return load_battery(given)
    known = installed()
    if given not in known:
        raise NotFound(f"no battery named {given!r} is installed{suggestion(given, known)}")
    return known[given].load()


async def _check_tables(reader: Reader, battery: Battery) -> None:
    if battery.schema is not None and not version_of(battery.name, await meta_of(reader)):
        raise NotFound(f"this store has no tables of the battery {battery.name!r}")


def _only_view(battery: Battery, title: str | None) -> View:
    """Return the view of a row, whose title may be omitted if there is only one."""
    found = views.views_of(battery)
    if title is None and len(found) == 1:
        return found[0]
    return views.find_view(battery, title or "")


async def _tables(
    reader: Reader, battery: Battery, address: Address, title: str | None, limit: int
) -> list[ShownTable]:
    if title is None:
        return await views.tables(reader, battery, address, limit=limit)
    return [await views.table(reader, views.find_view(battery, title), address, limit)]


def _show_tables(found: Sequence[ShownTable]) -> None:
    for table in found:
        console().print(table.title, style="bold", markup=False)
        if table.error is not None:
            complain(table.error)
            continue
        labels = [column.label for column in table.columns]
        rows = [[row[0], *map(_cell, row[1:], table.columns[1:])] for row in table.rows]
        texts = [each.label for each in table.columns if each.kind in ("text", "json")]
        wide = texts[0] if texts else labels[-1]
        show_table(labels, rows, none=table.none, wide=wide)


def _cell(value: Any, column: ShownColumn) -> Any:
    """Format a value for a table."""
    match column.kind, value:
        case "time", int():
            return ago(value)
        case "size", int():
            return size(value)
        case "json", _:
            return as_text(value)
        case "text" | "code", str():
            return short(value, MOST)
    return value


def _show_detail(found: ShownDetail) -> None:
    to = console()
    to.print(f"{found.title}: {found.row}", style="bold", markup=False)
    for column, value in zip(found.columns, found.values, strict=True):
        to.print(f"{column.label}: {_whole(value, column)}", markup=False)


def _whole(value: Any, column: ShownColumn) -> Any:
    match column.kind, value:
        case "time", int():
            return f"{day(value)} {clock(value)}"
        case "json", _:
            return json.encode(value)
        case _, None:
            return "-"
    return _cell(value, column) if column.kind == "size" else value
