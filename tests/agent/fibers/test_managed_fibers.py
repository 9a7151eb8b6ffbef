"""Managed fibers: looked up, joined, cancelled, resolved, deleted."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from outlast import (
    Agent,
    FiberConflict,
    FiberContext,
    FiberInspection,
    FiberRecoveryContext,
    FiberResolution,
    NotInFiber,
)
from support import World, fiber_rows, forever, hosting

pytestmark = pytest.mark.virtual_time


class Manager(Agent):
    hook: Any = None

    async def on_fiber_recovered(self, fiber: FiberRecoveryContext) -> Any:
        return await type(self).hook(self, fiber) if type(self).hook else None


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    Manager.hook = None


async def nothing(fiber: FiberContext) -> None: ...


async def failing(fiber: FiberContext) -> None:
    raise ValueError("boom")


async def test_from_accepted_to_completed(world: World) -> None:
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    seen: list[Any] = []

    async def work(fiber: FiberContext, n: int) -> None:
        seen.append((await fiber_rows(host))[0][:2])
        await fiber.stash(n + 1)

    accepted = await agent.start_fiber("work", work, 1, id="w", metadata={"for": "you"})
    assert (accepted.id, accepted.status, accepted.accepted) == ("w", "pending", True)
    done = await agent.start_fiber("work", work, 1, id="w", wait=True)
    assert seen == [("w", "running")]
    assert (done.status, done.accepted, done.snapshot) == ("completed", False, 2)
    assert done.metadata == {"for": "you"}
    assert isinstance(done.settled_at, datetime)
    assert done.created_at <= (done.started_at or done.created_at) <= done.settled_at
    assert await agent.inspect_fiber("w") == FiberInspection(
        **{**{name: getattr(done, name) for name in done.__slots__}, "accepted": True}
    )


async def test_an_error_is_kept_with_its_text(world: World) -> None:
    host = await world.host(Manager)
    done = await host.get(Manager, "a").start_fiber("work", failing, wait=True)
    assert (done.status, done.error) == ("error", "ValueError: boom")


async def test_an_error_with_hostile_text_settles_too(world: World) -> None:
    host = await world.host(Manager)

    async def hostile(fiber: FiberContext) -> None:
        raise ValueError("NUL \0, half \ud800, and " + "long " * 10_000)

    done = await host.get(Manager, "a").start_fiber("work", hostile, wait=True)
    assert done.status == "error"
    assert (done.error or "").startswith("ValueError: NUL \ufffd, half \ufffd, and long")
    assert len(done.error or "") == 10_000


@pytest.mark.invariant("A19")
async def test_fifty_starts_with_one_key_run_the_code_once(world: World) -> None:
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    ran: list[int] = []

    async def work(fiber: FiberContext, number: int) -> None:
        ran.append(number)

    found = await asyncio.gather(
        *(agent.start_fiber("work", work, n, idempotency_key="k", wait=True) for n in range(50))
    )
    assert len(ran) == 1
    assert len({one.id for one in found}) == 1
    assert {one.status for one in found} == {"completed"}
    assert sum(one.accepted for one in found) == 1
    assert len(await fiber_rows(host)) == 1


@pytest.mark.invariant("A19")
async def test_id_and_key_that_disagree_raise_and_blank_ones_too(world: World) -> None:
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    await agent.start_fiber("work", nothing, id="one", idempotency_key="k1", wait=True)
    await agent.start_fiber("work", nothing, id="two", idempotency_key="k2", wait=True)
    same = await agent.start_fiber("work", nothing, id="one", idempotency_key="k1")
    assert not same.accepted
    with pytest.raises(FiberConflict, match="'k2' belongs to the fiber 'two'"):
        await agent.start_fiber("work", nothing, id="one", idempotency_key="k2")
    with pytest.raises(FiberConflict, match="has the idempotency key 'k1'"):
        await agent.start_fiber("work", nothing, id="one", idempotency_key="new")
    for bad in ("", "  ", "a\0", "\ud800", "x" * 1001):
        with pytest.raises(FiberConflict, match="id must"):
            await agent.start_fiber("work", nothing, id=bad)
        with pytest.raises(FiberConflict, match="idempotency_key must"):
            await agent.start_fiber("work", nothing, idempotency_key=bad)
    assert len(await fiber_rows(host)) == 2


async def test_keys_of_different_agents_are_their_own(world: World) -> None:
    host = await world.host(Manager)
    one = await host.get(Manager, "a").start_fiber("w", nothing, id="x", idempotency_key="k")
    two = await host.get(Manager, "b").start_fiber("w", nothing, id="x", idempotency_key="k")
    assert one.accepted
    assert two.accepted


@pytest.mark.invariant("A20")
async def test_late_completion_never_overwrites_a_cancel_and_waiters_do_not_wait_for_it(
    world: World,
) -> None:
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    go = asyncio.Event()
    late: list[str] = []

    async def stubborn(fiber: FiberContext) -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                late.append("cancelled")
        with pytest.raises(NotInFiber):
            await fiber.stash("too late")
        late.append("returned")

    started = await agent.start_fiber("work", stubborn, id="w")
    waiting = asyncio.create_task(agent.start_fiber("work", stubborn, id="w", wait=True))
    await asyncio.sleep(1)
    assert await agent.cancel_fiber("w")
    assert (await waiting).status == "aborted"
    assert late == ["cancelled"], "the code still runs"
    go.set()
    await host.until_settled()
    assert late == ["cancelled", "returned"]
    settled = await agent.inspect_fiber(started.id)
    assert settled is not None
    assert (settled.status, settled.snapshot) == ("aborted", None)


async def test_cancel_before_the_code_began_and_of_what_is_not_there(sqlite_world: World) -> None:
    host = await sqlite_world.host(Manager)
    agent = host.get(Manager, "a")
    ran: list[int] = []

    async def work(fiber: FiberContext) -> None:
        ran.append(1)

    await agent.start_fiber("work", work, id="w")
    assert await agent.cancel_fiber("w")
    await host.until_settled()
    assert not await agent.cancel_fiber("w")
    assert not await agent.cancel_fiber("unknown")
    found = await agent.inspect_fiber("w")
    assert found is not None
    assert found.status == "aborted"
    assert await agent.inspect_fiber("unknown") is None


async def interrupted(url: str, *ids: str) -> None:
    async with hosting(Manager, url=url, life="0", shutdown_timeout=0) as host:
        for id in ids:
            await host.get(Manager, "a").start_fiber("work", forever, {"n": id}, id=id)
        await asyncio.sleep(1)


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (None, "interrupted", None),
        (FiberResolution("completed", metadata={"m": 1}, snapshot={"s": 1}), "completed", None),
        (FiberResolution("error", "no luck"), "error", "no luck"),
        (FiberResolution("aborted"), "aborted", None),
        (FiberResolution("interrupted"), "interrupted", None),
        (
            FiberResolution("running"),
            "error",
            "FiberConflict: the status of a FiberResolution must be completed",
        ),  # type: ignore[arg-type]
        (FiberResolution("error", metadata=1), "error", "FiberConflict: the metadata of"),
        (ValueError("hook"), "error", "ValueError: hook"),
        ("nonsense", "error", "TypeError: on_fiber_recovered must return None"),
    ],
)
async def test_what_the_hook_returns_settles_it_once(
    store_url: str, answer: Any, status: str, error: str | None
) -> None:
    await interrupted(store_url, "w")
    calls: list[Any] = []

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> Any:
        calls.append((fiber.managed, fiber.snapshot))
        if isinstance(answer, Exception):
            raise answer
        return answer

    Manager.hook = hook
    for life in ("2", "3"):
        async with hosting(Manager, url=store_url, life=life) as host:
            await host.until_settled()
            await asyncio.sleep(600)
            found = await host.get(Manager, "a").inspect_fiber("w")
            assert found is not None
            assert found.status == status
            assert (found.error or "").startswith(error or "")
            assert found.settled_at is not None
            if status == "completed":
                assert (found.metadata, found.snapshot) == ({"m": 1}, {"s": 1})
            else:
                assert found.snapshot == {"n": "w"}
    assert calls == [(True, {"n": "w"})]


async def test_resume_of_a_managed_fiber_keeps_its_id_and_key(world: World) -> None:
    await interrupted(world.url, "w")

    async def work(fiber: FiberContext, plan: Any) -> None:
        await fiber.stash({**plan, "ended": fiber.id})

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        fiber.resume(work)

    Manager.hook = hook
    host = await world.host(Manager)
    found = await host.get(Manager, "a").start_fiber("work", work, id="w", wait=True)
    assert (found.accepted, found.status) == (False, "completed")
    assert found.snapshot == {"n": "w", "ended": "w"}


async def test_a_fiber_started_in_the_hook_of_a_managed_one_goes_on_under_its_record(
    world: World,
) -> None:
    await interrupted(world.url, "w")
    seen: list[Any] = []

    async def other(fiber: FiberContext) -> None:
        seen.append((fiber.id, fiber.name, fiber.snapshot))

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> None:
        agent.run_fiber("other work", other)

    Manager.hook = hook
    host = await world.host(Manager)
    await host.until_settled()
    found = await host.get(Manager, "a").inspect_fiber("w")
    assert found is not None
    assert (found.status, found.name) == ("completed", "other work")
    assert len(await fiber_rows(host)) == 1
    await world.stop()
    assert seen == [("w", "other work", {"n": "w"})]


async def test_resolve_an_interrupted_one_by_hand(world: World) -> None:
    await interrupted(world.url, "w", "v")
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    await host.until_settled()
    with pytest.raises(FiberConflict, match="FiberResolution must be completed"):
        await agent.resolve_fiber("w", "running")  # type: ignore[arg-type]
    assert await agent.resolve_fiber("w", "completed", snapshot=[1], metadata={"by": "hand"})
    assert not await agent.resolve_fiber("w", "error"), "it is not interrupted any more"
    assert not await agent.resolve_fiber("unknown", "error")
    found = await agent.inspect_fiber("w")
    assert found is not None
    assert (found.status, found.snapshot, found.metadata) == ("completed", [1], {"by": "hand"})


async def test_waiting_for_a_fiber_of_a_dead_process_waits_for_its_recovery(
    world: World,
) -> None:
    await interrupted(world.url, "w")

    async def hook(agent: Agent, fiber: FiberRecoveryContext) -> FiberResolution:
        await asyncio.sleep(60)
        return FiberResolution("completed")

    Manager.hook = hook
    host = await world.host(Manager)
    found = await host.get(Manager, "a").start_fiber("work", nothing, id="w", wait=True)
    assert found.status == "completed"


async def test_list_is_newest_first_and_filters_before_it_limits(world: World) -> None:
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    for n in range(6):
        function = failing if n % 2 else nothing
        await agent.start_fiber(f"n{n % 3}", function, id=f"f{n}", wait=True)
        await asyncio.sleep(1)
    await agent.start_fiber("n9", nothing, id="other", wait=True)

    async def ids(**filters: Any) -> list[str]:
        return [one.id for one in await agent.list_fibers(**filters)]

    assert await ids() == ["other", "f5", "f4", "f3", "f2", "f1", "f0"]
    assert await ids(limit=2) == ["other", "f5"]
    assert await ids(status="error", limit=2) == ["f5", "f3"]
    assert await ids(status=["error", "completed"], name="n1") == ["f4", "f1"]
    assert await ids(name="n1", limit=1) == ["f4"]
    assert await ids(status="pending") == []
    for limit in (0, 101, "x"):
        with pytest.raises(ValueError, match="limit must be an int from 1 to 100"):
            await agent.list_fibers(limit=limit)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="status must be one of .*, got .done."):
        await agent.list_fibers(status="done")  # type: ignore[arg-type]


async def test_delete_takes_ended_ones_oldest_first_and_interrupted_only_if_asked(
    world: World,
) -> None:
    await interrupted(world.url, "i")
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    await host.until_settled()
    for n in range(5):
        await asyncio.sleep(1)
        await agent.start_fiber("work", nothing, id=f"f{n}", wait=True)
    running = await agent.start_fiber("work", forever, id="r")

    async def ids() -> list[str]:
        return sorted(one.id for one in await agent.list_fibers())

    assert await agent.delete_fibers(limit=2) == 2
    assert await ids() == ["f2", "f3", "f4", "i", "r"]
    third = await agent.inspect_fiber("f3")
    assert third is not None
    assert await agent.delete_fibers(settled_before=third.settled_at) == 1
    assert await ids() == ["f3", "f4", "i", "r"]
    assert await agent.delete_fibers(status="running") == 0, "what runs is never deleted"
    assert await agent.delete_fibers() == 2
    assert await agent.delete_fibers(status=["interrupted"]) == 1
    assert await ids() == ["r"]
    assert await agent.cancel_fiber(running.id)
    with pytest.raises(ValueError, match="from 1 to 500"):
        await agent.delete_fibers(limit=501)


async def test_an_empty_filter_means_none(world: World) -> None:
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    await agent.start_fiber("done", nothing, id="done", wait=True)
    for none in ([], (), iter([]), set[Any]()):
        assert await agent.list_fibers(status=none) == []
    assert await agent.list_fibers(name="") == []
    for none in ([], (), iter([]), set[Any]()):
        assert await agent.delete_fibers(status=none) == 0
    assert [one.id for one in await agent.list_fibers()] == ["done"]


async def test_a_time_without_a_zone_is_refused(world: World) -> None:
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    await agent.start_fiber("done", nothing, id="done", wait=True)
    with pytest.raises(ValueError, match="settled_before must have a time zone"):
        await agent.delete_fibers(settled_before=datetime(2100, 1, 1))
    with pytest.raises(TypeError, match="settled_before must be a datetime, got 5"):
        await agent.delete_fibers(settled_before=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="settled_before must have a time zone"):
        await agent.delete_fibers(status=[], settled_before=datetime(2100, 1, 1))
    assert [one.id for one in await agent.list_fibers()] == ["done"]


async def test_a_fiber_is_found_and_cancelled_by_its_key(world: World) -> None:
    host = await world.host(Manager)
    agent = host.get(Manager, "a")
    started = await agent.start_fiber("work", forever, idempotency_key="order-7")
    found = await agent.inspect_fiber(idempotency_key="order-7")
    assert found is not None
    assert found.id == started.id
    assert await agent.inspect_fiber(idempotency_key="order-8") is None
    assert not await agent.cancel_fiber(idempotency_key="order-8")
    assert await agent.cancel_fiber(idempotency_key="order-7")
    assert (await agent.inspect_fiber(started.id)).status == "aborted"
    assert not await agent.cancel_fiber(idempotency_key="order-7")


@pytest.mark.parametrize("named", [{}, {"id": "x", "idempotency_key": "y"}])
async def test_a_fiber_is_named_by_its_id_or_its_key(sqlite_world: World, named: Any) -> None:
    host = await sqlite_world.host(Manager)
    agent = host.get(Manager, "a")
    for method in (agent.inspect_fiber, agent.cancel_fiber):
        with pytest.raises(TypeError, match="pass either"):
            await method(**named)
