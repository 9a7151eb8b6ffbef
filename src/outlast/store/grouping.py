"""Which operations of a group of batches can share a statement. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from outlast.store.operations import Argument, Batch, BulkStatement, Fence, Operation, Statement


@dataclass(eq=False, slots=True)
class Slot:
    """One statement, executed once for all of its rows."""

    statement: Statement | BulkStatement
    rows: list[tuple[Argument, ...]] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # batch, operation within it


def slots_of(batches: Sequence[Batch], counts: Mapping[Fence, int]) -> list[Slot]:
    """Return the statements that write all of `batches`, in an order that keeps each agent's own order.

    Operations of different agents never touch the same row, so they can be reordered; those of one agent
    keep their order, and two on the same row are never in one slot.
    """
    slots: list[Slot] = []
    first: dict[Statement, int] = {}  # per statement: its first slot
    reached: dict[str, int] = {}  # per agent: the slot of its latest operation
    touched: dict[tuple[object, ...], int] = {}  # per row: the slot that wrote it last
    for index, batch in enumerate(batches):
        operations = batch.operations
        if len(operations) == 1 and counts[batch.fence] == 1:  # its agent's only operation
            statement, arguments = operations[0]
            if isinstance(statement, Statement):
                at = first.get(statement, -1)
                if at < 0:
                    at = _new_slot(slots, first, statement)
                slots[at].rows.append(arguments)
                slots[at].places.append((index, 0))
                continue
        root = batch.fence.root
        at = reached.get(root, 0)
        for place, (statement, arguments) in enumerate(operations):
            if isinstance(statement, BulkStatement):
                at = _new_slot(slots, first, statement)
            else:
                row = (statement.table, arguments[: statement.key])
                start = max(at, touched.get(row, -1) + 1)
                at = _slot_for(slots, first, statement, start)
                touched[row] = at
            slots[at].rows.append(arguments)
            slots[at].places.append((index, place))
        reached[root] = at
    return slots


def _slot_for(
    slots: list[Slot], first: dict[Statement, int], statement: Statement, start: int
) -> int:
    for at in range(max(start, first.get(statement, len(slots))), len(slots)):
        if slots[at].statement is statement:
            return at
    return _new_slot(slots, first, statement)


def _new_slot(
    slots: list[Slot], first: dict[Statement, int], statement: Statement | BulkStatement
) -> int:
    slots.append(Slot(statement))
    if isinstance(statement, Statement):
        first.setdefault(statement, len(slots) - 1)
    return len(slots) - 1


def sorted_by_table(slots: list[Slot]) -> list[Slot]:
    """Return the slots sorted by table, so that groups form fewer distinct statements.

    Within a table they keep their order: one may free a unique key that another takes.
    """
    if len(slots) == 1 or any(isinstance(slot.statement, BulkStatement) for slot in slots):
        return slots
    return sorted(slots, key=lambda slot: cast(Statement, slot.statement).table)


def rows_are_distinct(slots: Iterable[Slot]) -> bool:
    """Return whether no row is written twice and no statement is bulk, so that order does not matter."""
    seen: set[tuple[object, ...]] = set()
    for slot in slots:
        if isinstance(slot.statement, BulkStatement):
            return False
        for row in slot.rows:
            identity = (slot.statement.table, row[: slot.statement.key])
            if identity in seen:
                return False
            seen.add(identity)
    return True


def take_group(queue: list[Batch], most: int, most_bytes: int) -> tuple[list[Batch], list[Batch]]:
    """Split the queue into the group to write now and the rest.

    A group holds one fence per agent: a later activation of the same agent waits for the next group.
    A batch of more than `most_bytes` is a group of its own.
    """
    fences: dict[str, Fence] = {}
    total = 0
    for count, batch in enumerate(queue):
        fence = fences.setdefault(batch.fence.root, batch.fence)
        total += batch.size
        full = count >= most or (count and total > most_bytes)
        if full or fence is not batch.fence:
            return queue[:count], queue[count:]
    return queue, []


def results_from(
    slots: Sequence[Slot], touched: Sequence[int], batches: Sequence[Batch]
) -> list[tuple[int, ...]] | None:
    """Return the rows that each operation of each batch touched; None if the totals do not determine them.

    A set-based statement only returns the total number of rows that it touched. All or none determines
    each row (unless none means refused); a number in between does not.
    """
    if all(
        count == len(slot.rows) and isinstance(slot.statement, Statement)
        for slot, count in zip(slots, touched, strict=True)
    ):
        return [(1,) * len(batch.operations) for batch in batches]
    results: list[list[int]] = [[1] * len(batch.operations) for batch in batches]
    for slot, count in zip(slots, touched, strict=True):
        if isinstance(slot.statement, BulkStatement):
            index, place = slot.places[0]
            results[index][place] = count
        elif count != len(slot.rows):
            if count or slot.statement.expect:
                return None
            for index, place in slot.places:
                results[index][place] = 0
    return [tuple(result) for result in results]


def operation_names(operations: Iterable[Operation]) -> str:
    """Return the names of operations, for messages."""
    return ", ".join(statement.name for statement, _ in operations)
