"""Bringing the tables in a PostgreSQL schema up to date; making that schema, if it is not there.

Here "schema" has two meanings: PostgreSQL's, which holds all tables of a store and has a name, and ours.
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


async def bring_up_to_date(connection: Any, name: str, schemas: Sequence[Schema]) -> None:
    """One transaction for each schema, the foundation first; hosts that start together take turns.

    If the store is ahead of one of them, nothing at all is changed."""
    where = f"the PostgreSQL schema {name!r}"
    async with _transaction(connection):
        if not await connection.fetchval(HAS_SCHEMA, name):
            # IF NOT EXISTS would need the right to create it even when it is there.
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
    """See that tables are made where they belong. The schema is there by now."""
    current = await connection.fetchval("SELECT current_schema()")
    if current != name:
        raise StoreReadOnly(
            f"PostgreSQL uses {current or 'no schema'} instead of {name!r}: this user needs USAGE and"
            f" CREATE on the schema {name!r}."
        )


@asynccontextmanager
async def _transaction(connection: Any) -> AsyncIterator[None]:
    async with connection.transaction():
        await connection.execute(TAKE_GATE)
        yield
