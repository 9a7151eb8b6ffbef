"""SQL for PostgreSQL from typed operations: one row, many rows, or a group in one statement. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from outlast.store.operations import BulkStatement, Read, Statement

_PARAMETER = re.compile(r"\$(\d+)")


def all_sql(reads: Sequence[Read]) -> str:
    """Return a query for one row with the rows of all these queries, each as an array of records."""
    columns, first = [], 0
    for query, arguments in reads:
        sql = _shifted(query.postgres, first)
        columns.append(f"ARRAY(SELECT ROW(found.*) FROM ({sql}) AS found)")
        first += len(arguments)
    return f"SELECT {', '.join(columns)}"


def _shifted(sql: str, by: int) -> str:
    """Return the query with its parameters renumbered."""
    return _PARAMETER.sub(lambda found: f"${int(found[1]) + by}", sql)


def rows_sql(statement: Statement, first: int, *, single: bool) -> str:
    """Return the text for `{rows}`: the parameters from `$first` on, as a set of rows `u`.

    For a single row they are plain values, which the planner turns into an index look-up; that costs two
    thirds of the same with arrays.
    """
    numbered = list(enumerate(statement.columns, first))
    if single:
        values = ", ".join(f"${number}::{kind} AS {name}" for number, (name, kind) in numbered)
        return f"(SELECT {values}) AS u"
    arrays = ", ".join(f"${number}::{kind}[]" for number, (_, kind) in numbered)
    names = ", ".join(name for name, _ in statement.columns)
    return f"unnest({arrays}) AS u({names})"


def combined_sql(statements: Sequence[Statement | BulkStatement], *, single: bool) -> str:
    """Return one statement that executes all of these, and rolls itself back if a count is wrong.

    Its first columns are the numbers of rows that each touched, and PostgreSQL executes them in that order.
    A statement with `expect` must touch all of its rows; any other must touch all or none, because only then
    is the result known for each row.
    """
    parts = []
    parameter = 1
    for index, statement in enumerate(statements):
        assert isinstance(statement, Statement)
        rows = rows_sql(statement, parameter, single=single)
        parameter += len(statement.columns)
        parts.append(f"w{index} AS ({statement.postgres.replace('{rows}', rows)} RETURNING 1)")
    counts = _touched(statements) if single else _counted(statements, parameter)
    return f"WITH {', '.join(parts)} SELECT {', '.join(counts)}"


def _touched(statements: Sequence[Statement | BulkStatement]) -> list[str]:
    """Return whether each touched its one row. EXISTS is cheaper than counting."""
    found = [f"(EXISTS (SELECT 1 FROM w{index}))::int" for index in range(len(statements))]
    return [
        f"1 / {each}" if statement.expect else each
        for each, statement in zip(found, statements, strict=True)
    ]


def _counted(statements: Sequence[Statement | BulkStatement], parameter: int) -> list[str]:
    """Return the counts of touched rows, and a check against the expected ones, from `parameter` on."""
    counts, conditions = [], []
    for index, statement in enumerate(statements):
        count, number = f"(SELECT count(*) FROM w{index})", f"${parameter + index}::bigint"
        counts.append(count)
        conditions.append(
            f"{count} = {number}" if statement.expect else f"{count} = ANY (ARRAY[0, {number}])"
        )
    return [*counts, f"1 / ({' AND '.join(conditions)})::int"]
