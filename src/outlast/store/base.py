"""The queue in front of the engines, and what both of them do with it."""

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
MOST_REASONS = 20  # that are logged in one outage


@dataclass(slots=True)
class Outage:
    """A time in which the engine does not answer."""

    since: float  # on the loop's clock
    reasons: set[str] = field(default_factory=set)  # that were logged


class CommitProbe(Protocol):
    """Told of the two moments of a commit between which a process can die. For tests."""

    def before_commit(self, batches: Sequence[Batch]) -> None: ...

    def after_commit(self, batches: Sequence[Batch]) -> None:
        """COMMIT has returned; nobody who waits has been told yet."""
        ...


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of a store that both engines have."""

    max_value_bytes: int = 64 * MEBIBYTE
    max_group: int = 1000  # batches in one transaction
    max_group_bytes: int = MEBIBYTE  # a larger batch gets a transaction of its own
    probe: CommitProbe | None = None
    # PostgreSQL: one server at a time writes in a schema. Processes that say the same here are one, and
    # do not keep one another out.
    server: str | None = None
    is_beside: bool = False  # PostgreSQL: it takes no lock, and writes under the fence alone


class Store(ABC):
    """Durable rows. `submit` hands a batch over, `fetch` reads; see the package's essay."""

    engine: str
    identity: str  # what all who open the same store know it by; no secrets

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self._loop = asyncio.get_running_loop()
        self._queue: list[Batch] = []
        self._queue_bytes = 0
        self._reads = 0
        self._closing = False
        self._on_timer = False  # it does nothing but wait to try again
        self._closed: Exception | None = None
        self._refusing: StoreError | None = None  # why nothing is stored any more, until a restart
        self._commits = 0
        self._batches = 0
        self._refused = 0
        self._failed = 0
        self._largest_group = 0
        self._latencies: deque[float] = deque(maxlen=1000)
        self._outages: dict[str, Outage] = {}  # by what does not work: commits, reads

    # --- writing ---------------------------------------------------------------------------------

    def submit(self, fence: Fence, operations: list[Operation]) -> Outcome:
        """Hand a batch over, now and without waiting; await the outcome to know how it ended.

        The outcome is the number of rows that each operation touched (-1: committed, not known),
        or raises: `OwnershipLost`, `CommitRefused`, `CommitFailed` or another `StoreError`.
        """
        self._check_open()
        if fence.closed is not None:
            raise again(fence.closed)
        size = size_of(operations)
        if size * 4 > self.options.max_value_bytes:  # a character is up to four bytes
            self._check_sizes(operations)
        outcome = Outcome(loop=self._loop)
        self._queue.append(Batch(fence, operations, outcome, size, self._loop.time()))
        self._queue_bytes += size
        self._kick()
        return outcome

    async def commit(self, fence: Fence, operations: list[Operation]) -> tuple[int, ...]:
        """`submit`, and wait for the outcome."""
        return await self.submit(fence, operations)

    def _check_sizes(self, operations: Sequence[Operation]) -> None:
        most = self.options.max_value_bytes
        for statement, arguments in operations:
            for argument in arguments:
                size = _bytes_of(argument, most)
                if size > most:
                    raise ValueTooLarge(
                        f"a value of {size:,} bytes ({statement.name}) is more"
                        f" than this store accepts ({most:,} bytes). Keep large data in a file or"
                        f" an object store, and its address here."
                    )

    @abstractmethod
    def _kick(self) -> None:
        """Something was queued: see that it is written soon."""

    # --- how a batch ends ------------------------------------------------------------------------

    def _without_closed(self, batches: list[Batch]) -> list[Batch]:
        """The batches that may still be written; the others fail with what closed their fence."""
        alive = []
        for batch in batches:
            if batch.fence.closed is None:
                alive.append(batch)
            else:
                self._end_badly(batch, again(batch.fence.closed))
        return alive

    def _conclude(self, attempt: Attempt) -> None:
        """The outcome of a group is known: tell whoever waits, in order."""
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
            elif verdict == "held":  # it waits for its next turn
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
        """The fence did not hold: everything under it is over."""
        fence = batch.fence
        what = (
            f"epoch {fence.epoch} is no longer the one that owns this agent; another host or"
            f" activation has taken it over, or the store went back in time"
            if fence.held
            else f"epoch {fence.epoch} could not be taken; another host or activation was faster"
        )
        fence.close(OwnershipLost(f"{fence.root}: {what}. Nothing was written."))
        assert batch.fence.closed is not None
        self._end_badly(batch, again(batch.fence.closed))

    def _fail(self, batch: Batch, error: Exception) -> None:
        """The batch itself cannot be written: what is behind it for this agent goes with it."""
        why = str(error) if isinstance(error, Unstorable) else f"{type(error).__name__}: {error}"
        logger.error("%s: a commit failed: %s", batch.fence.root, error)
        is_of_store = isinstance(error, StoreFull | StoreReadOnly | StoreUnavailable)
        failure = StoreFailed if is_of_store else CommitFailed
        reason = failure(
            f"{batch.fence.root}: a commit failed ({error}), so the agent was discarded and"
            f" boots again from the store; nothing handed over after it was written."
        )
        if isinstance(error, Unstorable):
            reason.unstorable = tuple(statement.name for statement, _ in batch.operations)
            reason.agent = str(batch.operations[0][1][0])
        batch.fence.close(reason)
        if isinstance(error, StoreError):
            self._end_badly(batch, error)
        else:
            failed = CommitFailed(
                f"{batch.fence.root}: {operation_names(batch.operations)} could not be written: {why}"
            )
            failed.__cause__ = error.__cause__ if isinstance(error, Unstorable) else error
            self._end_badly(batch, failed)

    def _end_badly(self, batch: Batch, error: Exception) -> None:
        self._failed += 1
        self._queue_bytes -= batch.size
        batch.outcome.set_exception(error)

    def _refuse_all(self, reason: StoreError, pending: Sequence[Batch]) -> None:
        """Nothing more is stored: what waits fails, and so does whatever comes."""
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
        """The engine does not answer. Each reason is logged once, as long as that lasts."""
        outage = self._outages.setdefault(what, Outage(self._loop.time()))
        reason = str(why)
        if reason not in outage.reasons and len(outage.reasons) < MOST_REASONS:
            outage.reasons.add(reason)
            logger.error("the store does not answer (%s); %s wait until it does", reason, what)

    def _reachable(self, what: str) -> None:
        """It answers. The end of an outage is logged as its beginning was."""
        if self._outages and (outage := self._outages.pop(what, None)) is not None:
            lasted = self._loop.time() - outage.since
            logger.warning("the store answers again after %.1f s; %s go on", lasted, what)

    # --- tables ----------------------------------------------------------------------------------

    async def add_schemas(self, schemas: Iterable[Schema]) -> None:
        """Bring the tables of these up to date, as opening the store with them would have done."""
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
        """The rows of a query. Sees every batch whose outcome is known."""
        self._check_open()
        self._reads += 1
        try:
            return await self._fetch(query, arguments)
        finally:
            self._reads -= 1

    async def fetch_all(self, reads: Sequence[Read]) -> list[list[Row]]:
        """The rows of several queries, in one round trip where there is one to make."""
        return [await self.fetch(query, *arguments) for query, arguments in reads]

    @abstractmethod
    async def _fetch(self, query: Query, arguments: Sequence[Any]) -> list[Row]: ...

    # --- the rest --------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """True while a batch or a read is under way, or the store is being closed.

        Not while it only waits for its own timer, to try again what has failed."""
        if self._on_timer:
            return False
        return bool(self._queue or self._in_flight or self._reads or self._closing)

    def is_in_place(self) -> bool:
        """Look: False once nothing can be stored any more until the host is started again."""
        return self._refusing is None

    @property
    @abstractmethod
    def _in_flight(self) -> int:
        """Batches that were taken from the queue and whose outcome is not known."""

    async def drained(self) -> None:
        """Wait until everything that was handed over has its outcome."""
        while waiting := [batch.outcome for batch in self._pending()]:
            await asyncio.wait(waiting)

    async def told(self) -> None:
        """Wait until whoever handed something over before this has been told its outcome."""
        if waiting := [batch.outcome for batch in self._pending()]:
            await asyncio.wait(waiting)
        await asyncio.sleep(0)

    @abstractmethod
    def _pending(self) -> list[Batch]:
        """Every batch whose outcome is not known."""

    def statistics(self) -> StoreStatistics:
        """A cheap snapshot of how the store is doing."""
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
        """Which agents wait for rows that somebody else has locked, for how long, and who that is."""
        return {}

    def _fsync_average(self) -> float | None:
        return None

    def _fsync_in_thread(self) -> bool:
        return False

    def give_up(self, reason: str) -> None:
        """Let go of an engine that does not answer; whoever waits is told that nobody knows."""
        pending = self._pending()
        self.abandon(reason)
        for batch in pending:
            if not batch.outcome.done():
                batch.outcome.set_exception(
                    StoreClosed(f"{reason}: whether this commit is durable is not known")
                )

    async def close(self) -> None:
        """Write what was handed over, then let go of the engine. Again: nothing."""
        if self._closed is None:
            await self.drained()
            self.abandon("the store was closed")

    def abandon(self, reason: str = "the store was abandoned") -> None:
        """Let go of the engine at once, as a dying process would. What was queued stays unknown."""
        if self._closed is None:
            self._closed = StoreClosed(reason)
            self._release()

    @abstractmethod
    def _release(self) -> None:
        """Close connections and locks, without waiting."""


def _bytes_of(argument: Argument, most: int) -> int:
    """How large a value is. Text that cannot have more than `most` bytes is not encoded to find out."""
    if isinstance(argument, bytes):
        return len(argument)
    if not isinstance(argument, str) or len(argument) * 4 <= most:
        return 0
    return len(argument.encode(errors="surrogatepass"))
