"""The running fibers of an agent: starting them, running them, and storing their end."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Concatenate, TypeVar

from outlast.agent.admission import current_work
from outlast.agent.commit import leave_blocks
from outlast.agent.events import (
    FiberRunAborted,
    FiberRunCompleted,
    FiberRunFailed,
    FiberRunInterrupted,
    FiberRunStarted,
)
from outlast.agent.fibers import sql as rows
from outlast.agent.fibers.fiber import Fiber, FiberContext, FiberHandle
from outlast.agent.fibers.sql import FiberRow
from outlast.agent.part import Part, Parts
from outlast.core import json
from outlast.core.errors import (
    FiberCancelled,
    FiberInterrupted,
    NotInFiber,
    OutlastError,
)
from outlast.core.events import Arguments, Kind
from outlast.core.text import described, problem_of
from outlast.store.operations import Operation

logger = logging.getLogger("outlast.agent")

T = TypeVar("T")
FiberFunction = Callable[..., Awaitable[T]]


class _Unset:
    def __repr__(self) -> str:
        return "…"


UNSET = _Unset()

_current: ContextVar[Fiber | None] = ContextVar("outlast_fiber", default=None)
_recovering: ContextVar[Replaceable | None] = ContextVar("outlast_recovering", default=None)


class Replaceable:
    """An orphaned fiber inside its recovery hook: the first fiber started there replaces it."""

    def __init__(self, row: FiberRow, fibers: Fibers) -> None:
        self.row = row
        self.fibers = fibers
        self.replaced = asyncio.get_running_loop().create_future()  # the new row is durable
        self.accepted: asyncio.Future[Any] | None = None  # of the fiber that replaces it
        self.is_open = True

    def take(self, fibers: Fibers) -> FiberRow | None:
        """Return the row to replace, once, if it belongs to this agent."""
        if not self.is_open or self.fibers is not fibers:
            return None
        self.is_open = False
        return self.row

    def replaced_by(self, fiber: Fiber) -> None:
        """Resolve `replaced` once the row of this fiber is durable."""

        def resolve(accepted: asyncio.Future[Any]) -> None:
            if accepted.exception() is None and not self.replaced.done():
                self.replaced.set_result(None)

        self.accepted = fiber.accepted
        fiber.accepted.add_done_callback(resolve)

    def __enter__(self) -> None:
        self._token = _recovering.set(self)

    def __exit__(self, *_: object) -> None:
        self.is_open = False
        _recovering.reset(self._token)


class Fibers(Part):
    """The fibers of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.running: dict[str, Fiber] = {}

    # --- starting --------------------------------------------------------------------------------

    def run(self, name: str, function: FiberFunction[T], input: Any) -> FiberHandle[T]:
        """Queue the row of a new fiber and start it. Raises only before anything is written."""
        check_function(name, function)
        has_input = not isinstance(input, _Unset)
        snapshot = json.encode(input, "input") if has_input else None
        recovering = _recovering.get()
        old = recovering.take(self) if recovering is not None else None
        operations: list[Operation]
        if old is not None and old.managed:  # its record continues, under its id and key
            row = replace(old, name=name, snapshot=snapshot or old.snapshot)
            now = self.activation.clock.now()
            operations = [(rows.REPLACE, (self.address, row.id, name, row.snapshot, now))]
        else:
            row = self.new_row(name, snapshot, old=old)
            operations = [self.insertion(row)]
            if old is not None:
                operations.insert(0, (rows.DELETE, (self.address, old.id)))
        fiber = self.launch(row, function, has_input, operations)
        if recovering is not None and old is not None:
            recovering.replaced_by(fiber)
        return FiberHandle(fiber)

    def new_row(
        self,
        name: str,
        snapshot: str | None,
        *,
        old: FiberRow | None = None,
        id: str | None = None,
        managed: bool = False,
        idempotency_key: str | None = None,
        metadata: str | None = None,
    ) -> FiberRow:
        """Return the row of a new fiber; without an input, it continues from the snapshot of `old`."""
        now = self.activation.clock.now()
        new_id = self.activation.ids.new("fiber")
        return FiberRow(
            id=id or new_id,
            root_id=new_id if old is None else old.root_id,
            name=name,
            managed=int(managed),
            status="pending" if managed else "running",
            idempotency_key=idempotency_key,
            snapshot=old.snapshot if snapshot is None and old is not None else snapshot,
            metadata=metadata,
            error=None,
            created_at=now,
            started_at=None if managed else now,
            interrupted_at=None if old is None else old.interrupted_at,
            settled_at=None,
            tries=0 if old is None else old.tries,
            waits=0 if old is None else old.waits,
            retry_at=None if old is None else old.retry_at,
            stashes=0 if old is None else old.stashes,
            crashes=0 if old is None else old.crashes,
        )

    def insertion(self, row: FiberRow) -> Operation:
        return rows.INSERT, (
            self.address,
            row.id,
            row.root_id,
            row.name,
            row.managed,
            row.status,
            row.idempotency_key,
            row.snapshot,
            row.metadata,
            row.created_at,
            row.started_at,
            row.interrupted_at,
            row.tries,
            row.waits,
            row.retry_at,
            row.stashes,
            row.crashes,
        )

    def launch(
        self,
        row: FiberRow,
        function: FiberFunction[Any],
        has_input: bool,
        operations: list[Operation],
        *,
        claim: bool = False,
    ) -> Fiber:
        """Submit `operations`, and run the function once they are durable."""
        accepted = self.commits.submit(operations)
        fiber = Fiber(row, self, accepted)
        self.running[row.id] = fiber
        context = contextvars.copy_context()
        context.run(leave_blocks)
        context.run(_recovering.set, None)
        context.run(_current.set, fiber)
        context.run(current_work.set, fiber)
        fiber.task = self.activation.spawn(
            self._execute(fiber, function, has_input, claim), f"fiber {row.name}", context
        )
        fiber.task.add_done_callback(lambda _: self._task_done(fiber))
        return fiber

    # --- running ---------------------------------------------------------------------------------

    async def _execute(
        self,
        fiber: Fiber,
        function: FiberFunction[Any],
        has_input: bool,
        claim: bool,
    ) -> None:
        fiber.begun = True
        try:
            await fiber.accepted
            if fiber.cancelled:
                raise asyncio.CancelledError
            if claim:
                await self._claim(fiber)
        except BaseException as error:
            fiber.running = False
            await self._not_started(fiber, error)
            return
        started = self.activation.clock.now()
        self._emit(FiberRunStarted, fiber)
        try:
            context = FiberContext(fiber)
            work = function(context, context.snapshot) if has_input else function(context)
            if not inspect.isawaitable(work):
                raise TypeError(f"a fiber's function must be async; {function!r} returned {work!r}")
            result = await work
        except BaseException as error:
            await self._failed(fiber, error)
        else:
            await self._completed(fiber, result, started)

    async def _claim(self, fiber: Fiber) -> None:
        """Set pending to running; refused if the fiber was cancelled before it began."""
        now = self.activation.clock.now()
        await self.commits.commit([(rows.CLAIM, (self.address, fiber.id, now))])

    async def _not_started(self, fiber: Fiber, error: BaseException) -> None:
        """End a fiber whose function was not called. A stored row is deleted, or left to recovery."""
        accepted = fiber.accepted
        stored = accepted.done() and not accepted.cancelled() and accepted.exception() is None
        cancelled = FiberCancelled(f"the fiber {fiber.name!r} was cancelled before it began")
        if not isinstance(error, asyncio.CancelledError):
            self._ended(fiber)
            # The store refused the claim, or the row.
            self._resolve(fiber, cancelled if stored else error)
        elif not stored:
            self._ended(fiber)
            failure = accepted.exception() if accepted.done() else None
            self._resolve(fiber, cancelled if fiber.cancelled or failure is None else failure)
        elif fiber.cancelled:
            await self._end(fiber, "aborted", None, cancelled)
        else:
            self._interrupted(fiber)

    async def _completed(self, fiber: Fiber, result: Any, started: int) -> None:
        fiber.running = False
        is_stored = await self._end(fiber, "completed", None, None, result)
        if is_stored:
            elapsed = self.activation.clock.now() - started
            self._emit(FiberRunCompleted, fiber, elapsed_ms=elapsed)
        elif is_stored is False:
            self._emit(FiberRunAborted, fiber)

    async def _failed(self, fiber: Fiber, error: BaseException) -> None:
        fiber.running = False
        if self.activation.ended is not None:
            self._interrupted(fiber)
        elif fiber.cancelled:
            cancelled = FiberCancelled(f"{fiber.name} was cancelled")
            if await self._end(fiber, "aborted", None, cancelled) is not None:
                self._emit(FiberRunAborted, fiber)
        elif isinstance(error, Exception):
            text = described(error)
            is_stored = await self._end(fiber, "error", text, error)
            if is_stored:
                self._emit(FiberRunFailed, fiber, error=text)
                if not fiber.awaited:
                    logger.error(
                        "%s: the fiber %r failed", self.address, fiber.name, exc_info=error
                    )
            elif is_stored is False:
                self._emit(FiberRunAborted, fiber)
        else:  # cancelled from outside, or the process is interrupted: the user did not cancel it
            self._interrupted(fiber)
            for orphaned in self.parts.overriding("fiber_orphaned"):
                orphaned()
            if not isinstance(error, asyncio.CancelledError):
                raise error

    async def _end(
        self,
        fiber: Fiber,
        status: str,
        text: str | None,
        error: BaseException | None,
        result: Any = None,
    ) -> bool | None:
        """Store the end, then resolve the result. False if the user cancelled first; None if not stored."""
        now = self.activation.clock.now()
        operation: Operation
        if fiber.managed:
            operation = rows.SETTLE, (self.address, fiber.id, status, text, now, None, None)
        else:
            operation = rows.DELETE, (self.address, fiber.id)
        try:
            outcome = self.commits.commit([operation, *fiber.forget_admissions()])
            with contextlib.suppress(asyncio.CancelledError):  # the fiber is ending anyway
                await outcome
            touched = outcome.result()
        except OutlastError as failure:
            if self.activation.ended is None:
                logger.warning(
                    "%s: cannot store the end of %r: %s", self.address, fiber.name, failure
                )
            self._interrupted(fiber)
            return None
        self._ended(fiber)
        self._resolve(fiber, error, result)
        return touched[0] != 0

    def _interrupted(self, fiber: Fiber) -> None:
        """End it in memory and keep its row: the next activation recovers it."""
        self._ended(fiber)
        self._emit(FiberRunInterrupted, fiber, recovery_reason="left")
        self._resolve(
            fiber,
            FiberInterrupted(
                f"the fiber {fiber.name!r} ({fiber.id}) was interrupted, and a later activation resumes it:"
                f" {self.activation.ended or 'it was cancelled from outside'}"
            ),
        )

    def _task_done(self, fiber: Fiber) -> None:
        """Resolve the result of a task that ended before its first step."""
        if not fiber.result.done():
            fiber.running = False
            self._interrupted(fiber)

    def _ended(self, fiber: Fiber) -> None:
        if self.running.get(fiber.id) is fiber:
            del self.running[fiber.id]
            for ended in self.parts.overriding("fiber_ended"):
                ended(fiber.id)

    def _resolve(self, fiber: Fiber, error: BaseException | None, result: Any = None) -> None:
        if fiber.result.done():
            return
        if error is None:
            fiber.result.set_result(result)
        else:
            fiber.result.set_exception(error)

    # --- the current fiber -----------------------------------------------------------------------

    @property
    def is_inside(self) -> bool:
        """Whether the running code belongs to a fiber of this agent."""
        fiber = _current.get()
        return fiber is not None and fiber.fibers is self

    def current(self) -> Fiber:
        """Return the fiber of this agent that the running code belongs to."""
        fiber = _current.get()
        if fiber is None or fiber.fibers is not self:
            raise NotInFiber(
                "stash() must be called inside a fiber of this agent; start one with run_fiber()"
            )
        return fiber

    def _emit(
        self,
        kind: Kind[Concatenate[str | None, str, str, bool, Arguments]],
        fiber: Fiber,
        *arguments: Arguments.args,
        **more: Arguments.kwargs,
    ) -> None:
        self.activation.events.emit(
            kind, self.address, fiber.id, fiber.name, fiber.managed, *arguments, **more
        )


def check_function(name: str, function: object) -> None:
    problem = problem_of(name)
    if problem is not None:
        raise ValueError(f"a fiber's name {problem}")
    if not callable(function):
        hint = (
            "; pass the function itself, without calling it"
            if inspect.iscoroutine(function)
            else ""
        )
        if inspect.iscoroutine(function):
            function.close()
        raise TypeError(f"function must be an async function, got {function!r}{hint}")
