"""The commit that removes an agent, or a sub-agent: lost on the way, in doubt, or refused."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any, Literal

import pytest
from disks import Faulty
from families import Node, below, forget, furnish, rows_under
from proxy import Loss, proxied
from rows import PATIENCE, fence, look, opened, other_connection, put

from outlast import AgentDestroyed, CommitFailed, Host, StoreError, StoreFull
from outlast.core.errors import OwnershipLost
from outlast.store import fencing
from outlast.store.operations import Fence
from outlast.store.postgres import engine as postgres
from support import cancel_boot, hosting, raw

GONE = ("statement", "answer", "connection")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "FIRST_RETRY", 0.002)
    forget()


async def remove(host: Host, what: str) -> None:
    """One of the two ways in which an agent goes."""
    root = host.get(Node, "r")
    if what == "destroy":
        await root.destroy()
    else:
        assert await root.delete_sub_agent(Node, "a") is True


async def check_removed(host: Host, what: str) -> None:
    """All of it is gone, nothing else is, and it can be made anew."""
    kept = {"agents", "storage"} if what == "delete" else set()
    assert set(await rows_under(host, "Node/r")) == kept
    assert await host.get(Node, "other").everything() == {"kept": True}
    child = await below(host.get(Node, "r"), "a")
    assert await child.everything() == {}
    await child.put("new")
    assert await child.everything() == {"new": True}
    assert len((await rows_under(host, "Node/r"))["agents"]) == 1


async def populate(host: Host) -> None:
    root = host.get(Node, "r")
    await furnish(host, await below(root, "a", "b"))
    await root.put("key")
    await host.get(Node, "other").put("kept")


# --- SQLite --------------------------------------------------------------------------------------


@pytest.mark.virtual_time
@pytest.mark.parametrize("what", ["destroy", "delete"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first commit", "later commit"])
async def test_a_removal_with_a_disk_error_at_commit_ends_well(
    sqlite_url: str, what: str, when: Literal["before", "after"], is_first: bool
) -> None:
    async with hosting(Node, url=sqlite_url, shutdown_timeout=0) as host:
        await populate(host)
        if not is_first:
            host.store._db = faulty = Faulty(host.store._db, "COMMIT", when)
            await remove(host, what)
            assert faulty.failed
            await check_removed(host, what)
    if is_first:
        async with hosting(Node, url=sqlite_url, life="2", shutdown_timeout=0) as host:
            cancel_boot(host)
            host.store._db = faulty = Faulty(host.store._db, "COMMIT", when)
            await remove(host, what)
            assert faulty.failed
            await check_removed(host, what)


@pytest.mark.virtual_time
@pytest.mark.parametrize("what", ["destroy", "delete"])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT])
async def test_a_removal_that_fails_removes_nothing_and_the_work_goes_on(
    sqlite_url: str, what: str, code: int
) -> None:
    async with hosting(Node, url=sqlite_url) as host:
        root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
        deep = await below(child, "b")
        for node in (root, child, deep):
            await node.put("key")
            await node.begin(10, id="x")
        await asyncio.sleep(5)
        before = await rows_under(host, "Node/r")
        waiting = asyncio.create_task(child.wait())
        await asyncio.sleep(0.1)
        at = "COMMIT" if code == sqlite3.SQLITE_FULL else "DELETE FROM facts"
        host.store._db = faulty = Faulty(host.store._db, at, "before", code)
        if code == sqlite3.SQLITE_CONSTRAINT:
            host.store._db._db = Faulty(host.store._db._db, at, "before", code)  # and once more
        with pytest.raises(StoreFull if code == sqlite3.SQLITE_FULL else CommitFailed):
            await remove(host, what)
        assert faulty.failed
        with pytest.raises((AgentDestroyed, CommitFailed)):
            await waiting
        assert await rows_under(host, "Node/r") == before
        await asyncio.sleep(100)
        for node in (root, child, deep):
            assert await node.everything() == {"key": True, "worked": 1}
            assert (await node.inspect_fiber("x")).status == "completed"
        await remove(host, what)
        assert (await rows_under(host, "Node/r")).keys() == (
            {"agents", "fibers", "storage"} if what == "delete" else set()
        )


# --- PostgreSQL ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["destroy", "delete"])
@pytest.mark.parametrize("lose", GONE)
@pytest.mark.parametrize("is_first", [True, False], ids=["first commit", "later commit"])
async def test_a_removal_whose_commit_is_lost_ends_well(
    postgres_url: str, what: str, lose: Loss, is_first: bool
) -> None:
    async with proxied(postgres_url) as (proxy, url):
        async with hosting(Node, url=url, shutdown_timeout=0) as host:
            await populate(host)
            if not is_first:
                proxy.cut_at("COMMIT", lose)
                await remove(host, what)
                assert proxy.has_cut.is_set()
                await check_removed(host, what)
        if is_first:
            async with hosting(Node, url=url, life="2", shutdown_timeout=0) as host:
                cancel_boot(host)
                proxy.cut_at("COMMIT", lose)
                await remove(host, what)
                assert proxy.has_cut.is_set()
                await check_removed(host, what)


@pytest.mark.virtual_time
@pytest.mark.parametrize("what", ["destroy", "delete"])
async def test_a_removal_that_postgresql_refuses_removes_nothing_and_the_work_goes_on(
    postgres_url: str, what: str
) -> None:
    async with hosting(Node, url=postgres_url) as host:
        root, child = host.get(Node, "r"), await below(host.get(Node, "r"), "a")
        for node in (root, child):
            await node.put("key")
            await node.begin(10, id="x")
        await asyncio.sleep(5)
        before = await rows_under(host, "Node/r")
        async with other_connection(postgres_url) as other:
            await other.execute("""
                CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
                    AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
                CREATE TRIGGER refuse BEFORE DELETE ON sub_agents FOR EACH ROW
                    EXECUTE FUNCTION refuse()
            """)
        with pytest.raises(StoreError, match="not this one"):
            await remove(host, what)
        assert await rows_under(host, "Node/r") == before
        await asyncio.sleep(100)
        for node in (root, child):
            assert await node.everything() == {"key": True, "worked": 1}
        async with other_connection(postgres_url) as other:
            await other.execute("DROP TRIGGER refuse ON sub_agents")
        await remove(host, what)
        assert await rows_under(host, "Node/r/Node/a") == {}


# --- both ----------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_removal_that_finds_the_agent_taken_over_removes_nothing(store_url: str) -> None:
    async with hosting(Node, url=store_url) as host:
        await host.until_settled()  # its search for unfinished work, which would find the fiber
        child = await below(host.get(Node, "r"), "a")
        await child.put("key")
        await child.begin(10)
        if host.store.engine == "sqlite":
            with closing(raw(store_url)) as db:
                db.execute("UPDATE agents SET epoch = epoch + 1, owner = 'thief'")
        else:
            async with opened(store_url) as other:
                (known,) = await other.fetch(fencing.READ, "Node/r")
                await other.commit(Fence.after("Node/r", "thief", known), [])
        before = await rows_under(host, "Node/r")
        with pytest.raises(OwnershipLost):
            await host.get(Node, "r").destroy()
        await asyncio.sleep(1000)
        assert await rows_under(host, "Node/r") == before
        assert Node.log == ["a works"]  # the rest is for the thief to do


async def test_a_missing_row_is_evidence_only_of_a_commit_that_removes_it(
    postgres_url: str,
) -> None:
    """The row of an agent that has never written is missing too, and says nothing."""
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        new = fence("A/new")
        proxy.cut_at("WITH w0", "statement")
        assert await store.commit(new, [put("A/new", "k")]) == (1,)
        leaving = fence("A/leaving")
        await store.commit(leaving, [put("A/leaving", "k")])
        leaving.leaves = True
        proxy.cut_at("COMMIT", "statement")
        operations: list[Any] = [(fencing.FORGET, ("A/leaving",))]
        assert await store.commit(leaving, operations) == (1,)
        assert await look(postgres_url, "SELECT root FROM agents") == [("A/new",)]


async def test_a_neighbour_in_the_same_transaction_is_not_believed_for_a_row_that_is_gone_anyway(
    postgres_url: str,
) -> None:
    """Another host has destroyed the agent; the commit that was to do so, and is lost, did nothing."""
    async with (
        proxied(postgres_url) as (proxy, url),
        opened(url) as store,
        opened(postgres_url) as elsewhere,
    ):
        leaving, neighbour = fence("A/leaving"), fence("A/neighbour")
        await store.commit(leaving, [])
        await store.commit(neighbour, [])
        leaving.leaves = True
        proxy.cut_at("COMMIT", "statement", stay_down="")
        outcomes = [
            store.submit(leaving, [(fencing.FORGET, ("A/leaving",))]),
            store.submit(neighbour, [put("A/neighbour", "k")]),
        ]
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        (row,) = await elsewhere.fetch(fencing.READ, "A/leaving")
        await elsewhere.commit(
            Fence.after("A/leaving", "elsewhere", row), [(fencing.FORGET, ("A/leaving",))]
        )
        proxy.down = None
        await asyncio.wait(outcomes, timeout=PATIENCE)
        assert outcomes[1].exception() is None
        stored = await look(postgres_url, "SELECT agent FROM storage")
        assert stored == [("A/neighbour",)], "what is told to be durable is durable"
