"""Parts of the application's own in an answer: stored with it, or only shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conversation import agent_of, answering, rows, talker

from outlast import Think, tool
from outlast.core.errors import ValueTooLarge
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time

LOOK = (Step.call("look"), "Done.")


class Listener:
    """Keeps the chunks that `chat` tells."""

    def __init__(self) -> None:
        self.chunks: list[dict[str, Any]] = []

    def on_event(self, chunk: str) -> None:
        self.chunks.append(json.loads(chunk))

    def data(self) -> list[dict[str, Any]]:
        return [each for each in self.chunks if each["type"].startswith("data-")]


def data_of(message: Any) -> list[dict[str, Any]]:
    return [part for part in message.parts if part["type"].startswith("data-")]


@pytest.mark.invariant("E21")
async def test_a_part_is_stored_once_an_id_and_a_transient_one_is_only_shown(
    world: World,
) -> None:
    class Shop(Think):
        model = ScriptedModel(*LOOK)

        @tool(effect="read")
        async def look(self) -> str:
            self.emit_data("note", {"n": 0}, transient=True)
            self.emit_data("progress", {"n": 1}, id="p")
            self.emit_data("progress", {"n": 2}, id="p")
            self.emit_data("plain", "x")
            return "seen"

    listener = Listener()
    host = await world.host(Shop)
    shop = host.get(Shop, "a")
    await shop.chat("u1", listener)
    [_, message] = await shop.get_messages()
    assert data_of(message) == [
        {"type": "data-progress", "id": "p", "data": {"n": 2}},
        {"type": "data-plain", "data": "x"},
    ]
    assert [each["type"] for each in listener.data()] == [
        "data-note",
        "data-progress",
        "data-progress",
        "data-plain",
    ]
    bodies = "\n".join(body for (body,) in await rows(host, "streams", "body"))
    assert "data-progress" in bodies
    assert "data-note" not in bodies


async def test_the_model_sees_none_of_them(world: World) -> None:
    class Shop(Think):
        model = answering(*LOOK, "Again.")

        @tool(effect="read")
        async def look(self) -> str:
            self.emit_data("secret", {"price": 12})
            return "seen"

    host = await world.host(Shop)
    shop = host.get(Shop, "a")
    await shop.save_messages("u1")
    turn = await shop.save_messages("u2")
    assert turn.message.text == "Again."
    assert "price" not in repr([each.messages for each in Shop.model.requests])


async def test_every_hook_of_a_turn_can_write_them_in_its_order(world: World) -> None:
    class Talkative(Think):
        model = ScriptedModel(*LOOK)

        @tool(effect="read")
        def look(self) -> str:  # a plain function: it runs in a thread
            self.emit_data("tool", None)
            return "seen"

        def before_turn(self, context: Any) -> None:
            context.writer.data("before-turn", None)
            self.emit_data("early", None, transient=True)

        def before_step(self, context: Any) -> None:
            context.writer.data("before-step", context.step_number)

        def before_tool_call(self, context: Any) -> None:
            context.writer.data("before-tool", None)

        def after_tool_call(self, context: Any) -> None:
            context.writer.data("after-tool", None)

        def on_step_finish(self, context: Any) -> None:
            context.writer.data("finished", context.step_number)

    listener = Listener()
    host = await world.host(Talkative)
    agent = host.get(Talkative, "a")
    await agent.chat("u1", listener)
    [_, message] = await agent.get_messages()
    assert [(part["type"], part["data"]) for part in data_of(message)] == [
        ("data-before-turn", None),
        ("data-before-step", 0),
        ("data-before-tool", None),
        ("data-tool", None),
        ("data-after-tool", None),
        ("data-finished", 0),
        ("data-before-step", 1),
        ("data-finished", 1),
    ]
    kinds = [each["type"] for each in listener.chunks]
    assert kinds[:3] == ["start", "data-before-turn", "data-early"]


async def test_a_text_goes_on_behind_one_that_stands_in_its_middle(world: World) -> None:
    class Writer(Think):
        model = ScriptedModel(Step.text("one two three", delay=1))

        def on_chunk(self, context: Any) -> None:
            if context.chunk.get("delta") == "two ":
                self.emit_data("middle", 1)

    host = await world.host(Writer)
    turn = await host.get(Writer, "a").save_messages("u1")
    assert turn.message.text == "one two three"
    assert len(data_of(turn.message)) == 1


async def test_whoever_comes_later_does_not_see_what_was_transient(world: World) -> None:
    class Shop(Think):
        model = ScriptedModel(*LOOK)

        @tool(effect="read")
        async def look(self) -> str:
            self.emit_data("note", 1, transient=True)
            return "seen"

    host = await world.host(Shop)
    shop = host.get(Shop, "a")
    turn = await shop.save_messages("u1")
    again = [chunk async for _, chunk in shop.resume_stream(turn.request_id)]
    places = [seq async for seq, _ in shop.resume_stream(turn.request_id)]
    assert not [chunk for chunk in again if chunk["type"] == "data-note"]
    assert places == list(range(len(again)))


@pytest.mark.parametrize(
    ("name", "data", "options", "error"),
    [
        ("", 1, {}, ValueError),
        ("a b", 1, {}, ValueError),
        (7, 1, {}, ValueError),
        ("x" * 101, 1, {}, ValueError),
        ("a", object(), {}, TypeError),
        ("a", 1, {"id": ""}, ValueError),
        ("a", 1, {"id": 3}, ValueError),
        ("a", "x" * 1024 * 1024, {}, ValueTooLarge),
    ],
)
async def test_what_is_no_data_part_is_an_error_where_it_is_written(
    sqlite_world: World, name: Any, data: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    raised: list[Exception] = []

    class Shop(Think):
        model = ScriptedModel(*LOOK)

        @tool(effect="read")
        async def look(self) -> str:
            try:
                self.emit_data(name, data, **options)
            except Exception as problem:
                raised.append(problem)
            return "seen"

    host = await sqlite_world.host(Shop)
    turn = await host.get(Shop, "a").save_messages("u1")
    assert (turn.status, turn.message.text) == ("completed", "Done.")
    assert [type(each) for each in raised] == [error]
    assert data_of(turn.message) == []


async def test_too_many_are_refused_before_the_message_is_too_large(sqlite_world: World) -> None:
    class Shop(Think):
        model = ScriptedModel(*LOOK)

        @tool(effect="read")
        async def look(self) -> str:
            for n in range(100):
                self.emit_data("big", "x" * 1_000_000, id=str(n))
            return "seen"

    host = await sqlite_world.host(Shop)
    turn = await host.get(Shop, "a").save_messages("u1")
    assert turn.status == "completed"
    assert len(data_of(turn.message)) == 16
    [call] = [part for part in turn.message.parts if part["type"] == "tool-look"]
    assert call["state"] == "output-error"


async def test_outside_of_a_turn_they_are_refused(sqlite_world: World) -> None:
    Talker = talker(ScriptedModel("Hi"))
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    with pytest.raises(RuntimeError, match="hook or tool of a turn"):
        agent_of(host, Talker).emit_data("x", 1)


async def test_an_answer_that_was_whole_stays_so_with_a_part_behind_it(store_url: str) -> None:
    """Behind the last step, as `on_step_finish` writes it: after a crash nobody asks the model for more."""
    from outlast.chat.message.partial import folded

    chunks = [
        {"type": "start", "messageId": "m"},
        {"type": "start-step"},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": "All."},
    ]
    after = [{"type": "text-end", "id": "t"}, {"type": "finish-step"}]
    note = [{"type": "data-note", "data": 1}]
    texts = [json.dumps(each) for each in (*chunks, *after, *note)]
    assert folded(texts).is_complete
    assert folded([json.dumps(each) for each in (*chunks, *note)]).open_text == "t"
