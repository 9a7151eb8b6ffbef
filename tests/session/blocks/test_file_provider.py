"""A block from a file: read and written in a thread, and as a whole."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from block_agents import lone, of

from outlast.session.providers.file import FileProvider
from outlast.session.providers.regular_files import read_file, write_file
from outlast.session.providers.thread import OneThread


async def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    blocks = lone(of("notes", FileProvider(path)))
    missing = await blocks.get("notes")
    assert (missing.content, missing.error) == ("", "No such file or directory")
    for text in ("one", "two"):
        path.write_text(text)
        block = await blocks.get("notes")
        assert (block.content, block.kind, block.error) == (text, "readonly", None)


async def test_a_writable_file_need_not_exist_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    blocks = lone(of("notes", FileProvider(str(path), writable=True), max_tokens=100))
    assert (await blocks.get("notes")).content == ""
    await blocks.replace("notes", "one")
    path.chmod(0o666)
    inode = path.stat().st_ino
    await blocks.append("notes", "two – three\r\n")
    assert path.read_bytes() == "one\ntwo – three\r\n".encode()
    assert path.stat().st_mode & 0o777 == 0o666
    assert path.stat().st_ino != inode
    assert os.listdir(tmp_path) == ["notes.md"]


async def test_appends_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    blocks = lone(of("notes", FileProvider(tmp_path / "notes.md", writable=True)))
    await asyncio.gather(*(blocks.append("notes", f"{n}") for n in range(9)))
    assert (await blocks.get("notes")).content.splitlines() == [str(n) for n in range(9)]


def test_a_failed_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notes.md"
    write_file(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_file(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["notes.md"]


async def test_a_link_stays_a_link_when_its_file_is_written(tmp_path: Path) -> None:
    real, link = tmp_path / "real.md", tmp_path / "link.md"
    real.write_text("old")
    link.symlink_to(real)
    await lone(of("notes", FileProvider(link, writable=True))).replace("notes", "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


@pytest.mark.parametrize("kind", ["folder", "pipe", "binary", "loop"])
async def test_what_is_no_text_file_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "notes.md"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)  # opening it for reading would wait for a writer
        case "binary":
            path.write_bytes(b"\x89PNG\0\0")
        case "loop":
            path.symlink_to(path)
    block = await lone(of("notes", FileProvider(path))).get("notes")
    assert block.error is not None
    assert str(tmp_path) not in block.error or kind == "loop"
    assert block.content == ""


def test_a_folder_is_refused_and_its_descriptor_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    really = os.open

    def open_noted(*arguments: Any) -> int:
        opened.append(really(*arguments))
        return opened[-1]

    monkeypatch.setattr(os, "open", open_noted)
    with pytest.raises(OSError, match="not a regular file"):
        read_file(tmp_path, 100)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


async def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    with path.open("wb") as file:
        file.write(b"x" * 1000)
        file.truncate(10_000_000_000)  # a hole: it takes no space
    block = await lone(of("notes", FileProvider(path))).get("notes")
    assert block.error == "ValueError: notes.md must be a text file, got a binary one"


async def test_a_missing_folder_is_told_when_the_file_is_written(tmp_path: Path) -> None:
    blocks = lone(of("notes", FileProvider(tmp_path / "no" / "notes.md", writable=True)))
    with pytest.raises(FileNotFoundError):
        await blocks.replace("notes", "text")


# --- threads -------------------------------------------------------------------------------------


async def test_the_loop_runs_while_a_thread_reads() -> None:
    go_on = threading.Event()
    work = asyncio.create_task(OneThread().run(go_on.wait))
    await asyncio.sleep(0)
    assert not work.done()
    go_on.set()
    assert await work


async def test_a_thread_that_hangs_is_the_only_one() -> None:
    thread, go_on, began = OneThread(), threading.Event(), []

    def hang() -> int:
        began.append(1)
        go_on.wait()
        return len(began)

    first = asyncio.create_task(thread.run(hang))
    while not began:
        await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(thread.run(hang))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (first.cancelled(), len(began)) == (True, 1)
    go_on.set()
    assert await second == 2


async def test_an_error_in_a_thread_is_raised_and_does_not_bar_the_next() -> None:
    thread = OneThread()

    def fail() -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await thread.run(fail)
    assert await thread.run(lambda: 1) == 1
