"""Receipts: work that is done once, however often it is asked for, and how long that is known."""

from __future__ import annotations

import asyncio

import pytest

from outlast import Agent, Host, OutlastError, Think
from outlast.agent.agent import parts_of
from outlast.agent.receipts import KEEP, Receipts
from outlast.store.operations import Query
from outlast.testing import ScriptedModel
from support import hosting

ALL = Query.same("SELECT scope, key, value FROM receipts ORDER BY scope, key")


class Counter(Agent):
    """Counts, once for each key."""

    @property
    def receipts(self) -> Receipts:
        return parts_of(self)[Receipts]

    async def count(self, key: str, *, fails: bool = False, scope: str = "count") -> int:
        async with self.receipts.once(scope, key) as receipt:
            if not receipt.found:
                total = await self.storage.get("total", 0) + 1
                await self.storage.put("total", total)
                await asyncio.sleep(0)
                if fails:
                    raise ValueError("on purpose")
                receipt.value = total
        value: int = receipt.value
        return value

    async def count_in_one_commit(self, *keys: str, fails: bool = False) -> list[int]:
        async with self.commit():
            counted = [await self.count(key) for key in keys]
            if fails:
                raise ValueError("on purpose")
        return counted

    async def count_at_once(self, *keys: str) -> list[int]:
        return await asyncio.gather(*map(self.count, keys))

    async def total(self) -> int:
        found: int = await self.storage.get("total", 0)
        return found


async def stored(host: Host) -> list[tuple[str, str]]:
    return [(key, value) for _, key, value in await host.store.fetch(ALL)]


async def test_the_second_time_the_first_result_is_found(store_url: str) -> None:
    async with hosting(Counter, url=store_url) as host:
        counter = host.get(Counter, "c")
        assert [await counter.count(key) for key in ("a", "b", "a")] == [1, 2, 1]
    async with hosting(Counter, url=store_url, life="2") as host:
        counter = host.get(Counter, "c")
        assert (await counter.count("b"), await counter.total()) == (2, 2)
        assert await counter.count("a", scope="another") == 3
        assert await host.get(Counter, "d").count("a") == 1, "each agent has its own"


async def test_work_and_receipt_are_one_commit(store_url: str) -> None:
    async with hosting(Counter, url=store_url) as host:
        counter = host.get(Counter, "c")
        before = host.store.statistics().batches
        assert await counter.count("a") == 1
        assert host.store.statistics().batches == before + 1
        with pytest.raises(ValueError, match="on purpose"):
            await counter.count("b", fails=True)
        assert (await counter.total(), await stored(host)) == (1, [("a", "1")])
        assert await counter.count("b") == 2, "work that failed is not done"


async def test_it_joins_an_open_block(store_url: str) -> None:
    async with hosting(Counter, url=store_url) as host:
        counter = host.get(Counter, "c")
        assert await counter.count_in_one_commit("a", "b", "a") == [1, 2, 1]
        assert await stored(host) == [("a", "1"), ("b", "2")]
        with pytest.raises(ValueError, match="on purpose"):
            await counter.count_in_one_commit("c", fails=True)
        assert (await counter.total(), await stored(host)) == (2, [("a", "1"), ("b", "2")])
        assert await counter.count("c") == 3, "nobody waits for a block that was given up"


async def test_those_who_come_at_once_with_one_key_get_one_result(store_url: str) -> None:
    async with hosting(Counter, url=store_url) as host:
        counter = host.get(Counter, "c")
        assert await counter.count_at_once(*"aaaa") == [1, 1, 1, 1]
        failing = counter.count("b", fails=True)
        results = await asyncio.gather(failing, counter.count("b"), return_exceptions=True)
        assert [type(each) for each in results] == [ValueError, int]
        assert await counter.total() == 2


async def test_a_value_that_is_not_json_is_refused_and_nothing_is_written(sqlite_url: str) -> None:
    class Wrong(Counter):
        async def wrong(self) -> None:
            async with self.receipts.once("count", "a") as receipt:
                await self.storage.put("total", 7)
                receipt.value = object()

    async with hosting(Wrong, url=sqlite_url) as host:
        with pytest.raises((TypeError, ValueError, OutlastError)):
            await host.get(Wrong, "w").wrong()
        assert (await host.get(Wrong, "w").total(), await stored(host)) == (0, [])


class Talker(Think):
    model = ScriptedModel("Hello.", repeat=True)

    async def note(self, key: str) -> None:
        async with parts_of(self)[Receipts].once("talk", key) as receipt:
            receipt.value = True

    async def expire(self, later: int) -> None:
        receipts = parts_of(self)[Receipts]
        commit = receipts.commits.new()
        receipts.expire(commit, receipts.activation.clock.now() + later)
        await commit.stored()


@pytest.mark.virtual_time
async def test_old_receipts_go_and_those_of_a_turn_that_is_not_settled_stay(store_url: str) -> None:
    async with hosting(Talker, url=store_url) as host:
        talker = host.get(Talker, "t")
        await talker.note("before")
        await asyncio.sleep(10)
        submitted = Query.same("UPDATE inbox SET ended_at = NULL WHERE agent = ? RETURNING id")
        await talker.save_messages("Hi")
        await asyncio.sleep(10)
        await talker.note("during")
        await host.store.fetch(submitted, "Talker/t")
        await talker.expire(KEEP - 60_000)
        assert [key for key, _ in await stored(host)] == ["before", "during"], "they are young"
        await talker.expire(KEEP)
        assert [key for key, _ in await stored(host)] == ["during"], "its turn may run again"
        ended = Query.same("UPDATE inbox SET ended_at = accepted_at WHERE agent = ? RETURNING id")
        await host.store.fetch(ended, "Talker/t")
        await talker.expire(KEEP)
        assert await stored(host) == []


@pytest.mark.virtual_time
async def test_they_are_cleared_with_what_the_turn_leaves_behind(sqlite_url: str) -> None:
    async with hosting(Talker, url=sqlite_url) as host:
        talker = host.get(Talker, "t")
        await talker.note("a")
        for days, kept in ((29, ["a", "b"]), (2, ["b"]), (29, [])):
            await asyncio.sleep(days * 24 * 3600)
            await talker.save_messages("Hi")
            await talker.note("b")  # once
            await asyncio.sleep(11 * 60)
            assert [key for key, _ in await stored(host)] == kept
