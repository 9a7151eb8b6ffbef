"""The tables of a store, and which of them have rows that belong to agents, as the store records it.

A battery has tables of its own, and its code may no longer be installed. So code that handles all rows of an
agent reads this list from the store.
"""

from __future__ import annotations

from typing import Any, Protocol

from outlast.store.base import Row
from outlast.store.operations import Query
from outlast.store.schema import FOUNDATION
from outlast.store.upgrade import READ_META

# Plain tables and their stored columns, in order of creation, without the shadow tables of SQLite's virtual
# tables and without generated columns.
COLUMNS = Query(
    sqlite="""
        SELECT t.name, c.name, lower(c.type)
        FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c
        WHERE t.type = 'table' AND substr(t.name, 1, 7) <> 'sqlite_' AND t.sql NOT LIKE 'CREATE VIRTUAL %'
          AND NOT EXISTS (
            SELECT 1 FROM sqlite_master AS v
            WHERE v.sql LIKE 'CREATE VIRTUAL %' AND substr(t.name, 1, length(v.name)) = v.name
              AND substr(t.name, length(v.name) + 1) IN (
                '_data', '_idx', '_content', '_docsize', '_config', '_segments', '_segdir', '_stat',
                '_node', '_parent', '_rowid'
              )
          )
        ORDER BY t.rowid, c.cid
    """,
    postgres="""
        SELECT t.relname::text, c.attname::text, format_type(c.atttypid, NULL)
        FROM pg_class AS t JOIN pg_attribute AS c ON c.attrelid = t.oid
        WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind = 'r'
          AND c.attnum > 0 AND NOT c.attisdropped AND c.attgenerated = ''
        ORDER BY t.oid, c.attnum
    """,
)
_OWNED = Query.same("SELECT key, value FROM meta WHERE substr(key, 1, 6) = 'owned:' ORDER BY key")


class Reader(Protocol):
    """A source of rows: an open store, or a read-only connection to one."""

    @property
    def engine(self) -> str: ...

    async def fetch(self, query: Query, *arguments: Any) -> list[Row]: ...


async def owned_tables(reader: Reader) -> dict[str, str]:
    """Return the tables that have rows of agents, each with the column that holds the agent's address.

    Tables of batteries that are no longer installed are included.
    """
    owned = dict(FOUNDATION.owned)
    if found := await reader.fetch(_OWNED):
        there = await columns_of(reader)
        named = {key.rpartition(":")[2]: column for key, column in found}
        owned |= {
            table: column for table, column in named.items() if column in there.get(table, ())
        }
    return owned


async def columns_of(reader: Reader) -> dict[str, dict[str, str]]:
    """Return all tables, with their columns and the columns' types."""
    return grouped(await reader.fetch(COLUMNS))


async def meta_of(reader: Reader) -> dict[str, str]:
    """Return the rows of `meta`, which describe the store's schemas."""
    return dict(await reader.fetch(READ_META))


def grouped(rows: list[Row]) -> dict[str, dict[str, str]]:
    """Group the rows of `COLUMNS` by table."""
    tables: dict[str, dict[str, str]] = {}
    for table, column, kind in rows:
        tables.setdefault(table, {})[column] = kind
    return tables
