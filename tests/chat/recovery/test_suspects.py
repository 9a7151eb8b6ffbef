"""A turn that may be what kills its process: resumed after its neighbours and alone, and not for ever."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from conversation import inbox
from interruptions import Told, break_off, incidents, talker, tell_nobody, wait_for

from outlast import ChatRecovery
from outlast.host.wakeups.boot_order import BootOrder
from outlast.testing import ScriptedModel, Step
from support import hosting

pytestmark = pytest.mark.virtual_time

SILENT = Step.text("one ") + Step.stalls()  # it says no more, until its process dies


async def die(url: str, Talker: type[Any], life: int, after: float) -> list[float]:
    """A life of a process: when the model was asked in it. It is killed then, or so many seconds later."""
    loop = asyncio.get_running_loop()
    async with hosting(
        Talker, url=url, life=str(life), shutdown_timeout=0, cause="crashed"
    ) as host:
        tell_nobody(host)
        began, before = loop.time(), len(Talker.model.requests)
        asked: list[float] = []
        while loop.time() < began + after and not asked:
            await asyncio.sleep(0.05)
            if len(Talker.model.requests) > before + len(asked):
                asked.append(round(loop.time() - began, 1))
    return asked


async def test_it_waits_longer_each_time_and_is_given_up_in_the_end(store_url: str) -> None:
    exhausted: list[Any] = []
    Talker = talker(
        ScriptedModel(SILENT, Step.stalls(), by="request", repeat=True),
        chat_recovery=ChatRecovery(max_attempts=6, on_exhausted=exhausted.append),
    )
    await break_off(store_url, Talker, "u1", after=1, killed=True)
    waits = [await die(store_url, Talker, life, after=10) for life in range(2, 8)]
    assert [round(wait[0]) for wait in waits] == [0, 1, 2, 4, 5, 5]
    async with hosting(Talker, url=store_url, life="9", cause="crashed") as host:
        told = Told(host)
        await wait_for(host, Talker)
        [event] = told("chat:recovery:exhausted")
        assert (event.reason, event.host_deaths) == ("max_attempts_exceeded", 7)
        assert event.incident_id == "s1"
        assert await inbox(host, "outcome") == [("error",)]
    [context] = exhausted
    assert (context.host_deaths, context.attempt, context.recovery_kind) == (7, 7, "continue")


async def test_a_death_while_it_waited_is_not_its_own(store_url: str) -> None:
    Talker = talker(
        ScriptedModel(SILENT, Step.stalls(), by="request", repeat=True),
        chat_recovery=ChatRecovery(max_attempts=3),
    )
    await break_off(store_url, Talker, "u1", after=1, killed=True)
    for life in (2, 3):
        assert len(await die(store_url, Talker, life, after=5)) == 1
    for life in range(4, 8):
        assert await die(store_url, Talker, life, after=0.4) == []
    async with hosting(Talker, url=store_url, life="8", shutdown_timeout=0) as host:
        [(body,)] = await incidents(host, "body")
        stored = json.loads(body)
        assert (stored["attempt"], stored["host_deaths"], stored["begun"]) == (3, 3, 0)
    [wait] = await die(store_url, Talker, 9, after=5)
    assert wait < 0.5, "it does not wait for longer, because others have died meanwhile"


async def test_neighbours_go_on_at_once(store_url: str) -> None:
    asked: dict[str, float] = {}
    starts: list[float] = []

    async def before_turn(self: Any, context: Any) -> None:
        asked[self.name] = asyncio.get_running_loop().time()

    slow = Step.text(chunks=[f"{n} " for n in range(500)], delay=0.1)
    Talker = talker(ScriptedModel(slow), before_turn=before_turn)
    Poison = type(
        "Poison",
        (Talker,),
        {"model": ScriptedModel(SILENT, Step.stalls(), by="request", repeat=True)},
    )
    names = [f"a{n}" for n in range(10)]
    async with hosting(Talker, Poison, url=store_url, shutdown_timeout=0) as host:
        tell_nobody(host)
        for name in names:
            await host.get(Talker, name).submit_messages("u1", submission_id=name)
        await host.get(Poison, "p").submit_messages("u1", submission_id="p")
        await asyncio.sleep(1)
    for life in range(2, 6):
        async with hosting(
            Talker, Poison, url=store_url, life=str(life), shutdown_timeout=0, cause="crashed"
        ) as host:
            tell_nobody(host)
            asked.clear()
            began = asyncio.get_running_loop().time()
            while {*asked} != {*names, "p"}:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.6)  # and they get on: what they say first is held back for 0.4 s
            assert all(asked[name] - began < 0.5 for name in names)
            starts.append(asked["p"])
    apart = [later - earlier for earlier, later in zip(starts, starts[1:], strict=False)]
    assert [round(seconds) for seconds in apart] == [1, 2, 4]


async def test_two_suspects_never_begin_together(store_url: str) -> None:
    began: list[tuple[str, float]] = []

    async def before_turn(self: Any, context: Any) -> None:
        began.append((self.name, asyncio.get_running_loop().time()))

    Talker = talker(
        ScriptedModel(SILENT, Step.stalls(), by="request", repeat=True), before_turn=before_turn
    )
    async with hosting(Talker, url=store_url, shutdown_timeout=0) as host:
        tell_nobody(host)
        for name in ("a", "b", "c"):
            await host.get(Talker, name).submit_messages("u1", submission_id=name)
        await asyncio.sleep(1)
    for life in ("2", "3"):
        began.clear()
        async with hosting(
            Talker, url=store_url, life=life, shutdown_timeout=0, cause="crashed"
        ) as host:
            tell_nobody(host)
            await asyncio.sleep(10)
    times = [time for _, time in began]
    assert len(times) == 3
    assert all(later - earlier >= 2 for earlier, later in zip(times, times[1:], strict=False))


async def test_a_suspect_that_gets_on_makes_way_for_the_next(store_url: str) -> None:
    began: list[float] = []

    async def before_turn(self: Any, context: Any) -> None:
        began.append(asyncio.get_running_loop().time())

    slow = Step.text(chunks=[f"{n} " for n in range(8)], delay=0.5)
    Talker = talker(ScriptedModel(SILENT, repeat=True))
    Talker.before_turn = before_turn
    async with hosting(Talker, url=store_url, shutdown_timeout=0) as host:
        tell_nobody(host)
        for name in ("a", "b", "c"):
            await host.get(Talker, name).submit_messages("u1", submission_id=name)
        await asyncio.sleep(1)
    for life in ("2", "3"):
        began.clear()
        Talker.model = ScriptedModel(slow if life == "3" else Step.stalls(), repeat=True)
        async with hosting(
            Talker, url=store_url, life=life, shutdown_timeout=0, cause="crashed"
        ) as host:
            tell_nobody(host)
            await asyncio.sleep(0.3 if life == "2" else 20)
    assert len(began) == 3
    assert max(began) - min(began) < 2.5, "half a second each, until the first word"


# --- the order itself ----------------------------------------------------------------------------


async def test_those_who_start_together_do_and_one_alone_is_alone() -> None:
    order, seen = BootOrder(), []

    async def boot(name: str, alone: bool) -> None:
        me = name if alone else None
        await order.enter(me)
        seen.append(f"{name} in")
        await asyncio.sleep(1)
        seen.append(f"{name} out")
        order.leave(me)

    async with asyncio.TaskGroup() as group:
        for name, alone in (("a", False), ("b", False), ("X", True), ("c", False), ("Y", True)):
            group.create_task(boot(name, alone))
            await asyncio.sleep(0.1)
    assert seen == [
        "a in",
        "b in",
        "a out",
        "b out",
        "X in",
        "X out",
        "c in",
        "c out",
        "Y in",
        "Y out",
    ]


async def test_who_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    order = BootOrder()
    await order.enter("X")
    waiting = [asyncio.create_task(order.enter(name)) for name in ("Y", None, "Z")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[2].cancel()
    await asyncio.gather(*waiting[::2], return_exceptions=True)
    order.leave("X")
    order.leave("X")  # again: nothing
    await waiting[1]
    order.leave()
    await order.enter("W")


async def test_who_is_cancelled_in_the_tick_in_which_it_could_begin_leaves_no_trace() -> None:
    order = BootOrder()
    await order.enter("X")
    waiting = asyncio.create_task(order.enter("Y"))
    await asyncio.sleep(0)
    waiting.cancel()
    order.leave("X")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await order.enter("Z")
