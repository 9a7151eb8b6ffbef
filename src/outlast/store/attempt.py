"""One attempt to commit a group: what came of each batch, and how to take it back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from outlast.store.operations import Batch, Fence

# The rows that each operation touched; a condition did not hold; the fence did not hold; an earlier
# batch of the same agent in this group failed; somebody else has locked a row of it, so that nothing was
# written yet; or what went wrong with the batch itself.
Verdict = tuple[int, ...] | Literal["refused", "stale", "behind", "held"] | Exception


class Unstorable(Exception):
    """The engine does not accept what a batch holds: no attempt with the same values succeeds."""


class Attempt:
    """A group on its way. Its fences move on while it is written, and are put back if it is undone."""

    __slots__ = ("_before", "_doubt", "counts", "group", "verdicts")

    def __init__(self, group: list[Batch]) -> None:
        self.group = group
        self.verdicts: list[Verdict] | None = None  # set once it may be durable
        self.counts: dict[Fence, int] = {}  # per fence, how many batches of this group are under it
        for batch in group:
            self.counts[batch.fence] = self.counts.get(batch.fence, 0) + 1
        self._before = [(fence, fence.held, fence.commit_no) for fence in self.counts]
        self._doubt: tuple[list[Verdict], dict[Fence, int]] | None = None

    def undo_fences(self) -> None:
        """Nothing of this attempt was committed."""
        self.verdicts = None
        for fence, held, commit_no in self._before:
            fence.held, fence.commit_no = held, commit_no

    def doubt(self) -> None:
        """It may be durable, and nobody knows: take it back, but keep what it would have come to."""
        moved = dict(self.advanced())
        if self.verdicts is not None and moved:
            self._doubt = (self.verdicts, moved)
        self.undo_fences()

    @property
    def is_in_doubt(self) -> bool:
        """Whether an earlier try may be durable, now or soon: then no batch may leave this attempt."""
        return self._doubt is not None

    def doubted(self) -> dict[Fence, int]:
        """The fences and `commit_no`s that would show that an earlier try was durable after all.

        None: there was no such try, or a later one has gone through, so that it was not.
        """
        if self._doubt is None or any(fence in self._doubt[1] for fence, _ in self.advanced()):
            return {}
        return self._doubt[1]

    def believe(self) -> None:
        """The earlier try was durable."""
        assert self._doubt is not None
        verdicts, moved = self._doubt
        now = self.verdicts or verdicts
        self.verdicts = [
            late if isinstance(late, tuple) else early
            for early, late in zip(verdicts, now, strict=True)
        ]
        for fence, commit_no in moved.items():
            fence.held, fence.commit_no = True, commit_no

    def advanced(self) -> Iterator[tuple[Fence, int]]:
        """The fences that this attempt moved, and the `commit_no` that shows it is durable."""
        for fence, _, commit_no in self._before:
            if fence.commit_no > commit_no:
                yield fence, fence.commit_no
