"""Cancelling: durable when it returns, whatever the turn is doing just then."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    counts,
    inbox,
    leftovers,
    rows,
    said,
    talker,
    until,
    until_running,
)

from outlast import Abort, Think, TurnConfig, tool
from outlast.agent.agent import parts_of
from outlast.chat.run.stop import Stop
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.state import TurnState
from outlast.testing import ScriptedModel, Step
from outlast.testing.sweep import _fast_folder
from support import World, hosting

pytestmark = pytest.mark.virtual_time

SLOW = Step.text("one two three four", delay=1)


class Worker(Think):
    """Its tool takes its time, and notes how it ended."""

    chat_recovery = False

    log: list[str] = []

    @tool
    async def work(self, seconds: float = 60) -> str:
        Worker.log.append("begun")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            Worker.log.append("cancelled")
            raise
        Worker.log.append("done")
        return "done"


async def test_what_waits_becomes_part_of_the_conversation_and_is_not_answered(
    world: World,
) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1"))
    await until_running(host, Talker)
    second = asyncio.create_task(a.save_messages(["u2", "u3"], idempotency_key="k"))
    await asyncio.sleep(1)
    id = (await inbox(host, "id"))[1][0]
    assert await a.cancel_chat(id, "changed my mind")
    cancelled = await second
    assert (cancelled.status, cancelled.error) == ("aborted", "changed my mind")
    assert cancelled.message is None
    assert (await first).status == "completed"
    told = [(each.role, each.text) for each in await a.get_messages()]
    assert told == [
        *[("user", "u1"), ("assistant", "one two three four")],
        *[("user", "u2"), ("user", "u3")],
    ]
    assert len(model.requests) == 1
    again = await a.save_messages("u2", idempotency_key="k")
    assert (again.status, again.accepted) == ("aborted", False)
    await host.until_settled()
    assert leftovers(agent_of(host, Talker)) == {}


@pytest.mark.invariant("L2")
async def test_a_submission_that_waits_is_taken_back_without_a_trace(world: World) -> None:
    Talker = talker(answering(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1"))
    await until_running(host, Talker)
    await a.submit_messages(["u2", "u3", "u4"], submission_id="s1")
    assert await a.cancel_submission("s1")
    assert (await first).status == "completed"
    assert [each.text for each in await a.get_messages()] == ["u1", "one two three four"]


@pytest.mark.invariant("D9", "D13")
@pytest.mark.parametrize(("moment", "kept"), [(0.5, None), (1.5, "one "), (3.5, "one two three ")])
async def test_a_turn_that_is_cancelled_keeps_what_it_has_said(
    world: World, moment: float, kept: str | None
) -> None:
    Talker = talker(model := answering(SLOW, "Next"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    chunks: list[Any] = []

    async def read() -> None:
        async for chunk in a.stream("u1"):
            chunks.append(chunk)

    reading = asyncio.create_task(read())
    turn = await until_running(host, Talker)
    await asyncio.sleep(moment)
    begun = asyncio.get_running_loop().time()
    assert await a.cancel_chat(turn.request_id, "stop")
    await reading
    assert asyncio.get_running_loop().time() - begun < 0.1
    assert chunks[-1] == {"type": "abort", "reason": "stop"}
    await a.save_messages("u2")
    partial = [] if kept is None else [f"assistant: {kept}"]
    order = ["user: u1", *partial, "user: u2", "assistant: Next"]
    assert said(await a.get_messages()) == order
    stored = await inbox(host, "outcome, error, cancelled")
    assert stored == [("aborted", "stop", "stop"), ("completed", None, None)]
    status = [each for (each,) in await rows(host, "messages", "status", "number")]
    assert ("stopped" in status) == (kept is not None)
    for part in (await a.get_messages())[1].parts:
        assert part.get("state") != "streaming"
    host = await world.next_life()
    await host.until_settled()
    assert said(await host.get(Talker, "a").get_messages()) == order
    await world.stop()
    assert len(model.requests) == 2


@pytest.mark.invariant("D12", "D13")
async def test_a_cancel_stops_a_tool_that_runs(world: World) -> None:
    Worker.log.clear()
    Worker.model = model = ScriptedModel(
        Step.text("Let me see. ") + Step.calls("work") + Step.calls("work"), "Done."
    )
    host = await world.host(Worker)
    a = host.get(Worker, "a")
    waiting = asyncio.create_task(a.save_messages("u1"))
    await until(lambda: len(Worker.log) == 2)
    begun = asyncio.get_running_loop().time()
    assert await a.cancel_chat((await inbox(host, "id"))[0][0], "enough")
    turn = await waiting
    assert asyncio.get_running_loop().time() - begun < 0.1
    assert turn.status == "aborted"
    assert Worker.log == ["begun", "begun", "cancelled", "cancelled"]
    assert len(model.requests) == 1
    states = [p.get("state") for p in turn.message.parts if p["type"] == "tool-work"]
    assert states == ["output-error", "output-error"]
    assert len(await a.get_messages()) == 2
    await host.until_settled()
    assert leftovers(agent_of(host, Worker)) == {}
    model.answers[:] = ["Fine."]
    assert (await a.save_messages("u2")).status == "completed"


@pytest.mark.invariant("D12", "D13")
async def test_a_cancel_stops_a_continuation_and_the_message_stays_one(world: World) -> None:
    Talker = talker(answering("Once upon", Step.text(" a time there was", delay=1)))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    waiting = asyncio.create_task(a.continue_last_turn())
    turn = await until_running(host, Talker)
    await asyncio.sleep(2.5)
    assert await a.cancel_chat(turn.request_id)
    assert (await waiting).status == "aborted"
    _, answer = await a.get_messages()
    assert answer.text.split() == ["Once", "upon", "a", "time"]
    assert (await counts(host, "messages"))["messages"] == 2


@pytest.mark.invariant("D12", "D14")
@pytest.mark.parametrize(("takes", "outcome"), [(0.2, None), (60, "unknown")])
async def test_a_tool_that_does_not_let_itself_be_stopped_makes_no_further_request(
    world: World, takes: float, outcome: str | None
) -> None:
    class Stubborn(Think):
        model = ScriptedModel.calls("hold").then("Done.")

        @tool
        async def hold(self) -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(takes)
            return "finished anyway"

    host = await world.host(Stubborn)
    a = host.get(Stubborn, "a")
    waiting = asyncio.create_task(a.save_messages("u1"))
    turn = await until_running(host, Stubborn)
    await asyncio.sleep(1)
    begun = asyncio.get_running_loop().time()
    await a.cancel_chat(turn.request_id)
    ended = await waiting
    assert asyncio.get_running_loop().time() - begun < 1
    assert ended.status == "aborted"
    (call,) = [part for part in ended.message.parts if part["type"] == "tool-hold"]
    if outcome is None:
        assert call["output"] == "finished anyway"
    else:
        assert call["resultProviderMetadata"]["outlast"]["outcome"] == outcome
        assert "is unknown" in call["errorText"]
    assert len(Stubborn.model.requests) == 1  # type: ignore[union-attr]


async def test_cancelling_what_is_not_there_or_has_ended_does_nothing(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    assert not await a.cancel_chat("unknown")
    turn = await a.save_messages("u1")
    assert not await a.cancel_chat(turn.request_id)
    assert not await a.cancel_submission(turn.request_id)
    assert await inbox(host, "outcome, cancelled") == [("completed", None)]


async def test_cancelling_twice_keeps_the_first_reason(world: World) -> None:
    Talker = talker(answering(Step.text("one ") + Step.stalls()))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    waiting = asyncio.create_task(a.save_messages("u1"))
    turn = await until_running(host, Talker)
    await asyncio.gather(*(a.cancel_chat(turn.request_id, f"reason {n}") for n in range(5)))
    assert (await waiting).error == "reason 0"
    assert await inbox(host, "outcome, error, cancelled") == [("aborted", "reason 0", "reason 0")]


@pytest.mark.parametrize("reason", ["a\0b", "half \ud83d", "x" * 100_000])
async def test_any_reason_can_be_stored(world: World, reason: str) -> None:
    Talker = talker(answering(Step.stalls(), "Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    waiting = asyncio.create_task(a.save_messages("u1"))
    turn = await until_running(host, Talker)
    waiting_too = await a.submit_messages("u2")
    assert await a.cancel_submission(waiting_too.id, reason)
    assert await a.cancel_chat(turn.request_id, reason)
    assert (await waiting).status == "aborted"
    await a.reset_turns(reason)
    assert (await a.save_messages("u3")).status == "completed"


@pytest.mark.invariant("D10")
@pytest.mark.parametrize("what", ["waiting", "running", "in a tool"])
async def test_a_cancel_outlasts_the_host_that_stops_right_behind_it(
    world: World, what: str
) -> None:
    Worker.log.clear()
    first = Step.calls("work") if what == "in a tool" else Step.text("one ") + Step.stalls()
    Worker.model = model = answering(first)
    host = await world.host(Worker, shutdown_timeout=0)
    a = host.get(Worker, "a")
    one = await a.submit_messages("u1")
    two = await a.submit_messages("u2")
    await asyncio.sleep(1)
    agent = agent_of(host, Worker)
    # The process ends before the turn hears of it.
    parts_of(agent)[Stop]._abort = lambda *_: None
    parts_of(agent)[TurnState]._announce_end = lambda *_: None
    assert await a.cancel_chat((two if what == "waiting" else one).id, "enough")
    await world.stop()
    calls = len(model.requests)
    host = await world.next_life()
    if what == "waiting":
        model.answers[:] = ["Hello"]
    else:
        await host.get(Worker, "a").cancel_chat(two.id)
    await host.until_settled()
    outcomes = [outcome for _, outcome in await inbox(host)]
    assert outcomes == (["interrupted", "aborted"] if what == "waiting" else ["aborted", "aborted"])
    assert "user: u2" not in said(await host.get(Worker, "a").get_messages())
    await world.stop()
    if what == "waiting":
        assert len(model.requests) == calls


@pytest.mark.invariant("D10")
async def test_a_cancel_between_the_hosts_reaches_what_the_first_left_running(
    world: World,
) -> None:
    Talker = talker(model := answering(Step.text("one ") + Step.stalls()))
    host = await world.host(Talker, shutdown_timeout=0)
    submitted = await host.get(Talker, "a").submit_messages("u1")
    await asyncio.sleep(1)
    host = await world.next_life()
    await host.get(Talker, "a").cancel_chat(submitted.id, "late")
    await host.until_settled()
    assert (await inbox(host))[0][1] in ("aborted", "interrupted")
    assert said(await host.get(Talker, "a").get_messages()) == ["user: u1", "assistant: one "]
    await world.stop()
    assert len(model.requests) == 1


# --- signals -------------------------------------------------------------------------------------


@pytest.mark.invariant("D9")
async def test_a_signal_that_is_set_already_makes_no_request(world: World) -> None:
    Talker = talker(model := answering("Hello"))
    signal = Abort()
    signal.set("too late")
    heard: list[str] = []

    class Ear:
        def on_event(self, chunk: str) -> None:
            heard.append(chunk)

        def on_done(self) -> None:
            heard.append("done")

        def on_aborted(self, reason: str) -> None:
            heard.append(reason)

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    for n in range(20):
        turn = await a.save_messages(f"u{n}", signal=signal)
        assert (turn.status, turn.error) == ("aborted", "too late")
    await a.chat("u", Ear(), signal=signal)
    await host.until_settled()
    assert heard == ["too late"]
    assert model.requests == []
    said = [each.text for each in await a.get_messages()]
    assert said == [*(f"u{n}" for n in range(20)), "u"]
    assert signal._listeners == []
    assert leftovers(agent_of(host, Talker)) == {}


async def test_a_signal_stops_the_turn_of_its_caller_and_no_other(world: World) -> None:
    Talker = talker(answering(SLOW))
    signal = Abort()
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1", signal=signal))
    second = asyncio.create_task(a.save_messages("u2"))
    await asyncio.sleep(2.5)
    signal.set("stop")
    assert ((await first).status, (await first).message.text) == ("aborted", "one two ")
    assert (await second).status == "completed"
    assert signal._listeners == []


async def test_before_turn_and_tools_may_look_at_the_signal(world: World) -> None:
    class Looking(Think):
        model = answering("Hello")
        seen: list[Any] = []

        async def before_turn(self, context: Any) -> TurnConfig | None:
            try:
                await asyncio.sleep(1000)
            finally:
                Looking.seen.append(context.signal.reason)

    host = await world.host(Looking)
    a = host.get(Looking, "a")
    waiting = asyncio.create_task(a.save_messages("u1"))
    turn = await until_running(host, Looking)
    await asyncio.sleep(1)
    await a.cancel_chat(turn.request_id, "now")
    assert (await waiting).status == "aborted"
    assert Looking.seen == ["now"]
    assert Looking.model.requests == []  # type: ignore[union-attr]


@pytest.mark.invariant("D11")
async def test_a_thousand_turns_leave_nothing_behind_in_memory() -> None:
    class Mixed(Think):
        model = ScriptedModel(
            lambda messages: Step.calls("quick") if len(messages) % 8 == 1 else "Hello", repeat=True
        )

        @tool
        async def quick(self) -> str:
            await asyncio.sleep(0.01)
            return "ok"

    signal = Abort()
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:  # thousands of commits
        async with hosting(Mixed, url=f"sqlite:///{folder}/store.db") as host:
            a = host.get(Mixed, "a")
            for _ in range(50):
                turns = [
                    asyncio.create_task(a.save_messages(f"u{n}", signal=signal)) for n in range(20)
                ]
                turn = await until_running(host, Mixed)
                await a.cancel_chat(turn.request_id)
                turns[-1].cancel()
                await asyncio.gather(*turns, return_exceptions=True)
                await host.until_settled()
                assert turn.abort._listeners == []
                await a.clear_messages()
            assert signal._listeners == []
            agent = agent_of(host, Mixed)
            assert leftovers(agent) == {}
            assert (await counts(host, "inbox"))["inbox"] == 1000
            assert parts_of(agent).activation.calls == {}
            assert len(parts_of(agent)[Transcript]._stamps) <= 200
