"""The fence: who may write, from which commit on, and what a store that restored from a backup grants."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from rows import CREATE as CREATE_ROW
from rows import look, opened, other_connection, path_of, put, settled, stored, write

from outlast.core.errors import CommitRefused, OwnershipLost
from outlast.store import fencing
from outlast.store.base import Store
from outlast.store.operations import Fence

AGENTS = "SELECT root, epoch, owner, commit_no FROM agents ORDER BY root"


async def activated(store: Store, owner: str, root: str = "A/x") -> Fence:
    """What an activation does: it reads its agent's row, and gets a fence."""
    rows = await store.fetch(fencing.READ, root)
    return Fence.after(root, owner, rows[0] if rows else None)


@pytest.mark.invariant("B8")
async def test_a_stale_commit_raises_and_changes_nothing(store_url: str) -> None:
    async with opened(store_url) as store:
        first = await activated(store, "first")
        await store.commit(first, [put("A/x", "k", "of the first")])
        second = await activated(store, "second")
        await store.commit(second, [put("A/x", "k", "of the second")])
        with pytest.raises(OwnershipLost, match="A/x: epoch 1"):
            await store.commit(first, [put("A/x", "k", "too late"), put("A/x", "new")])
        assert await stored(store) == {"k": "of the second"}
        assert await look(store_url, AGENTS) == [("A/x", 2, "second", 2)]


@pytest.mark.invariant("B8")
async def test_everything_queued_behind_a_stale_commit_is_lost_with_it(store_url: str) -> None:
    async with opened(store_url) as store:
        first = await activated(store, "first")
        await store.commit(first, [])
        await store.commit(await activated(store, "second"), [])
        ends = await settled([store.submit(first, [put("A/x", str(n))]) for n in range(5)])
        assert {type(end) for end in ends} == {OwnershipLost}
        with pytest.raises(OwnershipLost):
            store.submit(first, [put("A/x", "later")])
        assert await stored(store) == {}


async def test_an_activation_writes_nothing(store_url: str) -> None:
    async with opened(store_url) as store:
        await activated(store, "host", "A/unknown")
        assert await store.fetch(fencing.READ, "A/unknown") == []
        await store.commit(await activated(store, "host", "A/known"), [])
        await activated(store, "other host", "A/known")
        assert await look(store_url, AGENTS) == [("A/known", 1, "host", 1)]


async def test_the_first_commit_takes_the_epoch_and_later_ones_keep_it(store_url: str) -> None:
    async with opened(store_url) as store:
        first = await activated(store, "host")
        for n in range(3):
            await store.commit(first, [])
            assert await look(store_url, AGENTS) == [("A/x", 1, "host", n + 1)]
        second = await activated(store, "host")
        for n in range(3, 6):
            await store.commit(second, [])
            assert await look(store_url, AGENTS) == [("A/x", 2, "host", n + 1)]


@pytest.mark.invariant("B8")
async def test_of_two_fences_that_race_for_a_new_agent_one_wins(store_url: str) -> None:
    async with opened(store_url) as store:
        one, other = await activated(store, "one"), await activated(store, "other")
        won = store.submit(one, [put("A/x", "k", "one")])
        lost = store.submit(other, [put("A/x", "k", "other")])
        after = store.submit(one, [put("A/x", "after")])
        ends = await settled([won, lost, after])
        assert (ends[0], type(ends[1]), ends[2]) == ((1,), OwnershipLost, (1,))
        assert await stored(store) == {"k": "one", "after": "v"}


@pytest.mark.invariant("B8")
async def test_of_two_fences_that_race_for_a_known_agent_one_wins(store_url: str) -> None:
    async with opened(store_url) as store:
        await store.commit(await activated(store, "before"), [])
        one, other = await activated(store, "one"), await activated(store, "other")
        ends = await settled([store.submit(other, []), store.submit(one, [])])
        assert (ends[0], type(ends[1])) == ((), OwnershipLost)
        assert await look(store_url, AGENTS) == [("A/x", 2, "other", 2)]


@pytest.mark.invariant("B8")
async def test_two_hosts_that_race_for_a_new_agent_share_nothing(postgres_url: str) -> None:
    async with opened(postgres_url) as here, opened(postgres_url) as there:
        fences = {"here": await activated(here, "here"), "there": await activated(there, "there")}
        outcomes = [
            store.submit(fences[name], [put("A/x", f"{name} {n}")])
            for n in range(10)
            for name, store in (("here", here), ("there", there))
        ]
        ends = await settled(outcomes)
        (winner,) = {name for name, each in fences.items() if each.closed is None}
        assert [end for end in ends if isinstance(end, tuple)] == [(1,)] * 10
        assert set(await stored(here)) == {f"{winner} {n}" for n in range(10)}


async def test_a_commit_that_was_refused_at_first_takes_the_epoch_later(store_url: str) -> None:
    async with opened(store_url) as store:
        mine = await activated(store, "host")
        with pytest.raises(CommitRefused):
            await store.commit(mine, [write(CREATE_ROW, "A/x", "k"), write(CREATE_ROW, "A/x", "k")])
        assert not mine.held
        rival = await activated(store, "rival")
        await store.commit(rival, [])
        with pytest.raises(OwnershipLost):
            await store.commit(mine, [])
        assert await look(store_url, AGENTS) == [("A/x", 1, "rival", 1)]


# --- a store that restored from a backup --------------------------------------------------------------


async def _take_a_copy(url: str) -> object:
    if url.startswith("sqlite"):
        copy = sqlite3.connect(":memory:")
        with contextlib.closing(sqlite3.connect(path_of(url))) as db:
            db.backup(copy)
        return copy
    return await look(url, AGENTS), await look(url, "SELECT agent, key, size, value FROM storage")


async def _put_it_back(url: str, copy: object) -> None:
    if isinstance(copy, sqlite3.Connection):
        with contextlib.closing(sqlite3.connect(path_of(url))) as db, contextlib.closing(copy):
            copy.backup(db)
        return
    agents, rows = copy  # type: ignore[misc]
    async with other_connection(url) as connection, connection.transaction():
        await connection.execute("DELETE FROM agents; DELETE FROM storage")
        await connection.executemany("INSERT INTO agents VALUES ($1, $2, $3, $4)", agents)
        await connection.executemany("INSERT INTO storage VALUES ($1, $2, $3, $4)", rows)


@pytest.mark.invariant("B8")
async def test_an_owner_loses_its_agent_when_the_store_goes_back_in_time(store_url: str) -> None:
    async with opened(store_url) as store:
        mine = await activated(store, "host")
        await store.commit(mine, [put("A/x", "k", "old")])
        copy = await _take_a_copy(store_url)
        for n in range(3):
            await store.commit(mine, [put("A/x", "k", f"new {n}")])
        await _put_it_back(store_url, copy)
        with pytest.raises(OwnershipLost, match="restored from a backup"):
            await store.commit(mine, [put("A/x", "k", "newest")])
        assert await stored(store) == {"k": "old"}
        assert await look(store_url, AGENTS) == [("A/x", 1, "host", 1)]


@pytest.mark.invariant("B8")
async def test_a_store_from_before_the_agent_existed_does_not_know_its_owner(
    store_url: str,
) -> None:
    async with opened(store_url) as store:
        copy = await _take_a_copy(store_url)
        mine = await activated(store, "host")
        await store.commit(mine, [])
        await _put_it_back(store_url, copy)
        with pytest.raises(OwnershipLost):
            await store.commit(mine, [put("A/x", "k")])
        assert await look(store_url, AGENTS) == []
        assert await stored(store) == {}


@pytest.mark.invariant("B8")
async def test_a_restored_copy_never_grants_the_same_fence_twice(store_url: str) -> None:
    """Epoch and commit number are the same in both histories; the owner's token tells them apart."""
    async with opened(store_url) as store:
        await store.commit(await activated(store, "token 1"), [])
        copy = await _take_a_copy(store_url)
        before = await activated(store, "token 2")
        await store.commit(before, [])
        await _put_it_back(store_url, copy)
        after = await activated(store, "token 3")
        await store.commit(after, [put("A/x", "k", "after")])
        assert (before.epoch, before.commit_no) == (after.epoch, after.commit_no) == (2, 2)
        with pytest.raises(OwnershipLost):
            await store.commit(before, [put("A/x", "k", "before")])
        assert await store.commit(after, [put("A/x", "more")]) == (1,)
        assert await stored(store) == {"k": "after", "more": "v"}


@pytest.mark.invariant("B8")
async def test_a_later_activation_on_the_same_host_ends_the_earlier_one_even_then(
    store_url: str,
) -> None:
    """Owner and commit number are the same in both histories; the epoch tells them apart."""
    async with opened(store_url) as store:
        before = await activated(store, "host")
        await store.commit(before, [])
        copy = await _take_a_copy(store_url)
        await store.commit(before, [])
        await _put_it_back(store_url, copy)
        after = await activated(store, "host")
        await store.commit(after, [])
        assert (before.commit_no, after.commit_no) == (2, 2)
        with pytest.raises(OwnershipLost):
            await store.commit(before, [put("A/x", "k", "before")])
        assert await stored(store) == {}
