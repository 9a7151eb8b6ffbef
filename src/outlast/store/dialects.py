"""Translation of one SQL text for both engines. Pure, and done once per statement.

A text about one row names its values as `:name`, and qualifies columns that have the name of a value:

    UPDATE fibers SET snapshot = :snapshot, stashes = fibers.stashes + 1
    WHERE fibers.agent = :agent AND fibers.id = :id

SQLite receives the values by number. PostgreSQL writes many rows at once: a value is a column of the set of
rows `u`, which replaces `{rows}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARK = re.compile(r"'[^']*'|\?(\d*)")
_VALUE = re.compile(r"'[^']*'|::|:([a-z_][a-z0-9_]*)")
_VALUES = re.compile(r"\bVALUES\s*\((.*)\)(?=\s*(?:ON CONFLICT|$))", re.DOTALL)
_WHERE = re.compile(r"\bWHERE\b")


def numbered(sql: str) -> str:
    """Translate `?`, or `?1`, `?2`, …, to PostgreSQL's `$1`, `$2`, …"""
    count = 0

    def dollar(found: re.Match[str]) -> str:
        nonlocal count
        if found[1] is None:
            return found[0]
        count += 1
        return f"${found[1] or count}"

    return _MARK.sub(dollar, sql)


def for_one_row(sql: str, columns: Sequence[str]) -> str:
    """Translate `:name`s to SQLite's `?`, or to `?1`, `?2`, … if they are in another order."""
    if [name for name in _VALUE.findall(sql) if name] == [*columns]:
        return _with_values(sql, dict.fromkeys(columns, "?"))
    return _with_values(sql, {name: f"?{number}" for number, name in enumerate(columns, 1)})


def for_many_rows(sql: str, columns: Sequence[str]) -> str:
    """Translate `:name`s for PostgreSQL, with `{rows}` for the set of rows."""
    text = _with_values(sql, {name: f"u.{name}" for name in columns})
    match sql.split(None, 1)[0]:
        case "INSERT" if _VALUES.search(text):
            return _VALUES.sub(r"SELECT \1 FROM {rows}", text)
        case "INSERT" | "UPDATE":
            return _WHERE.sub("FROM {rows} WHERE", text, count=1)
        case "DELETE":
            return _WHERE.sub("USING {rows} WHERE", text, count=1)
    raise ValueError(f"a statement must be an INSERT, UPDATE or DELETE, got {sql!r}")


def _with_values(sql: str, values: dict[str, str]) -> str:
    used = set()

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return found[0]
        if name not in values:
            raise ValueError(f"a value must be one of {', '.join(values)}, got :{name} in {sql!r}")
        used.add(name)
        return values[name]

    text = _VALUE.sub(value, sql)
    if len(used) < len(values):
        unused = next(name for name in values if name not in used)
        raise ValueError(f"every column must be used, but :{unused} is missing in {sql!r}")
    return text
