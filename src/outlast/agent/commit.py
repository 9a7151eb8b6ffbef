"""Several writes, one commit. Every write of an agent passes here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self

from outlast.core.errors import CommitFailed
from outlast.host.life.activation import Activation
from outlast.store.operations import Operation, Outcome

_open_unit: ContextVar[Unit | None] = ContextVar("outlast_unit", default=None)


class Unit:
    """`async with agent.commit():` everything written inside is committed together, or not at all."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._operations: list[Operation] = []
        self._then: list[Callable[[], None]] = []
        self._undo: list[Callable[[], None]] = []
        self._token: Token[Unit | None] | None = None
        self.outer: Unit | None = None  # an open unit further out: of this agent, or of another
        self.joins: Unit | None = None  # an open unit of this same agent, which this one is part of
        self.is_open = False
        self.committed: Outcome | None = None  # made when somebody wants to wait
        self._used = False
        self.written: dict[str, str | None] = {}  # storage keys as the code inside must see them
        self.facts: dict[str, str] = {}  # and facts
        # Rows of what is admitted here: managed fibers by their key, and entries of the inbox.
        self.fibers: dict[str, Any] = {}
        self.entries: list[Any] = []

    def belongs_to(self, commits: Commits) -> bool:
        return self.is_open and self._commits is commits

    def add(self, operations: list[Operation], then: Callable[[], None] | None) -> None:
        """Join these writes; `then` runs when they are durable."""
        self._operations += operations
        if then is not None:
            self._then.append(then)

    def if_given_up(self, undo: Callable[[], None]) -> None:
        """Called, the last one first, if nothing of this will ever be durable."""
        self._undo.append(undo)

    def outcome(self) -> Outcome:
        """Resolved when the unit is durable; raises when it was given up. One for all who wait."""
        if self.committed is None:
            self.committed = Outcome(loop=asyncio.get_running_loop())
            self.committed.add_done_callback(lambda future: future.exception())
        return self.committed

    async def __aenter__(self) -> Self:
        if self._used:
            raise RuntimeError("a commit() block is used once; call commit() again")
        self._used = True
        self.outer = _open_unit.get()
        self.joins = self._commits.current()
        self.is_open = self.joins is None
        if self.joins is None:
            self._token = _open_unit.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.joins is not None:
            return  # the outer block commits
        self.is_open = False
        assert self._token is not None
        _open_unit.reset(self._token)
        if error is not None:
            self._give_up(error)
        elif not self._operations:
            self._durable()
        else:
            try:
                outcome = self._commits.commit(self._operations)
            except BaseException as failure:
                self._give_up(failure)
                raise
            outcome.add_done_callback(self._concluded)
            await outcome

    def _concluded(self, outcome: asyncio.Future[tuple[int, ...]]) -> None:
        """Called with the outcome also when whoever waited for it has been cancelled meanwhile."""
        failure = outcome.exception()
        if failure is None:
            self._durable()
        else:
            self._give_up(failure)

    def _durable(self) -> None:
        for then in self._then:
            then()
        if self.committed is not None and not self.committed.done():
            self.committed.set_result(())

    def _give_up(self, error: BaseException) -> None:
        for undo in reversed(self._undo):
            undo()
        if self.committed is not None and not self.committed.done():
            reason = CommitFailed(f"the commit block that this belonged to was given up: {error!r}")
            reason.__cause__ = error
            self.committed.set_exception(reason)


class Commits:
    """The way in which the parts of one agent write."""

    def __init__(self, activation: Activation) -> None:
        self._activation = activation

    def unit(self) -> Unit:
        """A block whose writes are committed together."""
        return Unit(self)

    def current(self) -> Unit | None:
        """The open block of this agent around the running code, if there is one."""
        unit = _open_unit.get()
        while unit is not None and not unit.belongs_to(self):
            unit = unit.outer
        return unit

    def hand_over(
        self, operations: list[Operation], then: Callable[[], None] | None = None
    ) -> asyncio.Future[tuple[int, ...]]:
        """Queue these writes now, in the open block if there is one. Await the result for the outcome.

        `then` runs when they are durable, also if whoever waits is cancelled meanwhile."""
        unit = self.current()
        if unit is not None:
            unit.add(operations, then)
            return unit.outcome()
        outcome = self.commit(operations)
        if then is not None:
            outcome.add_done_callback(lambda done: None if done.exception() else then())
        return outcome

    async def write(
        self, operations: list[Operation], then: Callable[[], None] | None = None
    ) -> tuple[int, ...] | None:
        """Write, and return when it is durable: what each operation touched.

        In an open block: return at once, with None; the block's end makes it durable."""
        unit = self.current()
        if unit is not None:
            unit.add(operations, then)
            return None
        return await self.hand_over(operations, then)

    async def commit_then(self, operations: list[Operation], then: Callable[[], None]) -> None:
        """A commit of its own, and `then` when it is durable, also if whoever waits is cancelled.

        Whoever is cancelled gets to know it when the outcome is known: see `Outcome`.
        """
        outcome = self.commit(operations)
        try:
            await outcome
        finally:
            if outcome.done() and outcome.exception() is None:
                then()

    def commit(self, operations: list[Operation]) -> asyncio.Future[tuple[int, ...]]:
        """A commit of its own, whatever block is open. It is handed over now; await its outcome."""
        return self._activation.submit(operations)


def without_unit() -> None:
    """Work that outlives the code that started it belongs to no open block."""
    _open_unit.set(None)
