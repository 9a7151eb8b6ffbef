"""A store whose disk is recorded, without a server: python power_writer.py <path> [<sabotage>].

Two writers put keys, and two readers read them all the while, until there are enough of them. Whatever they
are told is a *token* (power_judge.py), and is written to the file `shown`, which is recorded as told.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from outlast.agent.state.storage import _PUT as PUT
from outlast.store import fencing
from outlast.store.attempt import Attempt
from outlast.store.base import Row, Store, StoreOptions
from outlast.store.operations import Fence, Query
from outlast.store.sqlite import engine as sqlite
from outlast.store.sqlite import fsync

WRITERS = ("a", "b")
KEYS = 30  # of each
READS = [Query.same("SELECT key FROM storage WHERE agent = ?", bulk=bulk) for bulk in (False, True)]


def show(*tokens: str) -> None:
    """As good as told."""
    path = os.path.join(os.environ["POWER_ROOT"], "shown")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, "\n".join(tokens).encode())
    os.close(descriptor)


def record_acknowledgements() -> None:
    conclude = Store._conclude

    def told(store: Store, attempt: Attempt) -> None:
        names = [(fence.root.partition("/")[2], fence) for fence in attempt.counts]
        show(*(f"commit-{name}-{fence.epoch}-{fence.commit_no}" for name, fence in names))
        conclude(store, attempt)

    Store._conclude = told  # type: ignore[method-assign]


def checkpoint_often() -> None:
    sqlite.CHECKPOINT_PAGES = 60
    fsync.CHECKPOINT_BYTES = 200_000


async def write(store: Store, name: str) -> None:
    root = f"A/{name}"
    rows = await store.fetch(fencing.READ, root)
    fence = Fence.after(root, str(os.getpid()), rows[0] if rows else None)
    for n in range(len(await store.fetch(READS[0], root)), KEYS):
        await store.commit(fence, [(PUT, (root, f"key-{name}-{n}", 500, "v" * 500))])
        show(f"key-{name}-{n}")


async def read(store: Store, query: Query) -> None:
    for name in WRITERS:
        show(*(key for (key,) in await store.fetch(query, f"A/{name}")))


async def main(path: Path) -> None:
    store = sqlite.open_sqlite(sqlite.SqliteOptions(path), StoreOptions())
    for query in READS:  # what the process before this one has left
        await read(store, query)
    writing = asyncio.gather(*(write(store, name) for name in WRITERS))
    while not writing.done():
        await asyncio.gather(*(read(store, query) for query in READS))
        await asyncio.sleep(0.001)
    await writing
    await store.close()


# --- sabotage: what the test must see -------------------------------------------------------------


def acknowledge_early() -> None:
    sync = fsync.SlowDisk.sync

    def early(disk: fsync.SlowDisk, loop: Any, done: Any) -> None:
        sync(disk, loop, lambda error: None)
        loop.call_soon(done, None)

    fsync.SlowDisk.sync = early  # type: ignore[method-assign]


def read_early() -> None:
    async def fetch(store: sqlite.SqliteStore, query: Query, arguments: Any) -> list[Row]:
        return await store._rows(query, arguments)

    sqlite.SqliteStore._fetch = fetch  # type: ignore[method-assign]


def sync_nothing_at_opening() -> None:
    sqlite.sync_log = lambda *_, **__: None  # type: ignore[assignment]


def sync_again_as_if_nothing_had_happened() -> None:
    really = sqlite.sync_log
    sqlite.sync_log = lambda *given, anew=False: really(*given)  # type: ignore[assignment]


def make_folders_and_forget_them() -> None:
    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    sqlite.make_folder = make  # type: ignore[assignment]


SABOTAGES = {
    function.__name__: function
    for function in (
        acknowledge_early,
        read_early,
        sync_nothing_at_opening,
        sync_again_as_if_nothing_had_happened,
        make_folders_and_forget_them,
    )
}

if __name__ == "__main__":
    checkpoint_often()
    record_acknowledgements()
    for sabotage in sys.argv[2:]:
        SABOTAGES[sabotage]()
    asyncio.run(main(Path(sys.argv[1])))
