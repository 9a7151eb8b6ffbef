"""Turns: one after another, in order, each with a durable end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    asked,
    counts,
    inbox,
    leftovers,
    reasons,
    rows,
    said,
    talker,
    until,
    until_running,
)

from outlast import HostStopped, Think, TurnConfig, tool
from outlast.agent.agent import parts_of
from outlast.chat.transcript.transcript import Transcript
from outlast.core.errors import StoreUnavailable
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

SLOW = Step.text("one two three four", delay=1)


class Callback:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_event(self, chunk: str) -> None: ...

    def on_done(self) -> None:
        self.heard.append("done")

    def on_error(self, error: str) -> None:
        self.heard.append("error")


class Watched(ScriptedModel):
    """Notes when it begins and when it ends to answer."""

    def __init__(self) -> None:
        super().__init__(SLOW, by="request", repeat=True)
        self.spans: list[tuple[float, float]] = []

    def request_stream(self, *arguments: Any, **keywords: Any) -> Any:
        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def watched() -> Any:
            begun = asyncio.get_running_loop().time()
            async with ScriptedModel.request_stream(self, *arguments, **keywords) as stream:
                yield stream
            self.spans.append((begun, asyncio.get_running_loop().time()))

        return watched()


@pytest.mark.invariant("D1")
async def test_turns_of_one_agent_never_overlap_however_they_were_started(world: World) -> None:
    model = Watched()
    Talker = talker(model)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("first")

    async def drain() -> None:
        async for _ in a.stream("streamed"):
            pass

    entries: list[Any] = []
    for n in range(3):
        entries += [
            a.save_messages(f"saved {n}"),
            a.submit_messages(f"submitted {n}"),
            a.chat(f"chatted {n}", Callback()),
            drain(),
            a.continue_last_turn(),
            a.regenerate(),
            a.run_turn(f"run {n}"),
        ]
    await asyncio.gather(*entries)
    await host.until_settled()
    assert len(model.spans) == 22
    spans = sorted(model.spans)
    assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))
    assert {outcome for _, outcome in await inbox(host)} == {"completed"}
    assert leftovers(agent_of(host, Talker)) == {}


@pytest.mark.invariant("C4", "C5b")
async def test_a_message_that_waited_is_stored_after_the_answer_before_it(world: World) -> None:
    model = answering(SLOW)
    Talker = talker(model)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1"))
    await asyncio.sleep(2)
    second = asyncio.create_task(a.save_messages("u2"))
    third = asyncio.create_task(a.submit_messages(["u3", "u4"]))
    await asyncio.sleep(1)
    assert said(await a.get_messages()) == ["user: u1"]
    await asyncio.gather(first, second, third)
    await host.until_settled()
    whole = "assistant: one two three four"
    order = ["user: u1", whole, "user: u2", whole, "user: u3", "user: u4", whole]
    assert said(await a.get_messages()) == order
    assert [asked(request) for request in model.requests] == [
        ["u1"],
        ["u1", "u2"],
        ["u1", "u2", "u3", "u4"],
    ]
    host = await world.next_life()
    assert said(await host.get(Talker, "a").get_messages()) == order


@pytest.mark.invariant("C3", "C5")
async def test_what_waited_when_the_host_was_stopped_is_answered_in_order_by_the_next(
    world: World,
) -> None:
    Talker = talker(model := answering(Step.text("par", delay=1) + Step.stalls()))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    for n in range(4):
        await a.submit_messages(f"u{n}")
    await asyncio.sleep(2)
    await world.stop()
    model.answers[:] = ["whole"]
    host = await world.next_life()
    await host.until_settled()
    a = host.get(Talker, "a")
    assert said(await a.get_messages()) == [
        "user: u0",
        "assistant: par",
        *(line for n in (1, 2, 3) for line in (f"user: u{n}", "assistant: whole")),
    ]
    assert [outcome for _, outcome in await inbox(host)] == ["interrupted"] + 3 * ["completed"]
    assert asked(model.requests[1]) == ["u0", "u1"]
    status = await rows(host, "messages", "status", "number")
    assert [each for (each,) in status] == ["settled", "interrupted"] + 6 * ["settled"]


@pytest.mark.invariant("C11")
async def test_a_restart_without_anything_to_do_calls_no_model(store_url: str) -> None:
    Talker = talker(model := answering("Hello"))
    async with hosting(Talker, url=store_url) as host:
        await host.get(Talker, "a").save_messages("Hi")
    for life in "234":
        async with hosting(Talker, url=store_url, life=life) as host:
            assert len(await host.get(Talker, "a").get_messages()) == 2
            await host.until_settled()
    assert len(model.requests) == 1


@pytest.mark.invariant("C12")
async def test_an_agent_that_is_evicted_between_turns_goes_on_as_if_it_had_stayed(
    world: World,
) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker, idle_timeout=5)
    a = host.get(Talker, "a")
    for n in range(3):
        turn = await a.save_messages(f"u{n}")
        assert turn.status == "completed"
        await asyncio.sleep(60)
        assert host.statistics().active == 0
    assert [len(request.messages) for request in model.requests] == [1, 3, 5]
    assert len(await a.get_messages()) == 6


async def test_a_turn_keeps_its_agent_in_memory_and_so_does_what_waits(world: World) -> None:
    Talker = talker(answering(Step.text("one two", delay=100)))
    host = await world.host(Talker, idle_timeout=1)
    await host.get(Talker, "a").submit_messages("u1")
    await host.get(Talker, "a").submit_messages("u2")
    await asyncio.sleep(390)
    assert host.statistics().active == 1
    await host.until_settled()
    assert [outcome for _, outcome in await inbox(host)] == ["completed", "completed"]


async def test_a_host_that_stops_lets_a_turn_finish_if_that_does_not_take_too_long(
    world: World,
) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker, shutdown_timeout=10)
    await host.get(Talker, "a").submit_messages("u1")
    await until_running(host, Talker)
    host = await world.next_life()
    await host.until_settled()
    assert len(model.requests) == 1
    assert await inbox(host) == [("ended", "completed")]


@pytest.mark.invariant("H17")
async def test_whoever_waits_or_reads_when_the_host_stops_is_told_that_it_did(
    world: World,
) -> None:
    Talker = talker(answering(Step.text("one") + Step.stalls()))
    heard: list[str] = []

    class Listening(Callback):
        def on_done(self) -> None:
            heard.append("done")

        def on_interrupted(self) -> None:
            heard.append("interrupted")

    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")

    async def read() -> list[Any]:
        return [chunk async for chunk in a.stream("u2")]

    waiting = [
        asyncio.create_task(each)
        for each in (a.save_messages("u1"), a.chat("u3", Listening()), read())
    ]
    await asyncio.sleep(1)
    await world.stop()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], HostStopped)
    assert isinstance(results[1], HostStopped) or heard == ["interrupted"]
    assert isinstance(results[2], HostStopped)
    assert "done" not in heard


async def test_cancelling_whoever_waits_does_not_cancel_the_turn(world: World) -> None:
    Talker = talker(answering(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    waiting = asyncio.create_task(a.save_messages("u1"))
    await asyncio.sleep(2)
    waiting.cancel()
    chunks = a.stream("u2")
    await anext(chunks)
    await chunks.aclose()
    await host.until_settled()
    assert [outcome for _, outcome in await inbox(host)] == ["completed", "completed"]
    assert leftovers(agent_of(host, Talker)) == {}


# --- trouble -------------------------------------------------------------------------------------


@pytest.mark.invariant("C9")
async def test_a_turn_that_fails_leaves_its_message_and_does_not_hold_up_the_next(
    world: World,
) -> None:
    class Picky(Think):
        model = answering("Hello")

        async def before_turn(self, context: Any) -> TurnConfig | None:
            if context.body.get("bad"):
                raise ValueError("no, thank you")
            return None

    host = await world.host(Picky)
    a = host.get(Picky, "a")
    first, second = await asyncio.gather(
        a.save_messages("u1", body={"bad": True}), a.save_messages("u2")
    )
    assert (first.status, first.error) == ("error", "An error occurred.")
    assert (await reasons(host))[0] == "ValueError: no, thank you"
    assert (first.message, second.status) == (None, "completed")
    assert said(await a.get_messages()) == ["user: u1", "user: u2", "assistant: Hello"]
    host = await world.next_life()
    assert said(await host.get(Picky, "a").get_messages())[0] == "user: u1"


async def test_code_of_the_user_that_lets_a_cancellation_through_does_not_stop_the_queue(
    world: World,
) -> None:
    async def cancelled() -> None:
        other = asyncio.create_task(asyncio.sleep(100))
        other.cancel()
        await other

    class Careless(Think):
        model = ScriptedModel.calls("careless").then("Hello")

        async def before_turn(self, context: Any) -> TurnConfig | None:
            if context.body.get("hook"):
                await cancelled()
            return None

        @tool
        async def careless(self) -> None:
            await cancelled()

    host = await world.host(Careless)
    a = host.get(Careless, "a")
    async with asyncio.timeout(60):
        hook = await a.save_messages("u1", body={"hook": True})
        tool_ = await a.save_messages("u2")
    assert (hook.status, tool_.status) == ("error", "completed")
    (call,) = [part for part in tool_.message.parts if part["type"] == "tool-careless"]
    assert call["state"] == "output-error"


async def test_a_store_that_cannot_be_read_for_a_while_only_delays_the_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    transcript = parts_of(agent_of(host, Talker))[Transcript]
    failures = [StoreUnavailable("away"), StoreUnavailable("still away")]
    place_of = transcript.place_of

    async def failing(id: str) -> Any:
        if failures:
            raise failures.pop()
        return await place_of(id)

    monkeypatch.setattr(transcript, "place_of", failing)
    async with asyncio.timeout(60):
        turn = await a.regenerate()
    assert turn.status == "completed"
    assert failures == []
    assert len(await a.get_messages()) == 2


async def test_destroying_an_agent_in_the_middle_of_a_turn_leaves_nothing_of_it(
    world: World,
) -> None:
    Talker = talker(answering(Step.text("one two", delay=1) + Step.stalls()))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await host.get(Talker, "b").submit_messages("other")
    waiting = asyncio.create_task(a.save_messages("u1"))
    await a.submit_messages("u2")
    await asyncio.sleep(3)
    before = await counts(host)
    assert before["streams"]
    assert before["messages"]
    await a.destroy()
    with pytest.raises(Exception, match="destroyed"):
        await waiting
    await asyncio.sleep(5)
    for table in ("messages", "inbox", "streams", "facts", "alarms"):
        owners = {agent for (agent,) in await rows(host, table, "agent")}
        assert "Talker/a" not in owners
    await host.get(Talker, "b").cancel_chat((await inbox(host, "id"))[0][0])


async def test_deleting_a_sub_agent_in_the_middle_of_its_turn_leaves_nothing_of_it(
    world: World,
) -> None:
    class Silent(Think):
        model = answering(Step.text("one") + Step.stalls())

    class Boss(Think):
        sub_agents = [Silent]
        model = answering("Hello")

        async def hire(self) -> None:
            await (await self.sub_agent(Silent, "s")).submit_messages("u1")

        async def fire(self) -> bool:
            return await self.delete_sub_agent(Silent, "s")

    host = await world.host(Boss)
    b = host.get(Boss, "b")
    await b.hire()
    await asyncio.sleep(1)
    assert (await counts(host, "streams", "messages"))["streams"] > 0
    assert await b.fire()
    await host.until_settled()
    assert await counts(host, "messages", "inbox", "streams") == {
        "messages": 0,
        "inbox": 0,
        "streams": 0,
    }
    await until(lambda: host.statistics().held == 0)
