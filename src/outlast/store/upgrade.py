"""The steps that bring a store up to date, computed from its table `meta`. Pure.

`meta` holds the version of each schema. For batteries it also holds which tables belong to agents, and the
scripts that created them, so that agents can be deleted, measured and copied when the code of a battery is no
longer installed.

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
    """The steps that bring the tables of a schema up to date, in one transaction."""

    statements: tuple[str, ...]
    notes: Mapping[str, str]  # rows of meta that are new or changed
    outdated: tuple[str, ...]  # keys of rows of meta to delete

    def __bool__(self) -> bool:
        return bool(self.statements or self.notes or self.outdated)


def upgrade(schema: Schema, dialect: Dialect, meta: Mapping[str, str], where: str) -> Upgrade:
    """Return the missing steps of a schema. Raises `StoreTooNew` if the store is newer."""
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
    """Raise if a schema names an owned table or column that its migrations do not create."""
    for table, column in schema.owned.items():
        if column not in columns.get(table, ()):
            raise ValueError(
                f"the schema {schema.name!r} must create the tables that it owns, but there is no table"
                f" {table!r} with a column {column!r}; correct `owned`, or the migrations"
            )


def version_of(name: str, meta: Mapping[str, str]) -> int:
    """Return the version of a schema in a store, or 0 if the store has none of its tables."""
    return int(meta.get(_version_key(name), 0))


def stored_schemas(meta: Mapping[str, str]) -> list[Schema]:
    """Return the schemas of all batteries that have tables in a store, as the store recorded them."""
    return [
        Schema(name, json.decode(value), owned_in(name, meta))
        for key, value in sorted(meta.items())
        for kind, _, name in [key.partition(":")]
        if kind == "scripts"
    ]


def owned_in(name: str, meta: Mapping[str, str]) -> dict[str, str]:
    """Return the tables of a battery that have rows of agents, each with the column of the address."""
    start = f"owned:{name}:"
    return {key.removeprefix(start): meta[key] for key in sorted(meta) if key.startswith(start)}


def _version_key(name: str) -> str:
    return "schema_version" if name == FOUNDATION.name else f"schema:{name}"


def _notes(schema: Schema, meta: Mapping[str, str]) -> dict[str, str]:
    """Return the rows of meta about a schema that is up to date."""
    notes = {_version_key(schema.name): str(schema.version)}
    if schema is not FOUNDATION:
        notes |= {f"owned:{schema.name}:{table}": key for table, key in schema.owned.items()}
        notes[f"scripts:{schema.name}"] = json.encode(_scripts(schema, meta))
    return notes


def _scripts(schema: Schema, meta: Mapping[str, str]) -> dict[str, str]:
    """Return the scripts of all migrations that ran, unchanged, plus those that will run now."""
    scripts: dict[str, str] = json.decode(meta.get(f"scripts:{schema.name}", "{}"))
    for each in schema.migrations[version_of(schema.name, meta) if scripts else 0 :]:
        stem = f"{each.number:04}_{each.name}"
        scripts[f"{stem}.sqlite.sql"] = each.sqlite
        scripts[f"{stem}.postgres.sql"] = each.postgres
    return scripts


def _too_new(schema: Schema, version: int, where: str) -> StoreTooNew:
    if schema is FOUNDATION:
        return StoreTooNew(
            f"{where} has schema version {version}, but this version of outlast supports at most"
            f" {schema.version}. A newer outlast wrote it: upgrade outlast, or restore an older backup."
        )
    return StoreTooNew(
        f"{where} has version {version} of the tables of {schema.name!r}, but the installed battery supports"
        f" at most {schema.version}. A newer one wrote them: upgrade the package that provides"
        f" {schema.name!r}, or restore an older backup."
    )
