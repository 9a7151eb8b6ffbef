"""SQLite: files and folders that cannot be written. In a process without root's rights."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.core.errors import StoreReadOnly
from outlast.store.url import open_store

OPEN = """
import asyncio, os, sys, tempfile
from outlast.store.url import open_store

async def main(url):
    store = await open_store(url)
    await store.close()

with tempfile.TemporaryDirectory() as folder:  # imports what is imported late
    asyncio.run(main(f"sqlite:///{folder}/store.db"))

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

try:
    asyncio.run(main(sys.argv[1]))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
else:
    print("opened")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody can reach and write (pytest's own are root's alone)."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)
        os.chmod(name, 0o777)


def opening(path: Path) -> str:
    """What somebody who is not root is told."""
    command = [sys.executable, "-c", OPEN, f"sqlite:///{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_folder_that_cannot_be_written_is_said(folder: Path) -> None:
    os.chmod(folder, 0o555)
    told = opening(folder / "store.db")
    assert told.startswith(f"StoreReadOnly: cannot open {folder}/store.db for writing")
    assert "Check the permissions of the file and of its folder" in told


def test_a_folder_that_cannot_be_made_is_said(folder: Path) -> None:
    os.chmod(folder, 0o555)
    assert opening(folder / "new" / "store.db").startswith("StoreReadOnly: ")
    assert not (folder / "new").exists()


@pytest.mark.parametrize("guarded", ["store.db", "store.db.lock"])
def test_a_file_that_cannot_be_written_is_said(folder: Path, guarded: str) -> None:
    assert opening(folder / "store.db") == "opened"
    os.chmod(folder / guarded, 0o444)
    told = opening(folder / "store.db")
    assert told.startswith("StoreReadOnly: ")
    assert str(folder / "store.db") in told
    for file in folder.iterdir():  # SQLite gives its own files the permissions of the database
        file.chmod(0o666)
    assert opening(folder / "store.db") == "opened"


async def test_a_read_only_file_system_is_said(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system", "store.db.lock")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreReadOnly, match="Read-only file system"):
        await open_store(sqlite_url)
