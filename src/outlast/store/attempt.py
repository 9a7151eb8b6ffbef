"""One attempt to commit a group: what came of each batch, and how to take it back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from outlast.store.operations import Batch, Fence

# The rows that each operation touched; a condition did not hold; the fence did not hold; an earlier
# batch of the same agent in this group failed; or what went wrong with the batch itself.
Verdict = tuple[int, ...] | Literal["refused", "stale", "behind"] | Exception


class Attempt:
    """A group on its way. Its fences move on while it is written, and are put back if it is undone."""

    __slots__ = ("_before", "group", "verdicts")

    def __init__(self, group: list[Batch]) -> None:
        self.group = group
        self.verdicts: list[Verdict] | None = None  # set once it may be durable
        self._before = {batch.fence: (batch.fence.held, batch.fence.commit_no) for batch in group}

    def undo_fences(self) -> None:
        """Nothing of this attempt was committed."""
        self.verdicts = None
        for fence, (held, commit_no) in self._before.items():
            fence.held, fence.commit_no = held, commit_no

    def advanced(self) -> Iterator[tuple[Fence, int]]:
        """The fences that this attempt moved, and the `commit_no` that shows it is durable."""
        for fence, (_, commit_no) in self._before.items():
            if fence.commit_no > commit_no:
                yield fence, fence.commit_no
