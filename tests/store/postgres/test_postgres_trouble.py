"""PostgreSQL: lost connections, full disks, missing rights, and errors that pass."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from proxy import proxied
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

from outlast.agent.fibers import sql as fiber_rows
from outlast.core.errors import (
    CommitFailed,
    StoreClosed,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreURLError,
)
from outlast.store import fencing
from outlast.store.base import Store
from outlast.store.operations import Fence, Operation, Statement
from outlast.store.postgres import engine as postgres
from outlast.store.url import open_store

KILL = """
    SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
    WHERE application_name ~ '^outlast [0-9]+@' AND pid = ANY ($1)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "FIRST_RETRY", 0.002)


def backends(store: Store) -> list[int]:
    """The server processes behind this store: the one that writes, and those that read."""
    connections = [store._writer, *(holder._con for holder in store._readers._holders)]
    return [each.get_server_pid() for each in connections if each is not None]


async def raise_from_storage(url: str, condition: str, sqlstate: str) -> None:
    """Let writes to the storage table fail as if the server had the trouble of that code."""
    async with other_connection(url) as other:
        await other.execute(f"""
            CREATE SEQUENCE writes;
            CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF {condition} THEN RAISE 'as you wish' USING ERRCODE = '{sqlstate}'; END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER complain BEFORE INSERT ON storage
                FOR EACH ROW EXECUTE FUNCTION complain()
        """)


async def test_commits_and_reads_go_on_by_themselves_after_lost_connections(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, other_connection(postgres_url) as other:
        mine = fence()
        for n in range(3):
            assert await store.commit(mine, [write(APPEND, "A/x", "k", str(n))])
            await asyncio.gather(*(stored(store) for _ in range(4)))  # all readers are connected
            victims = backends(store)
            assert await other.fetchval(KILL, victims) == len(victims) == 5
            assert await stored(store) == {"k": "012"[: n + 1]}
        assert await store.commit(mine, [write(APPEND, "A/x", "k", "3")])
        assert await stored(store) == {"k": "0123"}


async def test_a_read_in_flight_is_read_again_when_its_connection_is_lost(
    postgres_url: str,
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        await store.commit(fence(), [put("A/x", "k")])
        proxy.cut_at("SELECT key, value FROM storage", "answer")
        assert await stored(store) == {"k": "v"}
        assert proxy.has_cut.is_set()


async def test_a_read_gives_up_when_the_server_stays_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        proxy.cut_at("SELECT key, value FROM storage", "statement", stay_down="")
        with monkeypatch.context() as impatient:  # a busy server that is up may need as long
            impatient.setattr(postgres, "READ_FOR", 0.05)
            with pytest.raises(StoreUnavailable, match="PostgreSQL at"):
                await stored(store)
        proxy.down = None
        assert await stored(store) == {}


async def test_closing_works_after_the_server_has_dropped_everything(postgres_url: str) -> None:
    async with opened(postgres_url) as store, other_connection(postgres_url) as other:
        await store.commit(fence(), [])
        await other.fetchval(KILL, backends(store))
    with pytest.raises(StoreClosed):
        await stored(store)


async def test_an_abandoned_store_does_not_come_back_to_write(postgres_url: str) -> None:
    async with other_connection(postgres_url) as other:
        store = await open_store(postgres_url)
        await store.commit(fence("A/y"), [])
        async with other.transaction():
            await other.execute("LOCK TABLE agents IN EXCLUSIVE MODE")
            outcome = store.submit(fence(), [put("A/x", "k")])
            await until(lambda: store.statistics().in_flight == 1, "it is being written")
            await asyncio.sleep(0)
            victims = backends(store)
            store.abandon()
            assert await other.fetchval(KILL, victims) >= 1
        writer = [task for task in asyncio.all_tasks() if task.get_name() == "outlast-store-writer"]
        if writer:
            await asyncio.wait(writer, timeout=PATIENCE)
        assert all(task.done() for task in writer)
        assert not outcome.done()
        assert await other.fetch("SELECT * FROM storage") == []


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"], ids=["serialization", "deadlock"])
@pytest.mark.parametrize("count", [1, 2], ids=["together", "one by one"])
async def test_an_error_that_passes_is_tried_again(
    postgres_url: str, sqlstate: str, count: int
) -> None:
    async with opened(postgres_url) as store:
        await raise_from_storage(postgres_url, "nextval('writes') <= 2", sqlstate)
        mine = fence()
        same_row = [write(APPEND, "A/x", "k", "x") for _ in range(count)]
        assert await settled([store.submit(mine, same_row)]) == [(1,) * count]
        assert await stored(store) == {"k": "x" * count}
        assert await settled([store.submit(mine, [])]) == [()]


async def test_a_full_disk_is_said_and_neighbours_that_fit_are_written(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await raise_from_storage(postgres_url, "NEW.size > 100", "53100")
        fences = [fence(f"A/{n}") for n in range(10)]
        ends = await settled(
            [
                store.submit(f, [put(f.root, "k", "v" * (1000 if n == 5 else 1))])
                for n, f in enumerate(fences)
            ]
        )
        assert isinstance(ends[5], StoreFull)
        assert ends[:5] + ends[6:] == [(1,)] * 9
        assert isinstance(fences[5].closed, CommitFailed)
        assert await store.commit(fences[0], [put("A/0", "after")]) == (1,)
        assert await look(postgres_url, "SELECT count(*) FROM storage") == [(10,)]


async def test_a_batch_of_very_many_different_operations_is_written(postgres_url: str) -> None:
    """More than the server can plan as one statement."""
    async with opened(postgres_url) as store:
        mine, other = fence("A/x"), fence("A/y")
        many: list[Operation] = []
        for n in range(700):
            row = (
                "A/x",
                f"{n}",
                f"{n}",
                "w",
                1,
                "pending",
                *[None] * 3,
                0,
                None,
                None,
                0,
                0,
                None,
                0,
                0,
            )
            many += [(fiber_rows.INSERT, row), (fiber_rows.DELETE, ("A/x", f"not {n}"))]
        outcomes = [store.submit(mine, many), store.submit(other, [put("A/y", "k")])]
        assert await settled(outcomes) == [(1, 0) * 700, (1,)]
        assert await look(postgres_url, "SELECT count(*) FROM fibers") == [(700,)]


# --- rights ---------------------------------------------------------------------------------------


async def test_a_user_without_rights_is_told_what_it_needs(postgres_url: str) -> None:
    url = await with_a_user_of_its_own(postgres_url)
    with pytest.raises(StoreReadOnly, match="needs CREATE on the database once"):
        await open_store(url)


async def with_a_user_of_its_own(postgres_url: str) -> str:
    """The same URL for a user that has no rights yet."""
    name = urlsplit(postgres_url).query.rpartition("schema=")[2]
    async with other_connection(postgres_url) as other:
        await other.execute(f"CREATE ROLE {name} LOGIN")
    return postgres_url.replace("postgresql://postgres:", f"postgresql://{name}:")


async def test_create_on_the_database_is_needed_only_once(postgres_url: str) -> None:
    url = await with_a_user_of_its_own(postgres_url)
    name = url.rpartition("schema=")[2]
    async with opened(postgres_url), other_connection(postgres_url) as other:
        await other.execute(f"""
            GRANT ALL ON SCHEMA {name} TO {name};
            GRANT ALL ON ALL TABLES IN SCHEMA {name} TO {name}
        """)
    async with opened(url) as store:
        assert await store.commit(fence(), [put("A/x", "k")]) == (1,)


async def test_a_user_who_may_only_read_is_told_so(postgres_url: str) -> None:
    url = await with_a_user_of_its_own(postgres_url)
    name = url.rpartition("schema=")[2]
    async with opened(postgres_url), other_connection(postgres_url) as other:
        await other.execute(f"""
            GRANT ALL ON SCHEMA {name} TO {name};
            GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {name}
        """)
    async with opened(url) as store:
        with pytest.raises(StoreReadOnly, match="PostgreSQL denies this user"):
            await store.commit(fence(), [put("A/x", "k")])
        assert await stored(store) == {}


async def test_a_read_only_server_is_said_at_open(postgres_url: str) -> None:
    separator = "&" if "?" in postgres_url else "?"
    with pytest.raises(StoreReadOnly, match="read-only"):
        await open_store(f"{postgres_url}{separator}default_transaction_read_only=on")


async def test_a_server_that_becomes_read_only_is_said_at_the_commit(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await store.commit(fence("A/y"), [])
        await store._writer.execute("SET default_transaction_read_only = on")
        with pytest.raises(StoreReadOnly, match="perhaps because it is a standby"):
            await store.commit(fence(), [put("A/x", "k")])
        await store._writer.execute("SET default_transaction_read_only = off")
        assert await store.commit(fence(), [put("A/x", "k")]) == (1,)


# --- opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=me&password=s3cret",
    ],
)
async def test_a_server_that_is_down_is_said_without_the_password(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="PostgreSQL at postgresql://") as caught:
        await open_store(url)
    told = f"{caught.value} {caught.value!r}"
    assert "127.0.0.1" in told
    assert "s3cret" not in told


@pytest.mark.parametrize("wrong", [":no/db", "/db?sslmode=nonsense"])
async def test_a_url_that_makes_no_sense_is_said_without_the_password(wrong: str) -> None:
    with pytest.raises(StoreURLError, match="no") as caught:
        await open_store(f"postgresql://me:s3cret@127.0.0.1{wrong}")
    assert "s3cret" not in str(caught.value)


async def test_an_unknown_database_is_said(postgres_url: str) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        await open_store(postgres_url.replace("/postgres?", "/nowhere?"))


async def test_a_store_can_be_opened_without_a_host_in_the_url(postgres_url: str) -> None:
    host = postgres_url.partition("?")[2]
    async with opened(f"postgresql:///postgres?user=postgres&{host}") as store:
        assert await store.commit(fence(), []) == ()


async def test_a_fault_of_ours_fails_its_group_and_not_the_store(postgres_url: str) -> None:
    wrong = Statement(
        "storage wrong",
        sqlite="",
        postgres="DELETE FROM storage USING {rows} WHERE storage.agent = u.agent",
        columns=[("agent", "text")],
        key=1,
    )
    store = await open_store(postgres_url)
    with pytest.raises(CommitFailed):
        await store.commit(Fence.after("A/x", "me", None), [(wrong, ("A/x", "one too many"))])
    await store.commit(Fence.after("A/y", "me", None), [])
    assert await store.fetch(fencing.READ, "A/y") == [(1, "me", 1)]
    assert await store.fetch(fencing.READ, "A/x") == []
    await store.close()
