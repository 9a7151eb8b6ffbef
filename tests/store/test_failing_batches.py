"""A batch that cannot be written is undone alone. On both engines."""

from __future__ import annotations

from typing import Any

import pytest
from rows import CREATE, DELETE, INSERT, PUT, fence, look, opened, put, settled, stored, write

from outlast.core.errors import CommitFailed, CommitRefused, OwnershipLost
from outlast.store.base import Store, StoreOptions
from outlast.store.operations import Fence, Operation

LONE_SURROGATE = "half a pair: \ud800"
UNWRITABLE = {
    "NULL in a NOT NULL column": (PUT, ("A/50", "k", 1, None)),
    "an int beyond 64 bits": (PUT, ("A/50", "k", 2**63, "v")),
    "a lone surrogate": (PUT, ("A/50", "k", 1, LONE_SURROGATE)),
    "an object that is no value": (PUT, ("A/50", "k", 1, object())),
}


async def a_hundred(
    store: Store, bad: list[Operation], under: Fence | None = None
) -> tuple[list[Any], list[Fence]]:
    """A hundred agents write two rows each in one tick; the one in the middle writes `bad`, too."""
    fences = [fence(f"A/{n}") for n in range(100)]
    fences[50] = under or fences[50]
    outcomes = []
    for n, each in enumerate(fences):
        mine = [put(f"A/{n}", "first"), put(f"A/{n}", "second")]
        outcomes.append(store.submit(each, [*mine, *bad] if n == 50 else mine))
    return await settled(outcomes), fences


async def only_the_one_in_the_middle_is_missing(store_url: str, ends: list[Any]) -> None:
    assert set(ends[:50] + ends[51:]) == {(1, 1)}
    agents = {row[0] for row in await look(store_url, "SELECT DISTINCT agent FROM storage")}
    assert agents == {f"A/{n}" for n in range(100) if n != 50}


@pytest.mark.parametrize("bad", UNWRITABLE.values(), ids=UNWRITABLE)
async def test_a_failing_batch_leaves_its_99_neighbours_alone(
    store_url: str, bad: Operation
) -> None:
    async with opened(store_url) as store:
        ends, _ = await a_hundred(store, [bad])
        assert isinstance(ends[50], CommitFailed)
        await only_the_one_in_the_middle_is_missing(store_url, ends)


async def test_text_with_nul_fails_alone_on_postgresql(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        ends, _ = await a_hundred(store, [put("A/50", "k", "a\0b")])
        assert isinstance(ends[50], CommitFailed)
        await only_the_one_in_the_middle_is_missing(postgres_url, ends)


async def test_text_with_nul_comes_back_whole_from_sqlite(sqlite_url: str) -> None:
    async with opened(sqlite_url) as store:
        await store.commit(fence(), [put("A/x", "k", "a\0b")])
        assert await stored(store) == {"k": "a\0b"}


@pytest.mark.invariant("B8")
async def test_a_stale_batch_leaves_its_99_neighbours_alone(store_url: str) -> None:
    async with opened(store_url) as store:
        stale = fence("A/50", "host before")
        await store.commit(stale, [])
        await store.commit(Fence.after("A/50", "host after", (1, "host before", 1)), [])
        ends, _ = await a_hundred(store, [], under=stale)
        assert isinstance(ends[50], OwnershipLost)
        await only_the_one_in_the_middle_is_missing(store_url, ends)


async def test_a_refused_batch_leaves_its_99_neighbours_alone(store_url: str) -> None:
    async with opened(store_url) as store:
        mine = fence("A/50")
        await store.commit(mine, [put("A/50", "taken")])
        ends, _ = await a_hundred(store, [write(CREATE, "A/50", "taken")], under=mine)
        assert isinstance(ends[50], CommitRefused)
        assert set(ends[:50] + ends[51:]) == {(1, 1)}
        assert await stored(store, "A/50") == {"taken": "v"}
        assert await look(store_url, "SELECT count(*) FROM storage") == [(199,)]


async def test_what_failed_says_which_agent_which_write_and_why(store_url: str) -> None:
    async with opened(store_url) as store:
        with pytest.raises(CommitFailed, match=r"A/x: cannot write storage put: .*value"):
            await store.commit(fence(), [put("A/x", "k", None)])


async def test_everything_queued_behind_a_failed_batch_fails_with_it(store_url: str) -> None:
    async with opened(store_url, StoreOptions(max_group=4)) as store:
        broken, healthy = fence("A/x"), fence("A/y")
        outcomes = {"before": store.submit(broken, [put("A/x", "before")])}
        outcomes["bad"] = store.submit(broken, [put("A/x", "bad", None)])
        outcomes["other"] = store.submit(healthy, [put("A/y", "1")])
        for n in range(6):  # the first of these in the same group, the others in later ones
            outcomes[f"behind {n}"] = store.submit(broken, [put("A/x", f"behind {n}")])
        outcomes["other too"] = store.submit(healthy, [put("A/y", "2")])
        ends = dict(zip(outcomes, await settled(list(outcomes.values())), strict=True))
        assert [name for name, end in ends.items() if end == (1,)] == [
            "before",
            "other",
            "other too",
        ]
        assert {type(end) for end in ends.values() if end != (1,)} == {CommitFailed}
        assert "no later commit of it was written" in str(ends["behind 5"])
        assert await stored(store, "A/x") == {"before": "v"}
        assert await stored(store, "A/y") == {"1": "v", "2": "v"}


async def test_nothing_can_be_handed_over_under_a_closed_fence(store_url: str) -> None:
    async with opened(store_url) as store:
        broken = fence()
        with pytest.raises(CommitFailed):
            await store.commit(broken, [put("A/x", "bad", None)])
        with pytest.raises(CommitFailed, match="A/x: a commit failed"):
            store.submit(broken, [put("A/x", "later")])
        assert await stored(store) == {}


async def test_a_fence_tells_once_and_at_once_why_it_was_closed(store_url: str) -> None:
    told: list[Exception] = []
    async with opened(store_url) as store:
        broken = fence()
        broken.on_closed = told.append
        outcomes = [store.submit(broken, [put("A/x", "bad", None)]) for _ in range(3)]
        outcomes[0].add_done_callback(lambda _: told.append(AssertionError("told too late")))
        await settled(outcomes)
    assert [type(reason) for reason in told] == [CommitFailed, AssertionError]


async def test_an_agent_boots_again_after_a_failed_commit_and_goes_on(store_url: str) -> None:
    async with opened(store_url) as store:
        broken = fence()
        await store.commit(broken, [put("A/x", "1")])
        with pytest.raises(CommitFailed):
            await store.commit(broken, [put("A/x", "2", None)])
        again = Fence.after("A/x", "host", (1, "host", 1))
        assert await store.commit(again, [put("A/x", "3")]) == (1,)
        assert await stored(store) == {"1": "v", "3": "v"}


async def test_a_refusal_undoes_its_batch_and_the_agent_goes_on(store_url: str) -> None:
    async with opened(store_url) as store:
        mine = fence()
        outcomes = [
            store.submit(mine, [write(CREATE, "A/x", "once", "first")]),
            store.submit(mine, [put("A/x", "beside"), write(CREATE, "A/x", "once", "second")]),
            store.submit(mine, [put("A/x", "after")]),
        ]
        ends = await settled(outcomes)
        assert ends[0] == ends[2] == (1,)
        assert isinstance(ends[1], CommitRefused)
        assert "storage put, storage create" in str(ends[1])
        assert await store.commit(mine, [write(DELETE, "A/x", "once")]) == (1,)
        assert await stored(store) == {"after": "v"}
        assert await look(store_url, "SELECT commit_no FROM agents") == [(3,)]


async def test_a_refused_first_commit_takes_no_epoch(store_url: str) -> None:
    async with opened(store_url) as store:
        await store.commit(fence("A/y"), [put("shared", "taken")])
        mine = fence("A/x")
        with pytest.raises(CommitRefused):
            await store.commit(mine, [write(CREATE, "shared", "taken")])
        assert await look(store_url, "SELECT root FROM agents") == [("A/y",)]
        await store.commit(mine, [put("A/x", "k")])
        assert await look(store_url, "SELECT root, epoch FROM agents WHERE root = 'A/x'") == [
            ("A/x", 1)
        ]


async def test_each_batch_of_a_group_learns_which_of_its_own_writes_counted(
    store_url: str,
) -> None:
    async with opened(store_url) as store:
        fences = [fence(f"A/{n}") for n in range(10)]
        await settled(
            [store.submit(fences[n], [put(f"A/{n}", "k", "old")]) for n in range(0, 10, 2)]
        )
        outcomes = [
            store.submit(
                fences[n],
                [
                    write(INSERT, f"A/{n}", "k", "new"),
                    write(INSERT, f"A/{n}", "other", "new"),
                    write(DELETE, f"A/{n}", "missing" if n % 3 else "other"),
                ],
            )
            for n in range(10)
        ]
        ends = await settled(outcomes)
        assert ends == [(n % 2, 1, int(n % 3 == 0)) for n in range(10)]
        assert await look(store_url, "SELECT count(*) FROM storage WHERE value = 'old'") == [(5,)]
