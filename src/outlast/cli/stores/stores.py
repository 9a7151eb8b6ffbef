"""`outlast db`: the size of a store, vacuuming it, backing it up, and copying it to another engine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from outlast.cli.output import as_json, console, fail, show_table
from outlast.cli.output import size as shown_size
from outlast.core.errors import StoreUnavailable
from outlast.inspect import views
from outlast.inspect.hosted import is_hosted
from outlast.inspect.reader import reading
from outlast.store.catalogue import columns_of
from outlast.store.password import without_password
from outlast.store.sqlite.files import create_private, make_folder, sync_folder
from outlast.store.url import DEFAULT, file_of


async def size(url: str | None, json: bool) -> None:
    url = url or DEFAULT
    async with reading(url) as reader:
        found = await views.sizes(reader)
    path = file_of(url)
    files = {} if path is None else _files(path)
    if json:
        as_json({"tables": found, "files": files})
        return
    show_table(
        ["table", "rows", "stored"],
        [[each.table, each.rows, shown_size(each.bytes)] for each in found],
        none="Nothing is stored.",
    )
    for name, count in files.items():
        console().print(f"{name}: {shown_size(count)}", markup=False)


def _files(path: Path) -> dict[str, int]:
    places = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    return {str(each): each.stat().st_size for each in places if each.exists()}


async def vacuum(url: str | None, json: bool) -> None:
    url = url or DEFAULT
    async with reading(url) as reader:  # raises unless it exists
        tables = await columns_of(reader)
    path = file_of(url)
    before = 0 if path is None else sum(_files(path).values())
    if path is None:
        await _vacuum_postgres(url, tables)
    else:
        from outlast.store.url import open_store

        store = await open_store(url)  # locks out hosts
        try:
            with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as db:
                db.execute("VACUUM")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            await store.close()
    after = 0 if path is None else sum(_files(path).values())
    if json:
        as_json({"before": before, "after": after})
    elif path is None:
        console().print("Vacuumed and analyzed every table.")
    else:
        console().print(
            f"{path}: {shown_size(before)} before, {shown_size(after)} now", markup=False
        )


async def _vacuum_postgres(url: str, tables: Iterable[str]) -> None:
    from outlast.store.copier import connected

    async with connected(url) as (connection, _):
        for table in tables:
            await connection.execute(f"VACUUM (ANALYZE) {table}")


async def _is_written(url: str) -> bool:
    """Return whether a host has a PostgreSQL schema open, on any machine."""
    if file_of(url) is not None:
        return False
    from outlast.store.copier import connected
    from outlast.store.postgres.lock import is_held

    async with connected(url) as (connection, name):
        return await is_held(connection, name)


async def backup(url: str | None, target: str, *, force: bool, json: bool) -> None:
    """Back up a SQLite file, even while a host is running. The backup is complete, or does not appear."""
    url = url or DEFAULT
    async with reading(url):
        pass
    path = file_of(url)
    if path is None:
        fail(
            "use pg_dump to back up PostgreSQL, or convert it to a SQLite file:"
            f" outlast db copy '{without_password(url)}' 'sqlite:///{target}'"
        )
    count = _back_up(path, target_of(target, path.name), force=force)
    if json:
        as_json(count)
    else:
        made, size_ = count["file"], shown_size(count["bytes"])
        console().print(f"{made}: {size_}, integrity check passed", markup=False)


def target_of(given: str, name: str) -> Path:
    """Return the target file: in a folder, one named `name`. A trailing slash means a folder."""
    target = Path(given)
    is_folder = given.endswith(("/", os.sep)) or target.is_dir()
    return target / name if is_folder else target


def _back_up(path: Path, target: Path, *, force: bool) -> dict[str, Any]:
    if target.exists() and not force:
        fail(f"{target} already exists; use --force to replace it")
    if target.exists() and os.path.samefile(target, path):
        fail(f"{target} is the store itself")
    half = target.with_name(f".{target.name}.half")
    try:
        make_folder(target.parent)
        half.unlink(missing_ok=True)
        create_private(half)
    except OSError as error:
        fail(f"cannot write {target}: {error.strerror}: {error.filename}")
    try:
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30)) as source,
            closing(sqlite3.connect(half)) as made,
        ):
            source.backup(made)  # in one step: a snapshot, whatever the host writes meanwhile
            made.execute("PRAGMA journal_mode = DELETE")  # a single file that can be moved
            (state,) = made.execute("PRAGMA integrity_check").fetchone()
        if state != "ok":
            fail(f"the backup failed its integrity check ({state}); check {path}")
        os.replace(half, target)
        sync_folder(target.parent)  # otherwise a power cut could undo the rename
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"cannot copy {path}: {error}") from error
    finally:
        half.unlink(missing_ok=True)
    return {"file": str(target), "bytes": target.stat().st_size}


async def copy(source: str, target: str, *, live: bool, json: bool) -> None:
    from outlast.store.copier import copy_store, count_rows

    async with reading(source):
        pass  # raises unless it exists
    if not live and (await is_hosted(source) or await _is_written(source)):
        fail(
            "a host has the source open: the copy would miss its later writes, and turns would be"
            " answered twice if both stores are used. Stop the host first, or use --live to copy the"
            " current contents."
        )
    if file_of(source) is not None and file_of(source) == file_of(target):
        fail("source and target are the same store")
    expected = sum((await count_rows(source)).values())
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console(), disable=json) as progress:
        task = progress.add_task("copying and comparing", total=2 * expected)

        def advance(table: str, rows: int) -> None:
            progress.update(task, advance=rows)

        done: dict[str, Any] = await copy_store(source, target, advance)
    if json:
        as_json({"tables": done, "rows": sum(done.values()), "verified": True})
    else:
        rows = sum(done.values())
        console().print(f"Copied {rows:,} rows and verified them.")
