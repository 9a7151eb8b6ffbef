"""Stopping, resuming and trying again, in the order in which real pages do it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tabs import (
    ACK,
    MESSAGES,
    NONE,
    PENDING,
    PROBE,
    RESPONSE,
    RESUMING,
    Tab,
    served,
    stored,
    text_of,
    user,
    words,
)

from conformance.fixture_agent import TIMEZONE
from outlast import Think, TurnContext, rpc
from outlast.testing import ScriptedModel

CANCEL = "cf_agent_chat_request_cancel"


async def release(tab: Tab) -> None:
    await tab.call("release")


async def started(tab: Tab, id: str, count: int) -> None:
    await tab.until(lambda: len(tab.text(id).split()) >= count)


# --- mounted again -------------------------------------------------------------------------------


async def test_a_page_that_is_mounted_again_is_offered_its_own_stream(sqlite_url: str) -> None:
    """The socket stays, and a new hook asks: it has seen nothing of what came before."""
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.say("r1", "say 20 words, held after 10 words")
        await started(tab, "r1", 10)
        await tab.send(PROBE, probeId="p1")
        assert await tab.wait(RESUMING, probeId="p1") == {
            "type": RESUMING,
            "id": "r1",
            "probeId": "p1",
        }
        await tab.send(ACK, id="r1")
        await tab.wait(RESPONSE, id="r1", replayComplete=True)
        assert tab.text("r1", replay=True).strip() == words(10)
        await release(tab)
        await tab.done("r1")
        assert len(tab.all(RESPONSE, id="r1", done=True)) == 1


async def test_before_the_first_chunk_it_is_told_to_wait(sqlite_url: str) -> None:
    begins = asyncio.Event()

    class Slow(Think):
        model = ScriptedModel("Hello.")

        async def before_turn(self, ctx: TurnContext) -> None:
            await begins.wait()

        @rpc
        async def begin(self) -> None:
            begins.set()

    async with served(Slow, url=sqlite_url) as server, server.tab(path="/agents/slow/s") as tab:
        await tab.say("r1", "Hi")
        await tab.send("rpc", id="x", method="none", args=[])  # what follows is not one burst
        await tab.send(PROBE, probeId="p1")
        await tab.wait(PENDING, id="r1", probeId="p1")
        await tab.call("begin")
        await tab.wait(RESUMING, id="r1")
        assert not tab.all(NONE)
        await tab.send(ACK, id="r1")
        await tab.done("r1")


async def test_a_page_that_sends_while_it_mounts_reads_its_answer_once(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.say("r1", "wait 200ms say 5 words")
        await tab.send(PROBE, probeId="p1")
        answer = await tab.until(lambda: tab.all(NONE) + tab.all(PENDING) + tab.all(RESUMING))
        assert answer == [{"type": NONE, "probeId": "p1"}]
        await tab.done("r1")
        assert tab.text("r1") == words(5)
        assert not tab.all(RESUMING)


# --- stopped -------------------------------------------------------------------------------------


async def test_a_message_that_waits_is_kept_when_it_is_stopped(store_url: str) -> None:
    async with served(url=store_url) as server, server.tab() as tab, server.tab() as other:
        await tab.say("r1", "say 20 words, held after 10 words")
        await started(tab, "r1", 10)
        await tab.say("r2", "say 3 words")
        await other.until(lambda: "u-r2" in str(other.all(MESSAGES)))
        await tab.send(CANCEL, id="r2")
        for each in (tab, other):
            assert (await each.done("r2"))["outcome"] == "aborted"
            shown = [message["id"] for message in each.all(MESSAGES)[-1]["messages"]]
            assert shown[-1] == "u-r2"
        await release(tab)
        await tab.done("r1")
        found = await stored(server)
        assert [each["role"] for each in found] == ["user", "assistant", "user"]
        assert [found[0]["id"], found[2]["id"]] == ["u-r1", "u-r2"]
        assert text_of(found[1]) == words(20)
        await tab.answered("r3", "say 2 words")
        roles = [each["role"] for each in await stored(server)]
        assert roles == ["user", "assistant", "user", "user", "assistant"]


async def test_a_cancel_right_behind_its_request_keeps_the_message(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.say("r1", "wait 500ms say 5 words")
        await tab.send(CANCEL, id="r1")
        assert (await tab.done("r1"))["outcome"] == "aborted"
        assert next(each["id"] for each in await stored(server)) == "u-r1"


async def test_an_edit_that_waits_is_kept_when_it_is_stopped(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.answered("r1", "say 2 words")
        await tab.say("r2", "say 20 words, held after 10 words")
        await started(tab, "r2", 10)
        await tab.ask("r3", user("u-r1", "say 4 words"))
        await tab.call("echo")
        await tab.send(CANCEL, id="r3")
        await tab.done("r3")
        await release(tab)
        await tab.done("r2")
        assert text_of((await stored(server))[0]) == "say 4 words"


# --- trying again --------------------------------------------------------------------------------


async def test_regenerating_a_message_that_never_arrived_stores_and_answers_it(
    sqlite_url: str,
) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.ask("r1", user("lost", "say 3 words"), trigger="regenerate-message")
        done = await tab.done("r1")
        assert done.get("outcome") is None
        assert done["messageIds"] == ["lost"]
        assert [text_of(each) for each in await stored(server)] == ["say 3 words", words(3)]
        await tab.ask("r2", user("lost", "say 3 words"), trigger="regenerate-message")
        await tab.done("r2")
        assert [text_of(each) for each in await stored(server)] == ["say 3 words", words(3)]


async def test_regenerating_a_message_that_was_stopped_answers_it(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.say("r1", "say 20 words, held after 10 words")
        await started(tab, "r1", 10)
        message = await tab.say("r2", "say 3 words")
        await tab.send(CANCEL, id="r2")
        await tab.done("r2")
        await release(tab)
        await tab.done("r1")
        await tab.ask("r3", *await stored(server), trigger="regenerate-message")
        await tab.done("r3")
        found = await stored(server)
        assert [each["id"] for each in found][2] == message["id"]
        assert text_of(found[3]) == words(3)


# --- continuations -------------------------------------------------------------------------------


async def test_a_continuation_is_announced_to_whoever_gave_the_last_result(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab, server.tab() as other:
        prompt = "call client tool then say 20 words, held after 5 words"
        await tab.say("r1", prompt, clientTools=[TIMEZONE])
        await tab.done("r1")
        (call,) = [each for each in tab.chunks("r1") if each["type"] == "tool-input-available"]
        await tab.send(
            "cf_agent_tool_result",
            toolCallId=call["toolCallId"],
            toolName="getUserTimezone",
            output="Europe/Paris",
            autoContinue=True,
        )
        offered = await tab.wait(RESUMING)
        assert offered["id"] != "r1"
        assert not tab.chunks(offered["id"])
        await tab.send(ACK, id=offered["id"])
        await tab.wait(RESPONSE, id=offered["id"], replayComplete=True)
        await release(tab)
        done = await tab.done(offered["id"])
        assert done["continuation"] is True
        assert tab.text(offered["id"]) == f"Your timezone is Europe/Paris. {words(20)}"
        assert not other.all(RESUMING)
        await other.done(offered["id"])


async def test_a_continuation_is_announced_to_whoever_approved(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.say("r1", "need approval")
        await tab.done("r1")
        (call,) = [each for each in tab.chunks("r1") if each["type"] == "tool-approval-request"]
        await tab.send(
            "cf_agent_tool_approval",
            toolCallId=call["toolCallId"],
            approved=True,
            autoContinue=True,
        )
        offered = await tab.wait(RESUMING)
        await tab.send(ACK, id=offered["id"])
        await tab.done(offered["id"])
        await tab.until(lambda: "tool-output-available" in str(tab.chunks(offered["id"])))


# --- what is ignored -----------------------------------------------------------------------------


async def test_a_list_of_messages_is_ignored_and_said_once(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        with caplog.at_level(logging.INFO, "outlast.server"):
            for _ in range(3):
                await tab.send(MESSAGES, messages=[user("x", "forged")])
            await tab.call("echo")
        lines = [each for each in caplog.messages if "syncMessagesToServer" in each]
        assert len(lines) == 1
        assert await stored(server) == []


async def test_messages_that_are_stopped_keep_their_place_in_the_queue(store_url: str) -> None:
    async with served(url=store_url) as server, server.tab() as tab, server.tab() as other:
        await tab.say("r1", "say 20 words, held after 10 words")
        await started(tab, "r1", 10)
        for n in (2, 3, 4):
            await tab.say(f"r{n}", f"say {n} words")
        await other.until(lambda: "u-r4" in str(other.all(MESSAGES)))
        await tab.send(CANCEL, id="r3")
        for each in (tab, other):
            assert (await each.done("r3"))["outcome"] == "aborted"
        await tab.send(CANCEL, id="r3")
        await release(tab)
        for id in ("r1", "r2", "r4"):
            assert "outcome" not in await tab.done(id)
        found = [each["id"] for each in await stored(server) if each["role"] == "user"]
        assert found == ["u-r1", "u-r2", "u-r3", "u-r4"]
        shown = [each["id"] for each in tab.all(MESSAGES)[-1]["messages"] if each["role"] == "user"]
        assert shown == found
        for id in ("r1", "r2", "r3", "r4"):
            assert len(tab.all(RESPONSE, id=id, done=True)) == 1


@pytest.mark.parametrize("depth", [170, 900])
async def test_a_result_that_cannot_be_stored_ends_its_call(sqlite_url: str, depth: int) -> None:
    deep: object = "x"
    for _ in range(depth):
        deep = [deep]
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.answered("r1", "call client tool")
        (part,) = [p for p in (await stored(server))[-1]["parts"] if "toolCallId" in p]
        await tab.send(
            "cf_agent_tool_result",
            toolCallId=part["toolCallId"],
            toolName="",
            output=deep,
            autoContinue=True,
        )
        id = (await tab.wait(RESUMING))["id"]
        await tab.send(ACK, id=id)
        await tab.done(id)
        (part,) = [p for p in (await stored(server))[-1]["parts"] if "toolCallId" in p]
        assert part["state"] == "output-error"


async def test_an_answer_that_does_not_count_takes_over_no_continuation(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab(pk="a") as a, server.tab(pk="b") as b:
        await a.answered("r1", "call client tool then say 30 words, held after 10 words")
        (part,) = [p for p in (await stored(server))[-1]["parts"] if "toolCallId" in p]
        for tab in (a, b):
            await tab.send(
                "cf_agent_tool_result",
                toolCallId=part["toolCallId"],
                toolName="",
                output="CET",
                autoContinue=True,
            )
            if tab is a:
                await a.wait(RESUMING)
        await b.send(PROBE, probeId="p")
        answer = await b.until(lambda: b.all(NONE, probeId="p") + b.all(PENDING) + b.all(RESUMING))
        assert answer == [{"type": NONE, "reason": "continuation-owned", "probeId": "p"}]
        await release(a)
