"""A recorded disk (power_recorder.c), played again: what a power cut at any moment leaves of it."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_HEAD = struct.Struct("<IIQqII")
_KINDS = (
    "made",
    "wrote",
    "cut",
    "syncing",
    "synced",
    "sync failed",
    "removed",
    "moved",
    "made folder",
    "told",
)

Loss = Literal["synced", "written", "names", "data", "sectors", "pages", "garbage"]
LOSSES: tuple[Loss, ...] = ("synced", "written", "names", "data", "sectors", "pages", "garbage")
"""What is left of the changes that no fsync has made durable.

synced: none of them. written: all, as after a kill. names: some of the names, and some sectors. data: all
names, and no data. sectors, pages: any of the sectors (512 bytes) or pages (4,096) that were written, in any
mixture. garbage: sectors that hold what was written, what was there before, or noise.
"""


@dataclass(frozen=True, slots=True)
class Record:
    kind: str
    thread: int
    inode: int
    offset: int
    path: str
    data: bytes


def records(trace: Path) -> Iterator[Record]:
    """Everything that was recorded, in order. The last record of a killed process may be half a one."""
    raw, at = trace.read_bytes(), 0
    while at + _HEAD.size <= len(raw):
        kind, thread, inode, offset, path_length, data_length = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        path = raw[at : at + path_length].decode()
        at += path_length
        yield Record(_KINDS[kind - 1], thread, inode, offset, path, raw[at : at + data_length])
        at += data_length


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes that were written to a file, or (`data` is None) its new length."""

    offset: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
            content.extend(bytes(self.offset - len(content)))
        else:
            content.extend(bytes(max(0, self.offset - len(content))))
            content[self.offset : self.offset + len(self.data)] = self.data

    def pieces(self, size: int) -> Iterator[Change]:
        """The same in pieces that lie within blocks of `size` bytes."""
        if self.data is None:
            yield self
            return
        start = 0
        while start < len(self.data):
            end = start + size - (self.offset + start) % size
            yield Change(self.offset + start, self.data[start:end])
            start = end


@dataclass(eq=False)
class File:
    durable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)  # since `durable`
    syncing: dict[int, int] = field(default_factory=dict)  # thread: changes when its fsync began

    def do(self, change: Change) -> None:
        change.apply(self.current)
        self.changes.append(change)

    def synced(self, thread: int, *, failed: bool) -> None:
        """An fsync has returned. One that failed has dropped what it should have written, for good."""
        count = self.syncing.pop(thread)
        if not failed:
            for change in self.changes[:count]:
                change.apply(self.durable)
        del self.changes[:count]
        for other in self.syncing:
            self.syncing[other] = max(0, self.syncing[other] - count)

    def torn(self, dice: random.Random, size: int, noise: float) -> bytes:
        content = bytearray(self.durable)
        kept = dice.choice((0.1, 0.5, 0.9))
        for change in self.changes:
            for piece in change.pieces(size):
                if dice.random() < kept:
                    piece.apply(content)
                elif piece.data is not None and dice.random() < noise:
                    Change(piece.offset, dice.randbytes(len(piece.data))).apply(content)
        return bytes(content)


@dataclass(frozen=True, slots=True)
class Naming:
    """A change of names: what the name leads to from then on, and which name is gone by that."""

    name: str | None
    file: File | None
    gone: str | None = None

    def apply(self, names: dict[str, File]) -> None:
        if self.gone is not None:
            names.pop(self.gone, None)
        if self.name is not None and self.file is not None:
            names[self.name] = self.file

    @property
    def folder(self) -> str:
        return os.path.dirname(self.name or self.gone or "")


class Disk:
    """Files by inode, and names in folders: what is durable of each, and what is not yet."""

    def __init__(self) -> None:
        self.names: dict[str, File] = {}
        self._durable_names: dict[str, File] = {}
        self._renamings: list[Naming] = []  # since `_durable_names`
        self._syncing_names: dict[int, int] = {}
        self._unsynced_folders: set[str] = set()
        self._by_inode: dict[int, File] = {}

    def feed(self, record: Record) -> None:
        """What was recorded happens."""
        match record.kind:
            case "made":
                file = self._by_inode[record.inode] = File()
                self._rename(Naming(record.path, file))
            case "wrote":
                self._by_inode[record.inode].do(Change(record.offset, record.data))
            case "cut":
                self._by_inode[record.inode].do(Change(record.offset, None))
            case "removed":
                self._rename(Naming(None, None, record.path))
            case "moved":
                target = record.data.decode()
                self._rename(Naming(target, self.names.get(record.path), record.path))
            case "made folder":
                self._unsynced_folders.add(record.path)
            case "syncing" if record.offset:
                self._syncing_names[record.thread] = len(self._renamings)
            case "syncing":
                file = self._by_inode[record.inode]
                file.syncing[record.thread] = len(file.changes)
            case "synced" if record.offset:
                self._folder_synced(record)
            case "synced" | "sync failed" if not record.offset:
                failed = record.kind == "sync failed"
                self._by_inode[record.inode].synced(record.thread, failed=failed)

    def _rename(self, naming: Naming) -> None:
        naming.apply(self.names)
        self._renamings.append(naming)

    def _folder_synced(self, record: Record) -> None:
        count = self._syncing_names.pop(record.thread)
        left = []
        for n, naming in enumerate(self._renamings):
            if n < count and naming.folder == record.path:
                naming.apply(self._durable_names)
            else:
                left.append(naming)
        self._renamings = left
        self._unsynced_folders -= {
            folder for folder in self._unsynced_folders if os.path.dirname(folder) == record.path
        }

    def after_a_cut(self, loss: Loss, dice: random.Random) -> dict[str, bytes]:
        """The files by their names. Nothing of an -shm file survives: it is memory."""
        left = {}
        for name, file in self._names_left(loss, dice).items():
            if name.endswith("-shm"):
                continue
            match loss:
                case "synced" | "data":
                    left[name] = bytes(file.durable)
                case "written":
                    left[name] = bytes(file.current)
                case "sectors" | "names":
                    left[name] = file.torn(dice, 512, noise=0)
                case "pages":
                    left[name] = file.torn(dice, 4096, noise=0)
                case "garbage":
                    left[name] = file.torn(dice, 512, noise=0.5)
        return left

    def _names_left(self, loss: Loss, dice: random.Random) -> dict[str, File]:
        if loss not in ("synced", "names"):
            return self.names
        names = dict(self._durable_names)
        if loss == "names":
            for naming in self._renamings:
                if dice.random() < 0.5:
                    naming.apply(names)
        return {name: file for name, file in names.items() if not self._is_adrift(name)}

    def _is_adrift(self, name: str) -> bool:
        """Whether a folder above it would not be found."""
        return any(name.startswith(f"{folder}/") for folder in self._unsynced_folders)
