"""PostgreSQL: one server at a time writes in a schema, and a second one is told who does."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import pytest
from proxy import proxied
from rows import PATIENCE, fence, other_connection, put, stored, until

from outlast.core.errors import StoreLocked
from outlast.store.base import StoreOptions
from outlast.store.postgres import engine as postgres
from outlast.store.postgres import lock as postgres_lock
from outlast.store.url import open_store

HOLDS = """
import asyncio, sys
from outlast.store.url import open_store

async def main():
    store = await open_store(sys.argv[1])
    print("open", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "FIRST_RETRY", 0.002)


@pytest.fixture
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds the schema in use is told so at once."""
    monkeypatch.setattr(postgres_lock, "WAIT_FOR", 0.0)


@pytest.mark.usefixtures("_in_a_hurry")
async def test_a_second_server_is_told_who_has_the_schema(postgres_url: str) -> None:
    first = await open_store(postgres_url)
    with pytest.raises(StoreLocked) as caught:
        await open_store(postgres_url)
    told = str(caught.value)
    assert f"is in use by process {os.getpid()} on {socket.gethostname()} (since 20" in told
    assert f"backend {first._writer.get_server_pid()}" in told
    assert "?schema=" in told
    assert caught.value.pid == os.getpid()
    assert await first.commit(fence(), [put("A/x", "k")]) == (1,)
    await first.close()
    await (await open_store(postgres_url)).close()


@pytest.mark.usefixtures("_in_a_hurry")
async def test_servers_in_other_schemas_are_not_in_the_way(postgres_url: str) -> None:
    one, other = await open_store(postgres_url), await open_store(postgres_url + "_too")
    await asyncio.gather(one.close(), other.close())


@pytest.mark.usefixtures("_in_a_hurry")
async def test_the_workers_of_one_server_share_a_schema_and_keep_others_out(
    postgres_url: str,
) -> None:
    ours = StoreOptions(server="ours")
    workers = [await open_store(postgres_url, ours) for _ in range(2)]
    await workers[0].close()
    with pytest.raises(StoreLocked):  # the other one still writes
        await open_store(postgres_url, StoreOptions(server="theirs"))
    workers[0] = await open_store(postgres_url, ours)
    await asyncio.gather(*(worker.close() for worker in workers))
    await (await open_store(postgres_url, StoreOptions(server="theirs"))).close()


@pytest.mark.usefixtures("_in_a_hurry")
async def test_an_operator_writes_beside_a_server(postgres_url: str) -> None:
    server = await open_store(postgres_url)
    beside = await open_store(postgres_url, StoreOptions(is_lockless=True))
    assert await beside.commit(fence(), [put("A/x", "k")]) == (1,)
    assert await stored(server) == {"k": "v"}
    await beside.close()
    await server.close()


async def test_of_servers_that_start_together_one_gets_the_schema(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_lock, "WAIT_FOR", 0.0)
    opening = [open_store(postgres_url) for _ in range(5)]
    ends = await asyncio.gather(*opening, return_exceptions=True)
    (store,) = [end for end in ends if not isinstance(end, StoreLocked)]
    assert not isinstance(store, BaseException)
    await store.close()


async def test_the_schema_of_a_killed_process_is_free_for_the_next(postgres_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDS, postgres_url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert await process.stdout.readline() == b"open\n"
        opening = asyncio.create_task(open_store(postgres_url))
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await (await opening).close()


async def test_a_writer_that_connects_again_has_the_lock_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(postgres_url)
    async with other_connection(postgres_url) as other:
        pid = store._writer.get_server_pid()
        assert await other.fetchval("SELECT pg_terminate_backend($1, 10000)", pid)
    assert await store.commit(fence(), [put("A/x", "k")]) == (1,)
    monkeypatch.setattr(postgres_lock, "WAIT_FOR", 0.0)
    with pytest.raises(StoreLocked):
        await open_store(postgres_url)
    await store.close()


@pytest.mark.usefixtures("_in_a_hurry")
async def test_a_server_that_was_away_while_another_took_over_writes_nothing_until_that_has_gone(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(postgres_url) as (proxy, url):
        away = await open_store(url)
        await away.commit(fence("A/y"), [])
        proxy.cut_at("WITH w0", "statement", stay_down="")
        waiting = away.submit(fence(), [put("A/x", "k")])
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while True:  # the server notices that the connection is gone
                try:
                    other = await open_store(postgres_url)
                    break
                except StoreLocked:
                    await asyncio.sleep(0.001)
        proxy.down = None
        await until(lambda: "is in use by process" in caplog.text, "it was told")
        assert not waiting.done()
        assert away.statistics().unavailable_for is not None
        assert await stored(other) == {}
        await other.close()
        assert await asyncio.wait_for(waiting, PATIENCE) == (1,)
        await away.close()
