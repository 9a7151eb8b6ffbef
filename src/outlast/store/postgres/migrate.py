"""Migrations in PostgreSQL, including the creation of the schema.

"Schema" has two meanings here: PostgreSQL's, which contains all tables of a store and has a name, and ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from outlast.core.errors import StoreReadOnly
from outlast.store.catalogue import COLUMNS, grouped
from outlast.store.postgres.lock import TAKE_GATE
from outlast.store.schema import FOUNDATION, Schema
from outlast.store.upgrade import FORGET, META, PUT, READ_META, check_owned, upgrade

HAS_SCHEMA = "SELECT true FROM pg_namespace WHERE nspname = $1"


async def migrate(connection: Any, name: str, schemas: Sequence[Schema]) -> None:
    """Run one transaction per schema, the foundation first. Hosts that start together take turns.

    If the store is newer than one of the schemas, nothing is changed.
    """
    where = f"the PostgreSQL schema {name!r}"
    async with _transaction(connection):
        if not await connection.fetchval(HAS_SCHEMA, name):
            # IF NOT EXISTS would require the privilege to create it even if it exists.
            await connection.execute(f"CREATE SCHEMA {name}")
        await _check_schema(connection, name)
        await connection.execute(META)
        meta = await _meta(connection)
        needy = [each for each in schemas if upgrade(each, "postgres", meta, where)]
        await _apply(connection, FOUNDATION, where)
    for each in needy:
        async with _transaction(connection):
            await _apply(connection, each, where)
            check_owned(each, grouped(await connection.fetch(COLUMNS.postgres)))


async def _apply(connection: Any, schema: Schema, where: str) -> None:
    found = upgrade(schema, "postgres", await _meta(connection), where)
    for statement in found.statements:
        await connection.execute(statement)
    for key in found.outdated:
        await connection.execute(FORGET.postgres, key)
    for note in found.notes.items():
        await connection.execute(PUT.postgres, *note)


async def _meta(connection: Any) -> dict[str, str]:
    return dict(await connection.fetch(READ_META.postgres))


async def _check_schema(connection: Any, name: str) -> None:
    """Raise unless new tables will be created in the schema, which exists by now."""
    current = await connection.fetchval("SELECT current_schema()")
    if current != name:
        raise StoreReadOnly(
            f"the current schema must be {name!r}, got {current or 'none'}: this user needs USAGE and"
            f" CREATE on the schema {name!r}."
        )


@asynccontextmanager
async def _transaction(connection: Any) -> AsyncIterator[None]:
    async with connection.transaction():
        await connection.execute(TAKE_GATE)
        yield
