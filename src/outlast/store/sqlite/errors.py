"""What SQLite's errors mean: to the store, and to the person who runs it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal

from outlast.core.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

Trouble = Literal["batch", "busy", "full", "io", "readonly", "corrupt"]
_TROUBLES: dict[int, Trouble] = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_IOERR: "io",
    sqlite3.SQLITE_PROTOCOL: "io",
    sqlite3.SQLITE_NOMEM: "io",
    sqlite3.SQLITE_READONLY: "readonly",
    sqlite3.SQLITE_CANTOPEN: "readonly",
    sqlite3.SQLITE_PERM: "readonly",
    sqlite3.SQLITE_AUTH: "readonly",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
}


def trouble_of(error: sqlite3.Error) -> Trouble:
    """What kind of trouble an SQLite error is: the batch's own, or one that concerns everybody."""
    return _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "batch")


def explained(path: Path, error: sqlite3.Error) -> StoreError:
    """What an SQLite error means to the person who runs this."""
    match trouble_of(error):
        case "full":
            return StoreFull(
                f"{path}: no space left ({error}). Nothing of this commit was written;"
                f" free some space and the store goes on."
            )
        case "readonly":
            return StoreReadOnly(
                f"{path} cannot be written ({error}). Check the permissions of the file"
                f" and of its folder."
            )
        case "corrupt":
            return StoreCorrupt(
                f"{path} is not a valid SQLite database ({error}). Restore a backup; the"
                f" sqlite3 command's .recover can save what is still readable."
            )
    return StoreUnavailable(f"{path}: {error}")
