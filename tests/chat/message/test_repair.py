"""Calls without an outcome are closed before a model is asked; what has an outcome is never touched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import answering, inbox, rows, said, talker, until_running
from interacting import CLIENT, call_parts, calls, check_requests, returned

from outlast.chat.context.history import DENIED
from outlast.chat.message.repair import INTERRUPTED, WENT_ON, repaired
from outlast.chat.types.events import TranscriptRepaired
from outlast.testing import ScriptedModel, Step
from support import World, listen

pytestmark = pytest.mark.virtual_time


def part(state: str | None, id: str | None = None, **more: Any) -> dict[str, Any]:
    found = {"type": "tool-pick", "toolCallId": id or str(state), "input": {"at": 1}, **more}
    return found if state is None else {**found, "state": state}


def message(*parts: dict[str, Any], id: str = "m") -> dict[str, Any]:
    return {"id": id, "role": "assistant", "parts": [{"type": "step-start"}, *parts]}


APPROVED = {"id": "a1", "approved": True}
SETTLED = {
    "a result": part("output-available", output={"x": 1}),
    "a result that is nothing": part("output-available", output=None),
    "an error": part("output-error", errorText="Too late."),
    "an error without words": part("output-error"),
    "a denial": part("output-denied", approval={"id": "a1", "approved": False}),
    "approved, and about to run": part("approval-responded", approval=APPROVED),
    "run by the provider": part("input-available", providerExecuted=True),
}
OPEN = {
    "streaming": (part("input-streaming", rawInput='{"at": 1'), INTERRUPTED),
    "waits for the client": (part("input-available"), WENT_ON),
    "waits for an approval": (part("approval-requested", approval={"id": "a1"}), WENT_ON),
    "without a state": (part(None, "no state"), INTERRUPTED),
    "preliminary": (part("output-available", output=1, preliminary=True), INTERRUPTED),
    "of the future": (part("output-imagined"), INTERRUPTED),
}


@pytest.mark.invariant("I3", "I5")
@pytest.mark.parametrize("what", SETTLED)
async def test_what_has_an_outcome_is_never_changed(world: World, what: str) -> None:
    def repair(self: Any, part: dict[str, Any]) -> None:
        raise AssertionError("it needs no repair")

    Talker = talker(model := answering("Hi."), repair_interrupted_tool_part=repair)
    stored = message({"type": "text", "text": "Hm.", "state": "done"}, SETTLED[what])
    assert repaired([stored]) == ([], [])
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    events = listen(host, TranscriptRepaired)
    await a.add_messages(["u1", stored])
    for text in ("u2", "u3"):
        assert (await a.save_messages(text)).status == "completed"
    assert (await a.get_message("m")).raw == stored
    assert events == []
    await world.stop()
    check_requests(model)


@pytest.mark.invariant("I5", "I7")
@pytest.mark.parametrize("what", OPEN)
async def test_what_has_no_outcome_is_closed_once(world: World, what: str) -> None:
    given, error = OPEN[what]
    Talker = talker(model := answering("Hi."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    events = listen(host, TranscriptRepaired)
    await a.add_messages(["u1", message(given, part("output-error", "x", errorText="kept"))])
    assert (await a.save_messages("u2")).status == "completed"
    closed = await a.get_message("m")
    found = call_parts(closed)
    assert (found[given["toolCallId"]]["state"], found["x"]["errorText"]) == (
        "output-error",
        "kept",
    )
    assert found[given["toolCallId"]]["input"] == {"at": 1} or what == "streaming"
    assert returned(model) == {given["toolCallId"]: error, "x": "kept"}
    assert [event.tool_call_ids for event in events] == [(given["toolCallId"],)]
    assert repaired([closed.raw]) == ([], [])
    bodies = await rows(host, "messages", "id, body", "number")
    await a.save_messages("u3")
    assert (await rows(host, "messages", "id, body", "number"))[: len(bodies)] == bodies
    assert len(events) == 1, "a second time there is nothing to do"


@pytest.mark.parametrize("given", ["", [], None, '{"at": 1}', "nonsense", 5])
async def test_an_input_that_is_no_object_becomes_one_and_the_outcome_stays(
    world: World, given: Any
) -> None:
    seen: list[Any] = []

    def repair(self: Any, part: dict[str, Any]) -> None:
        seen.append((part["toolCallId"], part["input"]))

    Talker = talker(model := answering("Hi."), repair_interrupted_tool_part=repair)
    done = part("output-available", "done", output="kept") | {"input": given}
    open = part("input-available", "open") | {"input": given}
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.add_messages(["u1", message(done, open)])
    assert (await a.save_messages("u2")).status == "completed"
    found = call_parts(await a.get_message("m"))
    expected = {"at": 1} if given == '{"at": 1}' else {}
    assert found["done"] == {**done, "input": expected}
    assert found["open"]["input"] == expected
    assert seen == [("open", expected)], "only of what has no outcome, as an object"
    assert returned(model) == {"done": "kept", "open": WENT_ON}


# --- by the agent --------------------------------------------------------------------------------


@pytest.mark.invariant("I6")
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_agent_may_say_what_became_of_a_call(world: World, is_async: bool) -> None:
    def repair(self: Any, part: dict[str, Any]) -> dict[str, Any] | None:
        made = {
            "text": {"type": "text", "text": "(never picked)"},
            "result": {**part, "state": "output-available", "output": "found it"},
            "denial": {**part, "state": "output-denied"},
            "error": {**part, "state": "output-error", "errorText": "my own words"},
        }
        return made.get(part["toolCallId"])

    async def repair_later(self: Any, part: dict[str, Any]) -> dict[str, Any] | None:
        await asyncio.sleep(1)
        return repair(self, part)

    hook = repair_later if is_async else repair
    Talker = talker(model := answering("Hi."), repair_interrupted_tool_part=hook)
    names = ("text", "result", "denial", "error", "default")
    stored = message(*(part("input-available", name) for name in names))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    events = listen(host, TranscriptRepaired)
    await a.add_messages(["u1", stored])
    assert (await a.save_messages("u2")).status == "completed"
    assert returned(model) == {
        "result": "found it",
        "denial": DENIED,
        "error": "my own words",
        "default": WENT_ON,
    }
    [_, first, *others] = (await a.get_message("m")).parts
    assert first == {"type": "text", "text": "(never picked)"}
    assert [each["toolCallId"] for each in others] == list(names[1:])
    assert [event.tool_call_ids for event in events] == [names]
    await a.save_messages("u3")
    assert len(events) == 1


BAD = {
    "a call without an outcome": part("input-available", "other"),
    "a call that still streams": part("input-streaming", "other"),
    "no state": part(None, "other"),
    "a text instead of a part": "closed",
    "a part without a type": {"text": "closed"},
    "what is not JSON": {"type": "text", "text": {1, 2}},
    "an error": ValueError("no idea"),
}


@pytest.mark.invariant("I6")
@pytest.mark.parametrize("what", BAD)
async def test_what_an_agent_says_without_sense_is_refused_and_the_chat_goes_on(
    world: World, what: str
) -> None:
    def repair(self: Any, part: dict[str, Any]) -> Any:
        if isinstance(made := BAD[what], Exception):
            raise made
        return made

    Talker = talker(model := answering("Hi."), repair_interrupted_tool_part=repair)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.add_messages(["u1", message(part("input-available", "c"))])
    assert (await a.save_messages("u2")).status == "completed"
    assert returned(model) == {"c": WENT_ON}
    assert said(await a.get_messages())[-2:] == ["user: u2", "assistant: Hi."]


async def test_an_agent_is_asked_wherever_the_call_stands(world: World) -> None:
    """In a message that comes with the request, and on a branch that the conversation goes back to."""
    seen: list[str] = []

    def repair(self: Any, part: dict[str, Any]) -> None:
        seen.append(part["toolCallId"])

    Talker = talker(model := answering("Hi."), repair_interrupted_tool_part=repair)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    came_along = ["u1", message(part("input-available", "came along")), "u2"]
    turn = await a.save_messages(came_along)
    assert (turn.status, returned(model)) == ("completed", {"came along": WENT_ON})
    await a.add_messages([message(part("input-available", "elsewhere"), id="e"), "u3"])
    (_, _, _, answer, _, question) = await a.get_messages()
    await a.regenerate(answer.id)  # the branch with the open call is left
    assert seen == ["came along"]
    assert (await a.regenerate(question.id)).status == "completed"
    assert seen == ["came along", "elsewhere"]
    assert returned(model)["elsewhere"] == WENT_ON


# --- after a death -------------------------------------------------------------------------------


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("is_client", [True, False])
async def test_a_call_cut_off_in_its_input_does_not_hold_up_the_chat(
    world: World, is_client: bool
) -> None:
    half = Step.text("Let me see.") + Step.call("pick", '{"at": "Ber', id="c") + Step.stalls()
    Talker = talker(model := answering(half, "Hi."))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    await a.submit_messages("u1", client_tools=CLIENT if is_client else None)
    await until_running(host, Talker)
    await asyncio.sleep(1)
    assert not await a.has_pending_interaction()
    assert not await a.add_tool_output("c", 1), "it is not known yet what it asks for"
    stored = "\n".join(body for (body,) in await rows(host, "streams", "body"))
    assert "tool-input-delta" in stored
    host = await world.next_life()
    a = host.get(Talker, "a")
    await host.until_settled()
    assert await inbox(host) == [("ended", "interrupted")]
    assert not await a.has_pending_interaction()
    assert await a.wait_until_stable(timeout=1)
    assert (await a.save_messages("u2")).message.text == "Hi."
    assert said(await a.get_messages())[1] == "assistant: Let me see."
    await world.stop()
    check_requests(model)


async def test_open_calls_of_a_turn_that_fails_are_closed_with_it(world: World) -> None:
    fails = calls("pick") + Step.stalls(1) + Step.fails(ValueError("broken"))
    Talker = talker(model := answering(fails, "Hi."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = await a.save_messages("u1", client_tools=CLIENT)
    assert turn.status == "error"
    assert call_parts(turn.message)["pick"]["state"] == "output-error"
    assert not await a.has_pending_interaction()
    assert not await a.add_tool_output("pick", 1)
    await a.save_messages("u2")
    assert set(returned(model)) == {"pick"}


async def test_open_calls_of_a_turn_that_is_cancelled_are_closed_with_it(world: World) -> None:
    async def wait() -> None:
        await asyncio.sleep(100)

    Talker = talker(model := answering(calls("pick", "wait"), "Hi."), get_tools=lambda _: [wait])
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1", client_tools=CLIENT))
    turn = await until_running(host, Talker)
    await asyncio.sleep(1)
    assert await a.has_pending_interaction()
    await a.cancel_chat(turn.request_id, "stop")
    assert (await first).status == "aborted"
    assert call_parts((await first).message)["pick"]["state"] == "output-error"
    assert not await a.has_pending_interaction()
    assert not await a.add_tool_output("pick", 1)
    await a.save_messages("u2")
    assert set(returned(model)) == {"pick", "wait"}


async def test_an_answer_that_came_before_the_turn_failed_is_kept(world: World) -> None:
    fails = calls("pick", "locate") + Step.stalls(2) + Step.fails(ValueError("broken"))
    Talker = talker(model := ScriptedModel(fails, by="request", repeat=True).then("Hi."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1", client_tools=CLIENT))
    await until_running(host, Talker)
    await asyncio.sleep(1)
    assert await a.add_tool_output("pick", "here")
    assert (await first).status == "error"
    await host.until_settled()
    assert len(model.requests) == 1, "nothing goes on by itself after a failure"
    await a.save_messages("u2")
    assert returned(model)["pick"] == "here"
