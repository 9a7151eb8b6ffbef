"""PostgreSQL: a row that somebody else has locked holds up one agent, and nobody else."""

from __future__ import annotations

import asyncio

import pytest
from proxy import Loss, proxied
from rows import (
    APPEND,
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

from outlast.core.errors import OwnershipLost, StoreClosed
from outlast.store.postgres import blocking as postgres_blocking
from outlast.store.postgres import engine as postgres
from outlast.store.postgres import session as postgres_session

VALUES = "SELECT agent, value FROM storage ORDER BY agent"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same proportions, ten times as fast."""
    monkeypatch.setattr(postgres_session, "LOCK_TIMEOUT", 100)
    monkeypatch.setattr(postgres, "FIND_BLOCKERS_AFTER", 0.03)
    monkeypatch.setattr(postgres, "TRY_FOR", 20)
    monkeypatch.setattr(postgres_blocking, "WARN_AFTER", 0.2)
    monkeypatch.setattr(postgres_blocking, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(postgres_blocking, "LAST_RETRY", 0.1)


async def test_a_locked_row_holds_up_its_own_agent_alone(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres_url) as store, other_connection(postgres_url) as other:
        fences = [fence(f"A/{n}") for n in range(5)]
        await settled([store.submit(each, []) for each in fences])
        locked = "SELECT * FROM agents WHERE root = 'A/2' FOR UPDATE"
        async with other.transaction():
            await other.execute(locked)
            held = store.submit(fences[2], [write(APPEND, "A/2", "k", "x")])
            for text in "xyz":  # the others go on, again and again
                outcomes = [
                    store.submit(each, [write(APPEND, each.root, "k", text)])
                    for each in fences
                    if each is not fences[2]
                ]
                assert await settled(outcomes) == [(1,)] * 4
            behind = store.submit(fences[2], [write(APPEND, "A/2", "k", "y")])
            assert store.statistics().blocked_agents == ("A/2",)
            await until(lambda: "has locked" in caplog.text, "it was told")
            statistics = store.statistics()
            assert statistics.blocked_for is not None
            assert statistics.blocked_for >= postgres_blocking.WARN_AFTER
            assert statistics.blocked_by is not None
            pid = other.get_server_pid()
            assert statistics.blocked_by.startswith(f"session {pid} (")
            assert locked in statistics.blocked_by
            assert "A/2: commits have waited for" in caplog.text
            assert f"session {pid}" in caplog.text
            assert not held.done()
            assert not behind.done()
            assert statistics.unavailable_for is None
        assert await settled([held, behind]) == [(1,), (1,)]
        assert store.statistics().blocked_agents == ()
        assert store.statistics().blocked_by is None
        assert "A/2: commits continue after" in caplog.text
        assert sum("has locked" in record.getMessage() for record in caplog.records) == 1
        assert await look(postgres_url, VALUES) == [
            (f"A/{n}", "xyz" if n != 2 else "xy") for n in range(5)
        ]


async def test_a_locked_row_of_another_table_holds_up_its_agent_alone(postgres_url: str) -> None:
    async with opened(postgres_url) as store, other_connection(postgres_url) as other:
        mine, theirs = fence("A/x"), fence("A/y")
        await settled([store.submit(each, [put(each.root, "k")]) for each in (mine, theirs)])
        async with other.transaction():
            await other.execute("SELECT * FROM storage WHERE agent = 'A/x' FOR UPDATE")
            held = store.submit(mine, [put("A/x", "k", "w")])
            assert await settled([store.submit(theirs, [put("A/y", "k", "w")])]) == [(1,)]
            assert not held.done()
        assert await settled([held]) == [(1,)]
        assert await stored(store) == {"k": "w"}


async def test_a_locked_table_holds_up_all_and_loses_nothing(postgres_url: str) -> None:
    async with opened(postgres_url) as store, other_connection(postgres_url) as other:
        fences = [fence(f"A/{n}") for n in range(20)]
        async with other.transaction():
            await other.execute("LOCK TABLE agents IN EXCLUSIVE MODE")
            outcomes = [
                store.submit(each, [write(APPEND, each.root, "k", text)])
                for text in "xyz"
                for each in fences
            ]
            await until(
                lambda: len(store.statistics().blocked_agents) > postgres.TRIES, "they wait"
            )
            assert not any(outcome.done() for outcome in outcomes)
        assert await settled(outcomes) == [(1,)] * 60
        assert {value for _, value in await look(postgres_url, VALUES)} == {"xyz"}


async def test_an_agent_that_was_taken_over_behind_a_lock_is_lost_alone(postgres_url: str) -> None:
    async with opened(postgres_url) as store, other_connection(postgres_url) as other:
        mine, neighbour = fence("A/x"), fence("A/y")
        await settled([store.submit(each, []) for each in (mine, neighbour)])
        async with other.transaction():
            await other.execute("UPDATE agents SET owner = 'thief' WHERE root = 'A/x'")
            held = store.submit(mine, [put("A/x", "k")])
            assert await settled([store.submit(neighbour, [put("A/y", "k")])]) == [(1,)]
        (end,) = await settled([held])
        assert isinstance(end, OwnershipLost)
        assert await store.commit(neighbour, []) == ()


async def test_a_host_whose_commits_wait_for_a_lock_can_be_let_go(postgres_url: str) -> None:
    async with opened(postgres_url) as store, other_connection(postgres_url) as other:
        mine = fence()
        await store.commit(mine, [])
        async with other.transaction():
            await other.execute("SELECT * FROM agents FOR UPDATE")
            held = store.submit(mine, [put("A/x", "k")])
            await until(lambda: store.statistics().blocked_agents == ("A/x",), "it waits")
            store.give_up("enough")
            with pytest.raises(StoreClosed, match="unknown whether this commit is durable"):
                await asyncio.wait_for(held, PATIENCE)


@pytest.mark.parametrize("count", [1, 2], ids=["together", "one by one"])
@pytest.mark.parametrize("lose", ["statement", "answer"])
async def test_a_doubtful_commit_waits_for_a_locked_row_and_is_applied_exactly_once(
    postgres_url: str, count: int, lose: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "FIRST_RETRY", 0.002)
    monkeypatch.setattr(postgres, "LAST_RETRY", 0.05)
    async with (
        proxied(postgres_url) as (proxy, url),
        opened(url) as store,
        other_connection(postgres_url) as other,
    ):
        mine = fence()
        await store.commit(mine, [])
        proxy.cut_at("WITH w0" if count == 1 else "COMMIT", lose, stay_down="")
        outcome = store.submit(mine, [write(APPEND, "A/x", "k", "x") for _ in range(count)])
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        async with other.transaction():
            await other.execute("SELECT * FROM agents FOR UPDATE")
            proxy.down = None
            waits = (
                "SELECT count(*) FROM pg_stat_activity"
                f" WHERE {other.get_server_pid()} = ANY (pg_blocking_pids(pid))"
            )
            async with asyncio.timeout(PATIENCE):
                for wanted in (1, 0, 1):  # it waits, gives up, and waits again
                    while await look(postgres_url, waits) != [(wanted,)]:
                        await asyncio.sleep(0)
            assert not outcome.done()
            assert mine.closed is None
        (end,) = await settled([outcome])
        assert isinstance(end, tuple)
        assert await stored(store) == {"k": "x" * count}
        assert await store.commit(mine, []) == ()
