"""Calls that wait for somebody: what waits with them, what closes them, and what is too late."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    inbox,
    leftovers,
    rows,
    said,
    talker,
    until,
    until_running,
)
from interacting import (
    CLIENT,
    call_parts,
    calls,
    check_requests,
    continuations,
    last_calls,
    returned,
    states,
)

from outlast import Think, TurnContext, tool
from outlast.agent.agent import parts_of
from outlast.chat.message.repair import WENT_ON
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.state import TurnState
from outlast.core.errors import InsideTurn
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

BOTH = Step.text("Hm. ", delay=1) + calls("locate", "pick")


async def opened(host: Any, Talker: type[Any], *later: str) -> Any:
    """An agent whose turn has left two calls open; what is asked meanwhile waits."""
    a = host.get(Talker, "a")
    await a.submit_messages("u1", client_tools=CLIENT)
    await until_running(host, Talker)
    for text in later:
        await a.submit_messages(text)
    await until(lambda: parts_of(agent_of(host, Talker))[TurnState].live is None)
    await host.until_settled()
    assert await states(a) == {"locate": "input-available", "pick": "input-available"}
    return a


# --- what waits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_was_asked_before_the_calls_waits_for_the_answers(
    store_url: str, is_restarted: bool
) -> None:
    Talker = talker(model := answering(BOTH, "Done.", "Next."))
    async with hosting(Talker, url=store_url) as host:
        a = await opened(host, Talker, "u2", "u3")
        assert await inbox(host) == [("ended", "completed")] + [("accepted", None)] * 2
        if not is_restarted:
            await _answered_in_order(host, a)
    if is_restarted:
        async with hosting(Talker, url=store_url, life="2") as host:
            await host.until_settled()
            await _answered_in_order(host, host.get(Talker, "a"))
    check_requests(model)


async def _answered_in_order(host: Any, a: Any) -> None:
    await a.add_tool_output("pick", 1)
    await host.until_settled()
    assert len(await a.get_messages()) == 2
    await a.add_tool_output("locate", 2)
    await host.until_settled()
    order = ["user: u1", "assistant: Hm. Done.", "user: u2", "assistant: Next."]
    assert said(await a.get_messages()) == [*order, "user: u3", "assistant: Next."]
    assert await continuations(host) == ["completed"]


async def test_what_waits_goes_on_also_if_nobody_wants_the_answers_to_be_continued(
    world: World,
) -> None:
    Talker = talker(model := answering(BOTH, "Next."))
    host = await world.host(Talker)
    a = await opened(host, Talker, "u2")
    for name in ("pick", "locate"):
        await a.add_tool_output(name, 1, auto_continue=False)
    await host.until_settled()
    assert said(await a.get_messages())[2:] == ["user: u2", "assistant: Next."]
    assert (returned(model), await continuations(host)) == ({"pick": 1, "locate": 1}, [])


@pytest.mark.parametrize("how", ["save", "submit", "continue"])
async def test_whoever_asks_while_calls_are_open_goes_on_without_them(
    world: World, how: str
) -> None:
    Talker = talker(model := answering(BOTH, "Next.", "And next."))
    host = await world.host(Talker)
    a = await opened(host, Talker, "u2")
    await a.add_tool_output("pick", 1)
    if how == "continue":
        await a.continue_last_turn()
    else:
        await (a.save_messages if how == "save" else a.submit_messages)("u3")
    await host.until_settled()
    found = call_parts((await a.get_messages())[1])
    assert (found["locate"]["state"], found["locate"]["errorText"]) == ("output-error", WENT_ON)
    assert found["pick"]["output"] == 1
    assert returned(model, 1) == {"pick": 1, "locate": WENT_ON}
    asked = [message.text for message in await a.get_messages() if message.role == "user"]
    assert asked == ["u1", "u2"] + ([] if how == "continue" else ["u3"])
    assert not await a.add_tool_output("locate", 2), "it is too late"
    assert await continuations(host) == []
    assert {outcome for _, outcome in await inbox(host)} == {"completed"}


@pytest.mark.parametrize("how", ["select", "add", "update", "clear"])
async def test_what_waits_goes_on_when_there_is_nothing_left_to_wait_for(
    world: World, how: str
) -> None:
    """And so does whoever waits for the agent to be stable."""
    Talker = talker(answering("First.", BOTH, "Next."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = await a.save_messages("u1", client_tools=CLIENT)
    again = asyncio.create_task(a.regenerate())
    await until_running(host, Talker)
    await a.submit_messages("u2")
    second = await again
    stable = asyncio.create_task(a.wait_until_stable())
    await asyncio.sleep(1)
    assert not stable.done()
    assert [state for state, _ in await inbox(host)] == ["ended", "ended", "accepted"]
    if how == "select":
        assert await a.select_branch(first.message.id)
    elif how == "add":
        await a.add_messages("u3")
    elif how == "update":
        parts = [{"type": "text", "text": "Never mind."}]
        assert await a.update_message({**second.message.raw, "parts": parts})
    else:
        await a.clear_messages()
    assert await asyncio.wait_for(stable, 10)
    outcome = "skipped" if how == "clear" else "completed"
    assert (await inbox(host))[-1] == ("ended", outcome)
    await host.until_settled()
    assert leftovers(agent_of(host, Talker)) == {}


# --- too late, or elsewhere ----------------------------------------------------------------------


async def test_a_result_for_another_branch_changes_nothing_until_that_is_selected(
    world: World,
) -> None:
    Talker = talker(model := answering(BOTH, "Another answer.", "Done."))
    host = await world.host(Talker)
    a = await opened(host, Talker)
    (user, parked) = await a.get_messages()
    other = await a.regenerate()
    assert other.message.text == "Another answer."
    assert not await a.has_pending_interaction()
    assert not await a.add_tool_output("pick", 1)
    assert (await a.get_message(parked.id)).raw == parked.raw
    assert await a.select_branch(parked.id)
    assert await a.has_pending_interaction()
    assert await a.add_tool_output("pick", 1)
    assert await a.select_branch(other.message.id)
    assert not await a.add_tool_output("locate", 2)
    assert await a.select_branch(parked.id)
    assert await a.add_tool_output("locate", 2)
    await host.until_settled()
    assert said(await a.get_messages()) == ["user: u1", "assistant: Hm. Done."]
    assert returned(model) == {"pick": 1, "locate": 2}
    assert [each.id for each in await a.get_branches(parked.id)] == [
        parked.id,
        other.message.id,
    ]


async def test_a_continuation_does_not_follow_a_conversation_to_another_branch(
    world: World,
) -> None:
    Talker = talker(model := answering("First.", Step.text("Hm. ", delay=1) + calls("pick")))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = await a.save_messages("u1", client_tools=CLIENT)
    await a.regenerate()
    answer = asyncio.create_task(a.add_tool_output("pick", 1))
    while not parts_of(agent_of(host, Talker))[Transcript].changing.locked():
        await asyncio.sleep(0)
    assert await a.select_branch(first.message.id)  # before the continuation has begun
    assert await answer
    await host.until_settled()
    assert said(await a.get_messages()) == ["user: u1", "assistant: First."]
    assert await continuations(host) == ["skipped"]
    assert len(model.requests) == 2


async def test_nothing_goes_on_when_the_message_is_not_the_last_one_any_more(
    world: World,
) -> None:
    Talker = talker(model := answering(BOTH, "Next."))
    host = await world.host(Talker)
    a = await opened(host, Talker)
    assert await a.add_tool_output("pick", 1)
    await a.add_messages("u2")
    assert await a.add_tool_output("locate", 2)
    await host.until_settled()
    assert (len(model.requests), len(await inbox(host))) == (1, 1)
    await a.save_messages("u3")
    assert returned(model) == {"pick": 1, "locate": 2}


@pytest.mark.parametrize("when", ["open", "half answered", "streaming"])
async def test_nothing_can_be_answered_after_the_conversation_was_cleared(
    world: World, when: str
) -> None:
    class Stubborn(Think):
        model = answering(calls("locate", "pick", "stay"), calls("locate", "pick"), "Done.")

        @tool
        async def stay(self) -> None:
            while when == "streaming":
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(100)
                    return

    host = await world.host(Stubborn)
    a = host.get(Stubborn, "a")
    await a.submit_messages("u1", client_tools=CLIENT)
    await (asyncio.sleep(1) if when == "streaming" else host.until_settled())
    assert await a.has_pending_interaction()
    if when == "half answered":
        await a.add_tool_output("pick", 1)
    await a.clear_messages()
    assert not await a.has_pending_interaction()
    for name in ("locate", "pick"):
        assert not await a.add_tool_output(name, 1)
    await asyncio.sleep(200)
    assert (await a.get_messages(), await continuations(host)) == ([], [])
    facts = dict(await rows(host, "facts", "name, value"))
    assert {value for name, value in facts.items() if name.startswith("chat:")} <= {"null"}
    # What comes next is a batch of its own.
    await a.save_messages("u2", client_tools=CLIENT)
    assert await a.add_tool_output("pick", 3, auto_continue=False)
    assert await a.add_tool_output("locate", 4, auto_continue=False)
    await host.until_settled()
    assert await continuations(host) == []


@pytest.mark.parametrize("when", ["about to begin", "streaming"])
async def test_a_continuation_can_be_cancelled(world: World, when: str) -> None:
    async def before_turn(self: Any, context: TurnContext) -> None:
        await asyncio.sleep(5 * context.continuation)

    script = [BOTH, Step.text("one two three", delay=1), "Next."]
    Talker = talker(model := answering(*script), before_turn=before_turn)
    host = await world.host(Talker)
    a = await opened(host, Talker, "u2")
    await a.add_tool_output("pick", 1)
    await a.add_tool_output("locate", 2)
    turn = await until_running(host, Talker)
    await asyncio.sleep(2 if when == "about to begin" else 6.5)
    assert await a.cancel_chat(turn.request_id, "enough")
    await host.until_settled()
    more = ("Hm. ", "one two three") if when == "about to begin" else ("Hm. one ", "Next.")
    expected = [f"assistant: {more[0]}", "user: u2", f"assistant: {more[1]}"]
    assert said(await a.get_messages())[1:] == expected
    assert await continuations(host) == ["aborted"]
    assert not await a.has_pending_interaction()
    assert returned(model) == {"pick": 1, "locate": 2}


# --- stable --------------------------------------------------------------------------------------


@pytest.mark.invariant("J8")
async def test_an_agent_that_is_about_to_go_on_is_not_stable(world: World) -> None:
    Talker = talker(model := answering(BOTH, Step.text("one two", delay=1), "Next."))
    host = await world.host(Talker)
    a = await opened(host, Talker, "u2")
    assert not await a.wait_until_stable(timeout=60)
    assert not await a.wait_until_stable(timeout=0)
    await a.add_tool_output("pick", 1)
    assert not await a.wait_until_stable(timeout=60)
    stable = asyncio.create_task(a.wait_until_stable(timeout=60))
    await asyncio.sleep(1)
    last = asyncio.create_task(a.add_tool_output("locate", 2))
    while not last.done():
        await asyncio.sleep(0)
        assert not stable.done()
    assert not await a.has_pending_interaction()
    assert not await a.wait_until_stable(timeout=0)
    assert await a.wait_until_stable(timeout=60)
    assert await stable
    assert len(model.requests) == 3
    assert len(await a.get_messages()) == 4
    assert await a.wait_until_stable(timeout=0)
    await host.until_settled()
    assert leftovers(agent_of(host, Talker)) == {}
    assert parts_of(agent_of(host, Talker))[TurnState]._watchers == []


async def test_nobody_waits_inside_a_turn_for_that_turn_to_end(world: World) -> None:
    class Hasty(Think):
        model = ScriptedModel(calls("wait"), "Done.")

        @tool(effect="read")
        async def wait(self) -> str:
            with pytest.raises(InsideTurn):
                await self.wait_until_stable()
            return f"pending: {await self.has_pending_interaction()}"

    host = await world.host(Hasty)
    a = host.get(Hasty, "a")
    assert (await a.save_messages("u1")).status == "completed"
    assert returned(Hasty.model) == {"wait": "pending: False"}
    assert await a.wait_until_stable(timeout=1)


async def test_whoever_waits_is_told_when_the_host_stops(world: World) -> None:
    Talker = talker(answering(BOTH))
    host = await world.host(Talker, shutdown_timeout=0)
    a = await opened(host, Talker)
    stable = asyncio.create_task(a.wait_until_stable())
    await asyncio.sleep(1)
    await world.stop()
    with pytest.raises(Exception, match="stop"):
        await asyncio.wait_for(stable, 10)


# --- what is not an answer -----------------------------------------------------------------------


async def test_what_answers_nothing_changes_nothing(world: World) -> None:
    Talker = talker(model := answering(BOTH, "Done."))
    host = await world.host(Talker)
    a = await opened(host, Talker)
    before = [message.raw for message in await a.get_messages()]
    facts = await rows(host, "facts")
    for id in ("nowhere", "", "\ud83d", "a\0b", "x" * 100_000, "u1"):
        assert not await a.add_tool_output(id, 1)
        assert not await a.add_tool_approval(id, True)
    assert not await a.add_tool_approval("pick", True), "nobody has asked for one"
    assert not await host.get(Talker, "somebody else").add_tool_output("pick", 1)
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    for output in ({1, 2}, {1: 2}, b"bytes", object(), (1, 2), deep, 10**5000):
        with pytest.raises(TypeError):
            await a.add_tool_output("pick", output)
    wrong: list[Any] = [5, None, ["pick"], {"id": "pick"}, b"pick"]
    for each in wrong:
        with pytest.raises(TypeError):
            await a.add_tool_output(each, 1)
        with pytest.raises(TypeError):
            await a.add_tool_approval(each, True)
    for arguments in ({"error_text": 5}, {"error_text": b"x"}, {"client_tools": 5}):
        with pytest.raises(TypeError):
            await a.add_tool_output("pick", **arguments)
    assert [message.raw for message in await a.get_messages()] == before
    assert (await rows(host, "facts"), len(await inbox(host))) == (facts, 1)
    await host.until_settled()
    assert len(model.requests) == 1


STRANGE = {
    "nothing": (None, None),
    "half a pair": ("a\ud83d", "a\ufffd"),
    "NUL": ("a\0b", "a\0b"),
    "not a number": ([float("nan")], [None]),
    "a denial of its own": ({"state": "output-denied", "type": "error"}, None),
}


@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("what", STRANGE)
async def test_a_strange_result_is_stored_as_it_is_told(
    world: World, what: str, is_live: bool
) -> None:
    given, kept = STRANGE[what]
    kept = given if kept is None else kept
    Talker = talker(model := ScriptedModel(calls("pick") + Step.text("one two", delay=1), "Done."))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = asyncio.create_task(a.save_messages("u1", client_tools=CLIENT))
    await until_running(host, Talker)
    await (asyncio.sleep(1.5) if is_live else first)
    assert await a.add_tool_output("pick", given)
    await first
    await host.until_settled()
    assert returned(model) == {"pick": kept}
    host = await world.next_life()
    assert (await last_calls(host.get(Talker, "a")))["pick"]["output"] == kept


async def test_a_huge_result_is_stored_whole_and_shown_in_part(world: World) -> None:
    Talker = talker(model := answering(BOTH, "Done."))
    huge = {"rows": ["x" * 1000] * 5000, "last": 1}
    host = await world.host(Talker)
    a = await opened(host, Talker)
    assert await a.add_tool_output("pick", huge)
    assert await a.add_tool_output("locate", error_text="e" * 2_000_000)
    await host.until_settled()
    assert (await last_calls(a))["pick"]["output"] == huge
    assert set(returned(model)) == {"pick", "locate"}
    for n in range(2, 8):
        assert (await a.save_messages(f"u{n}")).status == "completed"
    assert len(str(returned(model)["pick"])) < 2000


@pytest.mark.invariant("J16")
async def test_an_answer_erases_nothing_of_the_message(world: World) -> None:
    """Whatever else is stored in it, known here or not."""
    Talker = talker(model := answering("Done."))
    call = {"type": "tool-pick", "toolCallId": "pick", "state": "input-available"}
    call |= {"input": {"at": [1]}, "title": "Pick", "callProviderMetadata": {"p": {"id": "x"}}}
    dynamic = {"type": "dynamic-tool", "toolName": "mcp", "toolCallId": "mcp", "input": {"q": 1}}
    stored = {
        "id": "m",
        "role": "assistant",
        "metadata": {"theme": "dark", "more": {"a": 1}},
        "future": {"of": "messages"},
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "Hm.", "state": "done", "mood": "good"},
            {"type": "data-chart", "id": "d", "data": {"x": [1, 2]}},
            {**call, "x-unknown": {"deep": [1, {"y": None}]}},
            {"type": "text", "text": "Said.", "state": "done"},
            {**dynamic, "state": "input-available"},
            {"type": "from-the-future", "x": 1},
        ],
    }
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.add_messages(["u1", stored])
    assert await a.has_pending_interaction()
    assert await a.add_tool_output("pick", {"ok": 1}, auto_continue=False)
    assert await a.add_tool_output("mcp", error_text="gone", auto_continue=False)
    expected = {**stored, "parts": [dict(part) for part in stored["parts"]]}
    expected["parts"][3] |= {"state": "output-available", "output": {"ok": 1}}
    expected["parts"][5] |= {"state": "output-error", "errorText": "gone"}
    assert (await a.get_messages())[-1].raw == expected
    host = await world.next_life()
    a = host.get(Talker, "a")
    assert (await a.get_messages())[-1].raw == expected
    await a.save_messages("u2")
    assert returned(model)["pick"] == {"ok": 1}
