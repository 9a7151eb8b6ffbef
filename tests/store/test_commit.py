"""What a commit is: whole, in order, told after COMMIT. On both engines."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from rows import (
    CLEAR,
    DELETE,
    INSERT,
    UPDATE,
    Seen,
    fence,
    look,
    opened,
    put,
    settled,
    stored,
    write,
    writes_held_up,
)

from outlast.agent.fibers import sql as fiber_rows
from outlast.core.errors import CommitFailed, CommitRefused
from outlast.store.base import StoreOptions


async def test_all_batches_of_one_tick_share_one_transaction(store_url: str) -> None:
    async with opened(store_url) as store:
        outcomes = [store.submit(fence(f"A/{n}"), [put(f"A/{n}", "k", str(n))]) for n in range(100)]
        assert await settled(outcomes) == [(1,)] * 100
        statistics = store.statistics()
        assert (statistics.commits, statistics.batches, statistics.largest_group) == (1, 100, 100)
        assert await look(store_url, "SELECT count(*) FROM storage") == [(100,)]


async def test_batches_queued_while_one_commit_is_held_up_share_the_next(store_url: str) -> None:
    async with opened(store_url) as store:
        mine = fence()
        async with writes_held_up(store_url):
            first = store.submit(mine, [put("A/x", "k", "0")])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            later = [store.submit(mine, [put("A/x", "k", str(n))]) for n in range(1, 50)]
        assert await settled([first, *later]) == [(1,)] * 50
        assert store.statistics().commits <= 2
        assert await stored(store) == {"k": "49"}


async def test_nobody_is_told_before_commit_has_returned(store_url: str) -> None:
    probe = Seen(lambda batch: batch.outcome.done())
    async with opened(store_url, StoreOptions(probe=probe)) as store:
        together = [store.submit(fence(f"A/{n}"), [put(f"A/{n}", "k")]) for n in range(3)]
        await settled(together)
        same_row = fence()
        apart = [store.submit(same_row, [put("A/x", "k", str(n))]) for n in range(3)]
        await settled(apart)
    assert probe.before == probe.after == [[False] * 3, [False] * 3]


async def test_what_a_waiter_was_told_is_there_for_everybody_else(store_url: str) -> None:
    async with opened(store_url) as store:
        mine = fence()
        for n in range(5):
            await store.commit(mine, [put("A/x", "k", str(n))])
            assert await look(store_url, "SELECT value FROM storage") == [(str(n),)]


async def test_outcomes_are_told_in_the_order_of_handing_over(store_url: str) -> None:
    told: list[int] = []
    async with opened(store_url, StoreOptions(max_group=7)) as store:
        mine = fence()
        outcomes = [store.submit(mine, [put("A/x", "k", str(n))]) for n in range(50)]
        for n, outcome in enumerate(outcomes):
            outcome.add_done_callback(lambda _, n=n: told.append(n))
        await settled(outcomes)
        await asyncio.sleep(0)
    assert told == list(range(50))


async def test_operations_on_one_row_keep_their_order_within_a_batch(store_url: str) -> None:
    async with opened(store_url) as store:
        touched = await store.commit(
            fence(),
            [
                write(INSERT, "A/x", "k", "1"),
                write(INSERT, "A/x", "k", "2"),
                write(UPDATE, "A/x", "k", "3"),
                write(DELETE, "A/x", "k"),
                write(UPDATE, "A/x", "k", "4"),
                write(INSERT, "A/x", "k", "5"),
            ],
        )
        assert touched == (1, 0, 1, 1, 0, 1)
        assert await stored(store) == {"k": "5"}


async def test_operations_on_one_row_keep_their_order_across_batches_of_a_group(
    store_url: str,
) -> None:
    async with opened(store_url) as store:
        mine, other = fence("A/x"), fence("A/y")
        outcomes = [
            store.submit(mine, [write(INSERT, "A/x", "k", "1")]),
            store.submit(other, [write(DELETE, "A/y", "k")]),
            store.submit(mine, [write(DELETE, "A/x", "k")]),
            store.submit(other, [write(INSERT, "A/y", "k", "1")]),
            store.submit(mine, [write(INSERT, "A/x", "k", "2")]),
            store.submit(other, [write(UPDATE, "A/y", "k", "2")]),
        ]
        assert await settled(outcomes) == [(1,), (0,), (1,), (1,), (1,), (1,)]
        assert store.statistics().commits == 1
        assert await stored(store, "A/x") == {"k": "2"}
        assert await stored(store, "A/y") == {"k": "2"}


async def test_a_bulk_operation_stays_between_what_came_before_and_after(store_url: str) -> None:
    async with opened(store_url) as store:
        mine, other = fence("A/x"), fence("A/y")
        outcomes = [
            store.submit(mine, [put("A/x", "1"), put("A/x", "2")]),
            store.submit(other, [put("A/y", "1")]),
            store.submit(mine, [(CLEAR, ("A/x",)), put("A/x", "3")]),
            store.submit(other, [put("A/y", "2")]),
        ]
        assert await settled(outcomes) == [(1, 1), (1,), (2, 1), (1,)]
        assert await stored(store, "A/x") == {"3": "v"}
        assert await stored(store, "A/y") == {"1": "v", "2": "v"}


def fiber(id: str, key: str) -> tuple[object, ...]:
    return ("A/x", id, id, "work", 1, "pending", key, None, None, 0, None, None, 0, 0, None, 0, 0)


@pytest.mark.parametrize("insert_expects", [True, False])
@pytest.mark.parametrize("delete_expects", [True, False])
async def test_a_unique_key_is_free_from_the_operation_that_frees_it_on(
    store_url: str, insert_expects: bool, delete_expects: bool
) -> None:
    """Two rows, one unique key: the order of operations counts even though no row is written twice."""
    insert = dataclasses.replace(fiber_rows.INSERT, expect=insert_expects)
    delete = dataclasses.replace(fiber_rows.DELETE, expect=delete_expects)
    async with opened(store_url) as store:
        mine = fence()
        await store.commit(mine, [(insert, fiber("f1", "once"))])
        freed_first = [(delete, ("A/x", "f1")), (insert, fiber("f2", "once"))]
        assert await store.commit(mine, freed_first) == (1, 1)
        taken_first = store.submit(mine, [(insert, fiber("f3", "once")), (delete, ("A/x", "f2"))])
        if insert_expects:
            assert [type(end) for end in await settled([taken_first])] == [CommitRefused]
        else:
            assert await taken_first == (0, 1)
        left = [("f2",)] if insert_expects else []
        assert await look(store_url, "SELECT id FROM fibers") == left


@pytest.mark.parametrize("max_group", [1, 2, 1000])
async def test_only_a_prefix_becomes_durable(store_url: str, max_group: int) -> None:
    async with opened(store_url, StoreOptions(max_group=max_group)) as store:
        mine = fence()
        values = ["0", "1", "2", None, "4", "5"]
        outcomes = [store.submit(mine, [put("A/x", f"{n}", v)]) for n, v in enumerate(values)]
        ends = await settled(outcomes)
        assert ends[:3] == [(1,)] * 3
        assert [type(end) for end in ends[3:]] == [CommitFailed] * 3
        assert await stored(store) == {"0": "0", "1": "1", "2": "2"}
        assert await look(store_url, "SELECT commit_no FROM agents") == [(3,)]


async def test_a_batch_without_operations_is_a_commit_too(store_url: str) -> None:
    async with opened(store_url) as store:
        assert await store.commit(fence(), []) == ()
        assert await look(store_url, "SELECT root, epoch, commit_no FROM agents") == [("A/x", 1, 1)]


async def test_a_batch_over_the_group_limit_gets_a_transaction_of_its_own(store_url: str) -> None:
    probe = Seen(lambda batch: batch.fence.root)
    options = StoreOptions(max_group_bytes=1000, probe=probe)
    async with opened(store_url, options) as store:
        sizes = {"A/1": 10, "A/2": 10, "A/big": 5000, "A/3": 10, "A/4": 10}
        outcomes = [
            store.submit(fence(root), [put(root, "k", "v" * size)]) for root, size in sizes.items()
        ]
        assert await settled(outcomes) == [(1,)] * 5
    assert probe.after == [["A/1", "A/2"], ["A/big"], ["A/3", "A/4"]]


async def test_a_group_holds_no_more_batches_and_bytes_than_it_may(store_url: str) -> None:
    probe = Seen(lambda batch: batch.size)
    options = StoreOptions(max_group=8, max_group_bytes=500, probe=probe)
    async with opened(store_url, options) as store:
        fences = [fence(f"A/{n}") for n in range(40)]
        small = [store.submit(fences[n], [put(f"A/{n}", "k", "v")]) for n in range(20)]
        large = [store.submit(fences[n], [put(f"A/{n}", "k", "v" * 150)]) for n in range(20, 40)]
        await settled([*small, *large])
    assert sum(map(len, probe.after)) == 40
    assert max(map(len, probe.after)) == 8
    assert max(map(sum, probe.after)) <= 500
