"""The agents in memory under one root: they write under one fence."""

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
        self.fence: Fence | None = None  # set once the root's row was read
        self.is_continued = False  # the last writer was an earlier family in this host
        self.members: set[Activation] = set()
        self.left: set[Address] = set()  # former members, which may return
        self.removals = 0  # removals that still write under the fence

    @property
    def is_over(self) -> bool:
        return not (self.members or self.removals)

    def below(self, address: Address) -> list[Activation]:
        """Return the activations of the agent at `address` and of all below it."""
        return [member for member in self.members if address.covers(member.address)]


class FamilyRemoval:
    """Writes on behalf of members that were ended, after their own last writes."""

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
                    await _wait_for(outcome)
            if fence.known is None and not fence.held:
                return ()  # nothing was ever written
            fence.leaves = True  # from now on, a missing row proves that this was committed
            operations = [*operations, (fencing.FORGET, (fence.root,))]
        outcome = self._store.submit(fence, operations)
        outcome.add_done_callback(self._record)
        return await outcome

    def _record(self, outcome: Outcome) -> None:
        self.is_durable = outcome.exception() is None


async def _wait_for(outcome: Outcome) -> None:
    with contextlib.suppress(Exception):  # the writer handles its failure
        await outcome
