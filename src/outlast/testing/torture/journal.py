"""What happened outside the store, one JSON text a line: it outlasts whoever wrote it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Lines that are appended whole, by any number of processes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: str, *, sync: bool = False, **fields: Any) -> None:
        """A line. With `sync` it is on the disk when this returns."""
        line = json.dumps({"kind": kind, "at": round(time.time(), 4), **fields})
        os.write(self._file, line.encode() + b"\n")
        if sync:
            os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


class JournalReader:
    """The lines that have come since it was read last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """A line that is not whole is none yet. One that a death has cut in two never will be."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            whole, end, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(end)
        found = []
        for line in whole.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found
