"""The text files of a folder, re-read when they change. These functions block: call them in a thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from outlast.session.providers.regular_files import read_file, text_of

logger = logging.getLogger("outlast.session")

MAX_FILES = 2_000
MAX_FILE_BYTES = 1_000_000  # more of a file is not read
MAX_BYTES = 16_000_000  # of all files

Stamp = tuple[int, int, int]  # time of the last change in nanoseconds, size, inode


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file, by its path below the folder."""

    key: str
    text: str
    stamp: Stamp


class Folder:
    """The text files below a folder that match a glob, by their paths. Links that lead out are ignored."""

    def __init__(self, path: str | Path, glob: str) -> None:
        self.path = Path(path)
        self._glob = _checked(glob)
        self._files: dict[str, TextFile] = {}
        self._binary: dict[str, Stamp] = {}
        self._has_complained = False

    def read(self) -> dict[str, TextFile]:
        """Return the files as they are now, ordered by path; only what has changed is read."""
        root = self.path.resolve()
        if not root.is_dir():
            raise FileNotFoundError(2, "no such folder", str(root))
        files: dict[str, TextFile] = {}
        size = left_out = 0
        for key, path, stamp in self._found(root):
            if len(files) >= MAX_FILES or size + min(stamp[1], MAX_FILE_BYTES) > MAX_BYTES:
                left_out += 1
                continue
            file = self._current(key, path, stamp)
            if file is not None:
                files[key] = file
                size += min(stamp[1], MAX_FILE_BYTES)
        self._complain(left_out)
        self._files = files
        return files

    def _found(self, root: Path) -> Iterator[tuple[str, Path, Stamp]]:
        for path in sorted(root.glob(self._glob)):
            try:
                real = path.resolve(strict=True)
                now = os.stat(real)
            except (OSError, RuntimeError):  # it is gone, or a link that leads nowhere or round
                continue
            if real.is_relative_to(root) and real.is_file():
                key = path.relative_to(root).as_posix()
                yield key, real, (now.st_mtime_ns, now.st_size, now.st_ino)

    def _current(self, key: str, path: Path, stamp: Stamp) -> TextFile | None:
        known = self._files.get(key)
        if known is not None and known.stamp == stamp:
            return known
        if self._binary.get(key) == stamp:
            return None
        try:
            text = text_of(read_file(path, MAX_FILE_BYTES))
        except OSError as error:
            logger.warning("cannot read %s: %s", path, error)
            return None
        if text is None:
            self._binary[key] = stamp
            return None
        return TextFile(key, text, stamp)

    def _complain(self, left_out: int) -> None:
        """Log once that there are too many files."""
        if left_out and not self._has_complained:
            logger.warning(
                "%s has more than %d files or %d bytes: %d files are left out",
                self.path,
                MAX_FILES,
                MAX_BYTES,
                left_out,
            )
        self._has_complained = bool(left_out)


def _checked(glob: str) -> str:
    path = PurePosixPath(glob)
    if not glob or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"glob must be a pattern below the folder, got {glob!r}")
    return glob
