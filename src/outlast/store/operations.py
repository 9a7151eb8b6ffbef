"""Statements, queries, batches of operations, and the fence that each batch is written under."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, cast, get_args

from outlast.store import dialects

logger = logging.getLogger("outlast.store")

ColumnType = Literal["text", "bigint", "bytea"]  # as PostgreSQL calls them
Argument = str | int | bytes | None


@dataclass(frozen=True, eq=False)
class Statement:
    """A typed operation that writes one row of one table, in both dialects.

    `sqlite` takes the columns as `?` in order. `postgres` writes many rows at once: `{rows}` in it is
    replaced by a set of rows `u` with the given columns. `same` derives both from one text. The first `key`
    columns identify the row; two operations on one row never share a statement.

    With `expect=True`, an operation that touches no row refuses the whole batch (`CommitRefused`).
    Otherwise the batch's result is the number of rows that each operation touched (0 or 1).
    """

    name: str
    sqlite: str
    postgres: str
    columns: Sequence[tuple[str, ColumnType]]
    key: int
    expect: bool = False

    @classmethod
    def same(
        cls, name: str, columns: str, sql: str, *, key: int, expect: bool = False
    ) -> Statement:
        """Create a statement from one text for both engines, with `:name` for the value of a column.

        ```python
        from outlast.store.operations import Statement

        STASH = Statement.same(
            "fibers stash",
            "agent text, id text, snapshot text",
            "UPDATE fibers SET snapshot = :snapshot WHERE fibers.agent = :agent AND fibers.id = :id",
            key=2,
        )
        assert "SET snapshot = ?3 WHERE fibers.agent = ?1 AND" in STASH.sqlite
        assert "SET snapshot = u.snapshot FROM {rows} WHERE" in STASH.postgres
        ```
        """
        typed = [_column(*each.split()) for each in columns.split(",")]
        names = [column for column, _ in typed]
        one, many = dialects.for_one_row(sql, names), dialects.for_many_rows(sql, names)
        return cls(name, one, many, typed, key, expect)

    @cached_property
    def table(self) -> str:
        """The table: the first word of the name."""
        return self.name.partition(" ")[0]


@dataclass(frozen=True, eq=False)
class BulkStatement:
    """An operation on many rows, which is executed alone. `postgres` takes `$1` …"""

    name: str
    sqlite: str
    postgres: str
    expect: ClassVar[bool] = False

    @classmethod
    def same(cls, name: str, sql: str) -> BulkStatement:
        """Create a statement from one text, with `?`, or with `?1` … if a value is used twice."""
        return cls(name, sql, dialects.numbered(sql))


def _column(name: str, kind: str) -> tuple[str, ColumnType]:
    if kind not in get_args(ColumnType):
        raise ValueError(
            f"the type of a column must be one of {get_args(ColumnType)}, got {name} {kind}"
        )
    return name, cast(ColumnType, kind)


Operation = tuple[Statement | BulkStatement, tuple[Argument, ...]]


@dataclass(frozen=True, eq=False)
class Query:
    """A read. `bulk` reads go to the reader thread on SQLite; the others are keyed and small."""

    sqlite: str
    postgres: str
    bulk: bool = False

    @classmethod
    def same(cls, sql: str, *, bulk: bool = False) -> Query:
        """Create a query from one text, with `?`, or with `?1` … if a value is used twice."""
        return cls(sql, dialects.numbered(sql), bulk)


Read = tuple[Query, tuple[Any, ...]]  # with its arguments


@dataclass(eq=False, slots=True)
class Fence:
    """The right of one activation to write, and the number of its commits.

    An activation reads its agent's row (`known`) without writing. Its first commit takes the epoch: it
    creates the row, or advances the row's epoch if the row is unchanged. From then on, each commit advances
    `commit_no` where epoch and owner still match.
    """

    root: str
    owner: str
    known: tuple[int, str, int] | None = None  # epoch, owner, commit_no of the row when read
    epoch: int = 0
    commit_no: int = 0
    held: bool = False
    leaves: bool = False  # its last commit, in progress, deletes the agent's row
    closed: Exception | None = None  # why nothing more may be written under this fence
    on_closed: Callable[[Exception], None] | None = None

    @classmethod
    def after(cls, root: str, owner: str, known: tuple[int, str, int] | None) -> Fence:
        """Return the fence of an activation that read `known` as its agent's row (None: no row)."""
        if known is None:
            return cls(root, owner, None, epoch=1, commit_no=0)
        return cls(root, owner, known, epoch=known[0] + 1, commit_no=known[2])

    def close(self, reason: Exception) -> None:
        """Refuse all further writes under this fence. The first reason is kept."""
        if self.closed is None:
            self.closed = reason
            if self.on_closed is not None:
                try:
                    self.on_closed(reason)
                except Exception:  # other batches of the group still need their outcome
                    logger.exception("cannot discard %s", self.root)


class Outcome(asyncio.Future[tuple[int, ...]]):
    """Resolved when the outcome of a batch is known.

    It cannot be cancelled: a task that is cancelled while awaiting it keeps waiting, and raises
    `CancelledError` once the outcome is known (`asyncio.Task` does that when the awaited future declines to
    be cancelled).
    """

    def cancel(self, msg: Any | None = None) -> bool:
        return False


@dataclass(eq=False, slots=True)
class Batch:
    """The writes of one agent that are committed together."""

    fence: Fence
    operations: list[Operation]
    outcome: Outcome
    size: int = field(default=0)  # in bytes, roughly
    queued_at: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters and latencies of a store. Latencies: seconds from submission to outcome, recent commits."""

    engine: str
    queue_depth: int
    queue_bytes: int
    in_flight: int
    commits: int
    batches: int
    refused: int
    failed: int
    largest_group: int
    mean_group: float
    latency_p50: float
    latency_p99: float
    fsync_average: float | None
    fsync_in_thread: bool
    unavailable_for: float | None  # seconds since the engine stopped answering, or None
    blocked_agents: tuple[str, ...] = ()  # waiting for rows that another session has locked
    blocked_for: float | None = None  # seconds since the first of them began to wait
    blocked_by: str | None = None  # the sessions that hold the locks, if known


def size_of(operations: Sequence[Operation]) -> int:
    """Return roughly how many bytes the arguments have."""
    size = 0
    for _, arguments in operations:
        for argument in arguments:
            if type(argument) is str or type(argument) is bytes:
                size += len(argument)
    return size
