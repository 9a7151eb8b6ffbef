"""Finding out about interrupted calls (`reconcile`), and tools that do not stop when they are told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from conversation import agent_of, inbox, leftovers, rows, talker, until, until_running
from tool_calls import Lives, call_parts, check_requests, go_on, ledger, outcome, outcomes, returns

from outlast import Host, NotDone, Think, ToolCall, tool
from outlast.agent.agent import parts_of
from outlast.chat.tools.outcome import RECONCILE_TIMEOUT
from outlast.chat.tools.watch import GRACE
from outlast.chat.turn.state import TurnState
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

sent: list[ToolCall] = []  # the world outside
asked: list[tuple[str, ToolCall]] = []  # what reconcile was asked, and by which agent
answer: list[Callable[[], Any]] = []  # what it says


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    sent.clear()
    asked.clear()
    answer[:] = [lambda: "it was sent"]


async def hang() -> None:
    await asyncio.sleep(1000)


def refuse() -> None:
    raise ConnectionError("the provider is down")


# --- how it is named -----------------------------------------------------------------------------


def function(call: ToolCall) -> Any:
    asked.append(("", call))
    return answer[0]()


async def async_function(call: ToolCall) -> Any:
    return function(call)


def method(self: Any, call: ToolCall) -> Any:
    asked.append((self.name, call))
    return answer[0]()


async def async_method(self: Any, call: ToolCall) -> Any:
    return method(self, call)


NAMED: dict[str, tuple[Any, str]] = {
    "function": (function, ""),
    "async function": (async_function, ""),
    "method": (method, "a"),
    "async method": (async_method, "a"),
    "name": ("find", "a"),
    "name of an async one": ("find_later", "a"),
}
every_name = pytest.mark.parametrize("named", NAMED)


class Clerk(Think):
    """Its tool takes too long, or dies."""

    chat_recovery = False

    lives: Lives | None = None

    find = method
    find_later = async_method

    async def act(self, call: ToolCall) -> None:
        sent.append(call)
        if self.lives is not None:
            self.lives.die()
        await asyncio.sleep(1000)


def clerk(reconcile: Any, **options: Any) -> type[Any]:
    async def send(self: Any, to: str, call: ToolCall) -> None:
        """Send a mail."""
        await self.act(call)

    options = {"effect": "once", "timeout": 5, **options}
    members = {
        "model": ScriptedModel(Step.call("send", {"to": "ann"}, id="c1"), "Well."),
        "send": tool(reconcile=reconcile, **options)(send),
    }
    return type("Clerk", (Clerk,), members)


async def late(url: str, Agent: type[Any]) -> dict[str, Any]:
    """The call of an agent, whose tool takes too long."""
    async with hosting(Agent, url=url) as host:
        turn = await host.get(Agent, "a").save_messages("u1")
        assert turn.status == "completed"
        (part,) = call_parts(turn.message)
        assert await ledger(host) == [("send", outcome(part))]
        (told,) = returns(Agent.model)
        assert told.content == part.get("output", part.get("errorText"))
    return part


def dead(url: str, Agent: type[Any]) -> dict[str, Any]:
    """The call of an agent, whose process dies in the middle of it."""
    Agent.lives = lives = Lives(url, Agent)
    found: list[dict[str, Any]] = []

    async def ask(host: Host) -> None:
        await host.get(Agent, "a").save_messages("u1")

    async def look(host: Host) -> None:
        async with asyncio.timeout(RECONCILE_TIMEOUT + 10):
            await host.until_settled()
        a = host.get(Agent, "a")
        found.extend(call_parts((await a.get_messages())[1]))
        assert await ledger(host) == [("send", outcome(found[0]))]
        assert await inbox(host) == [("ended", "interrupted")]
        Agent.model.answers[:] = ["Well."]
        await a.save_messages("u2")
        (told,) = returns(Agent.model)
        assert told.content == found[0].get("output", found[0].get("errorText"))

    assert lives.run(ask).died
    lives.run(look)
    (part,) = found
    return part


@every_name
async def test_after_a_timeout_reconcile_is_asked_about_the_call(
    sqlite_url: str, named: str
) -> None:
    reconcile, by = NAMED[named]
    part = await late(sqlite_url, clerk(reconcile))
    assert (part["state"], part["output"]) == ("output-available", "it was sent")
    ((agent, call),) = asked
    assert agent == by
    assert call == sent[0]
    assert (call.id, call.tool_name, call.input) == ("c1", "send", {"to": "ann"})


@every_name
def test_after_a_death_reconcile_is_asked_about_the_call(sqlite_url: str, named: str) -> None:
    reconcile, by = NAMED[named]
    part = dead(sqlite_url, clerk(reconcile))
    assert (part["state"], part["output"]) == ("output-available", "it was sent")
    ((agent, call),) = asked
    assert agent == by
    for name in ("id", "tool_name", "input", "idempotency_key", "request_id"):
        assert getattr(call, name) == getattr(sent[0], name)


# --- what it says --------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a value": (lambda: {"id": 7}, "done", ""),
    "an empty text": (lambda: "", "done", ""),
    "False": (lambda: False, "done", ""),
    "an instance of NotDone": (NotDone, "failed", "before it had any effect"),
    "NotDone itself": (lambda: NotDone, "failed", "before it had any effect"),
    "nothing": (lambda: None, "unknown", "outcome of this call is unknown"),
    "what cannot be stored": (object, "unknown", "outcome of this call is unknown"),
    "an error": (refuse, "unknown", "outcome of this call is unknown"),
    "nothing, ever": (hang, "unknown", "outcome of this call is unknown"),
}
every_answer = pytest.mark.parametrize("what", ANSWERS)


async def find(self: Any, call: ToolCall) -> Any:
    said = answer[0]()
    return await said if asyncio.iscoroutine(said) else said


def check_answer(part: dict[str, Any], what: str) -> None:
    said, expected, words = ANSWERS[what]
    assert outcome(part) == expected
    if expected == "done":
        assert part["output"] == said()
    else:
        assert words in part["errorText"]
    assert len(sent) == 1


@pytest.mark.invariant("I2", "I8")
@every_answer
async def test_what_reconcile_says_after_a_timeout_counts(store_url: str, what: str) -> None:
    answer[:] = [ANSWERS[what][0]]
    async with asyncio.timeout(5 + GRACE + RECONCILE_TIMEOUT + 5):
        check_answer(await late(store_url, clerk(find)), what)


@pytest.mark.invariant("I2", "I8")
@every_answer
def test_what_reconcile_says_after_a_death_counts(store_url: str, what: str) -> None:
    answer[:] = [ANSWERS[what][0]]
    check_answer(dead(store_url, clerk(find)), what)


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_reconcile_is_asked_about_once_tools_only(sqlite_url: str, effect: str) -> None:
    part = await late(sqlite_url, clerk(function, effect=effect))
    assert outcome(part) == "failed"
    url = sqlite_url.replace("store", "other")
    part = await asyncio.to_thread(dead, url, clerk(function, effect=effect))
    assert outcome(part) == "failed"
    assert asked == []


async def test_a_reconcile_that_does_not_exist_leaves_the_outcome_unknown(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    part = await late(sqlite_url, clerk("no_such_method"))
    assert outcome(part) == "unknown"
    assert "no_such_method" in caplog.text


@pytest.mark.invariant("D12", "D14")
async def test_a_turn_can_be_stopped_while_reconcile_is_asked(world: World) -> None:
    answer[:] = [hang]
    Agent = clerk(find)
    host = await world.host(Agent)
    a = host.get(Agent, "a")
    turn = asyncio.create_task(a.save_messages("u1"))
    running = await until_running(host, Agent)
    await asyncio.sleep(5 + GRACE + 1)
    assert await a.cancel_chat(running.request_id)
    async with asyncio.timeout(1):
        ended = await turn
    assert (ended.status, outcomes(ended.message)) == ("aborted", ["unknown"])


async def test_a_cancel_while_reconcile_is_asked_at_boot_counts(world: World) -> None:
    answer[:] = [hang]
    Agent = clerk(find, timeout=None)
    host = await world.host(Agent, shutdown_timeout=0)
    submitted = await host.get(Agent, "a").submit_messages("u1")
    await until(lambda: sent)
    host = await world.next_life()
    await asyncio.sleep(1)
    assert await host.get(Agent, "a").cancel_chat(submitted.id, "enough")
    await host.until_settled()
    assert await inbox(host, "outcome, error") == [("aborted", "enough")]


# --- tools that do not stop ----------------------------------------------------------------------


@pytest.mark.invariant("D12", "D14")
@pytest.mark.parametrize("late_end", ["returns", "raises"])
async def test_a_tool_that_does_not_stop_is_left_behind_and_its_late_end_is_dropped(
    world: World, late_end: str, caplog: pytest.LogCaptureFixture
) -> None:
    end = asyncio.Event()
    over: list[str] = []

    async def stubborn() -> str:
        await go_on(end)
        over.append(late_end)
        if late_end == "raises":
            raise ValueError("much too late")
        return "much too late"

    model = ScriptedModel(Step.calls("stubborn"), "Never.")
    Agent = talker(model, get_tools=lambda _: [stubborn])
    host = await world.host(Agent)
    a = host.get(Agent, "a")
    turn = asyncio.create_task(a.save_messages("u1"))
    running = await until_running(host, Agent)
    await asyncio.sleep(1)
    await a.cancel_chat(running.request_id)
    async with asyncio.timeout(1):
        ended = await turn
    assert (ended.status, outcomes(ended.message)) == ("aborted", ["unknown"])
    assert "the tool stubborn did not stop when it was cancelled; it is left running" in caplog.text
    before = (await rows(host, "messages"), await rows(host, "streams"), await ledger(host))
    model.answers[:] = ["Next."]
    assert (await a.save_messages("u2")).message.text == "Next.", "others do not wait for it"
    end.set()
    await until(lambda: over)
    await host.until_settled()
    after = (await rows(host, "messages"), await rows(host, "streams"), await ledger(host))
    assert [rows_after[: len(old)] for rows_after, old in zip(after, before, strict=True)] == [
        *before
    ]
    assert ("much too late" in caplog.text) == (late_end == "raises")
    assert "never retrieved" not in caplog.text
    assert leftovers(agent_of(host, Agent)) == {}
    await world.stop()
    check_requests(model)


async def test_a_tool_that_is_done_when_it_is_told_to_stop_is_done(world: World) -> None:
    async def careful() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(GRACE / 2)
        return "tidied up"

    Agent = talker(ScriptedModel.calls("careful"), get_tools=lambda _: [careful])
    host = await world.host(Agent)
    a = host.get(Agent, "a")
    turn = asyncio.create_task(a.save_messages("u1"))
    running = await until_running(host, Agent)
    await asyncio.sleep(1)
    await a.cancel_chat(running.request_id)
    ended = await turn
    assert ended.status == "aborted"
    assert call_parts(ended.message)[0]["output"] == "tidied up"
    assert await ledger(host) == [("careful", "done")]


# --- threads -------------------------------------------------------------------------------------


async def test_plain_functions_run_in_threads_with_what_they_need(world: World) -> None:
    seen: list[Any] = []

    def where(call: ToolCall, idempotency_key: str) -> str:
        seen.append((threading.current_thread() is threading.main_thread(), call.tool_name))
        return idempotency_key

    Agent = talker(
        ScriptedModel(Step.call("where", {}, id="c1"), "Done."), get_tools=lambda _: [where]
    )
    host = await world.host(Agent)
    turn = await host.get(Agent, "a").save_messages("u1")
    await world.stop()
    assert seen == [(False, "where")]
    assert call_parts(turn.message)[0]["output"] == f"{turn.message.id}:c1"


@pytest.mark.invariant("D12", "D14")
@pytest.mark.parametrize("how", ["the turn is stopped", "the host is stopped", "it is too late"])
async def test_a_thread_that_cannot_be_stopped_is_left_behind(store_url: str, how: str) -> None:
    begun, end, over = threading.Event(), threading.Event(), threading.Event()

    def block() -> str:
        begun.set()
        end.wait(20)
        over.set()
        return "much too late"

    block = tool(timeout=5)(block) if how == "it is too late" else block
    Agent = talker(ScriptedModel.calls("block").then("Done."), get_tools=lambda _: [block])
    try:
        async with hosting(Agent, url=store_url, shutdown_timeout=0) as host:
            a = host.get(Agent, "a")
            submitted = await a.submit_messages("u1")
            await asyncio.to_thread(begun.wait, 10)
            if how == "the turn is stopped":
                await a.cancel_chat(submitted.id)
            if how != "the host is stopped":
                turn = parts_of(agent_of(host, Agent))[TurnState].wait(submitted.id)
                async with asyncio.timeout(10):
                    await turn
                assert await ledger(host) == [("block", "unknown")]
        async with hosting(Agent, url=store_url, life="2") as host:
            await host.until_settled()
            message = (await host.get(Agent, "a").get_messages())[1]
            assert outcomes(message) == ["unknown"]
            assert "much too late" not in str(message.parts)
            assert not over.is_set(), "the thread runs all the time"
    finally:
        end.set()
        await asyncio.to_thread(over.wait, 10)
