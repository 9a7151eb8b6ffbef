"""PostgreSQL: connections that end without a word, and what is asked again, how often."""

from __future__ import annotations

import asyncio
import logging

import pytest
from proxy import proxied
from rows import APPEND, PATIENCE, fence, look, opened, put, settled, stored, until, write

from loops import skip
from outlast.core.errors import StoreUnavailable
from outlast.store.postgres import engine as postgres
from outlast.store.postgres import session as postgres_session
from outlast.store.url import open_store

READ = "SELECT key, value FROM storage"
TOGETHER = "WITH w0"
LOOK_UP = "SELECT root, epoch, owner, commit_no"


@pytest.mark.skipped_time
async def test_a_read_in_a_black_hole_is_read_again_on_another_connection(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        await store.commit(fence(), [put("A/x", "k")])
        proxy.cut_at(READ, "silence")
        reading = asyncio.create_task(stored(store))
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        skip(postgres.TRY_READ_FOR)
        assert await asyncio.wait_for(reading, PATIENCE) == {"k": "v"}
        assert "the store does not answer, reads are waiting: no answer in time" in caplog.text
        assert "the store answers again after" in caplog.text
        assert await asyncio.gather(*(stored(store) for _ in range(8))) == [{"k": "v"}] * 8


@pytest.mark.skipped_time
async def test_a_read_in_black_holes_gives_up_in_time_and_leaves_no_connection_behind(
    postgres_url: str,
) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        await store.commit(fence(), [put("A/x", "k")])
        proxy.cut_at(READ, "silence", stay_down="")
        reading = asyncio.create_task(stored(store))
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        skip(postgres.READ_FOR)
        with pytest.raises(StoreUnavailable, match="PostgreSQL at"):
            await asyncio.wait_for(reading, PATIENCE)
        assert store.statistics().unavailable_for is not None
        proxy.down = None
        assert await stored(store) == {"k": "v"}
        assert store.statistics().unavailable_for is None


@pytest.mark.skipped_time
async def test_a_read_that_waits_for_a_free_connection_gives_up_in_time(postgres_url: str) -> None:
    store = await open_store(postgres_url)
    taken = [await store._readers.acquire() for _ in range(postgres.READERS)]
    reading = asyncio.create_task(stored(store))
    await asyncio.sleep(0)
    skip(postgres.READ_FOR)
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await asyncio.wait_for(reading, PATIENCE)
    for connection in taken:
        await store._readers.release(connection)
    assert await stored(store) == {}
    await store.close()


@pytest.mark.skipped_time
async def test_a_commit_in_a_black_hole_is_applied_exactly_once(postgres_url: str) -> None:
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        mine = fence()
        await store.commit(mine, [])
        proxy.cut_at(TOGETHER, "silence")
        outcome = store.submit(mine, [write(APPEND, "A/x", "k", "x")])
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        skip(postgres_session.ANSWER_WITHIN)
        assert await settled([outcome]) == [(1,)]
        assert await stored(store) == {"k": "x"}


async def test_look_ups_of_a_doubtful_commit_are_made_less_and_less_often(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them costs the server a session."""
    monkeypatch.setattr(postgres, "FIRST_RETRY", 0.001)
    loop = asyncio.get_running_loop()
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        mine = fence()
        await store.commit(mine, [])
        proxy.cut_at(TOGETHER, "answer")
        doubtful = store.submit(mine, [write(APPEND, "A/x", "k", "x")])
        await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        before, began = proxy.opened, loop.time()
        for _ in range(8):
            proxy.cut_at(LOOK_UP, "answer")
            await asyncio.wait_for(proxy.has_cut.wait(), PATIENCE)
        assert loop.time() - began > sum(0.001 * 2**n for n in range(8))
        assert proxy.opened - before == 8
        assert await settled([doubtful]) == [(-1,)]
        assert await look(postgres_url, "SELECT value FROM storage") == [("x",)]


async def test_what_is_tried_again_is_so_less_and_less_often(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "FIRST_RETRY", 0.001)
    loop = asyncio.get_running_loop()
    async with opened(postgres_url) as store:
        await look(postgres_url, "CREATE SEQUENCE writes")
        await look(
            postgres_url,
            """CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('writes') <= 8 THEN RAISE 'not now' USING ERRCODE = '40001'; END IF;
                RETURN NEW;
            END $$""",
        )
        await look(
            postgres_url,
            "CREATE TRIGGER complain BEFORE INSERT ON storage"
            " FOR EACH ROW EXECUTE FUNCTION complain()",
        )
        began = loop.time()
        assert await settled([store.submit(fence(), [put("A/x", "k")])]) == [(1,)]
        assert loop.time() - began > sum(0.001 * 2**n for n in range(8))


async def test_each_reason_of_an_outage_is_said_once_and_so_is_its_end(
    postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "FIRST_RETRY", 0.002)
    monkeypatch.setattr(postgres, "LAST_RETRY", 0.002)
    caplog.set_level(logging.INFO, "outlast")
    async with proxied(postgres_url) as (proxy, url), opened(url) as store:
        await store.commit(fence("A/y"), [])
        proxy.cut_at(TOGETHER, "statement", stay_down="53300")
        waiting = store.submit(fence(), [put("A/x", "k")])
        await until(lambda: proxy.refused >= 5, "it tried again")
        proxy.down = "57P03"
        seen = proxy.refused
        await until(lambda: proxy.refused >= seen + 5, "it tried again")
        proxy.down = None
        assert await settled([waiting]) == [(1,)]
    ours = [record for record in caplog.records if record.name.startswith("outlast")]
    said = [record.getMessage() for record in ours]
    assert len(said) == len(set(said))
    assert sum("TooManyConnectionsError" in text for text in said) == 1
    assert sum("CannotConnectNowError" in text for text in said) == 1
    assert "the store answers again after" in said[-1]
    assert not any(record.exc_info for record in ours)
