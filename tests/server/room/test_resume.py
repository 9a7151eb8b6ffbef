"""Coming back to a stream: probes, what is offered, what is sent again, and what is not."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest
from tabs import (
    ACK,
    LONG,
    MESSAGES,
    NONE,
    PENDING,
    PROBE,
    RESPONSE,
    RESUMING,
    UPDATED,
    Frame,
    Screen,
    Tab,
    quiet_log,
    said,
    served,
    text_of,
    tool_parts,
    words,
)

from outlast.chat.gateway import Situation
from outlast.chat.message.results import TurnEnd
from outlast.chat.stream.stream import Stream
from outlast.chat.transcript.shown import Shown
from outlast.chat.turn.notices import Ended, Started
from outlast.host.address import Address
from outlast.server.limits import Limits
from outlast.server.room.room import Room
from outlast.server.socket.connection import Connection


async def probe(tab: Tab, id: str) -> Frame:
    """Ask whether there is anything to resume, and return the answer."""
    at = len(tab.frames)
    await tab.send(PROBE, probeId=id)
    kinds = (RESUMING, PENDING, NONE)

    def answer() -> Frame | None:
        new = tab.frames[at:]
        return next((f for f in new if f["type"] in kinds and f.get("probeId") == id), None)

    found: Frame = await tab.until(answer)
    return found


@pytest.mark.invariant("E12")
async def test_a_probe_where_nothing_happens_is_told_so(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        assert await probe(tab, "p") == {"type": NONE, "reason": "idle", "probeId": "p"}
        await tab.send(PROBE)
        await tab.until(lambda: len(tab.all(NONE)) == 2)
        assert tab.all(NONE)[1] == {"type": NONE, "reason": "idle"}
        await tab.answered("r1", "Hi")
        assert (await probe(tab, "q"))["reason"] == "idle"


@pytest.mark.invariant("E6", "E10")
async def test_a_tab_that_comes_in_the_middle_is_offered_the_stream(store_url: str) -> None:
    async with served(url=store_url) as server, server.tab() as owner:
        await owner.say("r1", "say 60 words every 10ms")
        await owner.until(lambda: len(owner.text("r1")) > 20)
        async with server.tab() as tab:
            await tab.wait(RESUMING, id="r1")
            assert not tab.all(MESSAGES)  # it would lack what is being said
            answer = await probe(tab, "p")
            assert (answer["type"], answer["id"]) == (RESUMING, "r1")
            at = len(owner.text("r1"))
            await owner.until(lambda: len(owner.text("r1")) > at + 20)
            assert not tab.all(RESPONSE)  # nothing until it says so
            await tab.send(ACK, id="r1")
            complete = await tab.wait(RESPONSE, replayComplete=True)
            assert (complete["body"], complete["done"], complete["replay"]) == ("", False, True)
            await tab.done("r1")
            assert tab.text("r1") == words(60)
            numbers = [each["seq"] for each in tab.all(RESPONSE) if "seq" in each]
            assert numbers == [*range(len(numbers))]
            place = tab.frames.index(complete)
            assert all(f["replay"] for f in tab.frames[:place] if f["type"] == RESPONSE)
            assert not any(f.get("replay") for f in tab.frames[place + 1 :])
            assert tab.chunks("r1")[0]["messageId"] == tab.all(MESSAGES)[-1]["messages"][1]["id"]
            assert len(tab.all(RESPONSE, done=True)) == 1


@pytest.mark.invariant("E7", "E17")
async def test_whoever_never_takes_the_offer_gets_the_end(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.say("r1", "say 20 words every 10ms")
        await owner.until(lambda: owner.text("r1"))
        async with server.tab() as tab:
            await tab.wait(RESUMING)
            await tab.done("r1")
            assert tab.all(RESPONSE) == tab.all(RESPONSE, done=True)
            assert text_of(tab.all(MESSAGES)[-1]["messages"][1]) == words(20)
            # and late is not too late
            await tab.send(ACK, id="r1")
            last = await tab.wait(RESPONSE, replay=True, done=True)
            assert tab.text("r1") == words(20)
            assert last["body"] == ""


async def test_an_unknown_id_is_answered(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.send(ACK, id="nobody")
        done = await owner.done("nobody")
        assert (done["body"], done["replay"]) == ("", True)
        await owner.say("r1", "say 20 words every 10ms")
        await owner.until(lambda: owner.text("r1"))
        await owner.send(ACK, id="other")
        assert (await owner.done("other"))["replay"] is True
        await owner.done("r1")
        assert owner.text("r1") == words(20)


async def test_an_old_acknowledgement_does_not_open_what_was_offered_later(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.answered("r1", "say 2 words")
        await owner.say("r2", "say 40 words every 10ms")
        await owner.until(lambda: owner.text("r2"))
        async with server.tab() as tab:
            await tab.wait(RESUMING, id="r2")
            await tab.send(ACK, id="r1")
            await tab.done("r1")
            at = len(owner.text("r2"))
            await owner.until(lambda: len(owner.text("r2")) > at + 12)
            assert not tab.all(RESPONSE, id="r2")
            await tab.send(ACK, id="r2")
            await tab.done("r2")
            assert tab.text("r2") == words(40)


async def test_an_owner_that_comes_back_gets_its_stream(sqlite_url: str) -> None:
    """With the id of before, while the old socket may still be there."""
    async with served(url=sqlite_url) as server:
        old = await server.tab(pk="o").open()
        await old.say("r1", "hold 300ms say 20 words every 10ms")
        await old.call("echo")
        async with server.tab(pk="o") as new:
            answer = await probe(new, "p")
            assert (answer["type"], answer["id"]) == (PENDING, "r1")
            await old.cut()
            await new.wait(RESUMING, id="r1")
            await new.send(ACK, id="r1")
            await new.done("r1")
            assert new.text("r1") == words(20)
        async with server.tab(pk="o") as new:
            await new.say("r2", "say 30 words every 10ms")
            await new.until(lambda: new.text("r2"))
            await new.cut()
        async with server.tab(pk="o") as new:
            assert (await probe(new, "p"))["type"] == RESUMING
            await new.send(ACK, id="r2")
            await new.done("r2")
            assert new.text("r2") == words(30)


@pytest.mark.invariant("E11")
async def test_a_request_that_has_not_begun_is_pending_and_then_offered(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.say("r1", "hold 300ms say 5 words")
        await owner.call("echo")
        async with server.tab() as tab:
            await tab.wait(PENDING, id="r1")
            transcript = await tab.wait(MESSAGES, connect=True)
            assert said(transcript["messages"]) == ["user: hold 300ms say 5 words"]
            answer = await probe(tab, "p")
            assert (answer["type"], answer["id"]) == (PENDING, "r1")
            resuming = await tab.wait(RESUMING)
            assert resuming == {"type": RESUMING, "id": "r1"}
            await tab.send(ACK, id="r1")
            await tab.until(lambda: tab.text("r1") == words(5))
            await tab.done("r1")


@pytest.mark.invariant("E7", "E11")
async def test_a_request_that_never_begins_frees_who_waits_for_it(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.say("r1", "hold 5000ms say 5 words")
        await owner.call("echo")
        async with server.tab() as tab:
            assert (await probe(tab, "p"))["type"] == PENDING
            await owner.send("cf_agent_chat_request_cancel", id="r1")
            await tab.done("r1")
            resuming = tab.all(RESUMING)
            if not resuming:
                assert (await tab.wait(NONE)) == {"type": NONE}
            assert (await probe(tab, "q"))["reason"] == "idle"


def queued(connection: Connection) -> list[dict[str, Any]]:
    """What waits to be sent."""
    found = []
    while frames := connection._next():
        found += [json.loads(frame.text) for frame in frames]
    return found


def test_who_has_not_asked_is_not_told_that_there_is_nothing() -> None:
    """It would take that for the answer to its probe, and what is offered then for somebody else's."""
    room = Room(Address.of("FixtureAgent", "a"), "/agents/fixture-agent/a", Limits())
    cut_off = Situation(None, ["r1"], None, False)  # by the death of a process, and not seen to yet
    serving: Any = SimpleNamespace(
        situation=lambda: cut_off, messages=lambda: Shown([], []), is_used=True
    )
    silent, asks = (Connection(None, id) for id in ("silent", "asks"))  # type: ignore[arg-type]
    for each in (silent, asks):
        room.connections.append(each)
        room.chat.join(each, serving)
    room.chat.probe(asks, "p", serving)
    room.hear(Ended("r1", TurnEnd("interrupted"), True, lambda: Shown([], [])))
    told = {each.id: [frame["type"] for frame in queued(each)] for each in (silent, asks)}
    assert told == {
        "silent": [PENDING, MESSAGES, MESSAGES, RESPONSE],
        "asks": [PENDING, MESSAGES, PENDING, MESSAGES, RESPONSE, NONE],
    }


async def test_what_is_just_being_taken_up_is_resumed_and_not_over() -> None:
    """The turn runs, and the room has not been told of it yet."""
    room = Room(Address.of("FixtureAgent", "a"), "/agents/fixture-agent/a", Limits())
    chunks = ['{"type":"start"}', '{"type":"start-step"}']
    started = Started(
        "r1", Stream("a", "r1", chunks=chunks), False, (), "m1", lambda: Shown([], [])
    )
    serving: Any = SimpleNamespace(situation=lambda: Situation(started, [], None, True))
    connection = Connection(None, "c")  # type: ignore[arg-type]
    room.connections.append(connection)
    await room.chat.resume(connection, "r1", serving)
    room.hear(started)  # once is enough
    started.stream.close(TurnEnd("completed"))
    room.hear(Ended("r1", TurnEnd("completed"), True, lambda: Shown([], [])))
    assert room.chat._task is not None
    await room.chat._task
    told = queued(connection)
    shapes = [(each.get("seq"), each.get("replay", False), each.get("done")) for each in told]
    again = [(0, True, False), (1, True, False), (None, True, False)]
    assert shapes == [*again, (None, False, None), (None, False, True)]


@pytest.mark.invariant("E13", "K4")
async def test_an_error_is_told_again_until_something_else_is_asked(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.answered("r1", "fail after 2 words")
        async with server.tab() as tab:
            assert (await probe(tab, "p"))["id"] == "r1"
            await tab.send(ACK, id="r1")
            done = await tab.done("r1")
            assert (done["error"], done["body"]) == (True, "fixture model exploded")
            assert "replay" not in done
            assert tab.text("r1", replay=True) == "w1 w2 "
            await tab.answered("r2", "say 1 words")
            assert (await probe(tab, "q"))["reason"] == "idle"


@pytest.mark.invariant("K4")
async def test_an_error_is_forgotten_with_the_conversation(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as owner:
        await owner.answered("r1", "fail after 2 words")
        await owner.send("cf_agent_chat_clear")
        assert (await probe(owner, "p"))["reason"] == "idle"


async def test_somebody_elses_continuation_is_not_offered(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server:
        async with server.tab(pk="o") as owner, server.tab(pk="x") as other:
            await owner.answered("r1", "call client tool then say 60 words every 10ms")
            (part,) = tool_parts(owner.all(MESSAGES)[-1]["messages"][1])
            await owner.send(
                "cf_agent_tool_result",
                toolCallId=part["toolCallId"],
                toolName="getUserTimezone",
                output="CET",
                autoContinue=True,
            )
            offered = await probe(owner, "p")
            assert offered["type"] in (PENDING, RESUMING)
            id = offered["id"]
            await owner.wait(RESUMING, id=id)
            await other.until(lambda: other.text(id))
            answer = await probe(other, "p")
            assert answer == {"type": NONE, "reason": "continuation-owned", "probeId": "p"}
            assert not owner.all(RESPONSE, id=id)
            await owner.send(ACK, id=id)
            text = f"Your timezone is CET. {words(60)}"
            for tab in (owner, other):
                await tab.until(lambda tab=tab: tab.all(RESPONSE, id=id, done=True))
                assert tab.text(id) == text
                assert all(each["continuation"] for each in tab.all(RESPONSE, id=id))


@pytest.mark.invariant("E18")
async def test_a_continuation_whose_owner_is_gone_is_offered(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server:
        async with server.tab(pk="o") as owner, server.tab(pk="x") as other:
            await owner.answered("r1", "call client tool then say 60 words every 10ms")
            (part,) = tool_parts(owner.all(MESSAGES)[-1]["messages"][1])
            await owner.send(
                "cf_agent_tool_result",
                toolCallId=part["toolCallId"],
                toolName="getUserTimezone",
                output="CET",
                autoContinue=True,
            )
            await other.wait(UPDATED)
            await owner.cut()
            first = await other.until(
                lambda: next((f for f in other.all(RESPONSE) if f["id"] != "r1"), None)
            )
            answer = await probe(other, "p")
            assert (answer["type"], answer["id"]) == (RESUMING, first["id"])
            await other.send(ACK, id=first["id"])
            await other.done(first["id"])
            assert other.all(RESPONSE, id=first["id"], replay=True)
            async with server.tab(pk="z") as third:
                found = await third.wait(MESSAGES, connect=True)
                assert text_of(found["messages"][1]) == f"Your timezone is CET. {words(60)}"


# --- any schedule --------------------------------------------------------------------------------


async def one_schedule(seed: int, url: str) -> None:
    chance = random.Random(seed)
    prompts = {
        "server": ("call server tool every 6ms", "Weather in Paris is 21C."),
        "client": (
            "call client tool then say 8 words every 4ms",
            f"Your timezone is CET. {words(8)}",
        ),
        "approval": ("need approval every 6ms", "Deleted /tmp/x."),
        "text": ("say 25 words every 4ms", words(25)),
    }
    kind = chance.choice([*prompts])
    prompt, expected = prompts[kind]
    async with served(url=url) as server, quiet_log():
        screens: list[Screen] = []
        for n in range(3):
            screens.append(Screen(await server.tab(pk=f"t{n}").open()))
        asker = chance.choice(screens)
        await asker.tab.say("r1", prompt)
        await asker.tab.call("echo")
        deadline = asyncio.get_running_loop().time() + LONG
        is_answered = False
        changes = chance.randrange(4, 12)
        while True:
            for screen in screens:
                if screen.tab.closed is None:
                    await screen.follow()
            is_answered = is_answered or await act(kind, chance.choice(screens))
            if changes and chance.random() < 0.5:
                changes -= 1
                await come_or_go(chance, chance.choice(screens))
            messages = await shown(server)
            is_over = text_of(messages[-1]) == expected and messages[-1]["role"] == "assistant"
            if is_over and not changes:
                break
            assert asyncio.get_running_loop().time() < deadline, (seed, kind, messages)
            await asyncio.sleep(chance.random() * 0.015)
        for screen in screens:
            if screen.tab.closed is not None:
                await reopen(screen)
        for screen in screens:
            await settled(screen, messages)
        for screen in screens:
            assert (
                said(screen.messages)
                == said(messages)
                == [f"user: {prompt}", f"assistant: {expected}"]
            )
            assert not screen.streaming, (seed, kind, screen.streaming)
            await screen.tab.close()


async def settled(screen: Screen, messages: list[Frame]) -> None:
    """Until a tab shows what is stored and nothing streams in it."""
    async with asyncio.timeout(LONG):
        while True:
            await screen.follow()
            if screen.messages == messages and not screen.streaming:
                await screen.tab.call("echo")
                await screen.follow()
                if screen.messages == messages and not screen.streaming:
                    return
            await asyncio.sleep(0.01)


async def come_or_go(chance: random.Random, screen: Screen) -> None:
    if screen.tab.closed is None:
        await (screen.tab.cut() if chance.random() < 0.5 else screen.tab.close())
    else:
        await reopen(screen)


async def reopen(screen: Screen) -> None:
    screen.streaming.clear()  # the hook ends its streams when the socket closes
    screen.built.clear()
    screen.at = len(screen.tab.frames)
    await screen.tab.open()
    await screen.tab.send(PROBE, probeId=f"p{screen.at}")


async def act(kind: str, screen: Screen) -> bool:
    """Answer what is asked of the user, from any tab that shows it."""
    if screen.tab.closed is not None or not screen.messages:
        return False
    for part in tool_parts(screen.messages[-1]):
        id = part["toolCallId"]
        if part["state"] == "input-available" and kind == "client":
            await screen.tab.send(
                "cf_agent_tool_result", toolCallId=id, toolName="", output="CET", autoContinue=True
            )
            await screen.tab.call("echo")
            return True
        if part["state"] == "approval-requested":
            await screen.tab.send(
                "cf_agent_tool_approval", toolCallId=id, approved=True, autoContinue=True
            )
            await screen.tab.call("echo")
            return True
    return False


async def shown(server: Any) -> list[Frame]:
    async with httpx.AsyncClient() as http:
        found: list[Frame] = (await http.get(server.at("a", "get-messages"))).json()
    return found


@pytest.mark.parametrize("seed", range(24))
def test_three_tabs_that_come_and_go_end_with_the_same_messages(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(one_schedule(seed, f"sqlite:///{folder}/store.db"))
