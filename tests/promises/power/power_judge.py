"""Whether a recorded disk keeps the promises: what was told is there, and what is there once was.

Everything that is worth telling apart in a recording (power_worker.py) is a *token*: a word of an answer, a
question, a key, a tool call, a commit. A token that was told must be in the store that a power cut leaves.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from power_disk import LOSSES, Disk, Loss, Record, records

TOKEN = re.compile(rb"(?:word|ask|key|intent|commit)-[a-z0-9]+(?:-[a-z0-9]+)*")
COMMIT = re.compile(rb"commit-([a-z]+)-(\d+)-(\d+)")
_AROUND = ("syncing", "synced", "sync failed", "made", "removed", "moved", "cut")


@dataclass(frozen=True, slots=True)
class Contents:
    """What a store holds: all rows, in short, and which tokens are in them."""

    digest: bytes = b""
    tokens: frozenset[bytes] = frozenset()
    reached: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # epoch, commit_no

    def lacks(self, told: Iterable[bytes]) -> list[bytes]:
        return sorted(token for token in told if not self._has(token))

    def _has(self, token: bytes) -> bool:
        if (commit := COMMIT.fullmatch(token)) is None:
            return token in self.tokens
        return self.reached.get(commit[1], (0, 0)) >= (int(commit[2]), int(commit[3]))


EMPTY = Contents()


class Damaged(AssertionError):
    """SQLite does not take it for a sound database."""


class Images:
    """Where what a power cut leaves is looked at."""

    def __init__(self, folder: Path, store: Path) -> None:
        self._folder = folder
        self._store = store
        self._known: dict[bytes, Contents] = {}
        self.count = 0

    def lay_out(self, left: dict[str, bytes], folder: Path | None = None) -> Path:
        """Write the files of the store to a folder; returns the database's path there."""
        folder = folder or self._folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in left.items():
            if Path(name).parent == self._store.parent:
                (folder / Path(name).name).write_bytes(content)
        return folder / self._store.name

    def contents(self, left: dict[str, bytes]) -> Contents:
        """What the store holds that SQLite makes of these files."""
        self.count += 1
        files = hashlib.blake2b()
        for name in sorted(left):
            files.update(name.encode() + hashlib.blake2b(left[name]).digest())
        known = self._known.get(files.digest())
        if known is None:
            path = self.lay_out(left)
            known = self._known[files.digest()] = _read(path) if path.exists() else EMPTY
        return known


def _read(path: Path) -> Contents:
    try:
        with closing(sqlite3.connect(path)) as db:
            (state,) = db.execute("PRAGMA integrity_check").fetchone()
            if state != "ok":
                raise Damaged(state)
            tables = [
                name
                for name, sql in db.execute(
                    "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
                )
                if name != "meta" and "VIRTUAL" not in sql  # the tables behind one are read
            ]
            rows = {name: sorted(map(repr, db.execute(f"SELECT * FROM {name}"))) for name in tables}
            if not any(rows.values()):
                return EMPTY
            text = repr(sorted(rows.items())).encode()
            tokens = set(TOKEN.findall(text))
            tokens |= {
                b"intent-" + id.removeprefix("call-").encode()
                for (id,) in db.execute("SELECT id FROM calls")
            }
            found = db.execute("SELECT root, epoch, commit_no FROM agents")
            reached = {
                root.partition("/")[2].encode(): (epoch, commit_no)
                for root, epoch, commit_no in found
            }
    except sqlite3.Error as error:
        raise Damaged(str(error)) from error
    return Contents(hashlib.blake2b(text).digest(), frozenset(tokens), reached)


@dataclass
class Verdict:
    """What was found out about a recording."""

    told: int = 0
    images: int = 0
    cuts: int = 0
    problems: list[str] = field(default_factory=list)
    boots: list[tuple[int, dict[str, bytes]]] = field(default_factory=list)  # different stores


def told_in(record: Record) -> set[bytes]:
    return set(TOKEN.findall(record.data)) if record.kind == "told" else set()


def check_order(trace: Path, images: Images) -> Verdict:
    """At every moment at which something new is told, it is in what has been synced by then."""
    verdict, disk, dice, told = Verdict(), Disk(), random.Random(0), set[bytes]()
    for n, record in enumerate(records(trace)):
        disk.feed(record)
        if new := told_in(record) - told:
            told |= new
            missing = images.contents(disk.after_a_cut("synced", dice)).lacks(new)
            verdict.problems += [f"{token.decode()} was told early (at {n})" for token in missing]
    verdict.told, verdict.images = len(told), images.count
    return verdict


def check_cuts(
    trace: Path, images: Images, cuts: int, losses: Sequence[Loss] = LOSSES, seed: int = 1
) -> Verdict:
    """Cut the power at so many moments. What is left holds all that was told, and is a state that was."""
    verdict, dice = Verdict(), random.Random(seed)
    recorded = list(records(trace))
    states = _states(recorded, images)
    first = {digest: n for n, (_, digest) in reversed([*enumerate(states)])}
    moments = _moments(recorded, cuts, dice)
    disk, told, begun = Disk(), set[bytes](), 0
    booted: set[bytes] = set()
    for n, record in enumerate(recorded):
        disk.feed(record)
        told |= told_in(record)
        while begun < len(states) and states[begun][0] <= n:
            begun += 1
        for loss in losses if n in moments else ():
            left = disk.after_a_cut(loss, dice)
            where = f"cut at {n}, {loss}"
            try:
                found = images.contents(left)
            except Damaged as damage:
                verdict.problems.append(f"{where}: {damage}")
                continue
            if missing := found.lacks(told):
                verdict.problems.append(
                    f"{where}: {len(missing)} lost, such as {missing[0].decode()}"
                )
            if first.get(found.digest, len(states)) > begun:
                verdict.problems.append(f"{where}: a state that never was")
            if found.digest and found.digest not in booted:
                booted.add(found.digest)
                verdict.boots.append((n, left))
    verdict.told, verdict.images, verdict.cuts = len(told), images.count, len(moments)
    return verdict


def _states(recorded: Sequence[Record], images: Images) -> list[tuple[int, bytes]]:
    """Every state that the store was in, and when: what was written whenever an fsync of the log begins."""
    disk, dice = Disk(), random.Random(0)
    states = [(-1, EMPTY.digest)]
    for n, record in enumerate(recorded):
        disk.feed(record)
        if record.kind == "syncing" and record.path.endswith("-wal"):
            digest = images.contents(disk.after_a_cut("written", dice)).digest
            if digest != states[-1][1]:
                states.append((n, digest))
    return states


def _moments(recorded: Sequence[Record], count: int, dice: random.Random) -> set[int]:
    """Half of them around syncs and changes of names, the others anywhere in between."""
    around = {
        n + shift
        for n, record in enumerate(recorded)
        if record.kind in _AROUND
        for shift in (-1, 0)
        if n + shift >= 0
    }
    anywhere = [n for n, record in enumerate(recorded) if record.kind != "told"]
    chosen = {len(recorded) - 1}
    for among in (sorted(around), anywhere):
        chosen |= set(dice.sample(among, min(count // 2, len(among))))
    return chosen


def kinds_of(trace: Path) -> Counter[str]:
    """How many records of each kind there are."""
    return Counter(record.kind for record in records(trace))


def synced_in_threads(trace: Path) -> int:
    """How often a log was synced by another thread than the one that had written to it."""
    count, writer = 0, 0
    for record in records(trace):
        if record.path.endswith("-wal"):
            if record.kind == "wrote":
                writer = record.thread
            count += record.kind == "syncing" and record.thread != writer
    return count
