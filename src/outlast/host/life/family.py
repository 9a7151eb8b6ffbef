"""The agents under one root that are in memory: they write under one fence."""

from __future__ import annotations

import contextlib

from outlast.host.address import Address
from outlast.host.life.activation import Activation
from outlast.store import fencing
from outlast.store.base import Store
from outlast.store.operations import Fence, Operation, Outcome


class Family:
    """A root agent, its sub-agents and theirs, as far as they are in memory; the root need not be."""

    __slots__ = ("fence", "is_continued", "left", "members", "removals", "root")

    def __init__(self, root: Address) -> None:
        self.root = root
        self.fence: Fence | None = None  # once the root's row was read
        self.is_continued = False  # an earlier family in this same host wrote the row last
        self.members: set[Activation] = set()
        self.left: set[Address] = set()  # who was a member, and may come again
        self.removals = 0  # how many removals still write under the fence

    @property
    def is_over(self) -> bool:
        return not (self.members or self.removals)

    def below(self, address: Address) -> list[Activation]:
        """The agent at `address` and all below it."""
        return [member for member in self.members if address.covers(member.address)]


class FamilyRemoval:
    """Writes in the place of members that were ended, after everything that they still wrote."""

    def __init__(self, store: Store, family: Family, last_writes: list[Outcome]) -> None:
        self._store = store
        self._family = family
        self._last_writes = last_writes
        self.is_durable = False

    async def commit(self, operations: list[Operation], *, with_root: bool) -> tuple[int, ...]:
        fence = self._family.fence
        assert fence is not None
        if with_root:
            for outcome in self._last_writes:
                if not outcome.done():
                    await _known(outcome)
            if fence.known is None and not fence.held:
                return ()  # nothing was ever written
            fence.leaves = True  # a row that is gone shows from now on that this was committed
            operations = [*operations, (fencing.FORGET, (fence.root,))]
        outcome = self._store.submit(fence, operations)
        outcome.add_done_callback(self._concluded)
        return await outcome

    def _concluded(self, outcome: Outcome) -> None:
        self.is_durable = outcome.exception() is None


async def _known(outcome: Outcome) -> None:
    with contextlib.suppress(Exception):  # how it ended is for whoever wrote it
        await outcome
