"""What interruptions must never do to anybody: the promises that no other page of tests holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import check_all_ended, check_tree, stored
from conversation import agent_of, answering, doing, inbox, rows
from interruptions import (
    ADDRESS,
    SLOW,
    Told,
    asked,
    break_off,
    check_requests,
    incidents,
    is_continued,
    talker,
    transcript,
    wait_for,
)
from pydantic_ai.exceptions import ModelHTTPError

from outlast import ChatRecovery, ChatRecoveryContext, ToolCall, tool
from outlast.agent.agent import parts_of
from outlast.chat.model.beginnings import asks_to_continue
from outlast.chat.model.errors import ModelFailed, is_passing
from outlast.chat.recovery import incidents as incidents_rows
from outlast.chat.recovery.budget import evaluated
from outlast.chat.types.events import SubmissionChanged
from outlast.testing import Outcome, ScriptedModel, Step
from support import World, hosting, listen
from sweeps import crash_sweep

pytestmark = pytest.mark.virtual_time

ONE = "assistant: one two three four"


# --- budgets -------------------------------------------------------------------------------------


def endless(words: int) -> ScriptedModel:
    """One word, and then silence: each attempt makes a little progress."""
    said = iter(range(words))
    return ScriptedModel.answering(lambda messages: Step.text(f"w{next(said)} ") + Step.stalls())


@pytest.mark.invariant("G8", "G1")
async def test_a_loop_with_a_little_progress_is_warned_about_and_goes_on(store_url: str) -> None:
    Talker = talker(endless(100))
    await break_off(store_url, Talker, "u1", after=1, killed=True)
    warned: list[int] = []
    for life in range(2, 25):
        async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0) as host:
            told = Told(host)
            await asyncio.sleep(40)
            warned += [event.attempts for event in told("chat:recovery:goes_on")]
            assert told("chat:recovery:exhausted") == []
    assert warned == [20, 21, 22, 23]


@pytest.mark.invariant("G8")
async def test_and_is_given_up_at_the_limit_that_the_user_sets(store_url: str) -> None:
    Talker = talker(endless(100), chat_recovery=ChatRecovery(max_recovery_work=5))
    await break_off(store_url, Talker, "u1", after=1, killed=True)
    for life in range(2, 25):
        async with hosting(Talker, url=store_url, life=str(life), shutdown_timeout=0) as host:
            told = Told(host)
            await asyncio.sleep(40)
            if told("chat:recovery:exhausted"):
                break
    assert told("chat:recovery:exhausted")[0].reason == "work_budget_exceeded"
    assert life == 8
    assert len(Talker.model.requests) == 7


@pytest.mark.invariant("G10")
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("cannot allocate"),
        ModelFailed("x", kind="other"),
        ValueError("x"),
    ],
)
def test_running_out_of_memory_is_no_passing_failure(error: Exception) -> None:
    assert not is_passing(error)


@pytest.mark.invariant("G10")
def test_however_much_progress_it_makes_memory_is_counted() -> None:
    config, incident = ChatRecovery(max_oom_retries=3), None
    for n in range(1, 5):
        incident = evaluated(
            incident,
            cause="oom",
            progress=n * 100,
            now=n * 60_000,
            age=0,
            awaits_human=False,
            config=config,
        )
        assert incident.reason == (None if n < 4 else "out_of_memory")


@pytest.mark.invariant("G18")
async def test_there_is_one_request_at_a_time_whatever_wakes_the_agent(store_url: str) -> None:
    running, most = 0, 0

    async def before_step(self: Any, context: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)

    async def on_step_finish(self: Any, context: Any) -> None:
        nonlocal running
        running -= 1

    members: dict[str, Any] = {"before_step": before_step, "on_step_finish": on_step_finish}
    Talker = talker(model := ScriptedModel(SLOW), **members)
    await break_off(store_url, Talker, "u1", killed=True)
    running = most = 0
    async with hosting(Talker, url=store_url, life="2") as host:
        agent = host.get(Talker, "a")
        async with asyncio.TaskGroup() as side:
            for _ in range(5):  # callers and readers, all at once
                side.create_task(agent.get_messages())
                side.create_task(agent.wait_until_stable(60))
                side.create_task(agent.submit_messages("u1", submission_id="s1"))
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", ONE]
    assert most == 1
    assert len(model.requests) == 2, "one was interrupted, and one goes on"


# --- what is noted for recovery ------------------------------------------------------------------


@pytest.mark.invariant("A5")
async def test_what_a_user_stashes_and_what_recovery_notes_do_not_touch_each_other(
    store_url: str,
) -> None:
    heard: list[ChatRecoveryContext] = []

    async def before_turn(self: Any, context: Any) -> None:
        await self.stash({"try": len(heard) + 1})
        await self.stash({"try": len(heard) + 1, "again": True})

    async def on_chat_recovery(self: Any, context: ChatRecoveryContext) -> None:
        heard.append(context)

    members: dict[str, Any] = {"before_turn": before_turn, "on_chat_recovery": on_chat_recovery}
    Talker = talker(ScriptedModel(SLOW), **members)
    await break_off(store_url, Talker, "u1", after=1.5)
    for life in ("2", "3"):
        async with hosting(Talker, url=store_url, life=life, shutdown_timeout=0) as host:
            await asyncio.sleep(1.5)
            [(state, stash)] = await incidents(host, "state, stash")
            assert state == "open"
            assert f'"try":{len(heard) + 1}' in stash
    async with hosting(Talker, url=store_url, life="4") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", ONE]
        assert await incidents(host) == []
    assert [context.recovery_data for context in heard] == [
        {"try": n, "again": True} for n in (1, 2, 3)
    ]
    assert [context.cause for context in heard] == ["deploy"] * 3


# --- errors --------------------------------------------------------------------------------------


def failing_when_continued(messages: list[Any]) -> Step:
    if is_asked_to_go_on(messages):
        return Step.fails(ModelHTTPError(401, "m", {"error": "the key is wrong"}))
    return SLOW if "u2" not in str(messages) else Step.text("Second.")


def is_asked_to_go_on(messages: list[Any]) -> bool:
    return any(asks_to_continue(getattr(part, "content", None)) for part in messages[-1].parts)


@pytest.mark.invariant("B6", "C14")
async def test_an_error_in_a_turn_that_goes_on_is_seen_and_holds_up_nobody(store_url: str) -> None:
    shown: list[str] = []

    def on_chat_error(self: Any, error: Exception, context: Any) -> str:
        shown.append(str(error))
        return "It went wrong."

    model = ScriptedModel.answering(failing_when_continued)
    Talker = talker(model, on_chat_error=on_chat_error)
    await break_off(store_url, Talker, "u1", "u2", killed=True)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert await inbox(host, "outcome, error") == [
            ("error", "It went wrong."),
            ("completed", None),
        ]
        assert await transcript(host) == [
            "user: u1",
            "assistant: one two ",
            "user: u2",
            "assistant: Second.",
        ]
        assert told.names[-1] == "chat:recovery:failed"
        assert await incidents(host) == []
        assert doing(host, Talker).recovering is None
        check_all_ended(await stored(host, ADDRESS))
    assert len(shown) == 1
    check_requests(model)


# --- the order of a boot -------------------------------------------------------------------------


@pytest.mark.invariant("C8", "F12")
@pytest.mark.parametrize("moment", ["before on_start has ended", "at once", "while it goes on"])
async def test_what_comes_during_a_boot_comes_after_what_was_there(
    store_url: str, moment: str
) -> None:
    async def on_start(self: Any) -> None:
        await asyncio.sleep(3)

    def said(messages: list[Any]) -> Step:
        return Step.text("Second.") if "u2" in str(messages) else SLOW

    Talker = talker(model := ScriptedModel.answering(said), on_start=on_start)
    await break_off(store_url, Talker, "u1", after=5.5, killed=True)
    async with hosting(Talker, url=store_url, life="2") as host:
        agent = host.get(Talker, "a")
        await asyncio.sleep(
            {"before on_start has ended": 1, "at once": 0, "while it goes on": 3.5}[moment]
        )
        await agent.submit_messages("u1", submission_id="s1")  # a client that was not sure
        await agent.submit_messages("u2", submission_id="s2")
        await wait_for(host, Talker)
        found = await transcript(host)
        assert [line for line in found if line.startswith("user")] == ["user: u1", "user: u2"]
        assert found[1].startswith("assistant: one two ")
        assert found[3] == "assistant: Second."
        check_tree(await stored(host, ADDRESS))
    assert asked(model) == ["u1", "u2"]


@pytest.mark.invariant("C10")
async def test_what_is_said_while_a_tool_runs_is_answered_once(store_url: str) -> None:
    async def work(self: Any, call: ToolCall) -> str:
        await self.submit_messages("u2", submission_id="s2")
        await asyncio.sleep(5)
        return "done"

    model = ScriptedModel(Step.call("work", {}, id="w1"), "Over.")
    Talker = talker(model, work=tool(effect="idempotent")(work))
    await break_off(store_url, Talker, "u1", after=2, killed=True)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        agent = await wait_for(host, Talker)
        assert told.decided, "it was in the middle of the call"
        said = [message for message in await agent.get_messages() if message.role == "user"]
        assert [message.text for message in said] == ["u1", "u2"]
        assert len(await inbox(host)) == 2
    firsts = [request for request in model.requests if "u2" not in str(request.messages)]
    assert len(firsts) == 2, "the turn of u1 has not heard of it"
    check_requests(model)


@pytest.mark.invariant("D15")
async def test_waiting_for_rest_waits_for_what_is_added_meanwhile(world: World) -> None:
    Talker = talker(answering(SLOW))
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await agent.submit_messages("u1")
    waiting = asyncio.ensure_future(agent.wait_until_stable(60))
    await asyncio.sleep(3.5)
    await agent.submit_messages("u2")
    await asyncio.sleep(3.5)
    assert not waiting.done()
    assert await waiting is True
    assert [outcome for _, outcome in await inbox(host)] == ["completed"] * 2


# --- giving up -----------------------------------------------------------------------------------


@pytest.mark.invariant("H13")
async def test_what_is_given_up_has_one_outcome_also_without_its_record(store_url: str) -> None:
    ended: list[str] = []
    Talker = talker(
        ScriptedModel(SLOW),
        chat_recovery=ChatRecovery(terminal_message="Enough."),
        on_chat_response=lambda self, result: ended.append(result.status),
    )
    await break_off(store_url, Talker, "u1", killed=True)
    async with hosting(Talker, url=store_url, life="2", shutdown_timeout=0) as host:
        await asyncio.sleep(0.5)
        agent = host.get(Talker, "a")
        assert await incidents(host) == [("s1", "open")]
        await parts_of(agent_of(host, Talker)).commits.commit(
            [(incidents_rows._CLOSE, ("Talker/a", "s1"))]
        )
        assert await incidents(host) == []
        assert await agent.seal_incident("s1") is True
        await host.until_settled()
        assert await agent.seal_incident("s1") is False
        assert await inbox(host) == [("ended", "aborted")]
    async with hosting(Talker, url=store_url, life="3") as host:
        await wait_for(host, Talker)
        assert await inbox(host) == [("ended", "aborted")]
        assert (await transcript(host))[0] == "user: u1"
    assert ended == ["aborted"]


# --- submissions ---------------------------------------------------------------------------------


class Submitter(talker(ScriptedModel("Done."))):  # type: ignore[misc]
    pass


@pytest.mark.invariant("L3")
async def test_the_messages_of_a_submission_are_applied_all_or_not_at_all() -> None:
    async def drive(host: Any) -> None:
        agent = host.get(Submitter, "a")
        waiting = await rows(host, "inbox", "state, messages")
        there = len(await rows(host, "messages"))
        for state, messages in waiting:
            applied = state != "accepted"
            assert there in ((3, 4) if applied else (0,)), "all of them, or none"
            assert (messages is None) == applied, "and it is known which"
        texts = [{"id": f"m{n}", "role": "user", "parts": []} for n in range(3)]
        await agent.submit_messages(texts, submission_id="s")
        await host.until_settled()

    async def check(outcome: Outcome) -> None:
        found = await rows(outcome.host, "messages", "id, role", "number")
        assert [role for _, role in found] == ["user"] * 3 + ["assistant"]

    await crash_sweep(agents=[Submitter], drive=drive, check=check, mode="twice")


@pytest.mark.invariant("L7")
async def test_whoever_listens_to_a_status_and_raises_changes_nothing(world: World) -> None:
    Talker = talker(answering("one"))
    host = await world.host(Talker)

    def raises(event: Any) -> None:
        raise RuntimeError("no idea")

    host.events.subscribe(SubmissionChanged, raises)
    heard = listen(host, SubmissionChanged)
    agent = host.get(Talker, "a")
    await agent.submit_messages("u1", submission_id="s1")
    await host.until_settled()
    assert (await agent.inspect_submission("s1")).status == "completed"
    assert heard, "others are told all the same"


# --- idle agents ---------------------------------------------------------------------------------


@pytest.mark.invariant("O5", "O7")
@pytest.mark.parametrize("how", ["evicted", "stopped"])
async def test_an_idle_agent_that_comes_and_goes_is_no_interruption(
    store_url: str, how: str
) -> None:
    Talker = talker(model := answering("one", "two", "three", "four"))
    loop = asyncio.get_running_loop()
    for life in "1234":
        async with hosting(Talker, url=store_url, life=life, idle_timeout=5) as host:
            told = Told(host)
            began = loop.time()
            agent = host.get(Talker, "a")
            await agent.get_messages()
            await host.until_settled()
            assert loop.time() - began == 0, "a boot with nothing to do waits for nothing"
            before = host.store.statistics().commits
            await agent.get_messages()
            assert host.store.statistics().commits == before, "nor does it write"
            await agent.save_messages(f"u{life}")
            if how == "evicted":
                await asyncio.sleep(60)
                assert host.statistics().active == 0
                await agent.get_messages()
            assert told.names == []
            assert await incidents(host) == await rows(host, "boots") == []
    assert len(model.requests) == 4
    assert not is_continued(model)


@pytest.mark.invariant("O6")
async def test_an_agent_is_evicted_when_its_answer_is_durable(world: World) -> None:
    Talker = talker(answering("one"))
    host = await world.host(Talker, idle_timeout=0)
    agent = host.get(Talker, "a")
    for n in range(5):
        await agent.submit_messages(f"u{n}", submission_id=f"s{n}")
        await host.until_settled()
        await asyncio.sleep(0.01)
        assert host.statistics().active == 0, "it is gone"
        found = await agent.get_messages()
        assert [message.text for message in found[-2:]] == [f"u{n}", "one"], "and all is there"
