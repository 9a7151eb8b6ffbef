"""Writing a group of batches in one SQLite transaction.

At first all together, with as few statements as possible. If a batch fails or its result is ambiguous, the
transaction is restarted, and each batch gets a savepoint of its own.
"""

from __future__ import annotations

import sqlite3

from outlast.store import fencing
from outlast.store.attempt import Attempt, Verdict
from outlast.store.grouping import results_from, slots_of
from outlast.store.operations import Argument, Batch, Fence
from outlast.store.sqlite.errors import trouble_of

# Errors that a batch itself can cause.
_BATCH_ERRORS = (sqlite3.Error, OverflowError, UnicodeEncodeError)


def write_group(db: sqlite3.Connection, attempt: Attempt) -> list[Verdict]:
    """Write a group in the open transaction. Returns the verdict on each batch, valid once committed."""
    group = attempt.group
    try:
        verdicts = _single(db, group[0]) if len(group) == 1 else _together(db, attempt)
    except _BATCH_ERRORS as error:
        _check_batch(error)
        verdicts = None
    if verdicts is not None:
        return verdicts
    db.execute("ROLLBACK")
    attempt.undo_fences()
    db.execute("BEGIN IMMEDIATE")
    return _separately(db, group)


def _check_batch(error: Exception) -> None:
    """Raise an error that no batch caused."""
    if isinstance(error, sqlite3.Error) and trouble_of(error) != "batch":
        raise error


def _together(db: sqlite3.Connection, attempt: Attempt) -> list[Verdict] | None:
    """Write all batches with a few statements. None if they must be written separately."""
    execute, executemany = db.execute, db.executemany
    group, counts = attempt.group, attempt.counts
    guards: dict[str, list[tuple[Argument, ...]]] = {}
    for fence, count in counts.items():
        statement, arguments = fencing.guard(fence, count)
        guards.setdefault(statement.sqlite, []).append(arguments)
    for sql, rows in guards.items():
        if executemany(sql, rows).rowcount != len(rows):
            return None
    slots = slots_of(group, counts)
    touched = [
        execute(slot.statement.sqlite, slot.rows[0]).rowcount
        if len(slot.rows) == 1
        else executemany(slot.statement.sqlite, slot.rows).rowcount
        for slot in slots
    ]
    results = results_from(slots, touched, group)
    if results is None:
        return None
    for fence, count in counts.items():
        fencing.advance(fence, count)
    return list(results)


def _single(db: sqlite3.Connection, batch: Batch) -> list[Verdict] | None:
    """Write a group of one. None if its guard or a condition does not hold."""
    statement, arguments = fencing.guard(batch.fence, 1)
    if db.execute(statement.sqlite, arguments).rowcount != 1:
        return None
    touched = _operations(db, batch)
    if touched is None:
        return None
    fencing.advance(batch.fence, 1)
    return [touched]


def _operations(db: sqlite3.Connection, batch: Batch) -> tuple[int, ...] | None:
    """Execute the operations in order. None if a condition does not hold."""
    touched = []
    for statement, arguments in batch.operations:
        count = db.execute(statement.sqlite, arguments).rowcount
        if not count and statement.expect:
            return None
        touched.append(count)
    return tuple(touched)


def _separately(db: sqlite3.Connection, group: list[Batch]) -> list[Verdict]:
    """Write each batch in a savepoint, so that it can be rolled back alone."""
    verdicts: list[Verdict] = []
    broken: set[Fence] = set()
    for batch in group:
        verdict: Verdict = "behind" if batch.fence in broken else _in_savepoint(db, batch)
        if isinstance(verdict, Exception) or verdict == "stale":
            broken.add(batch.fence)
        verdicts.append(verdict)
    return verdicts


def _in_savepoint(db: sqlite3.Connection, batch: Batch) -> Verdict:
    db.execute("SAVEPOINT batch")
    verdict: Verdict
    statement, arguments = fencing.guard(batch.fence, 1)
    try:
        if db.execute(statement.sqlite, arguments).rowcount != 1:
            verdict = "stale"
        else:
            touched = _operations(db, batch)
            verdict = "refused" if touched is None else touched
    except _BATCH_ERRORS as error:
        _check_batch(error)
        verdict = error
    if isinstance(verdict, tuple):
        fencing.advance(batch.fence, 1)
    else:
        db.execute("ROLLBACK TO batch")
    db.execute("RELEASE batch")
    return verdict
