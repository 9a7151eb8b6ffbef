"""How a group of batches is written inside one SQLite transaction.

First all together, with as few statements as possible. If one of them has to be singled out, the transaction
is begun anew, and each gets a savepoint of its own.
"""

from __future__ import annotations

import sqlite3

from outlast.store import fencing
from outlast.store.attempt import Attempt, Verdict
from outlast.store.grouping import results_from, slots_of
from outlast.store.operations import Argument, Batch, Fence
from outlast.store.sqlite.errors import trouble_of

# What can be wrong with a batch itself, rather than with the disk or the file.
_BATCH_ERRORS = (sqlite3.Error, OverflowError, UnicodeEncodeError)


def written(db: sqlite3.Connection, attempt: Attempt) -> list[Verdict]:
    """Write a group in the transaction that has begun: what came of each batch, if that is committed."""
    group = attempt.group
    try:
        verdicts = _quickly(db, group[0]) if len(group) == 1 else _together(db, attempt)
    except _BATCH_ERRORS as error:
        _check_batch(error)
        verdicts = None
    if verdicts is not None:
        return verdicts
    db.execute("ROLLBACK")
    attempt.undo_fences()
    db.execute("BEGIN IMMEDIATE")
    return _one_after_another(db, group)


def _check_batch(error: Exception) -> None:
    """Raise an error that concerns everybody."""
    if isinstance(error, sqlite3.Error) and trouble_of(error) != "batch":
        raise error


def _together(db: sqlite3.Connection, attempt: Attempt) -> list[Verdict] | None:
    """Write all batches with a few statements; None when one of them has to be singled out."""
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
        fencing.passed(fence, count)
    return list(results)


def _quickly(db: sqlite3.Connection, batch: Batch) -> list[Verdict] | None:
    """The same for a group of one."""
    statement, arguments = fencing.guard(batch.fence, 1)
    if db.execute(statement.sqlite, arguments).rowcount != 1:
        return None
    touched = _operations(db, batch)
    if touched is None:
        return None
    fencing.passed(batch.fence, 1)
    return [touched]


def _operations(db: sqlite3.Connection, batch: Batch) -> tuple[int, ...] | None:
    """Execute them one by one; None when a condition does not hold."""
    touched = []
    for statement, arguments in batch.operations:
        count = db.execute(statement.sqlite, arguments).rowcount
        if not count and statement.expect:
            return None
        touched.append(count)
    return tuple(touched)


def _one_after_another(db: sqlite3.Connection, group: list[Batch]) -> list[Verdict]:
    """Write each batch so that it can be undone without its neighbours."""
    verdicts: list[Verdict] = []
    broken: set[Fence] = set()
    for batch in group:
        verdict: Verdict = "behind" if batch.fence in broken else _alone(db, batch)
        if isinstance(verdict, Exception) or verdict == "stale":
            broken.add(batch.fence)
        verdicts.append(verdict)
    return verdicts


def _alone(db: sqlite3.Connection, batch: Batch) -> Verdict:
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
        fencing.passed(batch.fence, 1)
    else:
        db.execute("ROLLBACK TO batch")
    db.execute("RELEASE batch")
    return verdict
