"""What the callback of `chat` is told in the end: a caller can tell stopped from complete."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import doing, talker, until, until_running

from outlast import Abort
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time

SLOW = Step.text("one two three", delay=1)


class Plain:
    """Knows nothing of stopped turns."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, ...]] = []

    def on_event(self, chunk: str) -> None: ...

    def on_done(self) -> None:
        self.ends.append(("done",))

    def on_error(self, error: str) -> None:
        self.ends.append(("error", error))


class Careful(Plain):
    async def on_aborted(self, reason: str) -> None:
        self.ends.append(("aborted", reason))


async def test_a_completed_turn_is_done(world: World) -> None:
    Talker = talker(ScriptedModel("Hi."))
    host = await world.host(Talker)
    await host.get(Talker, "a").chat("u1", told := Careful())
    assert told.ends == [("done",)]


@pytest.mark.parametrize(
    ("callback", "end"),
    [
        (Careful, ("aborted", "enough")),
        (Plain, ("error", "The turn was stopped: enough")),
    ],
)
@pytest.mark.parametrize("how", ["running", "waiting", "signal", "signal set before"])
async def test_a_stopped_one_is_not(
    world: World, callback: type[Any], end: tuple[str, str], how: str
) -> None:
    Talker = talker(ScriptedModel(SLOW, repeat=True))
    told, signal = callback(), Abort()
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    if how == "signal set before":
        signal.set("enough")
    if how == "waiting":
        await a.submit_messages("first")
        await until_running(host, Talker)
    task = asyncio.create_task(a.chat("u1", told, signal=signal))
    if how != "signal set before":
        turn = await until_running(host, Talker)
        id = turn.request_id
        if how == "waiting":
            (id,) = await until(lambda: doing(host, Talker).waiting)
        if how == "signal":
            signal.set("enough")
        else:
            await a.cancel_chat(id, "enough")
    await task
    assert told.ends == [end]


@pytest.mark.parametrize(("callback", "kind"), [(Careful, "aborted"), (Plain, "error")])
async def test_a_skipped_one_is_not_either(world: World, callback: type[Any], kind: str) -> None:
    Talker = talker(ScriptedModel(SLOW, repeat=True))
    told = callback()
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("first")
    await until_running(host, Talker)
    task = asyncio.create_task(a.chat("u1", told))
    await until(lambda: doing(host, Talker).waiting)
    await a.reset_turns("a new subject")
    await task
    assert [end[0] for end in told.ends] == [kind]
    assert "a new subject" in told.ends[0][1]
