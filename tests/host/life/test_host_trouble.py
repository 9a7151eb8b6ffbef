"""A host in trouble: what hangs, fails or does not answer harms nobody else, and nothing is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import asyncpg
import pytest

from outlast import ActivationFailed, Agent, FiberContext, Host, OwnershipLost
from outlast.agent.fibers import sql
from outlast.core.errors import StoreClosed, StoreUnavailable
from outlast.host.life import host as host_module
from outlast.store import fencing
from outlast.store.base import StoreOptions
from outlast.store.operations import Fence, Query
from outlast.store.sqlite.engine import SqliteOptions, open_sqlite
from support import World, alarm_rows, fiber_rows, forever, hosting, live_activation

PATIENCE = 60.0  # seconds


class Worker(Agent):
    """Leaves work behind, and goes on with it."""

    log: ClassVar[list[Any]] = []
    starts: ClassVar[Any] = None

    async def on_start(self) -> None:
        if type(self).starts is not None:
            await type(self).starts(self)

    async def begin(self) -> None:
        await self.run_fiber("work", self.work, 0)._fiber.accepted

    async def work(self, fiber: FiberContext, n: int) -> None:
        await forever()

    async def rest(self, fiber: FiberContext, n: int) -> None:
        self.log.append(f"{self.name} went on from {n}")

    async def on_fiber_recovered(self, fiber: Any) -> None:
        fiber.resume(self.rest)

    async def put(self, n: int) -> None:
        await self.storage.put("n", n)

    async def n(self) -> Any:
        return await self.storage.get("n")


class Neighbour(Worker): ...


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Worker.log, Worker.starts = [], None


def fence_of(host: Host, kind: type[Agent], name: str) -> Fence:
    """Under which the agent writes, which is in memory."""
    fence = live_activation(host, kind, name).fence
    assert fence is not None
    return fence


# --- taking work up again ------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_last_commit_of_a_dead_process_does_not_make_its_successor_give_up(
    world: World,
) -> None:
    host = await world.host(Worker, shutdown_timeout=0)
    await host.get(Worker, "a").begin()
    dead = fence_of(host, Worker, "a")
    await world.stop()

    async def on_start(agent: Worker) -> None:
        await asyncio.sleep(10)

    Worker.starts = on_start
    host = await world.next_life()
    await asyncio.sleep(5)  # its row was read; now what the dead one had sent arrives
    ((id,),) = await fiber_rows(host, "id")
    zombie = Fence(dead.root, dead.owner, None, dead.epoch, dead.commit_no, held=True)
    await host.store.commit(zombie, [(sql.STASH, (dead.root, id, "7"))])
    await asyncio.sleep(60)
    assert Worker.log == ["a went on from 7"]
    assert (await fiber_rows(host), await alarm_rows(host)) == ([], [])


@pytest.mark.virtual_time
async def test_work_is_taken_up_again_though_the_store_cannot_be_read_just_then(
    world: World,
) -> None:
    host = await world.host(Worker)
    await host.get(Worker, "a").begin()
    fence_of(host, Worker, "a").commit_no += 7  # as if an older copy of the store had come back
    fetch, failures = host.store.fetch, iter(range(3))

    async def failing(query: Any, *arguments: Any) -> Any:
        if query is fencing.READ and next(failures, None) is not None:
            raise StoreUnavailable("the network is down")
        return await fetch(query, *arguments)

    host.store.fetch = failing  # type: ignore[method-assign]
    with pytest.raises(OwnershipLost):
        await host.get(Worker, "a").put(1)
    await asyncio.sleep(60)
    assert next(failures, None) is None
    assert Worker.log == ["a went on from 0"]
    assert await fiber_rows(host) == []


@pytest.mark.virtual_time
async def test_a_fiber_of_an_on_start_that_raises_later_is_taken_up_again(world: World) -> None:
    tries: list[float] = []

    async def on_start(agent: Worker) -> None:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) == 1:
            await agent.begin()
            await asyncio.sleep(1)
            raise OSError("a remote service is down")

    Worker.starts = on_start
    host = await world.host(Worker)
    with pytest.raises(ActivationFailed, match="remote service is down"):
        await host.get(Worker, "a").n()
    await asyncio.sleep(60)
    assert len(tries) == 2
    assert Worker.log == ["a went on from 0"]
    assert (await fiber_rows(host), await alarm_rows(host)) == ([], [])


# --- what hangs ----------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_agents_whose_on_start_hangs_do_not_stop_the_boot_of_others(store_url: str) -> None:
    async with hosting(Worker, url=store_url, shutdown_timeout=0) as host:
        for name in ("hung 1", "hung 2", "hung 3", "well 1", "well 2"):
            await host.get(Worker, name).begin()

    async def on_start(agent: Worker) -> None:
        if agent.name.startswith("hung"):
            await forever()

    Worker.starts = on_start
    options: dict[str, Any] = {"boot_concurrency": 2, "shutdown_timeout": 0}
    async with hosting(Worker, url=store_url, life="2", **options) as host:
        await asyncio.sleep(60)
        assert sorted(Worker.log) == ["well 1 went on from 0", "well 2 went on from 0"]
        assert (host.statistics().held, host.statistics().booting) == (3, False)


@pytest.mark.virtual_time
@pytest.mark.parametrize("hung", [100, 250])
async def test_hooks_that_hang_do_not_stop_the_alarms_of_others(
    sqlite_world: World, hung: int
) -> None:
    ticks: list[float] = []

    class Hanging(Worker):
        async def on_fiber_recovered(self, fiber: Any) -> None:
            if fiber.attempt == 1:
                raise OSError("a remote service is down")
            await forever()

    class Ticker(Agent):
        async def begin(self) -> None:
            await self.schedule(3600, self.tick)

        async def tick(self, payload: Any = None) -> None:
            ticks.append(asyncio.get_running_loop().time())

    host = await sqlite_world.host(Hanging, shutdown_timeout=0)
    await asyncio.gather(*(host.get(Hanging, str(n)).begin() for n in range(hung)))
    host = await sqlite_world.next_life(Hanging, Ticker, shutdown_timeout=0)
    await host.get(Ticker, "t").begin()
    await asyncio.sleep(2 * 3600)
    assert [round(at) for at in ticks] == [3600]


# --- whose context -------------------------------------------------------------------------------


_user: ContextVar[str | None] = ContextVar("user", default=None)


@pytest.mark.virtual_time
async def test_work_that_an_alarm_wakes_does_not_see_the_context_of_whoever_set_it(
    sqlite_world: World,
) -> None:
    seen: list[Any] = []

    class Ticker(Agent):
        async def begin(self) -> None:
            await self.schedule(10, self.tick)

        async def tick(self, payload: Any = None) -> None:
            seen.append((self.name, _user.get()))

    host = await sqlite_world.host(Ticker)

    async def request(name: str) -> None:
        _user.set(name)
        await host.get(Ticker, name).begin()

    await host.until_settled()
    for name in ("alice", "bob"):
        await asyncio.create_task(request(name))
        await asyncio.sleep(1)
    await asyncio.sleep(60)
    assert seen == [("alice", None), ("bob", None)]


# --- a store that does not answer ----------------------------------------------------------------


@pytest.mark.virtual_time
async def test_stopping_takes_no_longer_than_a_moment_if_the_disk_is_gone(tmp_path: Path) -> None:
    is_gone = False

    def sync(descriptor: int) -> None:
        if is_gone:
            raise OSError(5, "Input/output error")

    def gone() -> Any:
        raise StoreUnavailable("the disk is gone")

    store = open_sqlite(SqliteOptions(tmp_path / "store.db", sync=sync), StoreOptions())
    store._disk.in_thread = True  # so that it is `sync` that is asked
    store._tune(store._db)
    host = Host([Worker], store, shutdown_timeout=1)  # time does not wait for this store
    await host.start()
    await host.get(Worker, "a").put(1)
    is_gone, store._connect = True, gone  # type: ignore[method-assign]
    putting = asyncio.create_task(host.get(Worker, "a").put(2))
    while store.statistics().unavailable_for is None:
        await asyncio.sleep(0)
    started = asyncio.get_running_loop().time()
    async with asyncio.timeout(PATIENCE):
        await host.stop()
    assert asyncio.get_running_loop().time() - started <= 10
    with pytest.raises(StoreClosed, match="unknown whether this commit is durable"):
        await putting


@contextlib.asynccontextmanager
async def locked(postgres_url: str) -> AsyncIterator[None]:
    """Somebody else has locked every agent's row: a commit is not answered."""
    dsn, schema = postgres_url.rsplit("schema=", 1)
    other = await asyncpg.connect(dsn.rstrip("?&"), server_settings={"search_path": schema})
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE agents IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await other.close()


async def test_stopping_takes_no_longer_than_a_moment_if_the_server_does_not_answer(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "CLOSE_WITHIN", 0.05, raising=False)
    host = Host([Worker], postgres_url, shutdown_timeout=0)
    await host.start()
    await host.get(Worker, "a").put(1)
    async with locked(postgres_url):
        putting = asyncio.create_task(host.get(Worker, "a").put(2))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await host.stop()
        with pytest.raises(StoreClosed, match="unknown whether this commit is durable"):
            await putting


# --- one that cannot be discarded ----------------------------------------------------------------


@pytest.mark.virtual_time
async def test_an_init_that_replaces_a_part_of_the_agent_is_refused_and_harms_no_other(
    world: World,
) -> None:
    class Own(Worker):
        def __init__(self) -> None:
            self._parts = {}  # type: ignore[assignment]

    host = await world.host(Own, Neighbour)
    with pytest.raises(ActivationFailed, match=r"Own\.__init__ replaces self\._parts") as info:
        await host.get(Own, "a").put(1)
    assert isinstance(info.value.__cause__, TypeError)
    await host.get(Neighbour, "b").put(1)
    assert await host.get(Neighbour, "b").n() == 1
    written = await host.store.fetch(Query.same("SELECT root FROM agents"))
    assert written == [("Neighbour/b",)]


@pytest.mark.virtual_time
async def test_an_agent_that_cannot_be_discarded_harms_no_neighbour_in_its_group(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Worker):
        def _leave(self, reason: Exception) -> None:
            if isinstance(reason, OwnershipLost):
                raise ZeroDivisionError("not today")
            super()._leave(reason)

    host = await world.host(Stuck, Neighbour)
    stuck, neighbour = host.get(Stuck, "a"), host.get(Neighbour, "b")
    await asyncio.gather(stuck.put(0), neighbour.put(0))
    fence_of(host, Stuck, "a").epoch += 5  # somebody else has taken it over
    lost, kept = await asyncio.gather(stuck.put(1), neighbour.put(1), return_exceptions=True)
    assert (type(lost), kept) == (OwnershipLost, None)
    await neighbour.put(2)
    assert (await stuck.n(), await neighbour.n()) == (0, 2)
    await world.stop()
    assert "cannot stop Stuck/a" in caplog.text
