"""`repair_interrupted_tool_part`: the agent shapes calls that a model would see as interrupted or unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import check_answers, stored
from conversation import answering, inbox, rows
from interruptions import (
    ADDRESS,
    break_off,
    call_states,
    check_requests,
    kinds,
    talker,
    wait_for,
)

from outlast import ToolCall, tool
from outlast.chat.types.events import TranscriptRepaired
from outlast.testing import Step
from support import World, forever, hosting, listen

pytestmark = pytest.mark.virtual_time

NOTE = {"type": "text", "text": "(The work may have been done.)"}

done: list[str] = []  # the world outside
seen: list[dict[str, Any]] = []  # what the hook was given


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    done.clear()
    seen.clear()


def worker(model: Any, made: Any, effect: Any = "once", **members: Any) -> type[Any]:
    """An agent with a tool that takes for ever the first time, and a hook that makes this of a call."""

    async def work(self: Any, call: ToolCall, at: int = 0) -> str:
        done.append(call.id)
        if len(done) == 1:
            await forever()
        return "worked"

    def repair(self: Any, part: dict[str, Any]) -> Any:
        seen.append(part)
        return made(part) if callable(made) else made

    timeout = members.pop("timeout", None)
    given = tool(effect=effect, timeout=timeout)(work)
    return talker(model, work=given, repair_interrupted_tool_part=repair, **members)


CALL = Step.call("work", {"at": 3}, id="work-1")


def shown(model: Any, request: int = -1) -> list[tuple[str, Any]]:
    """What the model was shown of the answers before: kinds of parts and contents."""
    found: list[tuple[str, Any]] = []
    for message in model.requests[request].messages:
        for part in message.parts:
            if part.part_kind in ("text", "tool-return", "tool-call", "retry-prompt"):
                found.append((part.part_kind, getattr(part, "content", None)))
    return found


async def test_an_unknown_call_of_a_turn_that_continues_may_become_a_text(store_url: str) -> None:
    model = answering(CALL, "Shall I look?")
    Talker = worker(model, NOTE)
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        events = listen(host, TranscriptRepaired)
        a = await wait_for(host, Talker)
        (answer,) = [each for each in await a.get_messages() if each.role == "assistant"]
        assert call_states(answer) == {}
        assert [part["text"] for part in answer.parts if part["type"] == "text"] == [
            "(The work may have been done.)",
            "Shall I look?",
        ]
        assert await rows(host, "calls", "state") == [("unknown",)], (
            "the ledger keeps what it knows"
        )
        assert await inbox(host) == [("ended", "completed")]
        assert [each.tool_call_ids for each in events] == [("work-1",)]
        found = await stored(host, ADDRESS)
        check_answers(found)
        assert kinds(found, "s1").count("finish") == 1
        await a.save_messages("u2")
    assert done == ["work-1"]
    assert ("text", "(The work may have been done.)") in shown(model, 1), "in this very turn"
    assert not any(kind.startswith("tool") for kind, _ in shown(model, 1))
    (part,) = seen
    assert (part["type"], part["toolCallId"], part["input"]) == ("tool-work", "work-1", {"at": 3})
    assert part["resultProviderMetadata"] == {"outlast": {"outcome": "unknown"}}
    check_requests(model)


async def test_a_repaired_call_may_have_another_outcome(store_url: str) -> None:
    def settled(part: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": part["type"],
            "toolCallId": part["toolCallId"],
            "state": "output-available",
            "input": part["input"],
            "output": "Ask Bob whether it is done.",
        }

    Talker = worker(model := answering(CALL, "I ask Bob."), settled)
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        a = await wait_for(host, Talker)
        answer = (await a.get_messages())[-1]
        assert call_states(answer) == {"work-1": "output-available"}
        assert answer.text == "I ask Bob."
        assert await rows(host, "calls", "state") == [("unknown",)]
        check_answers(await stored(host, ADDRESS))
    assert ("tool-return", "Ask Bob whether it is done.") in shown(model)
    assert (len(done), len(seen)) == (1, 1)
    check_requests(model)


def raising(part: dict[str, Any]) -> Any:
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    "made",
    [
        raising,
        5,
        {"no": "type"},
        lambda part: {**part, "state": "input-available"},
        lambda _: object(),
    ],
    ids=["raises", "no part", "no type", "no outcome", "no JSON"],
)
async def test_what_makes_no_sense_is_logged_and_the_call_stays_unknown(
    store_url: str, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Talker = worker(model := answering(CALL, "Hm."), made)
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        a = await wait_for(host, Talker)
        answer = (await a.get_messages())[-1]
        assert call_states(answer) == {"work-1": "unknown"}
        assert answer.text == "Hm."
    assert "repair_interrupted_tool_part" in caplog.text
    assert len(seen) == 1
    check_requests(model)


@pytest.mark.parametrize("made", [None, lambda part: part], ids=["None", "the same part"])
async def test_a_call_that_stays_as_it_is_is_asked_about_once(store_url: str, made: Any) -> None:
    Talker = worker(model := answering(CALL, "Hm."), made)
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        a = await wait_for(host, Talker)
        events = listen(host, TranscriptRepaired)
        for text in ("u2", "u3"):
            await a.save_messages(text)
        assert call_states((await a.get_messages())[1]) == {"work-1": "unknown"}
        assert events == []
    assert len(seen) == 1
    check_requests(model)


@pytest.mark.parametrize("effect", ["once", "read", "idempotent"])
async def test_a_call_of_a_turn_that_does_not_continue_is_asked_about_by_the_next_one(
    store_url: str, effect: str
) -> None:
    Talker = worker(model := answering(CALL, "Hm."), NOTE, effect, chat_recovery=False)
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        events = listen(host, TranscriptRepaired)
        a = await wait_for(host, Talker)
        assert seen == []
        await a.save_messages("u2")
        answer = (await a.get_messages())[1]
        assert call_states(answer) == {}
        assert answer.text == NOTE["text"]
        assert [each.tool_call_ids for each in events] == [("work-1",)]
        state = "unknown" if effect == "once" else "failed"
        assert await rows(host, "calls", "state") == [(state,)]
        await a.save_messages("u3")
    assert ("text", NOTE["text"]) in shown(model, 1)
    (part,) = seen
    assert (part["state"], part["input"]) == ("output-error", {"at": 3})
    assert "repair" not in str(part), "our mark is not the agent's business"
    check_requests(model)


async def test_a_call_that_was_stopped_is_asked_about_by_the_next_turn(world: World) -> None:
    Talker = worker(model := answering(CALL, "Hm."), NOTE)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("u1", submission_id="s1")
    await asyncio.sleep(1)
    await a.cancel_chat("s1", "enough")
    await host.until_settled()
    assert call_states((await a.get_messages())[1]) == {"work-1": "unknown"}
    await a.save_messages("u2")
    assert (await a.get_messages())[1].text == NOTE["text"]
    assert await rows(host, "calls", "state") == [("unknown",)]
    await world.stop()
    assert len(seen) == 1
    check_requests(model)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
async def test_a_call_that_took_too_long_becomes_a_text_in_the_same_turn(
    world: World, beside: bool
) -> None:
    async def look(self: Any) -> str:
        return "seen"

    step = CALL + Step.call("look", {}, id="look-1") if beside else CALL
    model = answering(step, "It took too long.")
    Talker = worker(model, NOTE, timeout=1, look=tool()(look))
    host = await world.host(Talker)
    events = listen(host, TranscriptRepaired)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    answer = (await a.get_messages())[1]
    assert call_states(answer) == ({"look-1": "output-available"} if beside else {})
    texts = [part["text"] for part in answer.parts if part["type"] == "text"]
    assert texts == [NOTE["text"], "It took too long."]
    assert [each.tool_call_ids for each in events] == [("work-1",)]
    states = await rows(host, "calls", "state", "id DESC")
    assert states[0] == ("unknown",)
    check_answers(await stored(host, ADDRESS))
    for text in ("u2", "u3"):
        await a.save_messages(text)
    assert (await a.get_messages())[1].raw == answer.raw
    await world.stop()
    assert ("text", NOTE["text"]) in shown(model, 1)
    assert len(seen) == 1
    check_requests(model)


async def test_a_call_that_took_too_long_and_stays_unknown_is_asked_about_once(
    world: World,
) -> None:
    Talker = worker(model := answering(CALL, "Hm."), None, timeout=1)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    for text in ("u1", "u2"):
        await a.save_messages(text)
    assert call_states((await a.get_messages())[1]) == {"work-1": "unknown"}
    await world.stop()
    assert len(seen) == 1
    check_requests(model)


async def test_another_outcome_of_a_call_that_took_too_long_is_what_the_model_reads(
    world: World,
) -> None:
    def settled(part: dict[str, Any]) -> dict[str, Any]:
        return {**part, "errorText": "Ask Bob."}

    Talker = worker(model := answering(CALL, "I ask Bob."), settled, timeout=1)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    assert "Ask Bob." in str(model.requests[1].messages)
    assert await rows(host, "calls", "state") == [("unknown",)]
    await a.save_messages("u2")
    await world.stop()
    assert "The outcome of this call is unknown" not in str(
        [each.messages for each in model.requests]
    )
    assert len(seen) == 1
    check_requests(model)


async def test_without_the_hook_nothing_is_marked(store_url: str) -> None:
    Talker = worker(answering(CALL, "Hm."), NOTE, chat_recovery=False)
    del Talker.repair_interrupted_tool_part
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        a = await wait_for(host, Talker)
        (part,) = [each for each in (await a.get_messages())[1].parts if "toolCallId" in each]
        assert part["resultProviderMetadata"] == {"outlast": {"outcome": "unknown"}}


async def test_calls_beside_a_repaired_one_keep_what_is_known_of_them(store_url: str) -> None:
    """Two calls are unknown, one has its result; only one of the unknown becomes a text."""

    async def look(self: Any) -> str:
        return "seen"

    def made(part: dict[str, Any]) -> Any:
        return NOTE if part["toolCallId"] == "work-1" else None

    async def hang(self: Any) -> None:
        await forever()

    step = CALL + Step.call("hang", {}, id="hang-1") + Step.call("look", {}, id="look-1")
    Talker = worker(model := answering(step, "Well."), made, look=tool()(look), hang=tool()(hang))
    await break_off(store_url, Talker, "u1", after=1)
    async with hosting(Talker, url=store_url, life="2") as host:
        a = await wait_for(host, Talker)
        answer = (await a.get_messages())[-1]
        assert call_states(answer) == {"hang-1": "unknown", "look-1": "output-available"}
        check_answers(await stored(host, ADDRESS))
    assert len(seen) == 2
    check_requests(model)
