"""The statements that guard a commit: fence, order check and outcome marker in one.

`ADVANCE` is for an epoch that is held; `CREATE` or `TAKE` begin one.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.store.operations import Argument, BulkStatement, Fence, Query, Statement

ADVANCE = Statement.same(
    "agents advance",
    "root text, epoch bigint, owner text, old_commit_no bigint, commit_no bigint",
    """
        UPDATE agents SET commit_no = :commit_no
        WHERE agents.root = :root AND agents.epoch = :epoch AND agents.owner = :owner
          AND agents.commit_no = :old_commit_no
    """,
    key=1,
    expect=True,
)

TAKE = Statement.same(
    "agents take",
    "root text, epoch bigint, owner text, commit_no bigint, old_epoch bigint, old_owner text,"
    " old_commit_no bigint",
    """
        UPDATE agents SET epoch = :epoch, owner = :owner, commit_no = :commit_no
        WHERE agents.root = :root AND agents.epoch = :old_epoch
          AND agents.owner = :old_owner AND agents.commit_no = :old_commit_no
    """,
    key=1,
    expect=True,
)

CREATE = Statement.same(
    "agents create",
    "root text, epoch bigint, owner text, commit_no bigint",
    """
        INSERT INTO agents (root, epoch, owner, commit_no)
        VALUES (:root, :epoch, :owner, :commit_no)
        ON CONFLICT DO NOTHING
    """,
    key=1,
    expect=True,
)

FORGET = BulkStatement.same("agents forget", "DELETE FROM agents WHERE root = ?")

READ = Query.same("SELECT epoch, owner, commit_no FROM agents WHERE root = ?")


def guard(fence: Fence, count: int) -> tuple[Statement, tuple[Argument, ...]]:
    """Return the operation that admits `count` more commits if the fence still holds."""
    reached = fence.commit_no + count
    if fence.held:
        return ADVANCE, (fence.root, fence.epoch, fence.owner, fence.commit_no, reached)
    if fence.known is None:
        return CREATE, (fence.root, fence.epoch, fence.owner, reached)
    return TAKE, (fence.root, fence.epoch, fence.owner, reached, *fence.known)


def has_reached(fence: Fence, row: tuple[int, str, int] | None, commit_no: int) -> bool:
    """Return whether the stored row proves that commit `commit_no` of this fence is durable."""
    if row is None:
        return fence.leaves
    return row[:2] == (fence.epoch, fence.owner) and row[2] >= commit_no


def is_durable(doubted: Mapping[Fence, int], rows: Mapping[str, tuple[int, str, int]]) -> bool:
    """Return whether the rows prove that the transaction which advanced these fences was committed.

    One row that reached its number is enough: others may have been taken over since. A missing row may have
    been deleted by another host, so it counts only if no other row is unchanged.
    """
    is_gone = is_untouched = False
    for fence, commit_no in doubted.items():
        row = rows.get(fence.root)
        if row is None:
            is_gone |= fence.leaves
            is_untouched |= not fence.leaves
        elif has_reached(fence, row, commit_no):
            return True
        else:
            is_untouched |= row == fence.known or row[:2] == (fence.epoch, fence.owner)
    return is_gone and not is_untouched


def advance(fence: Fence, count: int) -> None:
    """Record in memory that `count` commits succeeded under the fence."""
    fence.held = True
    fence.commit_no += count
