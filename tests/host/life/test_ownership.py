"""Ownership: whoever takes an agent over owns it, and the one before can write nothing at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any, ClassVar

import pytest

from outlast import Agent, FiberContext, Host, OwnershipLost
from outlast.agent.agent import parts_of
from outlast.store import fencing
from outlast.store.base import Store
from outlast.store.operations import Fence, Query
from outlast.store.url import open_store
from support import ONE_SERVER, World, fiber_rows, forever, hosting, listen, raw, write_alarm

pytestmark = pytest.mark.virtual_time


class Account(Agent):
    log: ClassVar[list[str]] = []

    async def put(self, value: str) -> int:
        await self.storage.put("value", value)
        return id(self)

    async def get(self) -> str:
        return str(await self.storage.get("value"))

    async def begin(self) -> None:
        self.started = self.run_fiber("work", self.work)
        await self.started._fiber.accepted

    async def work(self, fiber: FiberContext) -> None:
        try:
            await forever()
        finally:
            Account.log.append(f"fiber of {parts_of(self).activation.fence.owner} left")  # type: ignore

    async def on_fiber_recovered(self, fiber: Any) -> None:
        Account.log.append("recovered")

    # --- every way to write ----------------------------------------------------------------------

    async def write_storage(self) -> None:
        await self.storage.put("value", "stale")

    async def delete_storage(self) -> None:
        await self.storage.delete("value")

    async def write_block(self) -> None:
        async with self.commit():
            await self.storage.put("value", "stale")
            await self.storage.put("more", "stale")

    async def write_fiber(self) -> None:
        await self.run_fiber("stale", self.must_not_run)._fiber.accepted

    async def write_managed_fiber(self) -> None:
        await self.start_fiber("stale", self.must_not_run, id="stale")

    async def cancel_a_fiber(self) -> None:
        await self.cancel_fiber("managed")

    async def write_stash(self) -> None:
        await self.started._fiber.stash("stale")

    async def write_alarm(self) -> None:
        await write_alarm(self, "tea", 1)

    async def must_not_run(self, fiber: FiberContext) -> None:
        Account.log.append("a fiber ran without a row")

    async def prepare(self) -> None:
        """Something of everything that a stale owner might damage."""
        await self.storage.put("value", "mine")
        await self.begin()
        await self.start_fiber("managed", forever, id="managed")


WRITES = [
    Account.write_storage,
    Account.delete_storage,
    Account.write_block,
    Account.write_fiber,
    Account.write_managed_fiber,
    Account.cancel_a_fiber,
    Account.write_stash,
    Account.write_alarm,
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Account.log = []


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = await open_store(url, ONE_SERVER)
    try:
        yield store
    finally:
        await store.close()


async def take_away(host: Host, url: str, root: str) -> None:
    """Somebody else becomes the owner, as if by another host."""
    if host.store.engine == "sqlite":
        with closing(raw(url)) as db:
            db.execute(
                "UPDATE agents SET epoch = epoch + 1, owner = 'thief', commit_no = commit_no + 1"
                " WHERE root = ?",
                (root,),
            )
    else:
        (known,) = await host.store.fetch(fencing.READ, root)
        async with opened(url) as other:
            await other.commit(Fence.after(root, "thief", known), [])


async def everything(host: Host) -> dict[str, list[tuple[Any, ...]]]:
    """Every row that the store has."""
    tables = {"agents": "root", "storage": "agent, key", "fibers": "agent, id", "alarms": "agent"}
    return {
        table: await host.store.fetch(Query.same(f"SELECT * FROM {table} ORDER BY {order}"))
        for table, order in tables.items()
    }


@pytest.mark.invariant("B8")
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_an_owner_with_an_old_epoch_can_write_nothing_at_all(
    world: World, write: Any
) -> None:
    host = await world.host(Account)
    stub = host.get(Account, "x")
    await stub.prepare()
    await asyncio.sleep(1)  # both fibers run
    await take_away(host, world.url, "Account/x")
    before = await everything(host)
    with pytest.raises(OwnershipLost, match=r"Account/x: epoch 1 no longer owns"):
        await getattr(stub, write.__name__)()
    await asyncio.sleep(30)  # and nothing follows later
    assert await everything(host) == before
    assert "a fiber ran without a row" not in Account.log
    await host.stop(0)


@pytest.mark.invariant("B8")
async def test_a_host_that_lost_an_agent_discards_it_stops_its_fibers_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    host = await world.host(Account)
    await host.until_settled()
    lost = listen(host, "fence:lost")
    stub = host.get(Account, "x")
    await stub.put("mine")
    await stub.begin()
    await take_away(host, world.url, "Account/x")
    assert host.statistics().active == 1  # it cannot know yet
    with pytest.raises(OwnershipLost):
        await stub.put("stale")
    assert host.statistics().active == 0
    await asyncio.sleep(0.1)
    assert Account.log == ["fiber of owner_1_1 left"]
    assert [(event.name, event.agent) for event in lost] == [("fence:lost", "Account/x")]
    assert "another host or activation took over" in caplog.text
    await asyncio.sleep(3600)
    assert Account.log == ["fiber of owner_1_1 left"]  # its work is the new owner's
    assert len(await fiber_rows(host)) == 1


async def test_a_fiber_that_loses_its_agent_while_it_writes_stops_there(world: World) -> None:
    class Stepper(Agent):
        steps: ClassVar[list[str]] = []

        async def begin(self) -> None:
            await self.run_fiber("steps", self.stepping)._fiber.accepted

        async def stepping(self, fiber: FiberContext) -> None:
            for step in range(100):
                await asyncio.sleep(1)
                await fiber.stash(step)
                Stepper.steps.append(str(step))

    host = await world.host(Stepper)
    await host.get(Stepper, "x").begin()
    await asyncio.sleep(5.5)
    await take_away(host, world.url, "Stepper/x")
    await asyncio.sleep(1000)
    assert Stepper.steps == ["0", "1", "2", "3", "4"]
    assert [row[2] for row in await fiber_rows(host)] == ["4"]
    assert host.statistics().active == 0


@pytest.mark.invariant("B8")
async def test_two_hosts_take_an_agent_from_each_other_and_no_write_is_lost_or_mixed(
    postgres_url: str,
) -> None:
    async with (
        hosting(Account, url=postgres_url, life="A") as first,
        hosting(Account, url=postgres_url, life="B") as second,
    ):
        await first.until_settled()
        await second.until_settled()  # it has booted, and found nothing
        mine, theirs = first.get(Account, "x"), second.get(Account, "x")
        object_of_first = await mine.put("from A")
        await mine.begin()
        await theirs.put("from B")  # takes it over, with its unfinished fiber
        with pytest.raises(OwnershipLost):
            await mine.put("stale")
        assert await theirs.get() == "from B"
        await second.until_settled()
        assert sorted(Account.log) == ["fiber of owner_A_1 left", "recovered"]

        assert await mine.get() == "from B"  # a new object, which reads what the other wrote
        assert await mine.put("from A again") != object_of_first
        with pytest.raises(OwnershipLost):
            await theirs.put("stale")
        assert await theirs.get() == "from A again"
        assert (first.statistics().active, second.statistics().active) == (1, 1)


async def test_reading_takes_nothing_away(postgres_url: str) -> None:
    async with (
        hosting(Account, url=postgres_url, life="A") as first,
        hosting(Account, url=postgres_url, life="B") as second,
    ):
        mine, theirs = first.get(Account, "x"), second.get(Account, "x")
        await mine.put("from A")
        for n in range(5):
            assert await theirs.get() == "from A" if n == 0 else f"from A {n - 1}"
            await mine.put(f"from A {n}")


async def test_of_two_hosts_that_write_first_at_the_same_time_one_wins_and_the_other_is_told(
    postgres_url: str,
) -> None:
    async with (
        hosting(Account, url=postgres_url, life="A") as first,
        hosting(Account, url=postgres_url, life="B") as second,
    ):
        stubs = {"A": first.get(Account, "x"), "B": second.get(Account, "x")}
        for stub in stubs.values():
            assert await stub.get() == "None"  # both are active, neither has written
        answers = await asyncio.gather(
            *(stub.put(f"from {name}") for name, stub in stubs.items()), return_exceptions=True
        )
        lost = [isinstance(answer, OwnershipLost) for answer in answers]
        assert sorted(lost) == [False, True]
        winner = "B" if lost[0] else "A"
        assert await stubs[winner].get() == f"from {winner}"


async def test_every_call_in_flight_of_a_lost_agent_is_told(world: World) -> None:
    host = await world.host(Account)
    stub = host.get(Account, "x")
    await stub.put("mine")
    await take_away(host, world.url, "Account/x")
    answers = await asyncio.gather(
        *(stub.put(f"stale {n}") for n in range(20)), return_exceptions=True
    )
    assert all(isinstance(answer, OwnershipLost) for answer in answers)
    assert len({id(answer) for answer in answers}) == 20  # each its own, with its own traceback
    assert await stub.get() == "mine"
    await stub.put("mine again")
    assert await stub.get() == "mine again"


async def test_losing_one_agent_harms_no_other_in_the_same_transaction(world: World) -> None:
    host = await world.host(Account)
    names = [f"a{n}" for n in range(10)]
    await asyncio.gather(*(host.get(Account, name).put("first") for name in names))
    await take_away(host, world.url, "Account/a3")
    answers = await asyncio.gather(
        *(host.get(Account, name).put("second") for name in names), return_exceptions=True
    )
    assert [isinstance(answer, OwnershipLost) for answer in answers] == [
        name == "a3" for name in names
    ]
    values = await asyncio.gather(*(host.get(Account, name).get() for name in names))
    assert values == ["first" if name == "a3" else "second" for name in names]
