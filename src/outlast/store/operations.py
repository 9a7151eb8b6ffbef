"""What is written: statements, the batches made of them, and the fence that each batch carries."""

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
    """A typed operation: how to write one row of one table, in both dialects.

    `sqlite` takes the columns as `?` in order. `postgres` works on many rows at once: `{rows}` in it is
    replaced by a set of rows `u` with the given columns. `same` makes both of one text. The first `key`
    columns name the row that is written; two operations on one row never share a statement.

    `expect=True`: an operation that touches no row refuses the whole batch (`CommitRefused`).
    Otherwise the batch's result says how many rows each operation touched (0 or 1).
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
        """A statement that is written once for both engines, with `:name` for the value of a column.

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
        """The first word of its name."""
        return self.name.partition(" ")[0]


@dataclass(frozen=True, eq=False)
class BulkStatement:
    """An operation on many rows; it is executed alone. `postgres` takes `$1` … as usual."""

    name: str
    sqlite: str
    postgres: str
    expect: ClassVar[bool] = False

    @classmethod
    def same(cls, name: str, sql: str) -> BulkStatement:
        """One that both dialects accept, written with `?`, or with `?1` … where one is used twice."""
        return cls(name, sql, dialects.numbered(sql))


def _column(name: str, kind: str) -> tuple[str, ColumnType]:
    if kind not in get_args(ColumnType):
        raise ValueError(f"a column must be one of {get_args(ColumnType)}, got {name} {kind}")
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
        """A query that both dialects accept, written with `?`, or with `?1` … where one is used twice."""
        return cls(sql, dialects.numbered(sql), bulk)


Read = tuple[Query, tuple[Any, ...]]  # with its arguments


@dataclass(eq=False, slots=True)
class Fence:
    """The right of one activation to write, and how far it has come.

    An activation reads its agent's row (`known`), and writes nothing. Its first commit takes the epoch:
    it creates the row, or advances the row's epoch if nobody else has touched it in between. From then
    on each commit advances `commit_no` where epoch and owner still match.
    """

    root: str
    owner: str
    known: tuple[int, str, int] | None = None  # epoch, owner, commit_no of the row as it was read
    epoch: int = 0
    commit_no: int = 0
    held: bool = False
    leaves: bool = False  # its last commit, which is on its way, deletes the agent's row
    closed: Exception | None = None  # why nothing more may be written under this fence
    on_closed: Callable[[Exception], None] | None = None

    @classmethod
    def after(cls, root: str, owner: str, known: tuple[int, str, int] | None) -> Fence:
        """The fence of an activation that read `known` as its agent's row (None: there is none)."""
        if known is None:
            return cls(root, owner, None, epoch=1, commit_no=0)
        return cls(root, owner, known, epoch=known[0] + 1, commit_no=known[2])

    def close(self, reason: Exception) -> None:
        """Nothing more is written under this fence. The first reason stands."""
        if self.closed is None:
            self.closed = reason
            if self.on_closed is not None:
                try:
                    self.on_closed(reason)
                except Exception:  # others in the same group wait for their outcome
                    logger.exception("%s could not be discarded", self.root)


class Outcome(asyncio.Future[tuple[int, ...]]):
    """Resolved when the outcome of a batch is known.

    It cannot be cancelled: a task that is cancelled while it waits goes on waiting, and gets its
    `CancelledError` once the outcome is known (`asyncio.Task` does that by itself when the future that
    it waits for declines to be cancelled).
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
    """How the store is doing. Latencies: seconds from handing over to the outcome, latest commits."""

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
    unavailable_for: float | None  # seconds since the engine stopped answering; None: it answers
    blocked_agents: tuple[str, ...] = ()  # that wait for rows which somebody else has locked
    blocked_for: float | None = None  # seconds that the first of them has waited
    blocked_by: str | None = None  # who has locked them, as far as that was found out


def size_of(operations: Sequence[Operation]) -> int:
    """About how many bytes these operations bring."""
    size = 0
    for _, arguments in operations:
        for argument in arguments:
            if type(argument) is str or type(argument) is bytes:
                size += len(argument)
    return size
