"""Turns that are interrupted while clients watch: what those are told, each thing once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

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
    last_messages,
    quiet_log,
    said,
    served,
    stored,
    text_of,
    tool_parts,
    until,
    user,
    words,
)

from conformance.fixture_agent import FixtureAgent
from outlast import ChatRecovery, Think
from outlast.agent.agent import parts_of
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.turn.state import TurnState
from outlast.client import Client
from outlast.host.address import Address
from outlast.testing import ScriptedModel, Step

HINT = "cf_agent_chat_recovering"


class Stalling(Think):
    """Its model falls silent in the middle of the first answer."""

    chat_stream_stall_timeout = 0.1

    def __init__(self) -> None:
        steps = (Step.text("one two ") + Step.stalls(), Step.text("three"), Step.text("four"))
        self._model = ScriptedModel(*steps, by="request")

    def get_model(self) -> Any:
        return self._model


class Slow(Think):
    """Says a hundred words, and knows for whom."""

    model = ScriptedModel.answering(lambda messages: Step.text(words(100), delay=0.01))
    acted_for: list[Any] = []

    async def before_step(self, context: Any) -> None:
        entry = parts_of(self)[TurnState].running.entry
        Slow.acted_for.append(json.loads(entry.options).get("principal"))


def hints(tab: Tab) -> list[bool]:
    return [each["recovering"] for each in tab.all(HINT)]


async def cut_off(url: str, *agents: type[Any], path: str, prompt: str, **options: Any) -> str:
    """A server that stops in the middle of an answer; what was seen of it."""
    async with served(*agents, url=url, **options) as server:
        async with server.tab(path=path, query="user=ann") as tab:
            await tab.say("r1", prompt)
            await tab.until(lambda: len(tab.text("r1")) > 20)
            server.server.should_exit = True
            await tab.until_closed()
            return tab.text("r1")


async def resumed(tab: Tab) -> str:
    """Take what is offered; the id of the request."""
    await tab.send(PROBE, probeId="p")
    found = await tab.wait(RESUMING)
    await tab.send(ACK, id=found["id"])
    return str(found["id"])


@pytest.mark.invariant("K1", "K5", "E8")
async def test_an_answer_that_stalls_and_goes_on_is_told_once(sqlite_url: str) -> None:
    path = "/agents/stalling/a"
    async with served(Stalling, url=sqlite_url) as server:
        async with server.tab(path=path) as one, server.tab(path=path) as other:
            await one.say("r1", "Hi")
            for tab in (one, other):
                await tab.done("r1")
            await one.answered("r2", "More")
            await other.done("r2")
            for tab in (one, other):
                assert tab.text("r1") == "one two three"
                assert tab.text("r2") == "four"
                assert hints(tab) == [True, False]
                numbers = [each["seq"] for each in tab.all(RESPONSE, id="r1") if "seq" in each]
                assert numbers == sorted(set(numbers))
                for id in ("r1", "r2"):
                    assert len(tab.all(RESPONSE, id=id, done=True)) == 1, tab.shape()


@pytest.mark.invariant("K5")
async def test_the_hint_is_on_from_the_restart_to_the_end(sqlite_url: str) -> None:
    path = "/agents/slow/a"
    await cut_off(sqlite_url, Slow, path=path, prompt="Hi")
    async with served(Slow, url=sqlite_url) as server, server.tab(path=path) as tab:
        await tab.wait(HINT, recovering=True)
        async with server.tab(path=path) as late:
            await resumed(late)
            await late.wait(HINT, recovering=True)
            for each in (tab, late):
                await each.done("r1")
                await each.wait(HINT, recovering=False)
                assert hints(each)[-1] is False
                assert hints(each).count(False) == 1
        async with server.tab(path=path) as later:
            await later.wait(MESSAGES)
            await later.send(PROBE, probeId="p")
            assert (await later.wait(NONE))["reason"] == "idle"
            assert hints(later) == []


@pytest.mark.invariant("E6", "E10", "E14")
async def test_who_asks_for_a_turn_that_is_just_being_taken_up_gets_all_of_it(
    sqlite_url: str,
) -> None:
    """Not the end of it, for that it is not told yet."""
    path = "/agents/slow/a"
    seen = await cut_off(sqlite_url, Slow, path=path, prompt="Hi")
    async with served(Slow, url=sqlite_url) as server:
        async with Client(server.http, "slow", "a") as client:
            chunks = [chunk async for chunk in client.resume("r1")]
            texts = [chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta"]
            assert "".join(texts) == text_of(client.messages[-1])
            assert "".join(texts).startswith(seen.rstrip())


@pytest.mark.invariant("K3", "K6")
@pytest.mark.parametrize("raises", [False, True])
async def test_a_turn_that_is_given_up_at_boot_shows_its_error_to_who_comes_first(
    sqlite_url: str, raises: bool
) -> None:
    told = 0

    def on_exhausted(context: Any) -> None:
        nonlocal told
        told += 1
        if raises:
            raise RuntimeError("the pager is 1234")

    class Tired(Slow):
        chat_recovery = ChatRecovery(
            max_age=0.001, terminal_message="Ask again.", on_exhausted=on_exhausted
        )

    path = "/agents/tired/a"
    seen = await cut_off(sqlite_url, Tired, path=path, prompt="Hi")
    async with quiet_log("Tired/a: on_exhausted raised"):
        async with served(Tired, url=sqlite_url) as server, server.tab(path=path) as tab:
            await tab.send(PROBE, probeId="p")
            await tab.until(lambda: tab.all(RESUMING) or tab.all(RESPONSE, done=True))
            if tab.all(RESUMING):  # it was given up before somebody came
                await tab.send(ACK, id="r1")
            done = await tab.done("r1")
            assert (done["error"], done["body"]) == (True, "Ask again.")
            await tab.wait(MESSAGES)
            assert text_of(last_messages(tab)[1]).startswith(seen.rstrip())
        async with served(Tired, url=sqlite_url) as server, server.tab(path=path) as tab:
            assert await resumed(tab) == "r1"
            done = await tab.done("r1")
            assert (done["error"], done["body"]) == (True, "Ask again.")
            assert words(100).startswith(tab.text("r1").rstrip())
            assert tab.text("r1").startswith(seen.rstrip())
            kinds = Counter(chunk["type"] for chunk in tab.chunks("r1"))
            assert kinds["text-start"] == kinds["text-end"]
            assert len(tab.all(RESPONSE, id="r1", done=True)) == 1
    assert told == 1


@pytest.mark.invariant("P4")
async def test_a_turn_that_is_taken_up_acts_for_who_has_started_it(sqlite_url: str) -> None:
    def auth(connection: Any) -> Any:
        return {"user": connection.query_params["user"]}

    path = "/agents/slow/a"
    Slow.acted_for.clear()
    await cut_off(sqlite_url, Slow, path=path, prompt="Hi", auth=auth)
    async with served(Slow, url=sqlite_url, auth=auth) as server:
        async with server.tab(path=path, query="user=bob") as tab:
            await resumed(tab)
            await tab.done("r1")
            await tab.say("r2", "And mine?")
            await until(lambda: len(Slow.acted_for) == 3)
    assert Slow.acted_for == [{"user": "ann"}, {"user": "ann"}, {"user": "bob"}]


@pytest.mark.invariant("E9")
async def test_what_goes_on_with_a_message_says_so_also_after_a_restart(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab(pk="o") as tab:
        await tab.answered("r1", "call client tool then say 150 words every 10ms")
        (part,) = tool_parts(last_messages(tab)[1])
        await tab.send(
            "cf_agent_tool_result",
            toolCallId=part["toolCallId"],
            toolName="",
            output="CET",
            autoContinue=True,
        )
        id = await resumed(tab)
        await tab.until(lambda: len(tab.text(id)) > 30)
        server.server.should_exit = True
        await tab.until_closed()
    async with served(url=sqlite_url) as server, server.tab(pk="o") as tab:
        assert await resumed(tab) == id
        await tab.done(id)
        frames = tab.all(RESPONSE, id=id)
        assert any(each.get("replay") for each in frames)
        assert all(each["continuation"] for each in frames)
        text = f"Your timezone is CET. {words(150)}"
        assert tab.text(id) == text_of(last_messages(tab)[1]) == text


@pytest.mark.invariant("E15")
async def test_readers_that_go_in_the_middle_of_a_replay_hurt_nobody(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner, quiet_log():
        await owner.say("r1", "say 400 words every 2ms")
        await owner.until(lambda: len(owner.text("r1")) > 100)
        for n in range(20):
            tab = await server.tab(pk=f"t{n}").open()
            await tab.send(ACK, id="r1")
            if n % 2:
                await tab.until(lambda tab=tab: tab.all(RESPONSE))
            await tab.cut()
        async with server.tab(pk="last") as tab:
            await resumed(tab)
            await tab.wait(RESPONSE, id="r1", replayComplete=True)
            await tab.done("r1")
            assert tab.text("r1") == words(400)
        await owner.done("r1")
        assert owner.text("r1") == words(400)


class Latest(FixtureAgent):
    message_concurrency = "latest"


@pytest.mark.invariant("E11")
async def test_who_waits_is_not_released_by_a_turn_that_was_superseded(sqlite_url: str) -> None:
    path = "/agents/latest/a"
    async with served(Latest, url=sqlite_url) as server, server.tab(path=path) as owner:
        await owner.say("r1", "hold 300ms say 5 words")
        await owner.call("echo")
        async with server.tab(path=path) as tab:
            await tab.send(PROBE, probeId="p")
            await tab.wait(PENDING, id="r1", probeId="p")
            await owner.say("r2", "say 1 words")
            await owner.say("r3", "say 2 words")
            await tab.wait(RESUMING, id="r1")
            assert not tab.all(NONE)
            await tab.send(ACK, id="r1")
            await tab.done("r3")
            assert [tab.text(id) for id in ("r1", "r2", "r3")] == [words(5), "", words(2)]
            assert len(tab.all(RESPONSE, done=True)) == 3


@pytest.mark.invariant("K4")
@pytest.mark.parametrize("after", ["asked", "success", "abort", "clear"])
async def test_an_error_is_not_told_again_after(sqlite_url: str, after: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.answered("r1", "fail after 2 words")
        if after == "clear":
            await tab.send("cf_agent_chat_clear")
        elif after == "success":
            await tab.answered("r2", "say 1 words")
        else:
            await tab.say("r2", "hold 5000ms say 5 words")
            await tab.call("echo")
            if after == "abort":
                await tab.send("cf_agent_chat_request_cancel", id="r2")
                await tab.done("r2")
        async with server.tab() as other:
            await other.send(PROBE, probeId="p")
            found = await other.until(
                lambda: next((each for each in other.frames if each.get("probeId") == "p"), None)
            )
            assert found.get("id") != "r1"
            assert (found["type"] == NONE) is (after != "asked")


@pytest.mark.invariant("K9")
async def test_every_turn_that_began_has_an_end_that_is_told(sqlite_url: str) -> None:
    began, ended = Counter[str](), Counter[str]()

    def hear(event: Any) -> None:
        if event.name == "chat:turn:start":
            began[event.request_id] += 1
        elif event.name in ("chat:turn:finish", "chat:turn:interrupted"):
            ended[event.request_id] += 1

    async with served(url=sqlite_url) as server, server.tab() as tab:
        server.app.host.events.subscribe("*", hear)
        await tab.answered("done", "say 2 words")
        await tab.answered("failed", "fail after 2 words")
        await tab.say("stopped", "say 500 words every 10ms")
        await tab.say("waiting", "say 2 words")
        await tab.until(lambda: tab.text("stopped"))
        for id in ("waiting", "stopped"):
            await tab.send("cf_agent_chat_request_cancel", id=id)
            await tab.done(id)
        await tab.answered("asks", "call client tool")
        await tab.answered("goes on", "Never mind")
    assert began == ended
    assert {*began} >= {"done", "failed", "stopped", "asks", "goes on"}
    assert set(began.values()) == {1}


# --- what clients say of the past ------------------------------------------------------------------


@pytest.mark.invariant("J10", "J11")
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("same_id", [True, False])
async def test_an_old_copy_changes_nothing_that_is_settled(
    sqlite_url: str, approved: bool, same_id: bool
) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.answered("r1", "need approval")
        old = last_messages(tab)
        (part,) = tool_parts(old[1])
        assert part["state"] == "approval-requested"
        fields = {"toolCallId": part["toolCallId"], "approved": approved, "autoContinue": True}
        await tab.send("cf_agent_tool_approval", **fields)
        text = "Deleted /tmp/x." if approved else "Okay, I will not delete it."
        await tab.until(lambda: text_of(last_messages(tab)[-1]) == text)
        settled = await stored(server)
        copy = {**old[1], "id": old[1]["id"] if same_id else "of the client"}
        await tab.say("r2", "Thanks", old[0], copy)
        await tab.done("r2")
        now = await stored(server)
        assert now[:2] == settled
        assert [each["role"] for each in now] == ["user", "assistant", "user", "assistant"]
        assert (await tab.call("getStats")).get("deleteFile", 0) == int(approved)


@pytest.mark.invariant("J12", "J13")
async def test_copies_of_answers_and_short_replies_stay_what_they_are(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        await tab.say("r1", "say 60 words every 5ms")
        await tab.until(lambda: tab.text("r1"))
        half = {"role": "assistant", "parts": [{"type": "text", "text": tab.text("r1")}]}
        asked = user("u-r1", "another text")
        await tab.say("r2", "Hi", asked, {**half, "id": "of the client"})
        await tab.done("r2")
        for id in ("r3", "r4"):
            await tab.say(id, "Hi", *last_messages(tab))
            await tab.done(id)
        expected = ["user: say 60 words every 5ms", f"assistant: {words(60)}"]
        assert said(await stored(server)) == expected + ["user: Hi", "assistant: You said: Hi"] * 3


@pytest.mark.invariant("P1", "P2")
async def test_clients_write_neither_history_nor_who_they_are(sqlite_url: str) -> None:
    options: dict[str, Any] = {"auth": lambda connection: {"user": "ann"}}
    async with served(url=sqlite_url, **options) as server, server.tab() as tab:
        bob = {"principal": {"user": "bob"}}
        await tab.ask(
            "r1", {**user("u1", "Hi"), "metadata": bob}, **bob, options=bob, origin="auto"
        )
        await tab.done("r1")
        before = await stored(server)
        forged = [{**each, "parts": [{"type": "text", "text": "forged"}]} for each in before]
        await tab.send(MESSAGES, messages=forged)
        await tab.send(MESSAGES, messages=[])
        await tab.send("cf_agent_message_updated", message=forged[1])
        await tab.call("echo")
        assert await stored(server) == before
        async with server.app.host.using(Address.of("FixtureAgent", "a")) as agent:
            entry = await parts_of(agent)[Inbox].get("r1")
            assert json.loads(entry.options)["principal"] == {"user": "ann"}
            assert entry.origin == "chat"
