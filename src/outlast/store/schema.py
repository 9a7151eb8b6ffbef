"""A schema: the tables of the foundation or of one battery, as numbered migrations. Forward only.

Migrations run when a store is opened, or when a schema is added to an open store: see `upgrade`. A released
migration is never edited. `sql/schema.*.sql` shows the resulting tables of the foundation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

Dialect = Literal["sqlite", "postgres"]

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SCRIPT = re.compile(r"(\d{4})_(\w+?)(?:\.(sqlite|postgres))?\.sql")

# Words with another spelling in PostgreSQL, unless quoted or in a comment. Strings are compared by code
# points there as well, and integers have 64 bits. `text` in lower case is the name of a column.
_DIFFERENT = re.compile(
    r"""'[^']*'|"[^"]*"|--[^\n]*|(?i:\s*\bWITHOUT\s+ROWID\b|\b(?:INTEGER|BLOB)\b)|\bTEXT\b"""
)
_IN_POSTGRES = {"INTEGER": "BIGINT", "BLOB": "BYTEA", "TEXT": 'TEXT COLLATE "C"'}


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. Each statement of a script ends with a semicolon at the end of a line."""

    number: int
    name: str
    sqlite: str
    postgres: str

    def statements(self, dialect: Dialect) -> list[str]:
        return split(self.sqlite if dialect == "sqlite" else self.postgres)


@dataclass(frozen=True, eq=False)
class Schema:
    """The tables of one owner.

    `scripts` are the migrations: a folder of `0001_name.sql` (one script for both engines, written for
    SQLite with the types TEXT, INTEGER and BLOB, in capitals) or, where the engines differ, of
    `0001_name.sqlite.sql` and `0001_name.postgres.sql`; or a mapping of such names to their text. They are
    read when a store is opened.

    `owned` maps the tables whose rows belong to agents to the column that holds the agent's address: these
    rows are deleted with their agent. Tables must be named `name` or `name_…`.

    ```python
    from outlast.store.schema import Schema

    NOTES = Schema(
        "notes",
        {"0001_notes.sql": "CREATE TABLE notes (agent TEXT NOT NULL, id TEXT NOT NULL, body BLOB);"},
        owned={"notes": "agent"},
    )
    assert NOTES.version == 1
    assert NOTES.migrations[0].postgres.endswith("body BYTEA);")
    ```
    """

    name: str
    scripts: Path | Mapping[str, str]
    owned: Mapping[str, str]

    def __post_init__(self) -> None:
        for word in (self.name, *self.owned, *self.owned.values()):
            if not _IDENTIFIER.fullmatch(word):
                raise ValueError(
                    f"names in a schema must be lower-case letters, digits and _, got {word!r}"
                )

    @cached_property
    def migrations(self) -> tuple[Migration, ...]:
        """All migrations, in order."""
        scripts = _read(self.scripts) if isinstance(self.scripts, Path) else self.scripts
        found: dict[tuple[int, str], dict[str | None, str]] = {}
        for file, text in scripts.items():
            if match := _SCRIPT.fullmatch(file):
                found.setdefault((int(match[1]), match[2]), {})[match[3]] = text
        numbers = sorted(number for number, _ in found)
        if not numbers or numbers != list(range(1, len(numbers) + 1)):
            raise ValueError(f"migrations of {self.name!r} must be numbered from 1, got {numbers}")
        return tuple(self._migration(*key, found[key]) for key in sorted(found))

    def _migration(self, number: int, name: str, texts: Mapping[str | None, str]) -> Migration:
        if texts.keys() == {None}:
            return Migration(number, name, texts[None], postgres_of(texts[None]))
        if texts.keys() == {"sqlite", "postgres"}:
            return Migration(number, name, texts["sqlite"], texts["postgres"])
        raise ValueError(
            f"migration {number:04}_{name} of {self.name!r} must be one .sql file, or one .sqlite.sql and"
            f" one .postgres.sql"
        )

    @property
    def version(self) -> int:
        """The number of its newest migration."""
        return self.migrations[-1].number


_SQL = Path(__file__).parent / "sql"
_OWNED = (
    "storage",
    "fibers",
    "alarms",
    "schedules",
    "facts",
    "sub_agents",
    "admissions",
    "messages",
    "inbox",
    "streams",
    "calls",
    "responses",
    "traces",
    "incidents",
    "boots",
    "decisions",
    "receipts",
)
FOUNDATION = Schema("foundation", _SQL, dict.fromkeys(_OWNED, "agent"))


def checked(schemas: Iterable[Schema]) -> tuple[Schema, ...]:
    """Return the schemas of batteries without duplicates. Raises on name clashes and on foreign tables."""
    known: dict[str, Schema] = {FOUNDATION.name: FOUNDATION}
    for schema in schemas:
        if known.setdefault(schema.name, schema) is not schema:
            raise ValueError(f"two schemas are named {schema.name!r}; rename one of the batteries")
        for table in schema.owned:
            if table != schema.name and not table.startswith(f"{schema.name}_"):
                raise ValueError(
                    f"a table of {schema.name!r} must be named {schema.name} or {schema.name}_…, got"
                    f" {table!r}"
                )
    del known[FOUNDATION.name]
    return tuple(known.values())


def postgres_of(script: str) -> str:
    """Translate a script for PostgreSQL."""

    def translated(found: re.Match[str]) -> str:
        word = found[0]
        if word[0] in "'\"-":
            return word
        return _IN_POSTGRES.get(word.upper(), "")

    return _DIFFERENT.sub(translated, script)


def split(script: str) -> list[str]:
    """Return the statements of an SQL script. Each ends with a semicolon at the end of a line."""
    pieces = (piece.strip() for piece in re.split(r";\s*\n", script + "\n"))
    return [piece for piece in pieces if piece]


def _read(folder: Path) -> dict[str, str]:
    return {entry.name: entry.read_text("utf-8") for entry in folder.glob("*.sql")}
