"""Clearing and resetting: nothing that was asked before it is answered after it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    counts,
    inbox,
    leftovers,
    said,
    talker,
    until,
    until_running,
)

from outlast import Debounce, Think, TurnConfig, tool
from outlast.agent.agent import parts_of
from outlast.chat.admission import Admission
from outlast.chat.inbox.inbox import Request
from outlast.chat.run.stop import Stop
from outlast.chat.transcript.transcript import Transcript
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

SLOW = Step.text("one two three four", delay=1)
EMPTY = {"messages": 0, "streams": 0}


class Cleared(Think):
    """Can be cleared at any point of a turn."""

    chat_recovery = False

    at: asyncio.Event

    async def before_turn(self, context: Any) -> TurnConfig | None:
        if context.body.get("hook"):
            await asyncio.sleep(5)
        return None

    @tool
    async def work(self) -> str:
        await asyncio.sleep(60)
        return "done"


async def _waiting(host: Any, a: Any) -> None:
    Cleared.model = answering(SLOW)
    await a.submit_messages("u0")
    await a.submit_messages("u1")
    await until_running(host, Cleared)


async def _debouncing(host: Any, a: Any) -> None:
    Cleared.model = answering("Hello")
    await a.get_messages()
    asking = parts_of(agent_of(host, Cleared))[Admission]
    await asking.message(Request("message", "chat", asking.messages("u1")), Debounce(10))
    await asyncio.sleep(5)


async def _accepting(host: Any, a: Any) -> None:
    Cleared.model = answering(SLOW)
    await a.get_messages()
    Cleared.pending = asyncio.create_task(a.save_messages("u1"))  # type: ignore[attr-defined]
    await asyncio.sleep(0)


async def _just_accepted(host: Any, a: Any) -> None:
    Cleared.model = answering(SLOW)
    await a.submit_messages("u1")


async def _before_the_first_chunk(host: Any, a: Any) -> None:
    Cleared.model = answering(SLOW)
    await a.submit_messages("u1", body={"hook": True})
    await until_running(host, Cleared)
    await asyncio.sleep(1)


async def _in_the_text(host: Any, a: Any) -> None:
    Cleared.model = answering(SLOW)
    await a.submit_messages("u1")
    await until_running(host, Cleared)
    await asyncio.sleep(2.5)


async def _in_a_flood(host: Any, a: Any) -> None:
    words = [f"w{n} " for n in range(5000)]
    Cleared.model = answering(Step.text(chunks=words) + Step.stalls())
    await a.submit_messages("u1")
    turn = await until_running(host, Cleared)
    await until(lambda: turn.stream.chunks)


async def _in_a_tool(host: Any, a: Any) -> None:
    Cleared.model = ScriptedModel.calls("work").then("Done.")
    await a.submit_messages("u1")
    await until_running(host, Cleared)
    await asyncio.sleep(1)


POINTS = {
    point.__name__.strip("_").replace("_", " "): point
    for point in (
        _waiting,
        _debouncing,
        _accepting,
        _just_accepted,
        _before_the_first_chunk,
        _in_the_text,
        _in_a_flood,
        _in_a_tool,
    )
}


@pytest.mark.invariant("D4", "D5", "E5")
@pytest.mark.parametrize("point", POINTS)
async def test_nothing_is_left_of_what_was_asked_before_a_clear(world: World, point: str) -> None:
    Cleared.pending = None  # type: ignore[attr-defined]
    host = await world.host(Cleared, idle_timeout=3600)
    a = host.get(Cleared, "a")
    await POINTS[point](host, a)
    await a.clear_messages()
    model: Any = Cleared.model
    calls = len(model.requests)
    assert await a.get_messages() == []
    assert await counts(host, *EMPTY) == EMPTY
    await asyncio.sleep(120)
    await host.until_settled()
    assert await counts(host, *EMPTY) == EMPTY
    assert len(model.requests) == calls
    if Cleared.pending is not None:  # type: ignore[attr-defined]
        assert (await Cleared.pending).status in ("skipped", "aborted")  # type: ignore[attr-defined]
    assert {state for state, _ in await inbox(host)} == {"ended"}
    assert {outcome for _, outcome in await inbox(host)} <= {"skipped", "aborted"}
    agent = agent_of(host, Cleared)
    assert leftovers(agent) == {}
    Cleared.model = after = answering("Fresh")
    begun = asyncio.get_running_loop().time()
    assert (await a.save_messages("new")).message.text == "Fresh"
    assert asyncio.get_running_loop().time() - begun < 1
    assert len(after.requests[0].messages) == 1
    host = await world.next_life()
    await host.until_settled()
    lines = said(await host.get(Cleared, "a").get_messages())
    assert lines == ["user: new", "assistant: Fresh"]
    assert len(after.requests) == 1


@pytest.mark.invariant("D4")
@pytest.mark.parametrize("point", POINTS)
async def test_a_reset_stops_everything_and_keeps_what_was_said(world: World, point: str) -> None:
    host = await world.host(Cleared, idle_timeout=3600)
    a = host.get(Cleared, "a")
    await POINTS[point](host, a)
    await a.reset_turns("enough")
    model: Any = Cleared.model
    calls = len(model.requests)
    await asyncio.sleep(120)
    await host.until_settled()
    assert len(model.requests) == calls
    assert {outcome for _, outcome in await inbox(host)} <= {"skipped", "aborted"}
    assert {error for (error,) in await inbox(host, "error")} == {"enough"}
    lines = said(await a.get_messages())
    if point == "in the text":
        assert lines == ["user: u1", "assistant: one two "]
    if point == "waiting":  # it was a submission
        assert "user: u1" not in lines
    if point == "debouncing":
        assert "user: u1" in lines
    assert leftovers(agent_of(host, Cleared)) == {}


@pytest.mark.invariant("D4")
async def test_a_reset_at_the_moment_of_the_claim_is_durable(store_url: str) -> None:
    for n in range(6):
        Talker = talker(model := answering(Step.text("one ") + Step.stalls()))
        async with hosting(Talker, url=store_url, life=f"{n}", shutdown_timeout=0) as host:
            a = host.get(Talker, "a")
            await a.submit_messages("u1", submission_id=f"s{n}")
            for _ in range(n):
                await asyncio.sleep(0)
            agent = agent_of(host, Talker)
            parts_of(agent)[Stop]._abort = lambda *_: None  # the process ends before that
            await a.reset_turns("enough")
        async with hosting(Talker, url=store_url, life=f"{n} again") as host:
            await host.until_settled()
            found = await host.get(Talker, "a").inspect_submission(f"s{n}")
            assert found.status in ("skipped", "aborted")
        assert len(model.requests) <= 1


@pytest.mark.invariant("E5")
async def test_a_chunk_that_comes_while_the_clearing_is_written_is_not_stored(
    world: World,
) -> None:
    Talker = talker(answering(Step.text("one ") + Step.stalls()))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("u1")
    turn = await until_running(host, Talker)
    await asyncio.sleep(1)
    activation = parts_of(agent_of(host, Talker)).activation
    submit = activation.submit

    def with_a_late_chunk(operations: Any) -> Any:
        activation.submit = submit
        outcome = submit(operations)
        turn.emit('{"type":"text-delta","id":"s1-0","delta":"late"}')
        turn.stream._flush()
        return outcome

    activation.submit = with_a_late_chunk
    await a.clear_messages()
    await host.until_settled()
    assert await counts(host, *EMPTY) == EMPTY


async def test_whoever_waits_for_a_cleared_turn_is_told_so(world: World) -> None:
    Talker = talker(answering(SLOW))
    heard: list[str] = []

    class Ear:
        def on_event(self, chunk: str) -> None: ...

        def on_done(self) -> None:
            heard.append("done")

        def on_aborted(self, reason: str) -> None:
            heard.append(reason)

        def on_interrupted(self) -> None:
            heard.append("interrupted")

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    running = asyncio.create_task(a.chat("u0", Ear()))
    await until_running(host, Talker)
    queued = asyncio.create_task(a.save_messages("u1"))
    await asyncio.sleep(1.5)
    await a.clear_messages()
    assert ((await queued).status, (await queued).error) == (
        "skipped",
        "the conversation was cleared",
    )
    await running
    assert heard == ["the conversation was cleared"]


async def test_clearing_in_the_middle_of_many_messages_loses_only_those_before_it(
    world: World,
) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    for n in range(20):
        before = [asyncio.create_task(a.save_messages(f"before {i}")) for i in range(3)]
        for _ in range(n):
            await asyncio.sleep(0)
        clearing = asyncio.create_task(a.clear_messages())
        await asyncio.sleep(0)
        after = asyncio.create_task(a.save_messages("after"))
        await asyncio.gather(*before, clearing, after)
        assert after.result().status == "completed"
        lines = said(await a.get_messages())
        assert lines[-2:] == ["user: after", "assistant: Hello"]
        before_clear = parts_of(agent_of(host, Talker))[Transcript].path
        await a.clear_messages()
        assert await counts(host, *EMPTY) == EMPTY
        assert before_clear


async def test_a_tool_may_clear_the_conversation_that_it_runs_in(world: World) -> None:
    class Forgetful(Think):
        model = ScriptedModel.calls("forget").then("Done.")

        @tool
        async def forget(self) -> str:
            await self.clear_messages()
            return "forgotten"

    host = await world.host(Forgetful)
    a = host.get(Forgetful, "a")
    async with asyncio.timeout(10):
        turn = await a.save_messages("u1")
    assert turn.status == "aborted"
    await host.until_settled()
    assert await counts(host, *EMPTY) == EMPTY
