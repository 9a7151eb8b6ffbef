"""What a store needs to be up to date, by what its table `meta` says of it. Pure.

Each schema has its version there. Those of batteries also leave what they are made of: which tables belong to
agents, and the scripts that made them. So agents can be deleted, measured and copied, though the code of a
battery is gone.

| key | value |
| --- | --- |
| `schema_version` | the version of the foundation |
| `schema:<name>` | the version of a battery's tables |
| `owned:<name>:<table>` | the column of that table that holds the agent's address |
| `scripts:<name>` | the migrations that were run, for both engines: JSON, by file name |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlast.core import json
from outlast.core.errors import StoreTooNew
from outlast.store.operations import BulkStatement, Query
from outlast.store.schema import FOUNDATION, Dialect, Schema

META = """
    CREATE TABLE IF NOT EXISTS meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)
"""
READ_META = Query.same("SELECT key, value FROM meta")
PUT = BulkStatement.same(
    "meta put",
    """
        INSERT INTO meta (key, value) VALUES (?, ?)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
    """,
)
FORGET = BulkStatement.same("meta forget", "DELETE FROM meta WHERE key = ?")


@dataclass(frozen=True, slots=True)
class Upgrade:
    """How the tables of a schema are brought up to date, in one transaction."""

    statements: tuple[str, ...]
    notes: Mapping[str, str]  # rows of meta that are new, or different
    outdated: tuple[str, ...]  # keys of rows of meta that are not true any more

    def __bool__(self) -> bool:
        return bool(self.statements or self.notes or self.outdated)


def upgrade(schema: Schema, dialect: Dialect, meta: Mapping[str, str], where: str) -> Upgrade:
    """What is left to do for a schema; `StoreTooNew` if the store is ahead of it."""
    version = version_of(schema.name, meta)
    if version > schema.version:
        raise _too_new(schema, version, where)
    statements = [
        statement
        for migration in schema.migrations[version:]
        for statement in migration.statements(dialect)
    ]
    notes = _notes(schema, meta)
    owned = f"owned:{schema.name}:"
    return Upgrade(
        statements=tuple(statements),
        notes={key: value for key, value in notes.items() if meta.get(key) != value},
        outdated=tuple(key for key in meta if key.startswith(owned) and key not in notes),
    )


def check_owned(schema: Schema, columns: Mapping[str, Mapping[str, str]]) -> None:
    """Raise if a schema names an owned table or column that its migrations have not made."""
    for table, column in schema.owned.items():
        if column not in columns.get(table, ()):
            raise ValueError(
                f"the schema {schema.name!r} must make the tables that it owns, got none called"
                f" {table!r} with a column {column!r}: correct `owned`, or its migrations"
            )


def version_of(name: str, meta: Mapping[str, str]) -> int:
    """The version of a schema in a store; 0: it has none of its tables."""
    return int(meta.get(_version_key(name), 0))


def stored_schemas(meta: Mapping[str, str]) -> list[Schema]:
    """The schemas of the batteries that a store has tables of, as they were when they last wrote there."""
    return [
        Schema(name, json.decode(value), owned_in(name, meta))
        for key, value in sorted(meta.items())
        for kind, _, name in [key.partition(":")]
        if kind == "scripts"
    ]


def owned_in(name: str, meta: Mapping[str, str]) -> dict[str, str]:
    """The tables of a battery that have rows of agents, and the column with their address."""
    start = f"owned:{name}:"
    return {key.removeprefix(start): meta[key] for key in sorted(meta) if key.startswith(start)}


def _version_key(name: str) -> str:
    return "schema_version" if name == FOUNDATION.name else f"schema:{name}"


def _notes(schema: Schema, meta: Mapping[str, str]) -> dict[str, str]:
    """The rows of meta that are about a schema, once it is up to date."""
    notes = {_version_key(schema.name): str(schema.version)}
    if schema is not FOUNDATION:
        notes |= {f"owned:{schema.name}:{table}": key for table, key in schema.owned.items()}
        notes[f"scripts:{schema.name}"] = json.encode(_scripts(schema, meta))
    return notes


def _scripts(schema: Schema, meta: Mapping[str, str]) -> dict[str, str]:
    """What was run stays as it was run, whatever became of the files since."""
    scripts: dict[str, str] = json.decode(meta.get(f"scripts:{schema.name}", "{}"))
    for each in schema.migrations[version_of(schema.name, meta) if scripts else 0 :]:
        stem = f"{each.number:04}_{each.name}"
        scripts[f"{stem}.sqlite.sql"] = each.sqlite
        scripts[f"{stem}.postgres.sql"] = each.postgres
    return scripts


def _too_new(schema: Schema, version: int, where: str) -> StoreTooNew:
    if schema is FOUNDATION:
        return StoreTooNew(
            f"{where} has schema version {version}; this outlast knows versions up to {schema.version}."
            f" It was written by a newer outlast: upgrade this one, or restore a backup made before."
        )
    return StoreTooNew(
        f"{where} has version {version} of the tables of {schema.name!r}; the installed battery knows"
        f" versions up to {schema.version}. They were written by a newer one: upgrade the package that"
        f" {schema.name!r} comes from, or restore a backup made before."
    )
