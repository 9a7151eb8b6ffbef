"""The numbered migrations: forward only, run at open. `sql/schema.*.sql` shows where they lead."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outlast.core.errors import StoreTooNew

Dialect = Literal["sqlite", "postgres"]

_SQL = Path(__file__).parent / "sql"

META = """
    CREATE TABLE IF NOT EXISTS meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)
"""
READ_VERSION = "SELECT value FROM meta WHERE key = 'schema_version'"
_WRITE_VERSION = """
    INSERT INTO meta (key, value) VALUES ('schema_version', '{number}')
    ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    statements: tuple[str, ...]


def migrations(dialect: Dialect) -> list[Migration]:
    """All migrations of a dialect, in order."""
    found = []
    for entry in _SQL.iterdir():
        match = re.fullmatch(rf"(\d{{4}})_(\w+)\.{dialect}\.sql", entry.name)
        if match:
            number = int(match[1])
            statements = split(entry.read_text("utf-8"))
            found.append(
                Migration(number, match[2], (*statements, _WRITE_VERSION.format(number=number)))
            )
    return sorted(found, key=lambda migration: migration.number)


def owned_tables() -> list[str]:
    """The tables whose rows belong to an agent: their first column is its address."""
    script = (_SQL / "schema.sqlite.sql").read_text("utf-8")
    return re.findall(r"CREATE TABLE (\w+) \(\s*agent ", script)


def split(script: str) -> list[str]:
    """The statements of an SQL script. Each ends with a semicolon at the end of a line."""
    pieces = (piece.strip() for piece in re.split(r";\s*\n", script + "\n"))
    return [piece for piece in pieces if piece]


def pending(all_of_them: list[Migration], version: int, where: str) -> list[Migration]:
    """The migrations that a store at `version` still needs."""
    newest = all_of_them[-1].number
    if version > newest:
        raise StoreTooNew(
            f"{where} has schema version {version}; this outlast knows versions up to {newest}."
            f" It was written by a newer outlast: upgrade this one, or restore a backup made before."
        )
    return [migration for migration in all_of_them if migration.number > version]
