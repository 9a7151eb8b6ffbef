"""PostgreSQL: a COMMIT whose outcome is unknown, because the connection was lost around it."""

from __future__ import annotations

import asyncio

import pytest
from proxy import Loss, proxied
from rows import (
    APPEND,
    CREATE,
    PATIENCE,
    fence,
    look,
    opened,
    other_connection,
    put,
    settled,
    stored,
    until,
    write,
)

from outlast.core.errors import CommitFailed, CommitRefused, OwnershipLost
from outlast.store import fencing
from outlast.store.operations import Fence
from outlast.store.postgres import engine as postgres

VALUES = "SELECT agent, value FROM storage ORDER BY agent"
AGENTS = "SELECT root, epoch, owner, commit_no FROM agents ORDER BY root"

TOGETHER = "WITH w0"  # a group in one statement, which is its own transaction
APART = "COMMIT"  # the end of a group that is written batch by batch


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "FIRST_RETRY", 0.002)


@pytest.mark.parametrize("lose", ["statement", "answer", "connection"])
@pytest.mark.parametrize("is_new", [True, False], ids=["first commit", "later commit"])
async def test_a_lost_commit_is_applied_exactly_once(
    postgres_url: str, lose: Loss, is_new: bool
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        fences = [fence(f"A/{n}") for n in range(3)]
        if not is_new:
            await settled([store.submit(each, []) for each in fences])
        proxy.cut_at(TOGETHER, lose)
        ends = await settled(
            [store.submit(each, [write(APPEND, each.root, "k", "x")]) for each in fences]
        )
        assert proxy.has_cut.is_set()
        # -1: committed, but what it touched was in the answer
        assert ends == [(1,) if lose == "statement" else (-1,)] * 3
        more = [store.submit(each, [write(APPEND, each.root, "k", "y")]) for each in fences]
        assert await settled(more) == [(1,)] * 3
        assert await look(postgres_url, VALUES) == [(f"A/{n}", "xy") for n in range(3)]


@pytest.mark.parametrize("lose", ["statement", "answer", "connection"])
async def test_a_lost_commit_of_a_group_written_batch_by_batch_is_applied_exactly_once(
    postgres_url: str, lose: Loss
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        twice, refused, failed = fence("A/twice"), fence("A/refused"), fence("A/failed")
        proxy.cut_at(APART, lose)
        ends = await settled(
            [
                store.submit(twice, [write(APPEND, "A/twice", "k", "x")]),
                store.submit(refused, [put("A/refused", "k"), write(CREATE, "A/refused", "k")]),
                store.submit(failed, [put("A/failed", "k", None)]),
                store.submit(twice, [write(APPEND, "A/twice", "k", "y")]),
            ]
        )
        assert proxy.has_cut.is_set()
        assert ends[0] == ends[3] == (1,)
        assert (type(ends[1]), type(ends[2])) == (CommitRefused, CommitFailed)
        await store.commit(twice, [write(APPEND, "A/twice", "k", "z")])
        assert await look(postgres_url, VALUES) == [("A/twice", "xyz")]


@pytest.mark.parametrize("lose", ["statement", "answer"])
@pytest.mark.parametrize("why", ["", "53300", "28P01"], ids=["gone", "full", "password changed"])
async def test_while_the_outcome_cannot_be_read_the_agent_neither_goes_on_nor_fails(
    postgres_url: str, lose: Loss, why: str
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        mine = fence()
        await store.commit(mine, [write(APPEND, "A/x", "k", "1")])
        proxy.cut_at(TOGETHER, lose, stay_down=why)
        doubtful = store.submit(mine, [write(APPEND, "A/x", "k", "2")])
        await until(lambda: proxy.refused >= 2, "it asked again")
        behind = store.submit(mine, [write(APPEND, "A/x", "k", "3")])
        seen = proxy.refused
        await until(lambda: proxy.refused >= seen + 2, "it goes on asking")
        assert not doubtful.done()
        assert not behind.done()
        assert mine.closed is None
        statistics = store.statistics()
        assert (statistics.in_flight, statistics.queue_depth) == (1, 1)
        assert statistics.unavailable_for is not None
        assert statistics.unavailable_for > 0
        proxy.down = None
        assert not any(isinstance(end, Exception) for end in await settled([doubtful, behind]))
        assert await look(postgres_url, VALUES) == [("A/x", "123")]
        assert store.statistics().unavailable_for is None


async def test_a_second_loss_while_asking_changes_nothing(postgres_url: str) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        mine = fence()
        await store.commit(mine, [])
        proxy.cut_at(TOGETHER, "answer")
        doubtful = store.submit(mine, [write(APPEND, "A/x", "k", "x")])
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        proxy.cut_at("SELECT root, epoch, owner, commit_no", "answer")
        assert await settled([doubtful]) == [(-1,)]
        assert proxy.has_cut.is_set()
        assert await stored(store) == {"k": "x"}


async def test_an_agent_taken_over_meanwhile_does_not_cast_doubt_on_its_neighbours(
    postgres_url: str,
) -> None:
    """The transaction was one: where one of its agents shows that it happened, it did for all."""
    async with (
        proxied(postgres_url) as (proxy, url),
        opened(url) as store,
        opened(postgres_url) as elsewhere,
    ):
        fences = [fence("A/x"), fence("A/y")]
        proxy.cut_at(TOGETHER, "answer", stay_down="")
        outcomes = [store.submit(each, [write(APPEND, each.root, "k", "x")]) for each in fences]
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        (row,) = await elsewhere.fetch(fencing.READ, "A/x")
        await elsewhere.commit(Fence.after("A/x", "elsewhere", row), [])
        proxy.down = None
        assert await settled(outcomes) == [(-1,), (-1,)]
        with pytest.raises(OwnershipLost):
            await store.commit(fences[0], [])
        assert await store.commit(fences[1], [write(APPEND, "A/y", "k", "y")]) == (1,)
        assert await look(postgres_url, VALUES) == [("A/x", "x"), ("A/y", "xy")]


async def test_an_agent_taken_over_before_the_second_try_is_lost_alone(postgres_url: str) -> None:
    async with (
        proxied(postgres_url) as (proxy, url),
        opened(url) as store,
        opened(postgres_url) as elsewhere,
    ):
        fences = [fence("A/x"), fence("A/y")]
        proxy.cut_at(TOGETHER, "statement", stay_down="")
        outcomes = [store.submit(each, [write(APPEND, each.root, "k", "x")]) for each in fences]
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        await elsewhere.commit(fence("A/x", "elsewhere"), [])
        proxy.down = None
        ends = await settled(outcomes)
        assert (type(ends[0]), ends[1]) == (OwnershipLost, (1,))
        assert await look(postgres_url, VALUES) == [("A/y", "x")]


@pytest.mark.parametrize("is_new", [True, False], ids=["first commit", "later commit"])
async def test_a_commit_that_the_server_still_executes_is_not_mistaken_for_a_rival(
    postgres_url: str, is_new: bool
) -> None:
    """The connection is lost, and the server has not even got as far as the row that would tell."""
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        mine = fence()
        await store.commit(mine if not is_new else fence("A/y"), [])
        async with other_connection(postgres_url) as other:
            await other.execute("""
                CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql
                    AS 'BEGIN PERFORM pg_advisory_xact_lock(1, 2); RETURN NULL; END';
                CREATE TRIGGER hold BEFORE INSERT OR UPDATE ON agents EXECUTE FUNCTION hold();
                SELECT pg_advisory_lock(1, 2)
            """)
            proxy.cut_at(TOGETHER, "connection")
            outcome = store.submit(mine, [write(APPEND, "A/x", "k", "x")])
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            async with asyncio.timeout(PATIENCE):
                while await other.fetchval(waiting) < 2:
                    await asyncio.sleep(0.001)
            assert not outcome.done()
            await other.execute("SELECT pg_advisory_unlock(1, 2)")
        assert [type(end) for end in await settled([outcome])] == [tuple]
        assert await store.commit(mine, [write(APPEND, "A/x", "k", "y")]) == (1,)
        assert await stored(store) == {"k": "xy"}
        assert ("A/x", 1, "host", 2 if is_new else 3) in await look(postgres_url, AGENTS)


@pytest.mark.parametrize("is_new", [True, False], ids=["first commit", "later commit"])
async def test_a_commit_whose_server_process_is_killed_is_applied_exactly_once(
    postgres_url: str, is_new: bool
) -> None:
    async with opened(postgres_url) as store, other_connection(postgres_url) as other:
        mine = fence()
        await store.commit(fence("A/y") if is_new else mine, [])
        victim = store._writer.get_server_pid()
        async with other.transaction():
            await other.execute("LOCK TABLE agents IN EXCLUSIVE MODE")
            outcome = store.submit(mine, [write(APPEND, "A/x", "k", "x")])
            waits = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted"
            async with asyncio.timeout(PATIENCE):
                while not await other.fetchval(waits, victim):
                    await asyncio.sleep(0.001)
            assert await other.fetchval("SELECT pg_terminate_backend($1, 10000)", victim)
        assert await settled([outcome]) == [(1,)]
        assert await stored(store) == {"k": "x"}
