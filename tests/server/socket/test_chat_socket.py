"""A conversation over sockets: what the owner of a request sees, and what others do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tabs import (
    MESSAGES,
    RESPONSE,
    RESUMING,
    UPDATED,
    before,
    last_messages,
    quiet_log,
    said,
    seqs,
    served,
    stored,
    text_of,
    user,
    words,
)

from conformance.fixture_agent import FixtureAgent

CLEAR = "cf_agent_chat_clear"


class Dropping(FixtureAgent):
    message_concurrency = "drop"


async def test_an_answer_reaches_its_owner_and_an_observer(store_url: str) -> None:
    async with served(url=store_url) as server, server.tab(pk="o") as owner, server.tab() as other:
        await other.wait("cf_agent_mcp_servers")
        await owner.say("r1", "say 5 words")
        for tab in (owner, other):
            done = await tab.done("r1")
            assert done == {
                "type": RESPONSE,
                "id": "r1",
                "body": "",
                "done": True,
                "messageIds": ["u-r1"],
                **{name: done[name] for name in done if name == "outcome"},
            }
            assert done.get("outcome", "completed") == "completed"
            assert tab.text("r1") == words(5)
            assert seqs(tab, "r1") == [*range(len(seqs(tab, "r1")))]
            transcript = tab.all(MESSAGES)[-1]
            assert before(tab, transcript, done)
            assert "connect" not in transcript
            assert said(transcript["messages"]) == ["user: say 5 words", f"assistant: {words(5)}"]
            start = tab.chunks("r1")[0]
            assert (start["type"], start["messageId"]) == ("start", transcript["messages"][1]["id"])
        kinds = [each["type"] for each in owner.chunks("r1")]
        assert kinds == [
            "start",
            "start-step",
            "text-start",
            *["text-delta"] * 5,
            "text-end",
            "finish-step",
            "finish",
        ]
        first = other.all(MESSAGES)[0]
        assert said(first["messages"]) == ["user: say 5 words"]
        assert before(other, first, other.all(RESPONSE)[0])
        assert len(owner.all(MESSAGES)) == 1  # no transcript for the owner when it asks
        assert await stored(server) == transcript["messages"]


@pytest.mark.invariant("K1", "K7")
async def test_a_turn_that_fails_ends_with_its_error_after_the_transcript(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner, server.tab() as other:
        await owner.say("r1", "fail after 2 words")
        for tab in (owner, other):
            done = await tab.done("r1")
            assert (done["error"], done["body"]) == (True, "fixture model exploded")
            assert done["messageIds"] == ["u-r1"]
            assert before(tab, tab.all(MESSAGES)[-1], done)
            assert said(last_messages(tab))[1] == "assistant: w1 w2 "
            assert len(tab.all(RESPONSE, id="r1", done=True)) == 1
            assert not [each for each in tab.chunks("r1") if each["type"] == "error"]


async def test_a_cancelled_turn_keeps_what_it_said(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner, server.tab() as other:
        await owner.say("r1", "say 500 words every 20ms")
        await owner.until(lambda: len(owner.text("r1")) > 8)
        await owner.send("cf_agent_chat_request_cancel", id="r1")
        for tab in (owner, other):
            done = await tab.done("r1")
            assert (done["outcome"], done["messageIds"]) == ("aborted", ["u-r1"])
            assert before(tab, tab.all(MESSAGES)[-1], done)
            assert text_of(last_messages(tab)[1]) == tab.text("r1")
            # Who has stopped it shows what it had then, and takes the rest from no transcript.
            (healed,) = tab.all(UPDATED)
            assert healed["message"] == last_messages(tab)[1]
            assert before(tab, healed, done)
        await owner.send("cf_agent_chat_request_cancel", id="nobody")
        await owner.send("cf_agent_chat_request_cancel", id="r1")
        await owner.answered("r2", "say 2 words")
        assert owner.text("r2") == "w1 w2"
        assert len(owner.all(RESPONSE, id="r1", done=True)) == 1


async def test_what_waits_and_is_cancelled_ends_too(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner, server.tab() as other:
        first = await owner.say("r1", "say 30 words every 10ms")
        await owner.say("r2", "say 2 words", first)
        await other.until(lambda: other.text("r1"))
        await owner.send("cf_agent_chat_request_cancel", id="r2")
        done = await owner.done("r2")
        assert done["outcome"] in ("aborted", "skipped")
        assert done["messageIds"][-1] == "u-r2"
        await other.done("r2")
        await owner.done("r1")
        assert said(last_messages(owner)) == [
            "user: say 30 words every 10ms",
            f"assistant: {words(30)}",
            "user: say 2 words",
        ]


@pytest.mark.parametrize("has_partial", [True, False])
async def test_a_second_message_is_never_missing_from_a_screen(
    sqlite_url: str, has_partial: bool
) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner, server.tab() as other:
        first = await owner.say("r1", "say 20 words every 5ms")
        await owner.until(lambda: owner.text("r1"))
        partial = {
            "id": "client-copy",
            "role": "assistant",
            "parts": [{"type": "text", "text": "w1"}],
        }
        await owner.say("r2", "say 3 words", first, *[partial] * has_partial)
        at = len(owner.frames)
        seen = await other.until(
            lambda: next(
                (
                    n
                    for n, each in enumerate(other.frames)
                    if each["type"] == MESSAGES and any(m["id"] == "u-r2" for m in each["messages"])
                ),
                None,
            )
        )
        await owner.done("r2")
        await other.done("r2")
        for tab, since in ((owner, at), (other, seen)):
            for frame in tab.frames[since:]:
                if frame["type"] == MESSAGES:
                    ids = [each["id"] for each in frame["messages"]]
                    assert "u-r2" in ids
                    assert len(ids) == len(set(ids))
        expected = [
            "user: say 20 words every 5ms",
            f"assistant: {words(20)}",
            "user: say 3 words",
            "assistant: w1 w2 w3",
        ]
        assert said(await stored(server)) == said(last_messages(owner)) == expected
        assert said(last_messages(other)) == expected


async def test_clear_stops_everything_and_leaves_nothing(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab(pk="o") as owner, server.tab() as other:
        await owner.say("r1", "say 500 words every 10ms")
        await owner.say("r2", "waits")
        await owner.until(lambda: owner.text("r1"))
        await owner.send(CLEAR)
        await other.wait(CLEAR)
        for tab in (owner, other):
            assert (await tab.done("r1"))["outcome"] == "aborted"
            assert (await tab.done("r2"))["outcome"] == "skipped"
            end = tab.frames.index(await tab.done("r1"))
            await tab.wait(MESSAGES, after=end, messages=[])
        assert not owner.all(CLEAR)
        assert await stored(server) == []
        await owner.answered("r3", "say 1 words")
        await other.done("r3")
        assert said(last_messages(other)) == ["user: say 1 words", "assistant: w1"]
        assert len(owner.all(RESPONSE, id="r1", done=True)) == 1
        assert len(owner.all(RESPONSE, id="r2", done=True)) == 1


async def test_another_answer_replaces_the_last(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner, server.tab() as other:
        first = await owner.say("r1", "say 2 words")
        await owner.done("r1")
        await owner.ask("r2", first, trigger="regenerate-message")
        done = await owner.done("r2")
        assert done.get("outcome", "completed") == "completed"
        await other.done("r2")
        for tab in (owner, other):
            assert said(last_messages(tab)) == ["user: say 2 words", "assistant: w1 w2"]
            assert tab.chunks("r2")[0]["messageId"] == last_messages(tab)[1]["id"]
            assert tab.chunks("r1")[0]["messageId"] != tab.chunks("r2")[0]["messageId"]


async def test_another_answer_to_an_earlier_message_drops_what_followed(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        first = await owner.say("r1", "say 2 words")
        await owner.done("r1")
        await owner.say("r2", "say 3 words", *last_messages(owner))
        await owner.done("r2")
        assert len(last_messages(owner)) == 4
        await owner.ask("r3", first, trigger="regenerate-message")
        await owner.done("r3")
        assert said(last_messages(owner)) == ["user: say 2 words", "assistant: w1 w2"]
        await owner.ask("r4", trigger="regenerate-message")
        await owner.done("r4")
        assert said(last_messages(owner)) == ["user: say 2 words", "assistant: w1 w2"]


async def test_a_message_that_was_edited_is_answered_anew(sqlite_url: str) -> None:
    """`sendMessage({messageId})` of the AI SDK: the same id, another text, and nothing after it."""
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.ask("r1", user("m1", "say 2 words"))
        await owner.done("r1")
        await owner.ask("r2", user("m1", "say 3 words"))
        await owner.done("r2")
        assert owner.text("r2") == "w1 w2 w3"
        assert said(last_messages(owner)) == ["user: say 3 words", "assistant: w1 w2 w3"]


async def test_a_message_that_is_dropped_ends_as_skipped(sqlite_url: str) -> None:
    async with served(Dropping, url=sqlite_url) as server:
        path = "/agents/dropping/a"
        async with server.tab(path=path) as owner, server.tab(path=path) as other:
            await owner.say("r1", "say 30 words every 10ms")
            await other.until(lambda: other.text("r1"))
            await other.say("r2", "me too")
            done = await other.done("r2")
            assert (done["outcome"], done["messageIds"]) == ("skipped", ["u-r2"])
            assert before(other, other.all(MESSAGES)[-1], done)
            await owner.done("r1")
            assert len(last_messages(owner)) == 2


async def test_a_request_that_comes_twice_is_answered_once(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab(pk="o") as owner:
        await owner.say("r1", "say 10 words every 5ms")
        await owner.say("r1", "say 10 words every 5ms")
        await owner.done("r1")
        assert owner.text("r1") == words(10)
        at = len(owner.frames)
        await owner.say("r1", "say 10 words every 5ms")
        await owner.wait(RESPONSE, after=at, id="r1", done=True)
        assert len(await stored(server)) == 2
        assert (await owner.call("getStats"))["model"] == 1


async def test_a_turn_of_the_server_is_shown_to_all(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as one, server.tab() as two:
        await one.wait("cf_agent_mcp_servers")
        await two.wait("cf_agent_mcp_servers")
        id = await one.call("startServerTurn", "say 3 words")
        for tab in (one, two):
            done = await tab.wait(RESPONSE, done=True)
            assert done["messageIds"] == [id]
            assert tab.text(done["id"]) == "w1 w2 w3"
            first = tab.all(MESSAGES)[0]
            assert [each["id"] for each in first["messages"]] == [id]
            assert before(tab, first, tab.all(RESPONSE)[0])


@pytest.mark.invariant("K5")
async def test_the_hint_of_a_recovery_is_told_to_all_and_to_whoever_comes(sqlite_url: str) -> None:
    hint = "cf_agent_chat_recovering"
    async with served(url=sqlite_url) as server, server.tab() as one:
        await one.answered("r1", "Hi")
        await one.call("setRecovering", True)
        await one.call("setRecovering", True)
        async with server.tab() as two:
            await two.wait(hint, recovering=True)
            await two.send("cf_agent_stream_resume_request", probeId="p")
            await two.wait("cf_agent_stream_resume_none", probeId="p")
            assert len(two.all(hint)) == 2
            await one.call("setRecovering", False)
            await two.wait(hint, recovering=False)
            assert [each["recovering"] for each in one.all(hint)] == [True, False]


async def test_the_hint_comes_also_to_who_does_not_ask_to_resume(sqlite_url: str) -> None:
    hint = "cf_agent_chat_recovering"
    async with served(url=sqlite_url) as server, server.tab() as one:
        await one.say("r1", "say 20 words, held after 10 words")
        await one.until(lambda: len(one.text("r1").split()) >= 10)
        await one.call("setRecovering", True)
        async with server.tab() as two:
            await two.wait(RESUMING, id="r1")
            assert [each["recovering"] for each in two.all(hint)] == [True]
            await one.call("release")
            await two.done("r1")


async def test_requests_whose_id_cannot_be_read_are_not_answered(sqlite_url: str) -> None:
    good = json.dumps({"messages": [user("u", "Hi")], "trigger": "submit-message"})
    async with served(url=sqlite_url) as server, server.tab() as tab, quiet_log():
        for id in (None, 1, "", ["r1"]):
            await tab.send(
                "cf_agent_use_chat_request", id=id, init={"method": "POST", "body": good}
            )
        await tab.call("echo")
        assert not tab.all(RESPONSE)
        assert await stored(server) == []


async def test_what_cannot_be_accepted_is_answered_with_an_error(sqlite_url: str) -> None:
    deep: Any = "x"
    for _ in range(160):
        deep = [deep]
    async with served(url=sqlite_url) as server, server.tab() as tab, quiet_log():
        for n, message in enumerate(
            (
                {"id": "u", "role": "user", "parts": [1]},
                {"id": "u", "role": "user", "parts": [{"type": "text"}]},
                {"id": "u", "role": "user", "parts": [{"type": "data-x", "data": deep}]},
                user("u", "x" * 1_100_000),
                {"id": "u\0", "role": "user", "parts": []},
            )
        ):
            await tab.ask(f"r{n}", message)
            done = await tab.done(f"r{n}")
            assert done["error"] is True
            assert "Error" not in done["body"]
        await tab.ask("r9", *[user(f"m{n}", "x") for n in range(101)])
        assert (await tab.done("r9"))["error"] is True
        assert await stored(server) == []
        await asyncio.sleep(0)
        await tab.answered("fine", "say 1 words")
