"""`outlast db`: sizes, vacuum, backups, and copies from one engine to the other and back."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from commands import beside
from families import Node, furnish

from outlast import Think
from outlast.store import copier
from outlast.store.catalogue import columns_of
from outlast.testing import ScriptedModel
from support import forever, hosting


class Talker(Think):
    model = ScriptedModel("Hello: ö \U0001f600 \\u0000!", repeat=True)

    async def work(self) -> None:
        await self.start_fiber("dig", forever, {"depth": 3}, id="f1")


async def fill(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Something in every table; returned as it is stored."""
    async with hosting(Talker, Node, url=url, shutdown_timeout=0) as host:
        for n in range(20):
            await host.get(Talker, f"t{n}").save_messages(f"Hi {n}")
        await furnish(host, host.get(Node, "n"))
    return await everything(url)


async def everything(url: str) -> dict[str, list[tuple[Any, ...]]]:
    async with copier._reading(url) as side:
        return {
            table: sorted([row async for rows in side.rows(table, names) for row in rows], key=repr)
            for table, names in sorted((await columns_of(side)).items())
            if table != "meta"
        }


async def test_a_store_goes_to_postgresql_and_back_as_it_is(
    sqlite_url: str, postgres_url: str, tmp_path: Path
) -> None:
    before = await fill(sqlite_url)
    assert all(before.values()), "something of everything"
    there = await beside("db", "copy", sqlite_url, postgres_url)
    assert there.code == 0, there.err
    assert "rows and verified them" in there.out
    assert await everything(postgres_url) == before
    back = f"sqlite:///{tmp_path}/back.db"
    again = await beside("db", "copy", postgres_url, back, "--json")
    assert again.json["rows"] == sum(map(len, before.values()))
    assert await everything(back) == before
    async with hosting(Talker, url=back, life="2") as host:
        answers = await host.get(Talker, "t7").get_messages()
        assert [each.text for each in answers] == ["Hi 7", "Hello: ö \U0001f600 \\u0000!"]
        assert (await host.get(Talker, "t7").save_messages("More")).status == "completed"


async def test_a_copy_that_is_not_the_same_is_said(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(sqlite_url)
    target = f"sqlite:///{tmp_path}/other.db"
    write = copier._Sqlite.write

    async def lossy(self: Any, table: str, columns: list[str], rows: list[Any]) -> None:
        changed = [(*row[:-1], 7) if table == "decisions" else row for row in rows]
        await write(self, table, columns, changed)

    monkeypatch.setattr(copier._Sqlite, "write", lossy)
    failed = await beside("db", "copy", sqlite_url, target)
    assert (failed.code, "the copy of decisions differs" in failed.err) == (1, True)


async def test_a_copy_needs_an_empty_target_and_a_source_that_stands_still(
    sqlite_url: str, tmp_path: Path
) -> None:
    await fill(sqlite_url)
    target = f"sqlite:///{tmp_path}/other.db"
    async with hosting(Talker, url=sqlite_url, life="2", admin=True):
        refused = await beside("db", "copy", sqlite_url, target)
        assert (refused.code, "Stop the host first" in refused.err) == (1, True)
        assert (await beside("db", "copy", sqlite_url, target, "--live")).code == 0
    again = await beside("db", "copy", sqlite_url, target, "--live")
    assert (again.code, "the target must be empty" in again.err) == (1, True)
    same = await beside("db", "copy", sqlite_url, sqlite_url, "--live")
    assert (same.code, "are the same store" in same.err) == (1, True)


async def test_a_host_of_the_same_postgresql_schema_keeps_it_from_being_copied(
    postgres_url: str, tmp_path: Path
) -> None:
    await fill(postgres_url)
    async with hosting(Talker, url=f"{postgres_url}_too"):
        done = await beside("db", "copy", postgres_url, f"sqlite:///{tmp_path}/one.db")
        assert done.code == 0, done.err
    async with hosting(Talker, url=postgres_url, life="2"):
        refused = await beside("db", "copy", postgres_url, f"sqlite:///{tmp_path}/two.db")
        assert (refused.code, "Stop the host first" in refused.err) == (1, True)


async def test_a_backup_is_made_beside_a_host_and_can_be_opened(
    sqlite_url: str, tmp_path: Path
) -> None:
    before = await fill(sqlite_url)
    folder = tmp_path / "backups"
    folder.mkdir()
    async with hosting(Talker, url=sqlite_url, life="2") as host:
        await host.get(Talker, "late").save_messages("Hi")
        made = await beside("db", "backup", str(folder), "--store", sqlite_url, "--json")
        assert made.code == 0, made.err
    file = folder / "store.db"
    assert [each.name for each in folder.iterdir()] == ["store.db"], "one file, and whole"
    copied = await everything(f"sqlite:///{file}")
    assert len(copied["messages"]) == len(before["messages"]) + 2
    again = await beside("db", "backup", str(file), "--store", sqlite_url)
    assert (again.code, "--force" in again.err) == (1, True)
    assert (await beside("db", "backup", str(file), "--store", sqlite_url, "--force")).code == 0
    async with hosting(Talker, url=f"sqlite:///{file}", life="3") as host:
        assert len(await host.get(Talker, "late").get_messages()) == 2


async def test_sizes_and_vacuum(store_url: str) -> None:
    await fill(store_url)
    async with hosting(Talker, url=store_url, life="2") as host:
        for n in range(20):
            await host.get(Talker, f"t{n}").clear_messages()
        if host.store.engine == "sqlite":
            refused = await beside("db", "vacuum", "--store", store_url)
            assert (refused.code, "is in use by process" in refused.err) == (1, True)
    sizes = (await beside("db", "size", "--store", store_url, "--json")).json
    assert {each["table"] for each in sizes["tables"]} >= {"messages", "inbox"}
    assert (await beside("db", "size", "--store", store_url)).code == 0
    done = await beside("db", "vacuum", "--store", store_url, "--json")
    assert done.code == 0, done.err
    if store_url.startswith("sqlite"):
        assert done.json["after"] < done.json["before"]


async def test_postgresql_is_backed_up_by_its_own_tool_or_as_a_file(postgres_url: str) -> None:
    await fill(postgres_url)
    refused = await beside("db", "backup", "x.db", "--store", postgres_url)
    assert (refused.code, "pg_dump" in refused.err) == (1, True)
    assert "outlast db copy" in refused.err


async def test_a_trailing_slash_is_a_folder_which_is_made(sqlite_url: str, tmp_path: Path) -> None:
    await fill(sqlite_url)
    name = sqlite_url.rpartition("/")[2]
    for target in (f"{tmp_path}/backups/", f"{tmp_path}/a/b/", f"{tmp_path}/c/d.db"):
        made = await beside("db", "backup", target, "--store", sqlite_url, "--json")
        expected = f"{target}{name}" if target.endswith("/") else target
        assert (made.code, made.json["file"]) == (0, expected), made.err
        assert await everything(f"sqlite:///{expected}") == await everything(sqlite_url)
    again = await beside("db", "backup", f"{tmp_path}/backups/", "--store", sqlite_url)
    assert (again.code, "already exists; use --force to replace it" in again.err) == (1, True)
    (tmp_path / "file").touch()
    refused = await beside("db", "backup", f"{tmp_path}/file/", "--store", sqlite_url)
    assert (refused.code, "cannot write" in refused.err) == (1, True)
    copied = await beside("db", "copy", sqlite_url, f"sqlite:///{tmp_path}/copies/")
    assert (copied.code, "must name a file, got a folder" in copied.err) == (1, True)


def test_a_damaged_file_is_not_passed_off_as_a_backup(tmp_path: Path) -> None:
    from commands import outlast

    sqlite3.connect(tmp_path / "x.db").close()
    failed = outlast(
        "db", "backup", str(tmp_path / "y.db"), "--store", f"sqlite:///{tmp_path}/x.db"
    )
    assert failed.code == 1
    assert not (tmp_path / "y.db").exists()
