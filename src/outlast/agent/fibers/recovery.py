"""Recovery of orphaned fibers: those whose process ended before they did."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Concatenate, Literal, TypeVar

from outlast.agent.admission import fiber_scope, forget
from outlast.agent.events import (
    FiberRecoveryAttempt,
    FiberRecoveryDetected,
    FiberRecoveryFailed,
    FiberRecoveryHandled,
    FiberRecoverySkipped,
    FiberRunInterrupted,
)
from outlast.agent.fibers import sql as rows
from outlast.agent.fibers.backoff import FiberRecovery, count_attempt, judge, last_attempt_at
from outlast.agent.fibers.fiber import FiberHandle, retrieve
from outlast.agent.fibers.fibers import FiberFunction, Fibers, Replaceable, check_function
from outlast.agent.fibers.sql import FiberRow
from outlast.agent.part import Part, Parts
from outlast.core import json
from outlast.core.clock import seconds, to_datetime
from outlast.core.errors import CommitRefused, FiberConflict, NotInFiber, OutlastError
from outlast.core.events import Arguments, Kind
from outlast.core.hooks import call_hook
from outlast.core.text import described, storable
from outlast.host.wakeups.alarms import alarm
from outlast.host.wakeups.boot_order import alone_for, delay_before
from outlast.store.operations import Operation

logger = logging.getLogger("outlast.agent")

T = TypeVar("T")

ALARM = "fibers"
PAGE = 50
WARN_FROM = 3
FIRST_RESCAN = 1.0  # seconds
LAST_RESCAN = 300.0


@dataclass(frozen=True, slots=True)
class FiberResolution:
    """How an interrupted managed fiber ended. The recovery hook may return one."""

    status: Literal["completed", "error", "aborted", "interrupted"]
    error: str | None = None
    metadata: Any = None  # with "completed" only: replaces the metadata of start_fiber
    snapshot: Any = None


class FiberRecoveryContext:
    """An orphaned fiber, as the argument of `on_fiber_recovered`."""

    def __init__(self, row: FiberRow, fibers: Fibers, place: Replaceable) -> None:
        self._row = row
        self._fibers = fibers
        self._place = place
        self.snapshot = decoded(row.snapshot, fibers.address, f"the snapshot of {row.id}")
        self.metadata = decoded(row.metadata, fibers.address, f"the metadata of {row.id}")

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def managed(self) -> bool:
        return bool(self._row.managed)

    @property
    def idempotency_key(self) -> str | None:
        return self._row.idempotency_key

    @property
    def attempt(self) -> int:
        """1 the first time this fiber is recovered since it last stashed, then 2, …

        Recoveries in quick succession (within half of `FiberRecovery.retry`) count once."""
        return self._row.tries

    @property
    def created_at(self) -> datetime:
        return to_datetime(self._row.created_at)

    def resume(self, function: FiberFunction[T]) -> FiberHandle[T]:
        """Continue this fiber, under its id and with its snapshot.

        The function is called with the fiber, and with the snapshot if it takes a second argument.
        The row stays the same, so a crash here neither loses nor duplicates the fiber.
        """
        check_function(self.name, function)
        if self._place.take(self._fibers) is None:
            raise NotInFiber(
                f"the fiber {self.name!r} was already resumed or replaced, or its hook returned"
            )
        now = self._fibers.activation.clock.now()
        operation: Operation = (rows.RESUME, (self._fibers.address, self.id, now))
        fiber = self._fibers.launch(
            self._row, function, _takes_snapshot(function), [operation], claim=False
        )
        self._place.replaced_by(fiber)
        return FiberHandle(fiber)


class Recovery(Part):
    """Finds orphaned fibers, and calls the recovery hook with each in turn."""

    first_reads = (rows.IS_ANY_UNFINISHED,)
    alarms = (ALARM,)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._fibers = parts[Fibers]
        self._activation = parts.activation
        self._scan: asyncio.Task[None] | None = None
        self._again = False
        self._woken = False
        self._tried: set[str] = set()  # by this activation
        self._started: set[str] = set()  # root ids whose crash counter includes this run
        self._suspects: set[str] = set()  # waiting to be recovered alone
        self._is_stopping = False  # the process was asked to stop
        self._hooks: set[str] = set()  # fibers whose hook is running, even after a replacement
        self._passed_over: set[str] = set()  # fibers that a scan skipped for that reason
        self._failures = 0  # scans in a row that raised

    async def start(self) -> None:
        if await self.activation.fetch(rows.IS_ANY_UNFINISHED, self.address):
            self.scan_soon()

    async def wake(self, source: str) -> None:
        await asyncio.shield(self.scan_soon(woken=True))

    async def clock_set_back(self) -> None:
        await asyncio.shield(self.scan_soon())

    async def host_stops(self, cause: str) -> None:
        await self.uncount_crashes()

    def fiber_orphaned(self) -> None:
        """A fiber was interrupted, but this activation continues."""
        self.scan_soon()

    @property
    def _options(self) -> FiberRecovery:
        options: FiberRecovery = self.parts.agent.fiber_recovery  # on_start may have set it
        return options

    def _settled(self, row: FiberRow) -> None:
        for ended in self.parts.overriding("fiber_ended"):
            ended(row.id)

    def scan_soon(self, *, woken: bool = False) -> asyncio.Task[None]:
        """Scan now, or again after the running scan. `woken`: the alarm is due, and must be set anew."""
        self._woken |= woken
        if self._scan is None:
            self._scan = self._activation.spawn(self._scan_all(), "recover fibers")
        else:
            self._again = True
        return self._scan

    async def _scan_all(self) -> None:
        try:
            while True:
                self._again = False
                await self._scan_once()
                self._failures = 0
                if not self._again:
                    return
        except Exception as error:
            if self._activation.ended is None:
                logger.error("%s: recovery failed, will retry: %r", self._fibers.address, error)
                self._scan_later()
        finally:
            self._scan = None

    def _scan_later(self) -> None:
        """Scan again after a failed scan, with growing delays."""
        delay = min(LAST_RESCAN, FIRST_RESCAN * 2 ** min(self._failures, 20))
        self._failures += 1
        self._activation.hold()

        def again() -> None:
            if self._activation.ended is None:
                self.scan_soon(woken=True)
            self._activation.release()

        asyncio.get_running_loop().call_later(delay, again, context=contextvars.Context())

    async def _scan_once(self) -> None:
        """Make one pass over the orphaned fibers, oldest first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds(self._options.scan_deadline)
        woken, self._woken = self._woken, False
        handled = failed = 0
        waiting: list[FiberRow] = []
        overdue = False
        async for found in self._orphans():
            row = await self._reread(found.id)
            if row is None:
                continue  # it ended while others were being recovered
            now = self._activation.clock.now()
            verdict = judge(row, now, self._options, same_process=self._is_known(row))
            if verdict == "later":
                waiting.append(row)
                continue
            if verdict == "alone":
                self._suspects.add(row.id)
                self._activation.spawn(self._recover_alone(row), f"recover {row.name} alone")
                continue
            if handled and loop.time() > deadline:
                self._emit(FiberRecoverySkipped, row, reason="scan_deadline_exceeded")
                overdue = True
                break
            handled += 1
            if verdict == "too old":
                await self._drop(row, "max_age_exceeded", "it made no progress for max_age")
            elif verdict == "crashed too often":
                why = f"the process crashed {row.crashes} times after it was resumed"
                await self._drop(row, "max_attempts_exceeded", why)
            elif (left := await self._recover(row)) is not None:
                failed += 1
                waiting.append(left)
        if handled or waiting or overdue or woken:
            await self._arm(waiting, overdue, progress=handled > failed)

    async def _recover_alone(self, found: FiberRow) -> None:
        """Recover a fiber that may be what kills the process: after its neighbours, and alone."""
        crashes = found.crashes + 1  # including the first interruption
        elapsed = self._activation.clock.now() - last_attempt_at(found, self._options)
        left: FiberRow | None = None
        try:
            await asyncio.sleep(delay_before(crashes, elapsed))
            async with self._activation.boot_order.alone(alone_for(crashes)):
                row = await self._unfinished(found.id)
                if row is not None:
                    left = await self._recover(row)
                    await self._wait_for_fibers(row.root_id, alone_for(crashes))
        except OutlastError as error:
            if self._activation.ended is None:
                logger.error(
                    "%s: recovery of %r failed: %r", self._fibers.address, found.name, error
                )
                self._scan_later()
        finally:
            self._suspects.discard(found.id)
        if left is not None and self._activation.ended is None:
            self.scan_soon(woken=True)

    async def _wait_for_fibers(self, root_id: str, window: float) -> None:
        """Wait for the end of the fibers that the hook started, for at most `window` seconds."""
        running = [each for each in self._fibers.running.values() if each.root_id == root_id]
        if running:
            await asyncio.wait({each.result for each in running}, timeout=window)

    def _is_known(self, row: FiberRow) -> bool:
        """Return whether this process worked on it before, so that its last try was not a crash."""
        return self._activation.is_continued or row.id in self._tried

    async def uncount_crashes(self) -> None:
        """Take back the crash counts of this run: the process was asked to stop."""
        self._is_stopping = True
        operations = self._uncounted(set(self._started))
        if operations:
            await self._fibers.commits.commit(operations)

    def _uncounted(self, roots: set[str]) -> list[Operation]:
        """Return the operations that take back the crash counts of this run."""
        begun = roots & self._started
        self._started -= begun
        return [(rows.SPARE, (self._fibers.address, root)) for root in sorted(begun)]

    async def _reread(self, id: str) -> FiberRow | None:
        """Return the current row, if the fiber is still orphaned."""
        row = await self._unfinished(id)
        return None if self._is_taken(id) else row

    async def _unfinished(self, id: str) -> FiberRow | None:
        found = await self._activation.store.fetch(rows.ONE_UNFINISHED, self._fibers.address, id)
        return FiberRow(*found[0]) if found else None

    def _is_taken(self, id: str) -> bool:
        if id in self._hooks:
            self._passed_over.add(id)
        return id in self._fibers.running or id in self._hooks or id in self._suspects

    async def _orphans(self) -> AsyncIterator[FiberRow]:
        """Yield the orphaned fibers, read page by page."""
        after = (-1, "")
        while True:
            found = await self._activation.store.fetch(
                rows.UNFINISHED, self._fibers.address, *after, PAGE
            )
            for values in found:
                row = FiberRow(*values)
                after = (row.created_at, row.id)
                if not self._is_taken(row.id):
                    yield row
            if len(found) < PAGE:
                return

    async def _recover(self, row: FiberRow) -> FiberRow | None:
        """Call the hook with one fiber. Returns its row if it must be tried again."""
        agent, clock = self._fibers.address, self._activation.clock
        self._emit(FiberRecoveryDetected, row)
        self._emit(FiberRunInterrupted, row, recovery_reason="orphaned")
        now = clock.now()
        tries, waits, retry_at = count_attempt(row, now, self._options)
        counts = not self._is_known(row) and not self._is_stopping
        crashes = row.crashes + counts
        status = "interrupted" if row.managed else row.status
        self._tried.add(row.id)
        self._started.add(row.root_id)
        try:
            await self._fibers.commits.commit(
                [(rows.ATTEMPT, (agent, row.id, status, now, tries, waits, retry_at, crashes))]
            )
        except CommitRefused:
            return None  # cancelled in the meantime
        interrupted_at = row.interrupted_at or now
        row = replace(
            row,
            status=status,
            interrupted_at=interrupted_at,
            tries=tries,
            waits=waits,
            retry_at=retry_at,
            crashes=crashes,
        )
        if tries >= WARN_FROM:
            logger.warning(
                "%s: recovering the fiber %r (%s), which made no progress (attempt %d)",
                agent,
                row.name,
                row.id,
                tries,
            )
        self._emit(FiberRecoveryAttempt, row)
        place = Replaceable(row, self._fibers)
        self._hooks.add(row.id)
        hook = self._activation.spawn(self._call(row, place), f"recover {row.name}")
        hook.add_done_callback(lambda _: self._hook_ended(row.id))
        hook.add_done_callback(retrieve)
        await asyncio.wait({hook, place.replaced}, return_when=asyncio.FIRST_COMPLETED)
        if place.replaced.done():
            self._emit(FiberRecoveryHandled, row, status="managed" if row.managed else "user")
            return None
        if hook.cancelled():
            raise asyncio.CancelledError
        return row if hook.result() else None

    def _hook_ended(self, id: str) -> None:
        """Scan again if a scan skipped the fiber while its hook was running."""
        self._hooks.discard(id)
        if id in self._passed_over:
            self._passed_over.discard(id)
            if self._activation.ended is None:
                self.scan_soon()

    async def _call(self, row: FiberRow, place: Replaceable) -> bool:
        """Call the hook and store its result. True if it failed and the row was kept."""
        agent = self._fibers.address
        try:
            with place:
                context = FiberRecoveryContext(row, self._fibers, place)
                answer = await call_hook(self._hook_of(row), context)
            if place.accepted is not None:
                await place.accepted
                return False
            ending = self._ending(row, _resolution(row, answer))
        except (Exception, asyncio.CancelledError) as error:
            if self._activation.ended is not None:
                raise
            logger.exception("%s: on_fiber_recovered failed for %r", agent, row.name)
            self._emit(FiberRecoveryFailed, row, error=described(error), reason="hook_raised")
            if place.accepted is not None:
                await asyncio.wait({place.accepted})
                return place.accepted.exception() is not None
            if not row.managed:
                return True
            ending = self._ending(row, FiberResolution("error", described(error)))
        await self._fibers.commits.commit([ending, self._forget(row)])
        self._emit(FiberRecoveryHandled, row, status="managed" if row.managed else "user")
        self._settled(row)
        return False

    def _hook_of(self, row: FiberRow) -> Callable[[FiberRecoveryContext], Any]:
        """Return the hook of the battery's part for a fiber of a battery, else the agent's."""
        owner = self.parts.owner_of(row.name)
        if owner is not None:
            return owner[0].fiber_recovered
        hook: Callable[[FiberRecoveryContext], Any] = self.parts.agent.on_fiber_recovered
        return hook

    def _ending(self, row: FiberRow, resolution: FiberResolution | None) -> Operation:
        if not row.managed:
            return rows.DELETE, (self._fibers.address, row.id)
        resolution = resolution or FiberResolution("interrupted")
        return rows.SETTLE, settlement(
            self._fibers.address, row.id, resolution, self._activation.clock.now()
        )

    def _forget(self, row: FiberRow) -> Operation:
        return forget(self._fibers.address, fiber_scope(row.root_id))

    async def _drop(
        self, row: FiberRow, reason: Literal["max_age_exceeded", "max_attempts_exceeded"], why: str
    ) -> None:
        """End a fiber that failed for too long, or too often."""
        self._emit(FiberRecoverySkipped, row, reason=reason)
        logger.error(
            "%s: dropped the fiber %r (%s): %s", self._fibers.address, row.name, row.id, why
        )
        resolution = FiberResolution("error", why)
        await self._fibers.commits.commit([self._ending(row, resolution), self._forget(row)])
        self._settled(row)

    async def _arm(self, waiting: list[FiberRow], overdue: bool, progress: bool) -> None:
        """Set the alarm for the fibers left. After progress, failed ones restart with short waits."""
        agent, now = self._fibers.address, self._activation.clock.now()
        operations = self._uncounted({row.root_id for row in waiting})  # their hooks raised
        times = [row.retry_at or now for row in waiting]
        if progress and waiting:
            soon = now + self._options.delay_after(1)
            times = [min(soon, at) for at in times]
            operations += [
                (rows.RETRY, (agent, row.id, 1, min(soon, row.retry_at or now))) for row in waiting
            ]
        if overdue:
            times.append(now)
        wake_at = min(times, default=None)
        operations.append(alarm(agent, ALARM, wake_at))
        await self._fibers.commits.commit(operations)
        if wake_at is not None:
            self._activation.alarm_was_set(wake_at)

    def _emit(
        self,
        kind: Kind[Concatenate[str | None, str, str, bool, Arguments]],
        row: FiberRow,
        *arguments: Arguments.args,
        **more: Arguments.kwargs,
    ) -> None:
        self._activation.events.emit(
            kind, self._fibers.address, row.id, row.name, bool(row.managed), *arguments, **more
        )


def settlement(
    agent: str, id: str, resolution: FiberResolution, now: int
) -> tuple[str | int | None, ...]:
    """Return the arguments of `SETTLE` and `RESOLVE`."""
    return (
        agent,
        id,
        resolution.status,
        None if resolution.error is None else storable(resolution.error),
        now,
        None if resolution.metadata is None else json.encode(resolution.metadata, "metadata"),
        None if resolution.snapshot is None else json.encode(resolution.snapshot, "snapshot"),
    )


def checked(resolution: FiberResolution) -> FiberResolution:
    """Return a valid resolution unchanged; raise `FiberConflict` otherwise."""
    if resolution.status not in ("completed", "error", "aborted", "interrupted"):
        raise FiberConflict(
            "the status of a FiberResolution must be completed, error, aborted or interrupted,"
            f" got {resolution.status!r}"
        )
    if resolution.metadata is not None and resolution.status != "completed":
        raise FiberConflict("the metadata of a FiberResolution requires the status completed")
    return resolution


def decoded(text: str | None, agent: str, what: str) -> Any:
    """Return a stored value, or None with a warning if it is no longer valid JSON."""
    if text is None:
        return None
    try:
        return json.decode(text)
    except ValueError as error:
        logger.warning("%s: %s is not valid JSON, using None: %s", agent, what, error)
        return None


def _resolution(row: FiberRow, answer: object) -> FiberResolution | None:
    if answer is None:
        return None
    if not row.managed or not isinstance(answer, FiberResolution):
        raise TypeError(
            "on_fiber_recovered must return None, or a FiberResolution for a managed fiber, got"
            f" {answer!r}"
        )
    return checked(answer)


def _takes_snapshot(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
