"""A commit: writes that become durable together, and their effects in memory.

Every write of an agent goes through this module. An owner of rows has one method per change: it writes
operations into a `Commit` and registers the effects in memory with `then`, so that callers cannot forget
either half.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from outlast.core.errors import CommitFailed
from outlast.host.life.activation import Activation
from outlast.store.operations import Operation, Outcome

T = TypeVar("T")

Effect = Callable[[], None]

_open_block: ContextVar[Block | None] = ContextVar("outlast_commit_block", default=None)


class Commit:
    """Operations of one agent that are written in one transaction, with effects for either outcome."""

    __slots__ = ("_activation", "_operations", "_then", "_undo", "failure")

    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        self._operations: list[Operation] = []
        self._then: list[Effect] = []
        self._undo: list[Effect] = []
        self.failure: BaseException | None = None  # why the commit failed, for `undo` effects

    @property
    def operations(self) -> list[Operation]:
        """The operations written so far."""
        return self._operations

    def write(self, *operations: Operation) -> None:
        """Add operations; they are written in this order."""
        self._operations += operations

    def then(self, effect: Effect) -> None:
        """Run `effect` once the commit is durable. Effects run in order, even if nothing awaits it."""
        self._then.append(effect)

    def undo(self, effect: Effect) -> None:
        """Run `effect` if the commit fails. Effects run in reverse order."""
        self._undo.append(effect)

    def follow(self, other: Commit) -> None:
        """Adopt the effects of a commit whose operations this one contains."""
        self._then += other._then
        self._undo += other._undo

    def submit(self) -> asyncio.Future[tuple[int, ...]]:
        """Submit the commit without waiting. The future resolves to the rows that each operation touched."""
        try:
            outcome = self._activation.submit(self._operations)
        except BaseException as failure:
            self.give_up(failure)
            raise
        outcome.add_done_callback(self.conclude)
        return outcome

    async def stored(self) -> tuple[int, ...] | None:
        """Submit the commit and wait until it is durable.

        Inside an open `commit()` block this returns None at once: the end of the block makes it durable.
        """
        return await self.submit()

    def conclude(self, outcome: asyncio.Future[tuple[int, ...]]) -> None:
        """Run the effects for an outcome: of this commit, or of the commit that contained it."""
        failure = outcome.exception()
        if failure is None:
            self._durable()
        else:
            self.give_up(failure)

    def _durable(self) -> None:
        for effect in self._then:
            effect()

    def give_up(self, error: BaseException) -> None:
        """Run the `undo` effects: the commit failed."""
        self.failure = error
        for effect in reversed(self._undo):
            effect()


class Block(Commit):
    """`async with agent.commit():` all writes inside are committed together, or none of them."""

    __slots__ = ("_commits", "_outcome", "_token", "_used", "_views", "is_open", "joins", "outer")

    def __init__(self, commits: Commits) -> None:
        super().__init__(commits.activation)
        self._commits = commits
        self._token: Token[Block | None] | None = None
        self._outcome: Outcome | None = None  # created on the first `submit`
        self._used = False
        self._views: dict[object, Any] = {}
        self.outer: Block | None = None  # the surrounding open block, of any agent
        self.joins: Block | None = None  # the surrounding open block of this agent, which commits
        self.is_open = False

    def belongs_to(self, commits: Commits) -> bool:
        return self.is_open and self._commits is commits

    def view(self, owner: object, make: Callable[[], T]) -> T:
        """Return an owner's view of its uncommitted rows, for code inside the block."""
        found = self._views.get(owner)
        if found is None:
            found = self._views[owner] = make()
        return cast(T, found)

    def submit(self) -> asyncio.Future[tuple[int, ...]]:
        """Return the outcome of the block, one future for all waiters. The end of the block resolves it."""
        if self._outcome is None:
            self._outcome = Outcome(loop=asyncio.get_running_loop())
            self._outcome.add_done_callback(lambda future: future.exception())
        return self._outcome

    async def stored(self) -> tuple[int, ...] | None:
        return None

    async def __aenter__(self) -> Self:
        if self._used:
            raise RuntimeError("a commit() block must be used only once; call commit() again")
        self._used = True
        self.outer = _open_block.get()
        self.joins = self._commits.current()
        self.is_open = self.joins is None
        if self.joins is None:
            self._token = _open_block.set(self)
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
        _open_block.reset(self._token)
        if error is not None:
            self.give_up(error)
        elif not self._operations:
            self._durable()
        else:
            await super().submit()

    def _durable(self) -> None:
        super()._durable()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(())

    def give_up(self, error: BaseException) -> None:
        super().give_up(error)
        if self._outcome is not None and not self._outcome.done():
            reason = CommitFailed(f"the surrounding commit() block was rolled back: {error!r}")
            reason.__cause__ = error
            self._outcome.set_exception(reason)


class Commits:
    """Opens the commits of one agent."""

    def __init__(self, activation: Activation) -> None:
        self.activation = activation

    def block(self) -> Block:
        """Return a block whose writes are committed together."""
        return Block(self)

    def current(self) -> Block | None:
        """Return the open block of this agent around the running code, or None."""
        block = _open_block.get()
        while block is not None and not block.belongs_to(self):
            block = block.outer
        return block

    def new(self) -> Commit:
        """Return a new commit, outside any open block."""
        return Commit(self.activation)

    def current_or_new(self) -> Commit:
        """Return the open block around the running code, or else a new commit."""
        return self.current() or self.new()

    def submit(
        self, operations: list[Operation], then: Effect | None = None
    ) -> asyncio.Future[tuple[int, ...]]:
        """Submit writes without waiting, in the open block if there is one; await the outcome."""
        return self._filled(operations, then).submit()

    async def write(
        self, operations: list[Operation], then: Effect | None = None
    ) -> tuple[int, ...] | None:
        """Write durably and return the rows that each operation touched; None in an open block."""
        return await self._filled(operations, then).stored()

    def _filled(self, operations: list[Operation], then: Effect | None) -> Commit:
        commit = self.current_or_new()
        commit.write(*operations)
        if then is not None:
            commit.then(then)
        return commit

    def commit(self, operations: list[Operation]) -> asyncio.Future[tuple[int, ...]]:
        """Submit a new commit, outside any open block; await its outcome."""
        return self.activation.submit(operations)


def leave_blocks() -> None:
    """Detach the running code from all open blocks, because it outlives them."""
    _open_block.set(None)
