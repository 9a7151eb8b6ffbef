"""One attempt to commit a group: the verdict on each batch, and how to roll back its fences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from outlast.store.operations import Batch, Fence

# The rows that each operation touched; "refused": a condition did not hold; "stale": the fence did not hold;
# "behind": an earlier batch of the same agent in this group failed; "held": another session has locked a row,
# so nothing was written yet; or the error of the batch itself.
Verdict = tuple[int, ...] | Literal["refused", "stale", "behind", "held"] | Exception


class Unstorable(Exception):
    """The engine rejects the values of a batch, so every retry would fail."""


class Attempt:
    """A group being written. Its fences advance with it, and are restored if it is rolled back."""

    __slots__ = ("_before", "_doubt", "counts", "group", "verdicts")

    def __init__(self, group: list[Batch]) -> None:
        self.group = group
        self.verdicts: list[Verdict] | None = None  # set once it may be durable
        self.counts: dict[Fence, int] = {}  # batches of this group per fence
        for batch in group:
            self.counts[batch.fence] = self.counts.get(batch.fence, 0) + 1
        self._before = [(fence, fence.held, fence.commit_no) for fence in self.counts]
        self._doubt: tuple[list[Verdict], dict[Fence, int]] | None = None

    def undo_fences(self) -> None:
        """Restore the fences: nothing of this attempt was committed."""
        self.verdicts = None
        for fence, held, commit_no in self._before:
            fence.held, fence.commit_no = held, commit_no

    def doubt(self) -> None:
        """Restore the fences after a commit with an unknown outcome, and remember what it would have done."""
        moved = dict(self.advanced())
        if self.verdicts is not None and moved:
            self._doubt = (self.verdicts, moved)
        self.undo_fences()

    @property
    def is_in_doubt(self) -> bool:
        """True while an earlier try may still turn out durable, so that no batch may leave this attempt."""
        return self._doubt is not None

    def in_doubt(self) -> dict[Fence, int]:
        """Return the fences and `commit_no`s that would prove that an earlier try was durable.

        Empty if there was no such try, or if a later one succeeded, which proves that it was not.
        """
        if self._doubt is None or any(fence in self._doubt[1] for fence, _ in self.advanced()):
            return {}
        return self._doubt[1]

    def confirm(self) -> None:
        """Adopt the result of the earlier try, which was durable."""
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
        """Yield the fences that this attempt advanced, and the `commit_no` that proves it durable."""
        for fence, _, commit_no in self._before:
            if fence.commit_no > commit_no:
                yield fence, fence.commit_no
