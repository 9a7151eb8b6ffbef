"""Hooks that raise, return nonsense, take their time or are stopped; and what is told of a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    inbox,
    leftovers,
    reasons,
    rows,
    said,
    talker,
    until,
    until_running,
)

from outlast import ActivationFailed, Allow, ContextOverflow, Think, TurnConfig, tool
from outlast.testing import Step
from support import World, forever

pytestmark = pytest.mark.virtual_time

LOOK = Step.text("Let me look. ") + Step.calls("look", at="l")
BOTH = LOOK + Step.calls("look", at="r")
TOLD = ("on_chunk", "after_tool_call", "on_step_finish", "on_chat_response")  # and not asked


class Troubled(Think):
    """One of its hooks, named by the test, does what the test says."""

    chat_recovery = False

    hook = ""
    times: int | None = None  # how often it does that; None: each time
    does: Callable[[Any], Awaitable[Any]] | None = None
    calls = 0
    errors: list[Any] = []

    @tool(effect="read")
    async def look(self, at: str) -> str:
        return f"seen {at}"

    async def _hook(self, name: str, told: Any) -> Any:
        if name != type(self).hook or type(self).calls == self.times:
            return None
        type(self).calls += 1
        assert self.does is not None
        return await self.does(told)

    async def configure_session(self, session: Any) -> Any:
        return await self._hook("configure_session", session) or session

    async def before_turn(self, context: Any) -> Any:
        return await self._hook("before_turn", context)

    async def before_step(self, context: Any) -> Any:
        return await self._hook("before_step", context)

    async def on_chunk(self, context: Any) -> None:
        await self._hook("on_chunk", context)

    async def before_tool_call(self, context: Any) -> Any:
        return await self._hook("before_tool_call", context)

    async def after_tool_call(self, context: Any) -> None:
        await self._hook("after_tool_call", context)

    async def on_step_finish(self, context: Any) -> None:
        await self._hook("on_step_finish", context)

    async def on_chat_response(self, result: Any) -> None:
        await self._hook("on_chat_response", result)

    async def classify_chat_error(self, error: Exception, context: Any) -> Any:  # type: ignore[override]
        return await self._hook("classify_chat_error", context)

    async def on_chat_error(self, error: Exception, context: Any) -> Any:
        self.errors.append((context.stage, context.request_id))
        return await self._hook("on_chat_error", context) or error


def troubled(hook: str, does: Any, *answers: Any, times: int | None = None) -> type[Troubled]:
    async def done(self: Any, told: Any) -> Any:
        found = does(told)
        return await found if asyncio.iscoroutine(found) else found

    members: dict[str, Any] = {"hook": hook, "does": done, "times": times, "errors": []}
    if hook == "classify_chat_error":
        members["context_overflow"] = ContextOverflow(reactive=True)
    return type("Agitated", (Troubled,), {"model": answering(*answers), **members})


def raising(error: BaseException) -> Callable[[Any], Any]:
    async def does(told: Any) -> None:
        raise error

    return does


# --- raising -------------------------------------------------------------------------------------

ERRORS = [ValueError("no idea"), asyncio.CancelledError()]


@pytest.mark.invariant("C9")
@pytest.mark.parametrize("error", ERRORS, ids=["raised", "cancelled"])
@pytest.mark.parametrize("hook", ["before_turn", "before_step"])
async def test_a_hook_that_prepares_and_raises_ends_its_turn_and_no_other(
    world: World, hook: str, error: BaseException
) -> None:
    Agitated = troubled(hook, raising(error), LOOK, "I see.", times=1)
    host = await world.host(Agitated)
    a = host.get(Agitated, "a")
    first, second = await asyncio.gather(a.save_messages("u1"), a.save_messages("u2"))
    assert (first.status, first.message) == ("error", None)
    assert first.error == "An error occurred."
    expected = "no idea" if isinstance(error, Exception) else "was cancelled"
    assert expected in (await reasons(host))[0]
    assert (second.status, second.message.text) == ("completed", "Let me look. I see.")
    assert said(await a.get_messages())[:2] == ["user: u1", "user: u2"]
    stage = "turn" if hook == "before_turn" else "stream"
    assert Agitated.errors == [(stage, first.request_id)]
    await host.until_settled()
    assert leftovers(agent_of(host, Agitated)) == {}


async def test_a_later_step_that_cannot_be_prepared_leaves_what_was_said(world: World) -> None:
    def does(context: Any) -> None:
        if context.step_number == 1:
            raise ValueError("no idea")

    Agitated = troubled("before_step", does, LOOK, "I see.")
    host = await world.host(Agitated)
    turn = await host.get(Agitated, "a").save_messages("u1")
    assert await reasons(host) == ["ValueError: no idea"]
    await world.stop()
    assert (turn.status, turn.error) == ("error", "An error occurred.")
    assert turn.message.text == "Let me look. "
    (part,) = [part for part in turn.message.parts if part["type"] == "tool-look"]
    assert part["output"] == "seen l"
    assert Agitated.errors == [("stream", turn.request_id)]


@pytest.mark.parametrize("error", ERRORS, ids=["raised", "cancelled"])
async def test_a_hook_that_raises_about_a_call_is_a_result_that_the_model_reads(
    world: World, error: BaseException
) -> None:
    def does(context: Any) -> None:
        if context.input["at"] == "l":
            raise error

    Agitated = troubled("before_tool_call", does, BOTH, "I see.")
    host = await world.host(Agitated)
    turn = await host.get(Agitated, "a").save_messages("u1")
    await host.until_settled()
    assert leftovers(agent_of(host, Agitated)) == {}
    await world.stop()
    assert (turn.status, turn.message.text) == ("completed", "Let me look. I see.")
    left, right = [part for part in turn.message.parts if part["type"] == "tool-look"]
    assert left["state"] == "output-error"
    assert left["errorText"].startswith("The tool failed. (error_")
    assert right["output"] == "seen r"
    assert Agitated.errors == []


@pytest.mark.parametrize("error", ERRORS, ids=["raised", "cancelled"])
@pytest.mark.parametrize("hook", TOLD)
async def test_a_hook_that_is_only_told_and_raises_is_logged_and_harms_nothing(
    world: World, hook: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    Agitated = troubled(hook, raising(error), BOTH, "I see.", BOTH, "I see.")
    host = await world.host(Agitated)
    a = host.get(Agitated, "a")
    for _ in range(2):
        turn = await a.save_messages("u1")
        assert (turn.status, turn.message.text) == ("completed", "Let me look. I see.")
    await host.until_settled()
    assert leftovers(agent_of(host, Agitated)) == {}
    chunks = sum(count for (count,) in await rows(host, "streams", "count"))
    await world.stop()
    times = {"on_chunk": chunks, "on_chat_response": 2}.get(hook, 4)
    assert Agitated.calls == times, "it is told of the next one all the same"
    logged = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert logged == [f"Agitated/a: {hook} raised"] * times
    assert Agitated.errors == []


@pytest.mark.parametrize("does", [raising(ValueError("no idea")), lambda session: 5])
async def test_an_agent_whose_session_cannot_be_configured_does_not_start(
    world: World, does: Any
) -> None:
    Agitated = troubled("none", does, Step.text("one ") + Step.stalls(), "two")
    host = await world.host(Agitated, shutdown_timeout=0)
    await host.get(Agitated, "a").submit_messages("u1")
    await host.get(Agitated, "a").submit_messages("u2")
    await asyncio.sleep(1)
    await world.stop()
    Agitated.hook = "configure_session"
    host = await world.next_life()
    with pytest.raises(ActivationFailed, match="no idea|must return a Session, got 5"):
        await host.get(Agitated, "a").get_messages()
    await world.stop()
    Agitated.hook = "none"
    host = await world.next_life()
    await host.until_settled()
    messages = said(await host.get(Agitated, "a").get_messages())
    assert messages == ["user: u1", "assistant: one ", "user: u2", "assistant: two"]


# --- nonsense ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonsense", [5, "text", {"model": "x"}, [], False, TurnConfig])
@pytest.mark.parametrize("hook", ["before_turn", "before_step", "before_tool_call"])
async def test_what_no_hook_may_return_is_said_to_be_so(
    sqlite_world: World, hook: str, nonsense: Any
) -> None:
    Agitated = troubled(hook, lambda _: nonsense, LOOK, "I see.")
    host = await sqlite_world.host(Agitated)
    turn = await host.get(Agitated, "a").save_messages("u1")
    (reason,) = await reasons(host)
    await sqlite_world.stop()
    if hook == "before_tool_call":
        assert reason.startswith("InvalidDecision: before_tool_call must return Allow, Block")
        assert reason.endswith(f"or None, got {nonsense!r}")
        assert turn.message.text == "Let me look. "
    else:
        may = "a TurnConfig or None" if hook == "before_turn" else "a StepConfig or None"
        assert reason == f"TypeError: {hook} must return {may}, got {nonsense!r}"
        assert turn.message is None
    assert (turn.status, turn.error) == ("error", "An error occurred.")
    assert Agitated.errors == [("turn" if hook == "before_turn" else "stream", turn.request_id)]


@pytest.mark.parametrize(
    "nonsense",
    [
        {"action": "deny"},
        {"action": "allow", "output": 1},
        {"action": "allow", "input": "at"},
        {"action": "block", "why": "no"},
        {"action": "substitute"},
        {"action": ["allow"]},
        {"reason": "no"},
    ],
)
async def test_a_dict_that_is_no_decision_ends_the_turn_once_the_other_calls_are_stored(
    sqlite_world: World, nonsense: Any
) -> None:
    def does(context: Any) -> Any:
        return nonsense if context.input["at"] == "l" else None

    Agitated = troubled("before_tool_call", does, BOTH, "I see.")
    host = await sqlite_world.host(Agitated)
    turn = await host.get(Agitated, "a").save_messages("u1")
    assert (await reasons(host))[0].startswith("InvalidDecision: ")
    assert await rows(host, "calls", "state") == [("done",)]
    await sqlite_world.stop()
    left, right = [part for part in turn.message.parts if part["type"] == "tool-look"]
    assert (turn.status, turn.error) == ("error", "An error occurred.")
    assert (left["state"], right["output"]) == ("output-error", "seen r")
    assert len(Agitated.model.requests) == 1


@pytest.mark.parametrize("nonsense", [5, "at", ["at"], [1, 2]])
async def test_an_input_that_is_none_is_said_to_be_so(sqlite_world: World, nonsense: Any) -> None:
    Agitated = troubled("before_tool_call", lambda _: Allow(nonsense), LOOK, "I see.")
    host = await sqlite_world.host(Agitated)
    turn = await host.get(Agitated, "a").save_messages("u1")
    assert f"Allow(input=) must be a dict, got {nonsense!r}" in (await reasons(host))[0]
    await sqlite_world.stop()
    assert turn.status == "error"


# --- taking time ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "seconds"),
    [
        ("before_turn", 100),
        ("before_step", 200),
        ("on_chunk", 0),
        ("before_tool_call", 100),
        ("after_tool_call", 100),
        ("on_step_finish", 200),
        ("on_chat_response", 0),
    ],
)
async def test_a_slow_hook_is_waited_for_if_it_is_part_of_the_turn(
    world: World, hook: str, seconds: float
) -> None:
    async def does(told: Any) -> None:
        await asyncio.sleep(100)

    Agitated = troubled(hook, does, BOTH, "I see.")
    host = await world.host(Agitated)
    begun = asyncio.get_running_loop().time()
    turn = await host.get(Agitated, "a").save_messages("u1")
    assert seconds <= asyncio.get_running_loop().time() - begun < seconds + 1
    assert (turn.status, turn.message.text) == ("completed", "Let me look. I see.")
    chunks = sum(count for (count,) in await rows(host, "streams", "count"))
    await host.until_settled()
    if hook == "on_chunk":
        assert Agitated.calls == chunks, "it misses nothing, however late it is"
    assert leftovers(agent_of(host, Agitated)) == {}


# --- being stopped -------------------------------------------------------------------------------

ASKED = ("before_turn", "before_step", "before_tool_call", "after_tool_call", "on_step_finish")
FAILING = ("classify_chat_error", "on_chat_error")


@pytest.mark.invariant("D12")
@pytest.mark.parametrize("how", ["from outside", "by itself", "without an end"])
@pytest.mark.parametrize("hook", [*ASKED, *FAILING])
async def test_a_turn_is_stopped_at_once_while_a_hook_of_it_waits(
    world: World, hook: str, how: str
) -> None:
    log: list[str] = []
    ids: set[str] = set()

    async def does(context: Any) -> None:
        log.append("begun")
        ids.add(context.request_id)
        try:
            if how == "by itself":
                assert await agent_of(host, Agitated).cancel_chat(context.request_id, "enough")
            await forever()
        except asyncio.CancelledError:
            log.append("stopped")
            if how != "without an end":
                raise

    def answer(messages: Any) -> str | Step:
        if messages[-1].parts[-1].content == "u2":
            return "Next"
        return Step.text("So far ") + Step.fails("rejected") if hook in FAILING else BOTH

    Agitated = troubled(hook, does, answer)
    host = await world.host(Agitated, shutdown_timeout=0)
    a = host.get(Agitated, "a")
    waiting = asyncio.create_task(a.save_messages("u1"))
    await until(lambda: log)
    begun = asyncio.get_running_loop().time()
    if how != "by itself":
        assert await a.cancel_chat(*ids, "enough")
    async with asyncio.timeout(10):
        result = await waiting
    assert asyncio.get_running_loop().time() - begun < 0.1
    assert (result.status, result.error) == ("aborted", "enough")
    assert log.count("begun") == log.count("stopped") == (2 if "tool" in hook else 1)
    Agitated.hook = ""
    assert (await a.save_messages("u2")).message.text == "Next"
    await host.until_settled()
    assert leftovers(agent_of(host, Agitated)) == {}
    assert [outcome for _, outcome in await inbox(host)] == ["aborted", "completed"]


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_hooks_that_are_told_of_a_stopped_call_do_not_turn_the_stop_into_an_error(
    world: World, plain: bool
) -> None:
    def note(self: Any, context: Any) -> None:
        called.append(type(context).__name__)

    async def note_later(self: Any, context: Any) -> None:
        called.append(type(context).__name__)
        await asyncio.sleep(0)

    @tool
    async def look(self: Any, at: str) -> None:
        await forever()

    called: list[str] = []
    hooks = ("before_tool_call", "after_tool_call", "on_step_finish", "on_chunk")
    members = dict.fromkeys(hooks, note if plain else note_later)
    Talker = talker(answering(BOTH, "Next"), look=look, **members)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    waiting = asyncio.create_task(a.save_messages("u1"))
    turn = await until_running(host, Talker)
    await asyncio.sleep(1)
    assert await a.cancel_chat(turn.request_id, "enough")
    result = await waiting
    assert (result.status, result.error) == ("aborted", "enough")
    assert called.count("ToolCallResultContext") == 2
    assert (await a.save_messages("u2")).message.text == "Next"


async def test_a_turn_is_stopped_at_once_however_far_on_chunk_is_behind(world: World) -> None:
    async def does(told: Any) -> None:
        await asyncio.sleep(100)

    Agitated = troubled("on_chunk", does, Step.text("one ") + Step.stalls(), "Next")
    host = await world.host(Agitated)
    a = host.get(Agitated, "a")
    waiting = asyncio.create_task(a.save_messages("u1"))
    turn = await until_running(host, Agitated)
    await asyncio.sleep(1)
    begun = asyncio.get_running_loop().time()
    assert await a.cancel_chat(turn.request_id)
    assert (await waiting).status == "aborted"
    assert (await a.save_messages("u2")).message.text == "Next"
    assert asyncio.get_running_loop().time() - begun < 1
    await host.until_settled()
    assert leftovers(agent_of(host, Agitated)) == {}
