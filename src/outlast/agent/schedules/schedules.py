"""The schedules of an agent: creating them, and running their callbacks when due.

An occurrence is claimed in a commit before its callback runs, and released in a commit after it: two scans
never run it concurrently, and an occurrence whose process crashed runs again (at least once). A callback that
raises is retried in the process; the last failure is reported and never delays other schedules. An occurrence
during which the process crashed twice runs alone, after its neighbours, a limited number of times.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Concatenate

from outlast.agent.admission import (
    WAS_ADMITTED,
    Occurrence,
    Origin,
    current_origin,
    current_work,
    digest,
    forget,
    schedule_scope,
)
from outlast.agent.events import (
    ScheduleCancelled,
    ScheduleCompleted,
    ScheduleCreated,
    ScheduleDuplicates,
    ScheduleFailed,
    ScheduleRetried,
    ScheduleStarted,
)
from outlast.agent.part import NAMESPACE, Part, Parts
from outlast.agent.schedules import sql as rows
from outlast.agent.schedules.occurrences import NextRun, Past, after_run, deferred, moved_earlier
from outlast.agent.schedules.sql import ScheduleRow
from outlast.agent.schedules.timetable import (
    Retry,
    ScheduleKind,
    Timing,
    interval_timing,
    timing_of,
)
from outlast.agent.state.facts import Facts
from outlast.core import json
from outlast.core.clock import to_datetime, to_timedelta
from outlast.core.errors import CommitRefused, OutlastError
from outlast.core.events import Arguments, Kind
from outlast.core.hooks import call_hook
from outlast.core.text import described
from outlast.host.wakeups.boot_order import SUSPECT_FROM, alone_for, delay_before
from outlast.store.operations import Operation, Query

logger = logging.getLogger("outlast.agent")

MAX_CONCURRENT = 10
PAGE = 100
LONGEST_DEFER = 24 * 3_600_000  # milliseconds: how long an occurrence waits for a missing callback
SUSPICIOUSLY_MANY = 10  # one-shots of one callback that are due at once
MAX_CRASHES = 10  # in a row, while one occurrence runs


@dataclass(frozen=True, slots=True)
class Schedule:
    """A stored schedule. `time` is its next occurrence, or the running one."""

    id: str
    callback: str
    payload: Any
    kind: ScheduleKind
    time: datetime
    cron: str | None = None
    timezone: str | None = None
    interval: timedelta | None = None
    retry: Retry = Retry()  # noqa: RUF009 - frozen
    created_at: datetime | None = None


class Schedules(Part):
    """The schedules of one agent."""

    first_reads = (rows.IS_ANY_CLAIMED,)
    alarms = (rows.ALARM,)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._facts = parts[Facts]
        self._running: set[str] = set()
        self._claimed: set[str] = set()  # those of `_running` that this activation claimed
        self._is_stopping = False  # the process was asked to stop
        self._scan: asyncio.Task[None] | None = None
        self._again = False

    async def start(self) -> None:
        if await self.activation.fetch(rows.IS_ANY_CLAIMED, self.address):
            self.scan_soon()

    async def wake(self, source: str) -> None:
        await asyncio.shield(self.scan_soon())

    async def host_stops(self, cause: str) -> None:
        await self.uncount_crashes()

    # --- creating and reading --------------------------------------------------------------------

    async def once_or_by_cron(
        self,
        when: float | timedelta | datetime | str,
        callback: Callable[..., Any] | str,
        payload: Any,
        retry: Retry | None,
        idempotent: bool | None,
        timezone: str | None,
    ) -> Schedule:
        timing = timing_of(when, timezone, self.activation.clock.now())
        return await self._add(timing, callback, payload, retry, idempotent)

    async def every(
        self,
        interval: float | timedelta,
        callback: Callable[..., Any] | str,
        payload: Any,
        retry: Retry | None,
        idempotent: bool | None,
    ) -> Schedule:
        timing = interval_timing(interval, self.activation.clock.now())
        return await self._add(timing, callback, payload, retry, idempotent)

    async def _add(
        self,
        timing: Timing,
        callback: Callable[..., Any] | str,
        payload: Any,
        retry: Retry | None,
        idempotent: bool | None,
    ) -> Schedule:
        name = self._callback_name(callback)
        text = json.encode(payload, "payload")
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(f"retry must be a Retry, got {retry!r}")
        options = None if retry is None else json.encode(retry.stored())
        if idempotent is None:
            idempotent = timing.kind in ("cron", "interval")
        row = ScheduleRow(
            id=self.activation.ids.new("schedule"),
            identity=_identity(timing, name, text) if idempotent else None,
            kind=timing.kind,
            callback=name,
            payload=text,
            cron=timing.cron,
            timezone=timing.timezone,
            interval=timing.interval,
            retry=options,
            created_at=self.activation.clock.now(),
            occurrence=timing.first_at,
            run_at=timing.first_at,
            claimed_at=None,
            defers=0,
            crashes=0,
        )
        if row.identity is not None:
            existing = await self._fetch_one(rows.BY_IDENTITY, row.identity)
            if existing is not None:
                return self._to_schedule(existing)
        origin = current_origin()
        if row.identity is None and origin is not None and origin.agent == self.address:
            return await self._add_once(origin, row)
        try:
            await self.commits.write(
                [self._insertion(row), *rows.rearm(self.address)], lambda: self._created(row)
            )
        except CommitRefused:
            if row.identity is None:
                raise
            existing = await self._fetch_one(rows.BY_IDENTITY, row.identity)
            if existing is None:
                raise
            return self._to_schedule(existing)
        return self._to_schedule(row)

    async def _add_once(self, origin: Origin, row: ScheduleRow) -> Schedule:
        """Create the schedule, or return the one that an earlier run of the surrounding work created."""
        block = self.commits.current()
        key = origin.key(self.address, "schedule", row.callback, row.payload, block)
        row = replace(row, id=f"schedule_{digest(key)}")
        noted = (origin.scope, key)
        if not await self.activation.store.fetch(WAS_ADMITTED, self.address, *noted):
            insertion = self._insertion(row, noted)
            try:
                await self.commits.write(
                    [insertion, origin.note(key), *rows.rearm(self.address)],
                    lambda: self._created(row),
                )
                return self._to_schedule(row)
            except CommitRefused:  # an earlier run created it in the meantime
                pass
        return self._to_schedule(await self._fetch_one(rows.BY_ID, row.id) or row)

    def _created(self, row: ScheduleRow) -> None:
        self._emit(ScheduleCreated, row)
        self.activation.alarm_was_set(row.run_at)

    def _insertion(
        self, row: ScheduleRow, noted: tuple[str | None, str | None] = (None, None)
    ) -> Operation:
        return rows.INSERT, (
            self.address,
            row.id,
            row.identity,
            row.kind,
            row.callback,
            row.payload,
            row.cron,
            row.timezone,
            row.interval,
            row.retry,
            row.created_at,
            row.occurrence,
            row.run_at,
            *noted,
        )

    def _callback_name(self, callback: Callable[..., Any] | str) -> str:
        part = getattr(callback, "__self__", None)
        if isinstance(part, Part) and part.battery is not None and part.parts is self.parts:
            return f"{NAMESPACE}:{part.battery}:{getattr(callback, '__name__', '')}"
        name = (
            callback if isinstance(callback, str) else getattr(callback, "__name__", repr(callback))
        )
        method = getattr(type(self.parts.agent), name, None)
        if not callable(method) or (callable(callback) and not self._is_own(callback, method)):
            raise TypeError(
                f"a schedule's callback must be a method of {type(self.parts.agent).__name__}, because it is"
                f" stored by name, got {callback!r}"
            )
        return name

    def _is_own(self, callback: Any, method: Any) -> bool:
        return getattr(callback, "__func__", callback) is method

    async def all(
        self, kind: ScheduleKind | None, callback: Callable[..., Any] | str | None
    ) -> list[Schedule]:
        if callback is not None and not isinstance(callback, str):
            callback = self._callback_name(callback)
        found = await self.activation.store.fetch(rows.OF_AGENT, self.address)
        return [
            self._to_schedule(row)
            for row in (ScheduleRow(*values) for values in found)
            if kind in (None, row.kind) and callback in (None, row.callback)
        ]

    async def get(self, id: str) -> Schedule | None:
        row = await self._fetch_one(rows.BY_ID, id)
        return None if row is None else self._to_schedule(row)

    async def cancel(self, id: str) -> bool:
        row = await self._fetch_one(rows.BY_ID, id)
        if row is None:
            return False
        touched = await self.commits.write(
            [
                (rows.DELETE, (self.address, id)),
                forget(self.address, schedule_scope(id)),
                (rows.FORGET, (self.address, rows.fact_of(id))),
                *rows.rearm(self.address),
            ],
            lambda: self._cancelled(row),
        )
        return touched is None or touched[0] != 0

    def _cancelled(self, row: ScheduleRow) -> None:
        self._facts.forget(rows.fact_of(row.id))
        self._emit(ScheduleCancelled, row)

    # --- running ---------------------------------------------------------------------------------

    def scan_soon(self) -> asyncio.Task[None]:
        """Run the due schedules now, or scan again after the running scan."""
        if self._scan is None:
            self._scan = self.activation.spawn(self._scan_all(), "run schedules")
        else:
            self._again = True
        return self._scan

    async def _scan_all(self) -> None:
        limit = asyncio.Semaphore(MAX_CONCURRENT)
        try:
            while True:
                self._again = False
                found = await self._due()
                self._warn_of_many(found)
                for row in found:
                    if row.crashes >= SUSPECT_FROM and not self.activation.is_continued:
                        await self._suspect(row)
                        continue
                    await limit.acquire()
                    if await self._claim(row):
                        self._running.add(row.id)
                        self.activation.spawn(self._execute(row, limit), f"run {row.callback}")
                    else:
                        limit.release()
                if not found and not self._again:
                    await self.commits.commit(rows.rearm(self.address))
                    if not self._again:  # no scan was requested during the commit
                        break
        except OutlastError:
            if self.activation.ended is None:
                raise
        finally:
            self._scan = None

    async def _due(self) -> list[ScheduleRow]:
        """Return the schedules that are due or were interrupted, and do not run here."""
        found = await self.activation.store.fetch(
            rows.DUE, self.address, self.activation.clock.now(), PAGE
        )
        return [
            row for row in (ScheduleRow(*values) for values in found) if row.id not in self._running
        ]

    async def _claim(self, row: ScheduleRow) -> bool:
        now = self.activation.clock.now()
        is_counted = row.claimed_at is not None and self.activation.is_continued
        crashes = row.crashes + (not is_counted and not self._is_stopping)
        try:
            await self.commits.commit(
                [
                    (rows.CLAIM, (self.address, row.id, row.occurrence, now, crashes)),
                    *rows.rearm(self.address),
                ]
            )
        except CommitRefused:
            return False  # it was cancelled, or has another occurrence now
        self._claimed.add(row.id)
        return True

    async def _execute(self, row: ScheduleRow, limit: asyncio.Semaphore) -> None:
        """Run one occurrence, and store the next."""
        try:
            await self._run(row)
        finally:
            self._running.discard(row.id)
            limit.release()

    async def _suspect(self, row: ScheduleRow) -> None:
        """Run it alone, unless its row changed since it was read: then it ran here and has ended."""
        if await self._fetch_one(rows.BY_ID, row.id) == row and row.id not in self._running:
            self._running.add(row.id)
            self.activation.spawn(self._execute_alone(row), f"run {row.callback} alone")

    async def _execute_alone(self, row: ScheduleRow) -> None:
        """Run an occurrence that may be what kills the process: after its neighbours, and alone."""
        crashes = row.crashes
        try:
            if crashes > MAX_CRASHES:
                if not await self._claim(row):
                    return
                self._report(row, f"the process crashed {crashes} times during it", attempts=0)
                await self._store_end(row, self._next(row))
                return
            elapsed = self.activation.clock.now() - (row.claimed_at or 0)
            await asyncio.sleep(delay_before(crashes, elapsed))
            async with self.activation.boot_order.alone(alone_for(crashes)):
                if await self._claim(row):
                    await self._run(row)
        except OutlastError as error:
            if self.activation.ended is None:
                logger.error("%s: cannot run %r: %s", self.address, row.callback, error)
        finally:
            self._running.discard(row.id)

    async def uncount_crashes(self) -> None:
        """Take back the crash counts of this run: the process was asked to stop."""
        self._is_stopping = True
        operations: list[Operation] = [(rows.SPARE, (self.address, id)) for id in self._claimed]
        self._claimed.clear()
        if operations:
            await self.commits.commit(operations)

    async def _run(self, row: ScheduleRow) -> None:
        try:
            await self._store_end(row, await self._outcome(row))
        except OutlastError as error:
            if self.activation.ended is None:
                logger.error(
                    "%s: cannot store the end of %r: %s", self.address, row.callback, error
                )

    async def _store_end(self, row: ScheduleRow, following: NextRun | None) -> None:
        if following is None:
            operation: Operation = rows.DELETE, (self.address, row.id)
        else:
            target = (following.occurrence, following.run_at, following.defers)
            operation = rows.RELEASE, (self.address, row.id, row.occurrence, *target)
        is_over = following is None or following.occurrence != row.occurrence
        forgotten = [forget(self.address, schedule_scope(row.id))] if is_over else []
        await self._conclude(row, following, [operation, *forgotten])
        self._claimed.discard(row.id)

    async def _conclude(
        self, row: ScheduleRow, following: NextRun | None, operations: list[Operation]
    ) -> None:
        """Commit the operations with the alarm, and with the schedule's past if that has gaps."""
        past = None
        if following is not None and following.past != self._past(row):
            past = following.past.text
            operations = [*operations, rows.remember(self.address, row.id, past)]
        touched = await self.commits.commit([*operations, *rows.rearm(self.address)])
        if past is not None and touched[len(operations) - 1]:  # not cancelled in the meantime
            self._facts.remember(rows.fact_of(row.id), past)
        if following is not None:
            self.activation.alarm_was_set(following.run_at)

    def _past(self, row: ScheduleRow) -> Past:
        return Past.of(row, self._facts.get(rows.fact_of(row.id), None, None))

    async def clock_set_back(self) -> None:
        """Move schedules that are too far in the future, because the clock was set back."""
        now = self.activation.clock.now()
        found = await self.activation.store.fetch(rows.WAITING, self.address, now)
        for row in (ScheduleRow(*values) for values in found):
            try:
                earlier = moved_earlier(row, self._past(row), now)
                if earlier is not None:
                    target = (earlier.occurrence, earlier.run_at)
                    move = (rows.MOVE, (self.address, row.id, row.occurrence, *target))
                    await self._conclude(row, earlier, [move])
            except ValueError as error:  # the time zone no longer exists: it may come back
                logger.error("%s: the schedule %r may run late: %s", self.address, row.id, error)
            except CommitRefused:
                continue  # it was cancelled, or is running

    async def _outcome(self, row: ScheduleRow) -> NextRun | None:
        """Run the callback. Returns the next run, or None if the schedule is finished."""
        import random

        now = self.activation.clock.now
        try:
            payload = json.decode(row.payload)
            retry = Retry(**json.decode(row.retry)) if row.retry else Retry()
        except (ValueError, TypeError) as error:
            self._report(row, f"cannot read its payload: {error}", attempts=0)
            return self._next(row)
        callback = self._callback(row)
        if callback is None:
            self._report(
                row, f"{type(self.parts.agent).__name__} has no method {row.callback!r}", attempts=0
            )
            if row.is_recurring or now() - row.occurrence >= LONGEST_DEFER:
                return self._next(row)
            return self._deferred(row)
        started = now()
        for attempt in range(1, retry.max_attempts + 1):
            if attempt > 1:
                # Different for each occurrence, but the same in each run.
                chance = random.Random(f"{row.id} {row.occurrence}")
                await asyncio.sleep(retry.delay_before(attempt, chance))
            try:
                self._emit(ScheduleStarted, row, attempt=attempt)
                await self._call(callback, payload, row)
                self._emit(ScheduleCompleted, row, elapsed_ms=now() - started)
                return self._next(row)
            except OutlastError as error:
                if self.activation.ended is not None:
                    raise  # the next activation will run it
                if attempt == retry.max_attempts:
                    self._report(row, described(error), attempts=attempt, error=error)
                    return self._deferred(
                        row
                    )  # a failure of outlast does not use up the occurrence
                why = described(error)
            except (Exception, asyncio.CancelledError) as error:
                if self.activation.ended is not None:
                    raise OutlastError("interrupted; the next activation runs it") from error
                if attempt == retry.max_attempts:
                    self._report(row, described(error), attempts=attempt, error=error)
                    return self._next(row)
                why = described(error)
            self._emit(ScheduleRetried, row, attempt=attempt, error=why)
        raise AssertionError("unreachable")

    def _callback(self, row: ScheduleRow) -> Callable[..., Any] | None:
        """Return the method of the agent or of a battery's part, or None if the code no longer has it."""
        try:
            owner, name = self.parts.owner_of(row.callback) or (self.parts.agent, row.callback)
        except LookupError:
            return None
        found = getattr(owner, name, None)
        return found if callable(found) else None

    async def _call(self, callback: Callable[..., Any], payload: Any, row: ScheduleRow) -> None:
        arguments = (payload, self._to_schedule(row))[: _argument_count(callback)]
        token = current_work.set(Occurrence(self.address, row.id, row.occurrence))
        try:
            await call_hook(callback, *arguments)
        finally:
            current_work.reset(token)

    def _next(self, row: ScheduleRow) -> NextRun | None:
        try:
            return after_run(row, self._past(row), self.activation.clock.now())
        except ValueError as error:  # the time zone no longer exists: it may come back
            self._report(row, str(error), attempts=0)
            return self._deferred(row)

    def _deferred(self, row: ScheduleRow) -> NextRun:
        return deferred(row, self._past(row), self.activation.clock.now())

    # --- reporting -------------------------------------------------------------------------------

    def _report(
        self, row: ScheduleRow, why: str, *, attempts: int, error: BaseException | None = None
    ) -> None:
        logger.error(
            "%s: the schedule %r failed: %s", self.address, row.callback, why, exc_info=error
        )
        self._emit(ScheduleFailed, row, error=why, attempts=attempts)

    def _warn_of_many(self, found: list[ScheduleRow]) -> None:
        counts: dict[str, int] = {}
        for row in found:
            if not row.is_recurring:
                counts[row.callback] = counts.get(row.callback, 0) + 1
        for callback, count in counts.items():
            if count >= SUSPICIOUSLY_MANY:
                logger.warning(
                    "%s: %d schedules of %r are due at once", self.address, count, callback
                )
                self.activation.events.emit(
                    ScheduleDuplicates, self.address, callback=callback, count=count
                )

    def _emit(
        self,
        kind: Kind[Concatenate[str | None, str, str, ScheduleKind, Arguments]],
        row: ScheduleRow,
        *arguments: Arguments.args,
        **more: Arguments.kwargs,
    ) -> None:
        self.activation.events.emit(
            kind, self.address, row.id, row.callback, row.kind, *arguments, **more
        )

    async def _fetch_one(self, query: Query, value: str) -> ScheduleRow | None:
        found = await self.activation.store.fetch(query, self.address, value)
        return ScheduleRow(*found[0]) if found else None

    def _to_schedule(self, row: ScheduleRow) -> Schedule:
        try:
            payload = json.decode(row.payload)
            retry = Retry(**json.decode(row.retry)) if row.retry else Retry()
        except (ValueError, TypeError):
            payload, retry = None, Retry()
        return Schedule(
            id=row.id,
            callback=row.callback,
            payload=payload,
            kind=row.kind,
            time=to_datetime(row.run_at),
            cron=row.cron,
            timezone=row.timezone,
            interval=None if row.interval is None else to_timedelta(row.interval),
            retry=retry,
            created_at=to_datetime(row.created_at),
        )


def _identity(timing: Timing, callback: str, payload: str) -> str:
    import hashlib

    parts = [timing.kind, callback, payload, timing.cron, timing.timezone, timing.interval]
    return hashlib.sha256(json.encode(parts).encode()).hexdigest()


def _argument_count(callback: Callable[..., Any]) -> int:
    """Return how many of (payload, schedule) the callback takes."""
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):
        return 2
    for count in (2, 1):
        try:
            signature.bind(*(None,) * count)
            return count
        except TypeError:
            continue
    return 0
