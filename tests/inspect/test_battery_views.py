"""Views of batteries: tables and rows as data, on both engines, of a host and of a store without one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from outlast import Agent
from outlast.agent.agent import parts_of
from outlast.agent.battery import Battery
from outlast.agent.part import Part
from outlast.host.address import Address
from outlast.inspect import battery_views as views
from outlast.inspect.batteries import BatteryUnusable
from outlast.inspect.battery_views import Column, Detail, View
from outlast.inspect.reader import reading
from outlast.inspect.values import NotFound, as_json
from outlast.store.catalogue import Reader
from outlast.store.operations import Query, Statement
from outlast.store.schema import Schema
from support import hosting

SCHEMA = Schema(
    "things",
    {
        "0001_things.sql": """
            CREATE TABLE things (agent TEXT NOT NULL, number INTEGER NOT NULL, data TEXT, body BLOB,
                PRIMARY KEY (agent, number));
        """
    },
    owned={"things": "agent"},
)
ADD = Statement.same(
    "things add",
    "agent text, number bigint, data text, body bytea",
    "INSERT INTO things (agent, number, data, body) VALUES (:agent, :number, :data, :body)",
    key=2,
)
THINGS = View(
    title="Things",
    columns=[Column("No.", "number"), Column("Data", "json"), Column("Body")],
    query=Query.same(
        "SELECT number, data, body FROM things WHERE agent = ? ORDER BY number DESC LIMIT ?"
    ),
    detail=Detail(
        columns=[Column("Data"), Column("Body")],
        query=Query.same(
            "SELECT data, body FROM things WHERE agent = ? AND CAST(number AS TEXT) = ?"
        ),
    ),
)
COUNTED = View(
    title="How many",
    columns=[Column("Count", "number")],
    query=Query.same("SELECT count(*) FROM things WHERE agent = ? LIMIT ?"),
    is_live=False,
)
VIEWS = [THINGS, COUNTED]
BATTERY = Battery(name="things", part=Part, schema=SCHEMA, views=f"{__name__}:VIEWS")


class HasThings(Agent):
    battery = BATTERY

    async def add(self, number: int, data: str | None = None, body: bytes | None = None) -> None:
        parts = parts_of(self)
        await parts.commits.write([(ADD, (parts.activation.address.text, number, data, body))])


class Keeper(HasThings): ...


A = Address.of("Keeper", "a")
LONG_JSON = '{"text": "' + "x" * 1000 + '"}'


@asynccontextmanager
async def of_a_host(url: str) -> AsyncIterator[Reader]:
    async with hosting(Keeper, url=url, life="2") as host:
        yield host.store


Opened = Callable[[str], Any]


@pytest.fixture(params=["host", "offline"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """How the store is looked at: in a host, or without one."""
    return of_a_host if request.param == "host" else reading


async def fill(url: str) -> None:
    async with hosting(Keeper, url=url) as host:
        for name in ("a", "b"):
            keeper = host.get(Keeper, name)
            await keeper.add(1, '{"a": [1, 2]}', b"\x00\xff")
            await keeper.add(2, "no <json>", bytes(100))
            await keeper.add(3, LONG_JSON, None)


async def test_a_table_has_the_rows_of_one_agent_as_json(store_url: str, opened: Opened) -> None:
    await fill(store_url)
    async with opened(store_url) as reader:
        shown = as_json(await views.tables(reader, BATTERY, A))
    things, counted = shown
    assert things["columns"] == [
        {"label": "No.", "kind": "number", "of": None},
        {"label": "Data", "kind": "json", "of": None},
        {"label": "Body", "kind": "text", "of": None},
    ]
    assert things["rows"] == [
        ["3", LONG_JSON[:500] + "…", None],
        ["2", "no <json>", f"100 bytes: {'00' * 24}…"],
        ["1", {"a": [1, 2]}, "2 bytes: 00ff"],
    ]
    assert (things["hasDetail"], things["isLive"], things["error"]) == (True, True, None)
    assert (counted["rows"], counted["hasDetail"], counted["isLive"]) == ([["3"]], False, False)


async def test_it_has_no_more_rows_than_wanted_and_only_live_ones_if_wanted(
    store_url: str,
) -> None:
    await fill(store_url)
    async with reading(store_url) as reader:
        (shown,) = await views.tables(reader, BATTERY, A, only_live=True, limit=2)
        assert [row[0] for row in shown.rows] == ["3", "2"]


async def test_a_row_is_shown_as_a_whole(store_url: str, opened: Opened) -> None:
    await fill(store_url)
    async with opened(store_url) as reader:
        detail = await views.detail(reader, THINGS, A, "3")
        assert detail.values == [LONG_JSON, None]
        assert [column.label for column in detail.columns] == ["Data", "Body"]
        with pytest.raises(NotFound, match="Keeper/a has no row '4' in 'Things'"):
            await views.detail(reader, THINGS, A, "4")
        with pytest.raises(NotFound, match="rows of 'How many' have no details"):
            await views.detail(reader, COUNTED, A, "3")


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT x FROM nowhere WHERE a = ? LIMIT ?", "nowhere"),
        ("SELECT 1, 2 FROM things WHERE agent = ? LIMIT ?", "must return 1 columns, got 2"),
    ],
)
async def test_a_query_that_fails_spoils_no_other_view(
    store_url: str, opened: Opened, sql: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store_url)
    broken = replace(COUNTED, title="Broken", query=Query.same(sql))
    monkeypatch.setattr(views, "views_of", lambda _: (broken, THINGS))
    async with opened(store_url) as reader:
        first, second = await views.tables(reader, BATTERY, A)
        assert first.rows == []
        assert first.error is not None
        assert told in first.error
        assert (len(second.rows), second.error) == (3, None)


async def test_a_query_cannot_write_into_a_sqlite_file(sqlite_url: str, opened: Opened) -> None:
    await fill(sqlite_url)
    deleting = "DELETE FROM things WHERE agent = ? AND number < ? RETURNING number"
    async with opened(sqlite_url) as reader:
        shown = await views.table(reader, replace(COUNTED, query=Query.same(deleting)), A)
        assert shown.error is not None
        assert "readonly" in shown.error or "read-only" in shown.error or "written" in shown.error
        assert len((await views.table(reader, THINGS, A)).rows) == 3


@pytest.mark.parametrize("path", ["nowhere_at_all:VIEWS", "math:NOTHING", f"{__name__}:BATTERY"])
async def test_views_that_cannot_be_loaded_are_told_in_their_place(
    sqlite_url: str, path: str
) -> None:
    await fill(sqlite_url)
    battery = replace(BATTERY, views=path)
    with pytest.raises(BatteryUnusable, match="cannot load the views of the battery 'things'"):
        views.views_of(battery)
    async with reading(sqlite_url) as reader:
        (shown,) = await views.tables(reader, battery, A)
    assert shown.title == "things"
    assert shown.error is not None
    assert "cannot load the views" in shown.error


def test_a_view_is_found_by_its_title() -> None:
    assert views.find_view(BATTERY, "How many") is COUNTED
    with pytest.raises(NotFound, match="has no view 'Many'; it has 'Things', 'How many'"):
        views.find_view(BATTERY, "Many")
    assert views.views_of(replace(BATTERY, views=None)) == ()


def test_a_turn_may_be_one_of_another_agent() -> None:
    columns = [Column("Child", "agent"), Column("Turn", "turn", of="Child")]
    view = replace(COUNTED, columns=columns)
    assert [each.of for each in views._shown_columns(view.columns)] == [None, 0]
    with pytest.raises(ValueError, match="`of` of the column 'Turn' must be one of Turn, got 'Ch"):
        replace(COUNTED, columns=columns[1:])


def test_columns_are_checked_when_the_view_is_made() -> None:
    with pytest.raises(ValueError, match="kind of the column 'X' must be one of text, code"):
        Column("X", "colour")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the view 'Things' must have at least one column"):
        replace(THINGS, columns=())
    with pytest.raises(ValueError, match="a detail must have at least one column"):
        Detail(columns=[], query=THINGS.query)
