"""An interrupted turn, and what its user has said or done since: more messages, a cancel, a clear."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import stored
from conversation import agent_of, answering, doing, inbox, leftovers, meddle, rows
from interruptions import (
    ADDRESS,
    SLOW,
    Told,
    asked,
    break_off,
    check_requests,
    check_stream,
    incidents,
    kinds,
    talker,
    transcript,
    wait_for,
)

from outlast import ChatRecoveryOptions
from outlast.agent.agent import parts_of
from outlast.chat.gateway import ChatGateway
from outlast.testing import ScriptedModel
from support import World, hosting

pytestmark = pytest.mark.virtual_time


# --- what waits behind it ------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "row"), [(0.5, 15), (2.5, 19)])
async def test_what_waited_before_comes_after(store_url: str, after: float, row: int) -> None:
    Talker = talker(model := ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", "u2", after=after)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert [(each, cause) for each, _, cause in told.decided] == [(row, "deploy")]
        one = "assistant: one two three four"
        assert await transcript(host) == ["user: u1", one, "user: u2", one]
        assert await inbox(host) == [("ended", "completed")] * 2
    assert [asked(model, place) for place in range(3)] == [["u1"], ["u1"], ["u1", "u2"]]
    check_requests(model)


def moving_on(model: Any, *prompts: str, **members: Any) -> type[Any]:
    """Once `says_more` is set, the user says more before it is decided what becomes of a turn."""

    async def on_start(self: Any) -> None:
        if type(self).says_more:
            type(self).says_more = False
            for prompt in prompts:
                await self.submit_messages(prompt, submission_id=prompt)

    return talker(model, on_start=on_start, says_more=False, **members)


@pytest.mark.invariant("H6", "L4")
async def test_a_user_who_has_moved_on_gets_an_answer_to_that(store_url: str) -> None:
    Talker = moving_on(model := answering(SLOW, "Second.", "Third."), "u2", "u3")
    await break_off(store_url, Talker, "u1", after=2.5)
    Talker.says_more = True
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(21, "splice", "deploy")]
        assert "chat:recovery:skipped" in told.names
        assert await transcript(host) == [
            "user: u1",
            "assistant: one two ",
            "user: u2",
            "assistant: Second.",
            "user: u3",
            "assistant: Third.",
        ]
        assert await inbox(host, "outcome") == [("skipped",), ("completed",), ("completed",)]
        check_stream(await stored(host, ADDRESS), "s1", "one two ")
        assert (await a.inspect_submission("s1")).status == "skipped"
        assert await incidents(host) == []
    assert len(model.requests) == 3
    check_requests(model)


async def test_what_the_hook_shows_is_kept_when_the_user_has_moved_on(store_url: str) -> None:
    def on_recovery_boot(self: Any, event: Any) -> None:
        event.writer.data("recovered", {"cause": event.cause}, id="r")

    members = {"on_recovery_boot": on_recovery_boot}
    Talker = moving_on(answering(SLOW, "Second."), "u2", **members)
    await break_off(store_url, Talker, "u1", after=2.5)
    Talker.says_more = True
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        a = await wait_for(host, Talker)
        assert told.decided == [(21, "splice", "deploy")]
        shown = [part for part in (await a.get_messages())[1].parts if part["type"] != "text"]
        assert {"type": "data-recovered", "id": "r", "data": {"cause": "deploy"}} in shown
        check_stream(await stored(host, ADDRESS), "s1", "one two ")


async def test_what_had_said_nothing_is_answered_before_what_came_since(store_url: str) -> None:
    Talker = moving_on(ScriptedModel(SLOW), "u2")
    await break_off(store_url, Talker, "u1", after=0.5)
    Talker.says_more = True
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(16, "retry", "deploy")]
        one = "assistant: one two three four"
        assert await transcript(host) == ["user: u1", one, "user: u2", one]


async def test_what_is_said_while_the_hook_thinks_is_what_the_user_wants_now(
    store_url: str,
) -> None:
    async def on_chat_recovery(self: Any, context: Any) -> None:
        await self.submit_messages("u2", submission_id="u2")

    Talker = talker(model := ScriptedModel(SLOW), on_chat_recovery=on_chat_recovery)
    await break_off(store_url, Talker, "u1", after=2.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(21, "splice", "deploy")]
        one = "assistant: one two three four"
        said = await transcript(host)
        assert (said[0], said[2:]) == ("user: u1", ["user: u2", one])
        assert one.startswith(said[1])
        assert said[1] != one
    check_requests(model)


@pytest.mark.parametrize(("after", "row"), [(0.5, 15), (2.5, 20)])
async def test_a_message_that_supersedes_takes_the_place_of_half_an_answer(
    world: World, after: float, row: int
) -> None:
    """As it does of what waits. What had said nothing is answered: nobody has seen that it is late."""
    Talker = talker(model := ScriptedModel(SLOW))
    options: dict[str, Any] = {"regenerates": None, "body": {}, "client_tools": None}
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").get_messages()
    serving = parts_of(agent_of(host, Talker))[ChatGateway]
    for number in (1, 2):
        message = {"role": "user", "parts": [{"type": "text", "text": f"u{number}"}]}
        await serving.ask(f"r{number}", [message], concurrency="latest", **options)
        await asyncio.sleep(after / 2)
    host = await world.next_life()
    told = Told(host)
    await wait_for(host, Talker)
    assert [each for each, _, _ in told.decided] == [row]
    one = "assistant: one two three four"
    first = one if row == 15 else "assistant: one two "
    assert await transcript(host) == ["user: u1", first, "user: u2", one]
    await world.stop()
    check_requests(model)


# --- what was stopped ----------------------------------------------------------------------------


@pytest.mark.invariant("H24")
@pytest.mark.parametrize(
    ("after", "more", "row"), [(0.5, (), 2), (0.5, ("u2",), 3), (2.5, (), 4), (2.5, ("u2",), 5)]
)
async def test_what_was_cancelled_does_not_go_on(
    world: World, after: float, more: tuple[str, ...], row: int
) -> None:
    """Even if nobody has noticed before the process ended, and whatever the hooks would say."""
    heard: list[Any] = []
    Talker = talker(
        model := answering(SLOW, "Second."),
        on_chat_recovery=lambda self, context: heard.append(context),
    )
    host = await world.host(Talker, shutdown_timeout=0)
    for number, prompt in enumerate(("u1", *more)):
        await host.get(Talker, "a").submit_messages(prompt, submission_id=f"s{number + 1}")
    await asyncio.sleep(after)
    agent = agent_of(host, Talker)
    await meddle(agent, "UPDATE inbox SET cancelled = 'no' WHERE agent = ? AND id = 's1'", ADDRESS)
    host = await world.next_life()
    told = Told(host)
    await wait_for(host, Talker)
    assert [(each, action) for each, action, _ in told.decided] == [(row, "abort")]
    partial = ["assistant: one two "] if after > 1 else []
    follows = ["user: u2", "assistant: Second."] if more else []
    assert await transcript(host) == ["user: u1", *partial, *follows]
    assert (await inbox(host, "outcome, error"))[0] == ("aborted", "no")
    assert kinds(await stored(host, ADDRESS), "s1")[-1] == "abort"
    assert await incidents(host) == []
    await world.stop()
    assert heard == []
    assert len(model.requests) == 1 + len(more)


@pytest.mark.invariant("H24")
async def test_a_cancel_while_the_hook_thinks_is_heard(store_url: str) -> None:
    async def on_chat_recovery(self: Any, context: Any) -> Any:
        await self.cancel_chat("s1", "no")
        return ChatRecoveryOptions(continue_=True)

    Talker = talker(model := ScriptedModel(SLOW), on_chat_recovery=on_chat_recovery)
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(4, "abort", "deploy")]
        assert await inbox(host, "outcome, error") == [("aborted", "no")]
        assert await incidents(host) == []
    assert len(model.requests) == 1


async def test_a_turn_that_goes_on_can_be_cancelled(store_url: str) -> None:
    Talker = talker(ScriptedModel(SLOW))
    await break_off(store_url, Talker, "u1", after=2.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        await asyncio.sleep(1.5)
        assert await host.get(Talker, "a").cancel_chat("s1", "enough")
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: one two three "]
        assert await inbox(host, "outcome, error") == [("aborted", "enough")]
        assert await incidents(host) == []
        assert doing(host, Talker).recovering is None


@pytest.mark.parametrize("moment", ["while the hook thinks", "while it goes on"])
async def test_a_clear_leaves_nothing_of_it(store_url: str, moment: str) -> None:
    async def on_chat_recovery(self: Any, context: Any) -> None:
        if moment == "while the hook thinks":
            await self.clear_messages()

    Talker = talker(ScriptedModel(SLOW), on_chat_recovery=on_chat_recovery)
    await break_off(store_url, Talker, "u1", after=1.5)
    async with hosting(Talker, url=store_url, life="2") as host:
        await asyncio.sleep(1.5)
        if moment == "while it goes on":
            await host.get(Talker, "a").clear_messages()
        a = await wait_for(host, Talker)
        assert await transcript(host) == []
        assert await rows(host, "messages") == []
        assert await rows(host, "streams") == []
        assert await incidents(host) == []
        assert leftovers(agent_of(host, Talker)) == {}
        assert (await a.save_messages("u2")).status == "completed"
        assert await transcript(host) == ["user: u2", "assistant: one two three four"]
