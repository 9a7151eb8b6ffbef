"""Durable alarms: one timer per host, driven by the earliest `wake_at` in the store.

An alarm is a row `(agent, source, wake_at)`; the source names the part of the agent that set it. A woken
agent moves or removes the row in a commit of its own, so that a crash never consumes an alarm. If waking it
fails, the host retries with growing delays.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable

from outlast.core.clock import Clock
from outlast.core.errors import OutlastError
from outlast.host.wakeups.clock_changes import ClockWatch
from outlast.store.base import Store
from outlast.store.operations import Argument, Operation, Query, Statement

logger = logging.getLogger("outlast.host")

Key = tuple[str, str]  # agent, source

LONGEST_SLEEP = 30.0  # seconds; then the wall clock is read again, in case someone set it
MOST_AT_ONCE = 100
MAKE_WAY_AFTER = 30.0  # seconds
FIRST_RETRY = 1_000  # milliseconds
LAST_RETRY = 300_000

_SET = Statement.same(
    "alarms set",
    "agent text, source text, wake_at bigint",
    """
        INSERT INTO alarms (agent, source, wake_at)
        VALUES (:agent, :source, :wake_at)
        ON CONFLICT (agent, source) DO UPDATE SET wake_at = excluded.wake_at
    """,
    key=2,
)

_SET_BY = Statement.same(
    "alarms set by",
    "agent text, source text, wake_at bigint",
    """
        INSERT INTO alarms (agent, source, wake_at)
        VALUES (:agent, :source, :wake_at)
        ON CONFLICT (agent, source) DO UPDATE SET wake_at = excluded.wake_at
        WHERE excluded.wake_at < alarms.wake_at
    """,
    key=2,
)

_CLEAR = Statement.same(
    "alarms clear",
    "agent text, source text",
    "DELETE FROM alarms WHERE alarms.agent = :agent AND alarms.source = :source",
    key=2,
)

_EARLIEST = Query.same("SELECT agent, source, wake_at FROM alarms ORDER BY wake_at LIMIT ?")


def alarm(agent: str, source: str, wake_at: int | None) -> Operation:
    """Return the operation that sets an alarm, or clears it when `wake_at` is None."""
    if wake_at is None:
        return _CLEAR, (agent, source)
    arguments: tuple[Argument, ...] = (agent, source, wake_at)
    return _SET, arguments


def alarm_by(agent: str, source: str, wake_at: int) -> Operation:
    """Return the operation that sets an alarm unless an earlier one is already set."""
    return _SET_BY, (agent, source, wake_at)


class Alarms:
    """Fires due alarms: calls `fire` with the address and the source of each."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        fire: Callable[[str, str], Awaitable[None]],
        *,
        watch: ClockWatch,
        on_clock_back: Callable[[], None],
        on_quiet: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._fire = fire
        self._watch = watch
        self._on_clock_back = on_clock_back
        self._on_quiet = on_quiet
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: int | None = None
        self._round: asyncio.Task[None] | None = None
        self._firing: dict[Key, asyncio.Task[None]] = {}
        self._fired_at: dict[Key, float] = {}  # when each was fired, on the loop's clock
        self._failures: dict[Key, tuple[int, int]] = {}  # count; time of the next try
        self._fired: dict[Key, int] = {}  # `wake_at` of handled alarms, until their rows are read
        self._waking: dict[Key, int] = {}  # the same, from firing until `_judge`
        self._anew: set[Key] = (
            set()
        )  # of these, alarms that may have been set to the same time again
        self._heard: int | None = None  # the earliest alarm set while rows were being read
        self._again = False
        self._stopped = False

    @property
    def busy(self) -> bool:
        """True while an alarm is being fired or is due, or rows are being read."""
        is_due = self._armed_for is not None and self._armed_for <= self._clock.now()
        return bool(self._round or self._firing or is_due)

    @property
    def next_at(self) -> int | None:
        """When the timer fires next; None if no alarm is set."""
        return self._armed_for

    def look(self) -> None:
        """Read which alarms are due and when the next one is."""
        if self._stopped:
            return
        if self._round is None:
            self._round = self._loop.create_task(
                self._look(), name="outlast-alarms", context=contextvars.Context()
            )
        else:
            self._again = True

    def on_set(self, wake_at: int) -> None:
        """An alarm was set: make sure that the timer fires in time."""
        self._anew |= {key for key, at in self._waking.items() if at == wake_at}
        if self._round is not None and (self._heard is None or wake_at < self._heard):
            self._heard = wake_at  # the rows being read may not include it
        if self._armed_for is None or wake_at < self._armed_for:
            self._arm(wake_at)

    def stop(self) -> list[asyncio.Task[None]]:
        """Fire no more alarms. Returns the tasks that are still firing one."""
        self._stopped = True
        self._disarm()
        return [*self._firing.values(), *([self._round] if self._round else [])]

    async def _look(self) -> None:
        try:
            while True:
                self._again = False
                self._heard = None
                if self._watch.went_back():
                    self._failures = {key: (count, 0) for key, (count, _) in self._failures.items()}
                    self._on_clock_back()
                fired, self._fired = self._fired, {}
                most = MOST_AT_ONCE + len(self._firing) + len(self._failures)
                try:
                    rows = await self._store.fetch(_EARLIEST, most)
                except OutlastError as error:
                    self._fired = fired | self._fired
                    if not self._stopped:
                        logger.error("cannot read alarms, will retry: %s", error)
                        self._arm(self._clock.now() + FIRST_RETRY)
                    return
                if any(fired.get((agent, source)) == at for agent, source, at in rows):
                    await self._store.delivered()  # it may have been set again
                if self._stopped:
                    return
                is_all = len(rows) < most
                self._judge(fired, rows, is_all)
                self._settle_on(rows, is_all)
                if not self._again:
                    return
        finally:
            self._round = None
            self._on_quiet()

    def _judge(self, fired: dict[Key, int], rows: list[tuple[str, str, int]], is_all: bool) -> None:
        """Check that each woken agent moved or removed its row; otherwise its alarm failed.

        An unchanged row may also have been set again, to the same millisecond.
        """
        stored = {(agent, source): wake_at for agent, source, wake_at in rows}
        for key, wake_at in fired.items():
            if stored.get(key) == wake_at and key not in self._anew:
                self._retry_later(key, "the agent woke but did not move or remove its alarm")
            else:
                self._failures.pop(key, None)
            self._waking.pop(key, None)
            self._anew.discard(key)
        if is_all:
            gone = self._failures.keys() - stored.keys() - self._firing.keys()
            for key in gone:
                del self._failures[key]

    def _settle_on(self, rows: list[tuple[str, str, int]], is_all: bool) -> None:
        """Fire the due alarms, and set the timer for the first that is not due."""
        now = self._clock.now()
        soon = now + FIRST_RETRY
        following = self._heard if is_all else min(self._heard or soon, soon)  # there are more
        for agent, source, wake_at in rows:
            key = (agent, source)
            if key in self._firing or key in self._fired:
                continue  # handled since the rows were read: read again
            at = max(wake_at, self._failures.get(key, (0, 0))[1])
            if at > now:
                following = at if following is None else min(following, at)
            elif self._has_room():
                self._fired_at[key] = self._loop.time()
                self._waking[key] = wake_at
                self._firing[key] = self._loop.create_task(
                    self._fire_one(key, wake_at), name=f"outlast-alarm {agent} {source}"
                )
            else:
                following = soon if following is None else min(following, soon)
        self._disarm()
        if following is not None:
            self._arm(following)

    def _has_room(self) -> bool:
        """Return whether another alarm may fire now. An alarm that has run for long no longer counts."""
        now = self._loop.time()
        return sum(now - at < MAKE_WAY_AFTER for at in self._fired_at.values()) < MOST_AT_ONCE

    async def _fire_one(self, key: Key, wake_at: int) -> None:
        try:
            await self._fire(*key)
            self._fired[key] = wake_at
        except asyncio.CancelledError:
            self._retry_later(key, "its task was cancelled")
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                raise  # this task was cancelled, not only its work: the host is stopping
        except Exception as error:
            self._retry_later(key, error)
        finally:
            del self._firing[key]
            del self._fired_at[key]
            self.look()

    def _retry_later(self, key: Key, why: object) -> None:
        """Record a failure: the alarm is retried with growing delays."""
        self._waking.pop(key, None)
        self._anew.discard(key)
        count = self._failures.get(key, (0, 0))[0] + 1
        delay = min(LAST_RETRY, FIRST_RETRY * 2 ** (count - 1))
        self._failures[key] = (count, self._clock.now() + delay)
        if not self._stopped:
            logger.error("alarm %r of %s failed, will retry: %s", key[1], key[0], why)

    def _arm(self, at: int) -> None:
        if self._stopped:
            return
        self._disarm()
        self._armed_for = at
        delay = max(0.0, (at - self._clock.now()) / 1000)
        self._timer = self._loop.call_later(
            min(delay, LONGEST_SLEEP), self.look, context=contextvars.Context()
        )

    def _disarm(self) -> None:
        self._armed_for = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
