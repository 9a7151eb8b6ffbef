"""A model that falls silent, or is lost in the middle of its answer: the turn goes on in the same process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import check_answers, stored
from conversation import agent_of, answering, inbox, leftovers, rows
from interruptions import (
    ADDRESS,
    SLOW,
    Callback,
    Told,
    asked,
    break_off,
    check_requests,
    check_stream,
    chunks_read,
    incidents,
    is_continued,
    kinds,
    talker,
    tell_nobody,
    transcript,
    wait_for,
)

from outlast import ChatRecovery, RecoveryBootResult, TurnConfig
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

HALF = Step.text(chunks=["one ", "two "]) + Step.stalls()
REST = Step.text("three four")
ONE = "assistant: one two three four"


def stalling(*answers: Any, **members: Any) -> tuple[type[Any], ScriptedModel]:
    model = answering(*answers)
    return talker(model, **{"chat_stream_stall_timeout": 5, **members}), model


@pytest.mark.invariant("H15")
async def test_a_model_that_falls_silent_goes_on(world: World) -> None:
    responses: list[Any] = []
    Talker, model = stalling(
        HALF, REST, on_chat_response=lambda self, result: responses.append(result)
    )
    host = await world.host(Talker)
    told = Told(host)
    a = host.get(Talker, "a")
    turn = await a.save_messages("u1")
    assert turn.status == "completed"
    assert turn.message.text == "one two three four"
    assert told.decided == [(23, "continue", "stalled")]
    [stalled] = told("chat:stream:stalled")
    assert stalled.timeout_ms == 5000
    await host.until_settled()
    found = await stored(host, ADDRESS)
    check_stream(found, turn.request_id, "one two three four")
    check_answers(found)
    assert kinds(found, turn.request_id).count("text-start") == 1
    assert "error" not in kinds(found, turn.request_id), "nobody sees what went wrong"
    assert found.entry(turn.request_id).attempt == 2
    assert await incidents(host) == []
    assert leftovers(agent_of(host, Talker)) == {}
    await world.stop()
    assert [result.status for result in responses] == ["completed"]
    assert is_continued(model)
    check_requests(model)


@pytest.mark.invariant("H15")
async def test_a_model_that_sends_nothing_is_asked_again(world: World) -> None:
    Talker, model = stalling(Step.stalls(), "Hello.")
    host = await world.host(Talker)
    told = Told(host)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert (turn.status, turn.message.text) == ("completed", "Hello.")
    assert told.decided == [(22, "retry", "stalled")]
    assert len(await rows(host, "messages")) == 2
    await world.stop()
    assert [asked(model, place) for place in (0, 1)] == [["u1"]] * 2
    assert not is_continued(model)


@pytest.mark.invariant("H15")
async def test_a_model_that_is_always_silent_is_given_up(world: World) -> None:
    config = ChatRecovery(max_attempts=3, terminal_message="No luck.")
    Talker, model = stalling(Step.stalls(), chat_recovery=config)
    host = await world.host(Talker)
    told = Told(host)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert (turn.status, turn.error) == ("error", "No luck.")
    assert [row for row, _, _ in told.decided] == [22, 22, 22, 8]
    assert told("chat:recovery:exhausted")[0].reason == "max_attempts_exceeded"
    assert await incidents(host, "state") == [("exhausted",)]
    await world.stop()
    assert len(model.requests) == 4


async def test_it_is_asked_less_and_less_often(world: World) -> None:
    times: list[float] = []

    def silent(messages: Any) -> Step:
        times.append(asyncio.get_running_loop().time())
        return Step.stalls()

    Talker, model = stalling(silent, chat_recovery=ChatRecovery(max_attempts=4))
    host = await world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await world.stop()
    between = [round(later - earlier) for earlier, later in zip(times, times[1:], strict=False)]
    assert between == [5, 6, 7, 9]


@pytest.mark.invariant("H17")
async def test_whoever_called_is_told_of_the_interruption(world: World) -> None:
    """And the turn goes on without them."""
    Talker, model = stalling(HALF, REST)
    callback = Callback()
    host = await world.host(Talker)
    await host.get(Talker, "a").chat("u1", callback)
    assert callback.told == ["start", "interrupted"]
    assert callback.text == "one two "
    await wait_for(host, Talker)
    assert await transcript(host) == ["user: u1", ONE]
    assert await inbox(host, "outcome") == [("completed",)]


async def test_those_who_read_the_stream_read_on(world: World) -> None:
    Talker, _ = stalling(HALF, REST)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("u1", submission_id="s1")
    seen = await chunks_read(a, "s1")
    assert "".join(chunk.get("delta", "") for _, chunk in seen) == "one two three four"
    assert [seq for seq, _ in seen] == list(range(len(seen)))
    assert seen[-1][1]["type"] == "finish"


@pytest.mark.invariant("H16")
@pytest.mark.parametrize(
    ("own", "of_turn", "stalls"),
    [(None, None, False), (0, None, False), (5, 0, False), (None, 5, True), (0, 5, True)],
)
async def test_patience_is_set_by_the_agent_and_by_the_turn(
    world: World, own: float | None, of_turn: float | None, stalls: bool
) -> None:
    def before_turn(self: Any, context: Any) -> TurnConfig:
        return TurnConfig(chat_stream_stall_timeout=of_turn)

    Talker, model = stalling(
        Step.text("one two ") + Step.stalls(60) + REST,
        REST,
        chat_stream_stall_timeout=own,
        before_turn=before_turn,
    )
    host = await world.host(Talker)
    told = Told(host)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.message.text == "one two three four"
    assert len(told("chat:stream:stalled")) == stalls
    await world.stop()
    assert len(model.requests) == 1 + stalls


@pytest.mark.invariant("H15")
async def test_without_recovery_silence_is_an_error(world: World) -> None:
    Talker, model = stalling(HALF, REST, chat_recovery=False)
    host = await world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.status == "error"
    assert await transcript(host) == ["user: u1", "assistant: one two "]
    await world.stop()
    assert len(model.requests) == 1


@pytest.mark.parametrize("kind", ["connection", "overloaded"])
async def test_a_connection_that_is_lost_in_the_middle(world: World, kind: Any) -> None:
    broken = Step.text(chunks=["one ", "two "]) + Step.fails(kind)
    Talker = talker(model := answering(broken, REST))
    host = await world.host(Talker)
    told = Told(host)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert (turn.status, turn.message.text) == ("completed", "one two three four")
    assert told.decided == [(23, "continue", "stalled")]
    assert told("chat:stream:stalled") == []
    check_stream(await stored(host, ADDRESS), turn.request_id, "one two three four")
    assert await incidents(host) == []
    await world.stop()
    check_requests(model)


async def test_an_answer_that_ends_without_an_end(world: World) -> None:
    Talker = talker(model := answering(Step.truncated(chunks=["one ", "two "]), REST))
    host = await world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert (turn.status, turn.message.text) == ("completed", "one two three four")
    await world.stop()
    check_requests(model)


@pytest.mark.parametrize("kind", ["rejected", "rate_limit", "quota"])
async def test_what_would_fail_again_is_an_error_at_once(world: World, kind: Any) -> None:
    broken = Step.text("one two ") + Step.fails(kind)
    Talker = talker(model := answering(broken, REST))
    host = await world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.status == "error"
    await world.stop()
    assert len(model.requests) == 1


async def test_a_user_who_moves_on_while_the_model_is_silent_waits_for_the_answer(
    world: World,
) -> None:
    """What was said before the interruption is known comes after the turn, as without one."""
    Talker, model = stalling(HALF, REST, "Second.")
    host = await world.host(Talker)
    told = Told(host)
    a = host.get(Talker, "a")
    await a.submit_messages("u1")
    await asyncio.sleep(2)
    await a.submit_messages("u2")
    await wait_for(host, Talker)
    assert told.decided == [(23, "continue", "stalled")]
    assert await transcript(host) == ["user: u1", ONE, "user: u2", "assistant: Second."]
    await world.stop()
    check_requests(model)


async def test_a_cancel_during_the_pause_before_the_next_attempt(world: World) -> None:
    Talker, model = stalling(Step.stalls())
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("u1", submission_id="s1")
    await asyncio.sleep(10.5)  # silence, silence, and half of the pause
    assert len(model.requests) == 2
    assert await a.cancel_chat("s1", "enough")
    await wait_for(host, Talker)
    assert await inbox(host, "outcome, error") == [("aborted", "enough")]
    await world.stop()
    assert len(model.requests) == 2


async def test_a_process_that_ends_during_the_pause(store_url: str) -> None:
    Talker, model = stalling(Step.stalls(), Step.stalls(), "Hello.")
    await break_off(store_url, Talker, "u1", after=10.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(14, "retry", "deploy")]
        assert await transcript(host) == ["user: u1", "assistant: Hello."]


async def test_an_interruption_that_cannot_be_seen_to_at_once_stays_what_it_was(
    world: World,
) -> None:
    tries: list[str] = []

    def before_boot() -> None:
        tries.append("try")
        if len(tries) < 3:
            raise RuntimeError("not yet")

    Talker, model = stalling(
        HALF,
        REST,
        "Second.",
        on_recovery_boot=lambda self, event: RecoveryBootResult(before_boot=before_boot),
    )
    host = await world.host(Talker)
    told = Told(host)
    a = host.get(Talker, "a")
    await a.submit_messages("u1")
    await a.submit_messages("u2")
    await wait_for(host, Talker)
    assert told.decided == [(23, "continue", "stalled")] * 3
    assert await transcript(host) == ["user: u1", ONE, "user: u2", "assistant: Second."]
    assert leftovers(agent_of(host, Talker)) == {}
    await world.stop()
    assert len(tries) == 3
    check_requests(model)


# --- causes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", [None, "crashed", "oom", "deploy"])
async def test_the_cause_of_a_death_is_what_the_next_host_is_told(
    store_url: str, cause: str | None
) -> None:
    Talker = talker(ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", killed=True)
    async with hosting(Talker, url=store_url, life="2", cause=cause) as host:
        tell_nobody(host)
        told = Told(host)
        await wait_for(host, Talker)
        [(_, action, found)] = told.decided
        assert (action, found) == ("continue", cause or "unknown")
        assert await transcript(host) == ["user: u1", ONE]


async def test_what_was_noted_before_the_death_is_the_cause(store_url: str) -> None:
    Talker = talker(ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2", cause="crashed") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(17, "continue", "deploy")]
