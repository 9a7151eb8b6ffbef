"""Every way to ask an agent leads to the same stored turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    asked,
    counts,
    failing,
    inbox,
    leftovers,
    reasons,
    rows,
    said,
    talker,
)

from outlast import Host, Message, Think, TurnConfig
from outlast.agent.agent import parts_of
from outlast.chat.inbox.inbox import Inbox
from outlast.core import json
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time

HI = {"role": "user", "parts": [{"type": "text", "text": "Hi"}]}


class Ear:
    """Hears everything; its methods are plain."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_start(self, event: dict[str, str]) -> None:
        self.heard.append(("start", event["request_id"]))

    def on_event(self, chunk: str) -> None:
        self.heard.append(json.decode(chunk)["type"])

    def on_done(self) -> None:
        self.heard.append("done")

    def on_error(self, error: str) -> None:
        self.heard.append(("error", error))

    def on_interrupted(self) -> None:
        self.heard.append("interrupted")


class AsyncEar(Ear):
    async def on_start(self, event: dict[str, str]) -> None:  # type: ignore[override]
        await asyncio.sleep(5)
        super().on_start(event)

    async def on_event(self, chunk: str) -> None:  # type: ignore[override]
        await asyncio.sleep(1)
        super().on_event(chunk)

    async def on_done(self) -> None:  # type: ignore[override]
        await asyncio.sleep(1)
        super().on_done()


class Deaf:
    """Has nothing but what it must have."""

    def on_event(self, chunk: str) -> None: ...


class Nothing:
    """Not even that."""


CHUNKS = [
    "start",
    "start-step",
    "text-start",
    "text-delta",
    "text-end",
    "finish-step",
    "finish",
]


async def _stream(a: Any) -> None:
    assert [chunk["type"] async for chunk in a.stream("Hi")] == CHUNKS


async def _chat(a: Any) -> None:
    ear = Ear()
    await a.chat("Hi", ear)
    start, *chunks, done = ear.heard
    assert (start[0], chunks, done) == ("start", CHUNKS, "done")


async def _completed(turn: Any) -> None:
    result = await turn
    assert (result.status, result.message.text, result.error) == ("completed", "Hello", None)
    assert result.accepted


async def _submit(a: Any) -> None:
    assert (await a.submit_messages("Hi")).status == "pending"


async def _add_and_regenerate(a: Any) -> None:
    assert len(await a.add_messages("Hi")) == 1
    await _completed(a.regenerate())


async def _add_and_save_nothing(a: Any) -> None:
    await a.add_messages("Hi")
    await _completed(a.save_messages([]))


PATHS: dict[str, Any] = {
    "chat": _chat,
    "chat, async": lambda a: a.chat("Hi", AsyncEar()),
    "chat, deaf": lambda a: a.chat(HI, Deaf()),
    "chat, nothing": lambda a: a.chat(HI, Nothing()),
    "stream": _stream,
    "save text": lambda a: _completed(a.save_messages("Hi")),
    "save dict": lambda a: _completed(a.save_messages(HI)),
    "save list": lambda a: _completed(a.save_messages([HI])),
    "save tuple": lambda a: _completed(a.save_messages(("Hi",))),
    "save function": lambda a: _completed(a.save_messages(lambda before: f"Hi{len(before) or ''}")),
    "submit": _submit,
    "run, wait": lambda a: _completed(a.run_turn("Hi")),
    "run, submit": lambda a: a.run_turn("Hi", mode="submit"),
    "run, stream": lambda a: a.run_turn("Hi", mode="stream", callback=Ear()),
    "add and regenerate": _add_and_regenerate,
    "add and save nothing": _add_and_save_nothing,
}


@pytest.mark.parametrize("path", PATHS)
async def test_every_way_to_say_something_leads_to_the_same_stored_turn(
    world: World, path: str
) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker)
    await PATHS[path](host.get(Talker, "a"))
    await host.until_settled()
    assert leftovers(agent_of(host, Talker)) == {}
    host = await world.next_life()
    user, answer = await host.get(Talker, "a").get_messages()
    assert (user.role, user.text) == ("user", "Hi")
    assert user.parts == [{"type": "text", "text": "Hi"}]
    assert (answer.role, answer.text) == ("assistant", "Hello")
    stored = await rows(host, "messages", "id, parent, role, status", "number")
    assert stored == [
        (user.id, None, "user", "settled"),
        (answer.id, user.id, "assistant", "settled"),
    ]
    assert await inbox(host, "state, outcome, error, messages, message_id, attempt") == [
        ("ended", "completed", None, None, answer.id, 1)
    ]
    streamed = await rows(host, "streams", "turn, seq, count, body", "seq")
    assert {turn for turn, *_ in streamed} == {(await inbox(host, "id"))[0][0]}
    places = [seq + n for _, seq, count, _ in streamed for n in range(count)]
    assert places == list(range(len(places)))
    chunks = [json.decode(c) for *_, body in streamed for c in body.split("\n")]
    assert [chunk["type"] for chunk in chunks] == CHUNKS
    assert chunks[0]["messageId"] == answer.id
    await world.stop()
    assert [asked(request) for request in model.requests] == [["Hi"]]


async def test_a_callback_that_raises_is_told_nothing_more_and_the_turn_goes_on(
    world: World,
) -> None:
    class Broken(Ear):
        def on_event(self, chunk: str) -> None:
            super().on_event(chunk)
            raise ValueError("cannot hear")

    class Refusing(Ear):
        def on_start(self, event: dict[str, str]) -> None:
            raise ValueError("cannot start")

    Talker = talker(answering(Step.text("one two three", delay=1)))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    for broken in (Broken(), Refusing()):
        with pytest.raises(ValueError, match="cannot"):
            await a.chat("Hi", broken)
        assert "done" not in broken.heard
    await host.until_settled()
    assert await inbox(host) == [("ended", "completed")] * 2
    assert leftovers(agent_of(host, Talker)) == {}


async def test_a_slow_reader_holds_up_nobody_and_misses_nothing(world: World) -> None:
    Talker = talker(answering(Step.text(" ".join("word" for _ in range(200)))))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    slow = AsyncEar()
    begun = asyncio.get_running_loop().time()
    reading = asyncio.create_task(a.chat("Hi", slow))
    await asyncio.sleep(1)
    assert (await a.save_messages("next")).status == "completed"
    assert asyncio.get_running_loop().time() - begun < 3
    await reading
    assert slow.heard.count("text-delta") == 200
    assert slow.heard[-1] == "done"


@pytest.mark.invariant("K8")
async def test_a_failing_turn_is_an_error_whichever_way_it_was_started(world: World) -> None:
    Talker = talker(answering(Step.text("so far") + Step.fails("rejected")), max_retries=0)
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    ear = Ear()
    await a.chat("u1", ear)
    assert ear.heard[-2] == "error"
    assert ear.heard[-1][0] == "error"
    assert await failing(a.stream("u2"))
    for turn in (
        await a.save_messages("u3"),
        await a.continue_last_turn(),
        await a.regenerate(),
        await a.run_turn("u4"),
    ):
        assert turn.status == "error"
        assert turn.error == "The model did not accept the request."
        assert turn.message.text.startswith("so far")
    submitted = await a.submit_messages("u5")
    await host.until_settled()
    assert (await a.inspect_submission(submitted.id)).status == "error"
    assert await inbox(host) == [("ended", "error")] * 7


# --- going on, and trying again ------------------------------------------------------------------


async def test_continuing_goes_on_with_the_same_message(world: World) -> None:
    Talker = talker(model := answering("Once upon", " a time"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = await a.save_messages("Tell me")
    second = await a.continue_last_turn()
    assert second.status == "completed"
    assert second.message.id == first.message.id
    assert second.message.text.replace(" ", "") == "Onceuponatime"
    assert said(await a.get_messages())[0] == "user: Tell me"
    assert await counts(host, "messages", "inbox") == {"messages": 2, "inbox": 2}
    host = await world.next_life()
    stored = (await host.get(Talker, "a").get_messages())[1]
    assert stored == second.message
    await world.stop()
    last = model.requests[1].messages[-1]
    assert last.kind == "request"  # a request never ends with the model's own words


async def test_there_is_nothing_to_continue_without_an_answer(world: World) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    assert (await a.continue_last_turn()).status == "skipped"
    assert (await a.run_turn(continuation=True)).status == "skipped"
    await a.add_messages("Hi")
    assert (await a.continue_last_turn()).status == "skipped"
    assert (await a.regenerate("unknown")).status == "skipped"
    assert model.requests == []
    await a.regenerate()
    assert (await a.run_turn(continuation=True)).status == "completed"


async def test_there_is_no_other_answer_to_nothing(world: World) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    assert (await a.regenerate()).status == "skipped"
    greeting = {"id": "g", "role": "assistant", "parts": [{"type": "text", "text": "Hi!"}]}
    await a.add_messages(greeting)
    assert (await a.regenerate("g")).status == "skipped"
    assert (await a.regenerate()).status == "skipped"
    assert model.requests == []
    assert said(await a.get_messages()) == ["assistant: Hi!"]


async def test_saying_nothing_asks_the_model_nothing(world: World) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    assert (await a.save_messages([])).status == "skipped"
    await a.save_messages("Hi")
    assert (await a.save_messages([])).status == "skipped"
    assert (await a.save_messages(lambda _: [])).status == "skipped"
    assert (await a.run_turn([])).status == "skipped"
    ear = Ear()
    await a.chat([], ear)
    assert ear.heard[1:] == [("error", "The turn was skipped: there was nothing to answer")]
    assert len(model.requests) == 1
    assert await a.add_messages([]) == []
    assert len(await a.get_messages()) == 2


async def test_a_message_that_is_stored_already_is_not_stored_and_not_answered_again(
    world: World,
) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages({**HI, "id": "m1"})
    again = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "other"}]}
    assert (await a.save_messages(again)).status == "skipped"
    assert said(await a.get_messages()) == ["user: Hi", "assistant: Hello"]
    turn = await a.save_messages([again, "next"])
    assert turn.status == "completed"
    assert said(await a.get_messages())[2:] == ["user: next", "assistant: Hello"]
    assert asked(model.requests[-1]) == ["Hi", "next"]
    assert await a.add_messages([again, "more"]) == (await a.get_messages())[-1:]


# --- what comes along ----------------------------------------------------------------------------


@pytest.mark.invariant("D16", "C13")
async def test_each_turn_has_the_body_that_it_was_asked_with(world: World) -> None:
    seen: list[Any] = []

    class Curious(Think):
        chat_recovery = False
        model = answering(Step.text("one two", delay=1))

        async def before_turn(self, context: Any) -> TurnConfig | None:
            seen.append((context.origin, context.body, context.continuation))
            return None

    host = await world.host(Curious, shutdown_timeout=0)
    a = host.get(Curious, "a")
    await a.get_messages()
    inbox_of = parts_of(agent_of(host, Curious))[Inbox]
    existing = inbox_of.existing

    async def slowly(*which: Any) -> Any:
        await asyncio.sleep(1)
        return await existing(*which)

    inbox_of.existing = slowly
    body = {"user": {"name": "ann"}}
    saving = asyncio.create_task(a.save_messages("u1", body=body, idempotency_key="k"))
    await asyncio.sleep(0.5)  # it is being accepted
    body["user"]["name"] = "changed"
    await saving
    inbox_of.existing = existing
    await asyncio.gather(
        a.submit_messages("u2", body={"user": "bob"}),
        a.chat("u3", Ear(), body={"user": "cid"}),
        a.continue_last_turn(body={"user": "dan"}),
    )
    await a.submit_messages("u4", body={"user": "eve"})
    await a.submit_messages("u5", body={"user": "flo"})
    await a.submit_messages("u6")
    await asyncio.sleep(1)
    host = await world.next_life()
    await host.until_settled()
    await world.stop()
    assert seen == [
        ("save", {"user": {"name": "ann"}}, False),
        ("submission", {"user": "bob"}, False),
        ("chat", {"user": "cid"}, False),
        ("continue", {"user": "dan"}, True),
        ("submission", {"user": "eve"}, False),
        ("submission", {"user": "flo"}, False),
        ("submission", {}, False),
    ]


async def test_a_function_is_given_the_conversation_as_it_is(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")

    def count(before: list[Message]) -> Any:
        before.clear()
        return ["one", {"role": "user", "parts": [{"type": "text", "text": "two"}]}]

    await a.save_messages("Hi")
    await a.save_messages(count)
    assert said(await a.get_messages()) == [
        "user: Hi",
        "assistant: Hello",
        "user: one",
        "user: two",
        "assistant: Hello",
    ]


async def test_an_agent_without_a_model_says_so_in_its_turns(world: World) -> None:
    class Blank(Think):
        pass

    host = await world.host(Blank)
    turn = await host.get(Blank, "a").save_messages("Hi")
    assert turn.status == "error"
    assert "Blank has no model" in (await reasons(host))[0]
    chunks = await failing(host.get(Blank, "a").stream("Hi"))
    assert chunks == [{"type": "error", "errorText": "An error occurred."}]


async def test_a_host_with_many_agents_keeps_their_conversations_apart(world: World) -> None:
    Talker = talker(ScriptedModel.answering(lambda messages: f"{len(messages)}"))

    async def talk(host: Host, name: str) -> list[str]:
        for n in range(3):
            await host.get(Talker, name).save_messages(f"{name} {n}")
        return said(await host.get(Talker, name).get_messages())

    host = await world.host(Talker)
    found = await asyncio.gather(*(talk(host, f"n{n}") for n in range(10)))
    for n, lines in enumerate(found):
        users = [f"user: n{n} {i}" for i in range(3)]
        assert lines[::2] == users
        assert lines[1::2] == ["assistant: 1", "assistant: 3", "assistant: 5"]
