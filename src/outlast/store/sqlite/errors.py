"""Classification of SQLite's errors, and messages for operators."""

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
    """Classify an SQLite error: "batch" if the batch caused it, otherwise a problem of the whole store."""
    return _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "batch")


def explained(path: Path, error: sqlite3.Error) -> StoreError:
    """Return the `StoreError` for an operator to read."""
    match trouble_of(error):
        case "full":
            return StoreFull(
                f"{path}: no space left ({error}). The commit was rolled back; free some space and"
                f" the store resumes."
            )
        case "readonly":
            return StoreReadOnly(
                f"cannot write to {path} ({error}). Check the permissions of the file"
                f" and of its folder."
            )
        case "corrupt":
            return StoreCorrupt(
                f"{path} is not a valid SQLite database ({error}). Restore a backup; .recover of the"
                f" sqlite3 command can save readable rows."
            )
    return StoreUnavailable(f"{path}: {error}")
