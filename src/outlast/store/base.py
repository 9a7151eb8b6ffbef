"""The base class of both engines: the queue of batches, outcomes, reads and statistics."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from outlast.core.errors import (
    CommitFailed,
    CommitRefused,
    OwnershipLost,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    ValueTooLarge,
    again,
)
from outlast.store.attempt import Attempt, Unstorable
from outlast.store.grouping import operation_names
from outlast.store.operations import (
    Argument,
    Batch,
    Fence,
    Operation,
    Outcome,
    Query,
    Read,
    StoreStatistics,
    size_of,
)
from outlast.store.schema import Schema, checked

logger = logging.getLogger("outlast.store")

Row = tuple[Any, ...]

MEBIBYTE = 1024 * 1024
MAX_REASONS = 20  # logged per outage


@dataclass(slots=True)
class Outage:
    """A period in which the engine does not answer."""

    since: float  # on the loop's clock
    reasons: set[str] = field(default_factory=set)  # already logged


class CommitProbe(Protocol):
    """Called before and after each COMMIT, so that tests can crash at either point."""

    def before_commit(self, batches: Sequence[Batch]) -> None: ...

    def after_commit(self, batches: Sequence[Batch]) -> None:
        """COMMIT has returned; no outcome is resolved yet."""
        ...


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings that both engines have."""

    max_value_bytes: int = 64 * MEBIBYTE
    max_group: int = 1000  # batches in one transaction
    max_group_bytes: int = MEBIBYTE  # a larger batch gets a transaction of its own
    probe: CommitProbe | None = None
    # PostgreSQL: only one server at a time may write in a schema. Processes with the same value are one
    # server, and do not exclude each other.
    server: str | None = None
    is_lockless: bool = False  # PostgreSQL: takes no lock, and relies on the fence alone


class Store(ABC):
    """Durable rows. `submit` queues a batch, `fetch` reads; see the package docstring."""

    engine: str
    identity: str  # the same in every process that opens this store; contains no secrets

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self._loop = asyncio.get_running_loop()
        self._queue: list[Batch] = []
        self._queue_bytes = 0
        self._reads = 0
        self._closing = False
        self._on_timer = False  # it only waits for its next retry
        self._closed: Exception | None = None
        self._refusing: StoreError | None = None  # why nothing is stored until a restart
        self._commits = 0
        self._batches = 0
        self._refused = 0
        self._failed = 0
        self._largest_group = 0
        self._latencies: deque[float] = deque(maxlen=1000)
        self._outages: dict[str, Outage] = {}  # of "commits" and of "reads"

    # --- writing ---------------------------------------------------------------------------------

    def submit(self, fence: Fence, operations: list[Operation]) -> Outcome:
        """Queue a batch without waiting; await the outcome to learn how it ended.

        The outcome is the number of rows that each operation touched (-1: committed, number unknown), or
        raises `OwnershipLost`, `CommitRefused`, `CommitFailed` or another `StoreError`.
        """
        self._check_open()
        if fence.closed is not None:
            raise again(fence.closed)
        size = size_of(operations)
        if size * 4 > self.options.max_value_bytes:  # a character takes up to four bytes
            self._check_sizes(operations)
        outcome = Outcome(loop=self._loop)
        self._queue.append(Batch(fence, operations, outcome, size, self._loop.time()))
        self._queue_bytes += size
        self._kick()
        return outcome

    async def commit(self, fence: Fence, operations: list[Operation]) -> tuple[int, ...]:
        """Submit a batch and wait for its outcome."""
        return await self.submit(fence, operations)

    def _check_sizes(self, operations: Sequence[Operation]) -> None:
        most = self.options.max_value_bytes
        for statement, arguments in operations:
            for argument in arguments:
                size = _bytes_of(argument, most)
                if size > most:
                    raise ValueTooLarge(
                        f"a value of {size:,} bytes ({statement.name}) is more"
                        f" than this store accepts ({most:,} bytes). Put large data into a file or"
                        f" an object store, and store its address here."
                    )

    @abstractmethod
    def _kick(self) -> None:
        """Schedule the writing of the queue."""

    # --- outcomes --------------------------------------------------------------------------------

    def _without_closed(self, batches: list[Batch]) -> list[Batch]:
        """Return the batches whose fence is open; fail the others with the reason that closed it."""
        alive = []
        for batch in batches:
            if batch.fence.closed is None:
                alive.append(batch)
            else:
                self._end_badly(batch, again(batch.fence.closed))
        return alive

    def _conclude(self, attempt: Attempt) -> None:
        """Resolve the outcomes of a group, in order."""
        assert attempt.verdicts is not None
        now = self._loop.time()
        committed = 0
        for batch, verdict in zip(attempt.group, attempt.verdicts, strict=True):
            if isinstance(verdict, tuple):
                committed += 1
                self._queue_bytes -= batch.size
                self._latencies.append(now - batch.queued_at)
                batch.outcome.set_result(verdict)
            elif verdict == "refused":
                self._refuse(batch)
            elif verdict == "stale":
                self._lose(batch)
            elif verdict == "behind":
                assert batch.fence.closed is not None
                self._end_badly(batch, again(batch.fence.closed))
            elif verdict == "held":  # it waits for a retry
                continue
            else:
                self._fail(batch, verdict)
        self._commits += 1
        self._batches += committed
        self._largest_group = max(self._largest_group, committed)
        self._reachable("commits")

    def _refuse(self, batch: Batch) -> None:
        self._refused += 1
        self._queue_bytes -= batch.size
        batch.outcome.set_exception(
            CommitRefused(f"a condition did not hold ({operation_names(batch.operations)})")
        )

    def _lose(self, batch: Batch) -> None:
        """Close a fence that did not hold, and fail the batch."""
        fence = batch.fence
        what = (
            f"epoch {fence.epoch} no longer owns this agent; another host or activation took over,"
            f" or the store was restored from a backup"
            if fence.held
            else f"cannot take epoch {fence.epoch}; another host or activation took it first"
        )
        fence.close(OwnershipLost(f"{fence.root}: {what}. Nothing was written."))
        assert batch.fence.closed is not None
        self._end_badly(batch, again(batch.fence.closed))

    def _fail(self, batch: Batch, error: Exception) -> None:
        """Fail a batch that cannot be written, and close its fence, so that later batches fail too."""
        why = str(error) if isinstance(error, Unstorable) else f"{type(error).__name__}: {error}"
        logger.error("%s: a commit failed: %s", batch.fence.root, error)
        is_of_store = isinstance(error, StoreFull | StoreReadOnly | StoreUnavailable)
        failure = StoreFailed if is_of_store else CommitFailed
        reason = failure(
            f"{batch.fence.root}: a commit failed ({error}), so the agent was discarded and boots"
            f" again from the store; no later commit of it was written."
        )
        if isinstance(error, Unstorable):
            reason.unstorable = tuple(statement.name for statement, _ in batch.operations)
            reason.agent = str(batch.operations[0][1][0])
        batch.fence.close(reason)
        if isinstance(error, StoreError):
            self._end_badly(batch, error)
        else:
            failed = CommitFailed(
                f"{batch.fence.root}: cannot write {operation_names(batch.operations)}: {why}"
            )
            failed.__cause__ = error.__cause__ if isinstance(error, Unstorable) else error
            self._end_badly(batch, failed)

    def _end_badly(self, batch: Batch, error: Exception) -> None:
        self._failed += 1
        self._queue_bytes -= batch.size
        batch.outcome.set_exception(error)

    def _refuse_all(self, reason: StoreError, pending: Sequence[Batch]) -> None:
        """Stop storing: fail all pending batches, and every later one."""
        self._refusing = reason
        self._outages.setdefault("commits", Outage(self._loop.time()))
        logger.critical("%s", reason)
        for batch in pending:
            batch.fence.close(reason)
            self._end_badly(batch, again(reason))

    def _check_open(self) -> None:
        if self._closed is not None:
            raise StoreClosed(str(self._closed))
        if self._refusing is not None:
            raise again(self._refusing)

    def _unreachable(self, why: object, what: str = "commits") -> None:
        """Record an outage, and log each reason once per outage."""
        outage = self._outages.setdefault(what, Outage(self._loop.time()))
        reason = str(why)
        if reason not in outage.reasons and len(outage.reasons) < MAX_REASONS:
            outage.reasons.add(reason)
            logger.error("the store does not answer, %s are waiting: %s", what, reason)

    def _reachable(self, what: str) -> None:
        """End an outage, and log that."""
        if self._outages and (outage := self._outages.pop(what, None)) is not None:
            lasted = self._loop.time() - outage.since
            logger.warning("the store answers again after %.1f s, %s continue", lasted, what)

    # --- tables ----------------------------------------------------------------------------------

    async def add_schemas(self, schemas: Iterable[Schema]) -> None:
        """Run the missing migrations of these schemas, as opening the store with them would."""
        self._check_open()
        known = checked(schemas)
        self._reads += 1
        try:
            if known:
                await self._add_schemas(known)
        finally:
            self._reads -= 1

    @abstractmethod
    async def _add_schemas(self, schemas: Sequence[Schema]) -> None: ...

    # --- reading ---------------------------------------------------------------------------------

    async def fetch(self, query: Query, *arguments: Any) -> list[Row]:
        """Return the rows of a query, which sees every batch whose outcome is known."""
        self._check_open()
        self._reads += 1
        try:
            return await self._fetch(query, arguments)
        finally:
            self._reads -= 1

    async def fetch_all(self, reads: Sequence[Read]) -> list[list[Row]]:
        """Return the rows of several queries, in one round trip if the engine has round trips."""
        return [await self.fetch(query, *arguments) for query, arguments in reads]

    @abstractmethod
    async def _fetch(self, query: Query, arguments: Sequence[Any]) -> list[Row]: ...

    # --- state and closing -----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while a batch or a read is in progress, or the store is being closed.

        False while it only waits for the timer of a retry.
        """
        if self._on_timer:
            return False
        return bool(self._queue or self._in_flight or self._reads or self._closing)

    def is_in_place(self) -> bool:
        """Check the files. False once nothing can be stored until the host restarts."""
        return self._refusing is None

    @property
    @abstractmethod
    def _in_flight(self) -> int:
        """The number of batches that left the queue and have no outcome yet."""

    async def drained(self) -> None:
        """Wait until every submitted batch has its outcome."""
        while waiting := [batch.outcome for batch in self._pending()]:
            await asyncio.wait(waiting)

    async def delivered(self) -> None:
        """Wait until the outcomes of all batches submitted before this call reached their waiters."""
        if waiting := [batch.outcome for batch in self._pending()]:
            await asyncio.wait(waiting)
        await asyncio.sleep(0)

    @abstractmethod
    def _pending(self) -> list[Batch]:
        """Return every batch without an outcome."""

    def statistics(self) -> StoreStatistics:
        """Return a snapshot of counters and latencies. Cheap."""
        latencies = sorted(self._latencies)
        count = len(latencies)
        return StoreStatistics(
            engine=self.engine,
            queue_depth=len(self._queue),
            queue_bytes=self._queue_bytes,
            in_flight=self._in_flight,
            commits=self._commits,
            batches=self._batches,
            refused=self._refused,
            failed=self._failed,
            largest_group=self._largest_group,
            mean_group=self._batches / self._commits if self._commits else 0.0,
            latency_p50=latencies[count // 2] if count else 0.0,
            latency_p99=latencies[int(count * 0.99)] if count else 0.0,
            fsync_average=self._fsync_average(),
            fsync_in_thread=self._fsync_in_thread(),
            unavailable_for=max(
                (self._loop.time() - outage.since for outage in self._outages.values()),
                default=None,
            ),
            **self._blocked(),
        )

    def _blocked(self) -> dict[str, Any]:
        """Return the statistics about agents that wait for rows locked by other sessions."""
        return {}

    def _fsync_average(self) -> float | None:
        return None

    def _fsync_in_thread(self) -> bool:
        return False

    def give_up(self, reason: str) -> None:
        """Abandon an engine that does not answer; pending outcomes fail as unknown."""
        pending = self._pending()
        self.abandon(reason)
        for batch in pending:
            if not batch.outcome.done():
                batch.outcome.set_exception(
                    StoreClosed(f"{reason}: it is unknown whether this commit is durable")
                )

    async def close(self) -> None:
        """Write all submitted batches, then close the engine. Idempotent."""
        if self._closed is None:
            await self.drained()
            self.abandon("the store was closed")

    def abandon(self, reason: str = "the store was abandoned") -> None:
        """Close the engine at once, as a crash would. Pending outcomes stay unresolved."""
        if self._closed is None:
            self._closed = StoreClosed(reason)
            self._release()

    @abstractmethod
    def _release(self) -> None:
        """Close connections and locks, without waiting."""


def _bytes_of(argument: Argument, most: int) -> int:
    """Return the size of a value; 0 for a string that is certainly within `most`."""
    if isinstance(argument, bytes):
        return len(argument)
    if not isinstance(argument, str) or len(argument) * 4 <= most:
        return 0
    return len(argument.encode(errors="surrogatepass"))
