"""Tables that agents bring: a host makes them, and sees to them though the code that made them is gone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import pytest

from battery import ALL_NOTES, NEWER_NOTES, NOTES, TASKS, WORDS, note
from outlast import Agent, Host
from outlast.agent.agent import parts_of
from outlast.agent.battery import Battery
from outlast.agent.part import Part
from outlast.agent.subagents.subagents import deletion
from outlast.host.address import Address
from outlast.inspect import views
from outlast.inspect.reader import reading
from outlast.store import copier
from outlast.store.base import MEBIBYTE
from outlast.store.catalogue import columns_of, owned_tables
from outlast.store.operations import BulkStatement
from outlast.store.schema import FOUNDATION
from support import hosting

BODIES = {
    "a": bytes(range(256)),
    "b": b"",
    "c": hashlib.shake_256(b"c").digest(MEBIBYTE),
    "d": b"'; DROP TABLE notes; --\\x00",
}


class Jotter(Agent):
    battery = Battery(name="notes", part=Part, schema=NOTES)

    async def jot(self, id: str, body: bytes) -> None:
        parts = parts_of(self)
        await parts.commits.commit([note(parts.activation.address.text, id, body)])

    async def share(self, word: str) -> None:
        sql = f"INSERT INTO notes_shared (word) VALUES ('{word}')"
        await parts_of(self).commits.commit([(BulkStatement("notes share", sql, sql), ())])


class Inner(Agent):
    battery = Battery(name="tasks", part=Part, schema=TASKS)


class Outer(Agent):
    sub_agents: ClassVar[Any] = [Inner]


class Owner(Agent):
    sub_agents: ClassVar[Any] = [Outer, Jotter]

    async def furnish(self) -> None:
        for name in ("x", "x-1", "y"):
            jotter = await self.sub_agent(Jotter, name)
            await jotter.jot("n", name.encode())


class PlainOwner(Agent):
    """`Owner`, when its code has no notes any more."""

    async def remove(self, name: str) -> None:
        await self.delete_sub_agent(Jotter, name)


PlainOwner.__name__ = "Owner"


async def test_a_host_makes_the_tables_of_its_classes_and_of_their_sub_agents(
    store_url: str,
) -> None:
    async with Host(agents=[Owner], store=store_url) as host:
        assert {"notes", "tasks"} <= (await columns_of(host.store)).keys()
        await host.get(Owner, "o").furnish()
        assert len(await host.store.fetch(ALL_NOTES)) == 3


async def test_a_store_that_is_open_already_gets_them_too(store_url: str) -> None:
    async with hosting(Owner, url=store_url) as host:
        assert {"notes", "tasks"} <= (await columns_of(host.store)).keys()


async def test_two_classes_that_bring_different_schemas_of_one_name_are_refused(
    sqlite_url: str,
) -> None:
    class Other(Agent):
        battery = Battery(name="notes", part=Part, schema=NEWER_NOTES)

    with pytest.raises(ValueError, match="two schemas are named 'notes'"):
        await Host(agents=[Jotter, Other], store=sqlite_url).start()


async def test_rows_in_tables_of_a_battery_that_is_gone_are_deleted_with_their_agent(
    store_url: str,
) -> None:
    async with hosting(Owner, url=store_url) as host:
        await host.get(Owner, "o").furnish()
        await host.get(Jotter, "other").jot("n", b"stays")
    async with hosting(PlainOwner, url=store_url, life="2") as host:
        await host.get(PlainOwner, "o").remove("x")
        left = [row[0] for row in await host.store.fetch(ALL_NOTES)]
        assert left == ["Jotter/other", "Owner/o/Jotter/x-1", "Owner/o/Jotter/y"]
        await host.get(PlainOwner, "o").destroy()
        assert [row[0] for row in await host.store.fetch(ALL_NOTES)] == ["Jotter/other"]


def test_addresses_are_compared_by_code_points_whatever_a_battery_declares() -> None:
    operations = deletion(Address.of("A", "x"), {"notes": "user"})
    assert operations[0][0].postgres == (
        'DELETE FROM notes WHERE "user" = $1'
        ' OR ("user" COLLATE "C" > $2 AND "user" COLLATE "C" < $3)'
    )


async def test_tables_of_a_battery_that_is_gone_are_measured(store_url: str) -> None:
    async with hosting(Jotter, url=store_url) as host:
        for id, body in BODIES.items():
            await host.get(Jotter, "j").jot(id, body)
        await host.get(Jotter, "k").jot("n", b"12345")
    async with reading(store_url) as reader:
        of_all = {each.table: each for each in await views.sizes(reader)}
        of_one = {each.table: each for each in await views.sizes(reader, Address.of("Jotter", "k"))}
    assert (of_all["notes"].rows, of_one["notes"].rows) == (5, 1)
    assert of_all["notes"].bytes > sum(map(len, BODIES.values()))
    assert of_one["notes"].bytes == len("Jotter/k" + "n" + "12345")
    assert "storage" in of_one
    assert "notes_shared" not in of_one


async def test_tables_of_a_battery_that_is_gone_go_to_postgresql_and_back(
    sqlite_url: str, postgres_url: str, tmp_path: Path
) -> None:
    async with hosting(Jotter, Inner, url=sqlite_url) as host:
        for id, body in BODIES.items():
            await host.get(Jotter, "j").jot(id, body)
        await host.get(Jotter, "j").share("hello")
        before = await host.store.fetch(ALL_NOTES)
    assert dict(row[1:] for row in before) == BODIES
    back = f"sqlite:///{tmp_path}/back.db"
    there = await copier.copy_store(sqlite_url, postgres_url)
    assert (there["notes"], there["notes_shared"], there["tasks"]) == (4, 1, 0)
    assert await copier.copy_store(postgres_url, back) == there
    for url in (postgres_url, back):
        async with hosting(PlainOwner, url=url) as host:
            assert await host.store.fetch(ALL_NOTES) == before
            assert await host.store.fetch(WORDS) == [("hello",)]
            owned = await owned_tables(host.store)
            assert owned == {**FOUNDATION.owned, "notes": "owner", "tasks": "agent"}
        async with hosting(
            Jotter, url=url
        ) as host:  # and the battery finds everything when it is back
            await host.get(Jotter, "j").jot("new", b"")
