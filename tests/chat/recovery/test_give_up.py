"""When an interrupted turn is given up: what is kept of it, who is told, and what comes after it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from chat_rows import check_all_ended, check_tree, stored
from conversation import agent_of, answering, inbox, rows
from interruptions import (
    ADDRESS,
    SLOW,
    Told,
    break_off,
    call_states,
    check_stream,
    chunks_read,
    incidents,
    talker,
    tell_nobody,
    transcript,
    wait_for,
)

from outlast import ChatRecovery, ToolCall, tool
from outlast.agent.agent import parts_of
from outlast.chat.gateway import ChatGateway
from outlast.chat.turn.notices import Recovering
from outlast.chat.types.recovery import RecoveryExhaustedContext
from outlast.testing import ScriptedModel, Step
from support import forever, hosting

pytestmark = pytest.mark.virtual_time

GIVEN_UP = "I could not go on."


def stuck(**options: Any) -> ChatRecovery:
    """A recovery that gives up what is interrupted twice without progress."""
    return ChatRecovery(max_attempts=1, terminal_message=GIVEN_UP, **options)


async def interrupt_again(url: str, Talker: type[Any], life: str, after: float = 31) -> None:
    """A life in which the turn goes on and says nothing."""
    async with hosting(Talker, url=url, life=life, shutdown_timeout=0):
        await asyncio.sleep(after)


SILENT = Step.text(chunks=["one "]) + Step.stalls()


@pytest.mark.invariant("K3", "K6", "H9", "L4")
@pytest.mark.parametrize("fails", [False, True])
async def test_a_turn_that_is_given_up_ends_as_an_error(store_url: str, fails: bool) -> None:
    heard: list[RecoveryExhaustedContext] = []

    async def on_exhausted(context: RecoveryExhaustedContext) -> None:
        heard.append(context)
        if fails:
            raise RuntimeError("no mail today")

    Talker = talker(
        model := answering(SILENT, Step.stalls(), "Second."),
        chat_recovery=stuck(on_exhausted=on_exhausted),
    )
    await break_off(store_url, Talker, "u1", "u2", after=1)
    await interrupt_again(store_url, Talker, "2")
    async with hosting(Talker, url=store_url, life="3") as host:
        told = Told(host)
        a = host.get(Talker, "a")
        first = await chunks_read(a, "s1")
        assert first[-1][1] == {"type": "error", "errorText": GIVEN_UP}
        assert [seq for seq, _ in first] == list(range(len(first)))
        await wait_for(host, Talker)
        assert told.decided == [(9, "seal", "deploy")]
        assert told.names.count("chat:recovery:exhausted") == 1
        [event] = told("chat:recovery:exhausted")
        assert (event.attempt, event.max_attempts) == (2, 1)
        assert event.reason == "max_attempts_exceeded"
        assert await inbox(host, "outcome, error") == [("error", GIVEN_UP), ("completed", None)]
        assert await transcript(host) == [
            "user: u1",
            "assistant: one ",
            "user: u2",
            "assistant: Second.",
        ]
        [(turn, state, body)] = await incidents(host, "turn, state, body")
        assert (turn, state) == ("s1", "exhausted")
        assert json.loads(body)["reason"] == "max_attempts_exceeded"
        found = await stored(host, ADDRESS)
        check_stream(found, "s1", "one ")
        check_all_ended(found)
        assert (await a.inspect_submission("s1")).error == GIVEN_UP
        assert await rows(host, "boots") == []
    [context] = heard
    assert (context.incident_id, context.request_id, context.stream_id) == ("s1", "s1", "s1")
    assert context.recovery_root_request_id == "s1"
    assert (context.reason, context.terminal_message) == ("max_attempts_exceeded", GIVEN_UP)
    assert context.partial_text == "one "
    async with hosting(Talker, url=store_url, life="4") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.names == []
    assert len(heard) == 1
    assert len(model.requests) == 3


@pytest.mark.invariant("G17")
async def test_the_record_of_what_was_given_up_goes_after_a_while(store_url: str) -> None:
    Talker = talker(answering(SILENT, Step.stalls()), chat_recovery=stuck())
    await break_off(store_url, Talker, "u1", after=1)
    await interrupt_again(store_url, Talker, "2")
    async with hosting(Talker, url=store_url, life="3") as host:
        await wait_for(host, Talker)
        assert await incidents(host) == [("s1", "exhausted")]
        await asyncio.sleep(3 * 3600)
        assert await rows(host, "streams") == []


@pytest.mark.invariant("H9", "I8")
async def test_what_tools_have_done_is_kept(store_url: str) -> None:
    done: list[str] = []

    async def note(self: Any, call: ToolCall) -> str:
        done.append(call.id)
        return "noted"

    async def work(self: Any, call: ToolCall) -> str:
        done.append(call.id)
        await forever()
        return ""

    Talker = talker(
        ScriptedModel(Step.call("note", {}, id="n1") + Step.call("work", {}, id="w1"), "x"),
        note=tool()(note),
        work=tool(effect="read")(work),
        chat_recovery=stuck(),
    )
    await break_off(store_url, Talker, "u1", after=1)
    await interrupt_again(store_url, Talker, "2")
    async with hosting(Talker, url=store_url, life="3") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(8, "seal", "deploy")]
        states = call_states((await a.get_messages())[-1])
        assert states == {"n1": "output-available", "w1": "output-error"}
        check_tree(await stored(host, ADDRESS))
    assert done == ["n1", "w1", "w1"]


async def test_a_turn_that_is_too_old_is_not_taken_up(store_url: str) -> None:
    Talker = talker(model := ScriptedModel(SLOW), chat_recovery=ChatRecovery(max_age=3600.0))
    await break_off(store_url, Talker, "u1")
    await asyncio.sleep(3601)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(29, "seal", "deploy")]
        assert told("chat:recovery:exhausted")[0].reason == "stale"
    assert len(model.requests) == 1


# --- boots that never come to an end -------------------------------------------------------------


@pytest.mark.invariant("G11")
async def test_an_agent_that_dies_while_it_starts_gives_up_what_it_was_doing(
    store_url: str,
) -> None:
    async def configure_session(self: Any, session: Any) -> Any:
        if type(self).is_broken:
            await forever()
        return session

    Talker = talker(
        model := answering(SLOW, "Second."),
        configure_session=configure_session,
        is_broken=False,
    )
    await break_off(store_url, Talker, "u1", "u2")
    Talker.is_broken = True
    for life in range(2, 6):  # the first of them with others, for all that is known
        async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0) as host:
            tell_nobody(host)
            await asyncio.sleep(1)
            assert await rows(host, "boots", "strikes") == [(life - 1,)]
    Talker.is_broken = False
    async with hosting(Talker, url=store_url, life="6") as host:
        told = Told(host)
        await wait_for(host, Talker)
        [(row, action, _)] = told.decided
        assert (row, action) == (28, "seal")
        assert told("chat:onstart:degraded")[0].step == "recovery"
        assert told("chat:recovery:exhausted")[0].reason == "boot_strikes"
        assert await inbox(host, "outcome") == [("error",), ("completed",)]
        assert await transcript(host) == [
            "user: u1",
            "assistant: one two ",
            "user: u2",
            "assistant: Second.",
        ]
        assert await rows(host, "boots") == []
        [(body,)] = await incidents(host, "body")
        assert json.loads(body)["reason"] == "boot_strikes"
    async with hosting(Talker, url=store_url, life="7") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.names == []
        assert (await a.save_messages("u3")).status == "completed"
    assert len(model.requests) == 3


@pytest.mark.invariant("G11")
async def test_a_boot_that_comes_to_its_end_clears_the_strikes(store_url: str) -> None:
    Talker = talker(model := ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", after=0.5)
    for life in range(2, 9):
        async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0) as host:
            await asyncio.sleep(0.5)
            assert await rows(host, "boots") == []
    async with hosting(Talker, url=store_url, life="9") as host:
        await wait_for(host, Talker)
        assert await inbox(host, "outcome") == [("completed",)]
    assert len(model.requests) == 9


@pytest.mark.invariant("G11")
async def test_a_host_that_is_stopped_while_a_hook_thinks_is_no_death(store_url: str) -> None:
    async def on_chat_recovery(self: Any, context: Any) -> None:
        await asyncio.sleep(5)

    Talker = talker(ScriptedModel(SLOW), on_chat_recovery=on_chat_recovery)
    await break_off(store_url, Talker, "u1", after=0.5)
    for life in range(2, 8):
        async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0) as host:
            await asyncio.sleep(1)
            assert await rows(host, "boots", "strikes") == [(1,)]
    async with hosting(Talker, url=store_url, life="8") as host:
        await wait_for(host, Talker)
        assert await inbox(host, "outcome") == [("completed",)]


@pytest.mark.invariant("G11")
async def test_those_who_boot_beside_one_that_kills_are_not_given_up(store_url: str) -> None:
    """All of them were starting when the process died; from then on they start one by one."""

    kills = asyncio.Event()

    async def configure_session(self: Any, session: Any) -> Any:
        if self.name in type(self).broken:
            kills.set()
            await forever()
        await asyncio.sleep(0.2)
        return session

    names = [f"a{n}" for n in range(8)]
    Talker = talker(answering(SLOW), configure_session=configure_session, broken=set())
    async with hosting(Talker, url=store_url, shutdown_timeout=0) as host:
        tell_nobody(host)
        for name in names:
            await host.get(Talker, name).submit_messages("u1", submission_id=name)
        await asyncio.sleep(2.5)
    Talker.broken = {"a3"}
    for life in ("2", "3", "4", "5"):
        kills.clear()
        async with hosting(Talker, url=store_url, life=life, shutdown_timeout=0) as host:
            tell_nobody(host)
            await kills.wait()
            await asyncio.sleep(0.05)
    Talker.broken = set()
    async with hosting(Talker, url=store_url, life="6") as host:
        told = Told(host)
        await host.until_settled()
        sealed = [each.agent for each in told("chat:recovery:exhausted")]
        assert sealed == ["Talker/a3"], "and nobody else"
        found = dict(await rows(host, "inbox", "id, outcome"))
        assert found == {name: "error" if name == "a3" else "completed" for name in names}
        assert await rows(host, "boots") == []


# --- what is seen and told -----------------------------------------------------------------------


@pytest.mark.invariant("K5")
@pytest.mark.parametrize("outcome", ["completed", "aborted", "error"])
async def test_clients_see_that_a_turn_is_being_recovered(store_url: str, outcome: str) -> None:
    rest = Step.fails(ValueError("broken")) if outcome == "error" else Step.text("two", delay=5)
    Talker = talker(
        answering(Step.text("one ") + Step.stalls(), Step.stalls(1) + rest),
        on_chat_recovery=lambda self, context: asyncio.sleep(1),
    )
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        await host.get(Talker, "a").get_messages()
        agent = agent_of(host, Talker)
        seen: list[tuple[bool, str | None]] = []
        tell = parts_of(agent).activation.tell

        def heard(notice: Any) -> None:
            if isinstance(notice, Recovering):
                seen.append((notice.recovering, notice.request_id))
            tell(notice)

        parts_of(agent).activation.tell = heard
        await asyncio.sleep(0.5)
        assert not parts_of(agent)[ChatGateway].situation().recovering, "it is not decided yet"
        await asyncio.sleep(1)
        assert parts_of(agent)[ChatGateway].situation().recovering
        if outcome == "aborted":
            await host.get(Talker, "a").cancel_chat("s1")
        await wait_for(host, Talker)
        assert seen == [(True, "s1"), (False, "s1")]
        assert not parts_of(agent)[ChatGateway].situation().recovering
        assert await inbox(host, "outcome") == [(outcome,)]
        assert await incidents(host) == []


async def test_the_events_of_a_recovery(store_url: str) -> None:
    Talker = talker(answering(SILENT, Step.stalls(), SLOW))
    await break_off(store_url, Talker, "u1", after=1)
    begins = ["detected", "attempt", "decision", "scheduled"]
    async with hosting(Talker, url=store_url, life="2", shutdown_timeout=0) as host:
        told = Told(host)
        await asyncio.sleep(1)
        assert told.names == [f"chat:recovery:{name}" for name in begins]
        assert told("chat:recovery:scheduled")[0].recovery_kind == "continue"
        assert told("chat:turn:start")[0].attempt == 2
    async with hosting(Talker, url=store_url, life="3") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.names == [f"chat:recovery:{name}" for name in (*begins[1:], "completed")]
        assert told("chat:turn:start")[0].attempt == 3


@pytest.mark.invariant("F2")
async def test_without_recovery_an_interruption_is_an_error(store_url: str) -> None:
    heard: list[Any] = []

    async def on_chat_error(self: Any, error: Any, context: Any) -> Any:
        heard.append((type(error).__name__, context.request_id))
        return "Sorry."

    Talker = talker(model := answering(SLOW, "Second."), chat_recovery=False)
    Talker.on_chat_error = on_chat_error
    await break_off(store_url, Talker, "u1", "u2")
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.names == []
        assert await inbox(host, "outcome, error") == [
            ("interrupted", "Sorry."),
            ("completed", None),
        ]
        assert await transcript(host) == [
            "user: u1",
            "assistant: one two ",
            "user: u2",
            "assistant: Second.",
        ]
        assert await rows(host, "boots") == []
        assert await incidents(host) == []
    assert heard == [("TurnInterrupted", "s1")]
    assert len(model.requests) == 2
