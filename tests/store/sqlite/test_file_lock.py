"""SQLite: one host per file, however the holder of the lock ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rows import fence, opened, path_of, put, stored

from outlast.core.errors import StoreLocked
from outlast.store.sqlite.lock import FileLock
from outlast.store.url import open_store

# Opens the store, says so, and keeps it until its standard input ends.
HOLDER = """
import asyncio, sys
from outlast.store.url import open_store

async def main():
    store = await open_store(sys.argv[1])
    print("open", flush=True)
    sys.stdin.read()
    await store.close()

asyncio.run(main())
"""

# The same, but a forked child outlives it.
PARENT = """
import asyncio, os, sys
from outlast.store.url import open_store

async def main():
    store = await open_store(sys.argv[1])
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        sys.stdin.read()  # lives on after its parent
        os._exit(0)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""

FORK = """
    import os
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture
def holder(sqlite_url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open."""
    with start(HOLDER, sqlite_url) as process:
        assert said(process) == "open"
        yield process


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def start(program: str, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_a_second_process_is_told_who_has_the_file(
    sqlite_url: str, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(StoreLocked) as caught:
        await open_store(sqlite_url)
    told = str(caught.value)
    assert f"process {holder.pid} on {socket.gethostname()} (since 20" in told
    assert str(path_of(sqlite_url)) in told
    assert "use PostgreSQL for several hosts" in told


async def test_the_lock_is_free_after_sigkill(
    sqlite_url: str, holder: subprocess.Popen[str]
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    async with opened(sqlite_url) as store:
        assert await store.commit(fence(), [put("A/x", "k")]) == (1,)


async def test_the_lock_is_free_after_a_close_in_the_other_process(
    sqlite_url: str, holder: subprocess.Popen[str]
) -> None:
    holder.communicate()
    assert holder.returncode == 0
    async with opened(sqlite_url) as store:
        assert await stored(store) == {}


async def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(sqlite_url: str) -> None:
    with start(PARENT, sqlite_url) as parent:
        child = int(said(parent))
        assert parent.wait() == -signal.SIGKILL
        os.kill(child, 0)  # it lives
        async with opened(sqlite_url) as store:
            assert await stored(store) == {}


async def test_a_child_that_ends_does_not_take_the_lock_from_its_parent(sqlite_url: str) -> None:
    with start(HOLDER.replace("    print", FORK + "    print"), sqlite_url) as parent:
        assert said(parent) == "open"
        with pytest.raises(StoreLocked, match=f"process {parent.pid} on"):
            await open_store(sqlite_url)


async def test_the_same_process_cannot_open_a_store_twice(sqlite_url: str) -> None:
    async with opened(sqlite_url) as store:
        with pytest.raises(StoreLocked, match=f"process {os.getpid()} on"):
            await open_store(sqlite_url)
        assert await store.commit(fence(), []) == ()  # the first one is unharmed
    async with opened(sqlite_url) as store:
        assert await stored(store) == {}


async def test_a_failed_open_gives_the_lock_back(sqlite_url: str) -> None:
    path_of(sqlite_url).write_bytes(b"not a database, and long enough to be seen as none" * 100)
    for _ in range(2):
        with pytest.raises(Exception, match="not a valid SQLite database"):
            await open_store(sqlite_url)


async def test_a_link_to_the_file_is_the_same_file(sqlite_url: str, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path_of(sqlite_url))
    async with opened(sqlite_url):
        with pytest.raises(StoreLocked):
            await open_store(f"sqlite:///{link}")
    async with opened(f"sqlite:///{link}"):
        with pytest.raises(StoreLocked):
            await open_store(sqlite_url)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'["pid"]', b'{"pid": 1}'])
async def test_a_holder_that_left_no_name_is_told_as_such(sqlite_url: str, content: bytes) -> None:
    lock_file = path_of(sqlite_url).with_name("store.db.lock")
    async with opened(sqlite_url):
        lock_file.write_bytes(content)
        with pytest.raises(StoreLocked, match="another process"):
            await open_store(sqlite_url)


def test_the_lock_file_says_who_holds_it_and_stays_behind(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "store.db")
    about = json.loads((tmp_path / "store.db.lock").read_text())
    assert (about["pid"], about["host"]) == (os.getpid(), socket.gethostname())
    lock.release()
    lock.release()
    assert (tmp_path / "store.db.lock").exists()
    FileLock(tmp_path / "store.db").release()
