"""Which operations share a statement. Pure: no engine."""

from __future__ import annotations

import asyncio

from rows import CLEAR, DELETE, PUT, fence, put, write

from outlast.store import grouping
from outlast.store.attempt import Attempt
from outlast.store.grouping import Slot, rows_are_distinct, take_group
from outlast.store.operations import Batch, Fence, Operation, Outcome


def batch(under: Fence, *operations: Operation, size: int = 0) -> Batch:
    return Batch(under, list(operations), Outcome(loop=asyncio.get_running_loop()), size)


def slots_of(batches: list[Batch]) -> list[Slot]:
    return grouping.slots_of(batches, Attempt(batches).counts)


async def test_a_hundred_agents_that_do_the_same_need_one_statement_each() -> None:
    batches = [
        batch(fence(f"A/{n}"), put(f"A/{n}", "k"), write(DELETE, f"A/{n}", "old"))
        for n in range(100)
    ]
    slots = slots_of(batches)
    assert [(slot.statement, len(slot.rows)) for slot in slots] == [(PUT, 100), (DELETE, 100)]
    assert rows_are_distinct(slots)


async def test_two_writes_of_one_row_never_share_a_statement() -> None:
    mine = fence()
    slots = slots_of([batch(mine, put("A/x", "k", "1")), batch(mine, put("A/x", "k", "2"))])
    assert [[row[3] for row in slot.rows] for slot in slots] == [["1"], ["2"]]
    assert not rows_are_distinct(slots)


async def test_a_bulk_operation_has_a_statement_of_its_own() -> None:
    mine = fence()
    slots = slots_of([batch(mine, put("A/x", "1"), (CLEAR, ("A/x",)), put("A/x", "2"))])
    assert [slot.statement for slot in slots] == [PUT, CLEAR, PUT]
    assert not rows_are_distinct(slots)


async def test_a_later_activation_of_an_agent_waits_for_the_next_group() -> None:
    first, second, other = fence("A/x"), fence("A/x"), fence("A/y")
    queue = [batch(first), batch(other), batch(first), batch(second), batch(other)]
    assert take_group(queue, 1000, 1000) == (queue[:3], queue[3:])


async def test_a_large_batch_is_a_group_of_its_own() -> None:
    queue = [batch(fence(f"A/{n}"), size=size) for n, size in enumerate([2000, 10, 2000])]
    assert take_group(queue, 1000, 1000) == (queue[:1], queue[1:])
    assert take_group(queue[1:], 1000, 1000) == (queue[1:2], queue[2:])
