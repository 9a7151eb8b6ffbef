"""Conversations that the application keeps itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import check_tree, stored
from conversation import answering
from interruptions import (
    ADDRESS,
    SLOW,
    Told,
    asked,
    break_off,
    check_requests,
    is_continued,
    talker,
    transcript,
    wait_for,
)

from outlast import HydrationContext, Message
from outlast.chat.context.hydration import joined
from outlast.chat.message.repair import WENT_ON
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

PICK = {"name": "pick", "inputSchema": {"type": "object", "properties": {}}}


def user(id: str, text: str) -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}


def calling(id: str, call: str, **more: Any) -> dict[str, Any]:
    part = {"type": "tool-pick", "toolCallId": call, "input": {}, "state": "input-available"}
    return {"id": id, "role": "assistant", "parts": [{**part, **more}]}


class Database:
    """What the application has stored, and how it was asked."""

    def __init__(self, *messages: Any) -> None:
        self.messages: list[Any] = list(messages)
        self.contexts: list[HydrationContext] = []

    def hydrate_messages(self, agent: Any, context: HydrationContext) -> Any:
        self.contexts.append(context)
        return self.messages


def hydrating(model: Any, database: Database, **members: Any) -> type[Any]:
    def hydrate_messages(self: Any, context: HydrationContext) -> Any:
        return database.hydrate_messages(self, context)

    return talker(model, hydrate_messages=hydrate_messages, **members)


async def test_the_model_is_shown_what_the_application_has(world: World) -> None:
    database = Database(
        user("x", "from the database"), {**user("y", "an answer"), "role": "assistant"}
    )
    Talker = hydrating(model := answering("one", "two"), database)
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await agent.save_messages("u1", body={"user": 7})
    assert asked(model) == ["from the database", "u1"]
    database.messages = [user("z", "something else")]
    await agent.save_messages("u2")
    assert asked(model) == ["something else", "u2"], "what was said before is the application's"
    assert await transcript(host) == [
        "user: u1",
        "assistant: one",
        "user: u2",
        "assistant: two",
    ]
    await world.stop()
    first, second = database.contexts
    assert (first.trigger, first.attempt, dict(first.body)) == ("message", 1, {"user": 7})
    assert [message.text for message in first.incoming] == ["u1"]
    assert [message.text for message in second.messages] == ["u1", "one", "u2"]
    assert [message.text for message in second.incoming] == ["u2"]
    check_requests(model)


async def test_what_it_has_stored_already_is_not_there_twice(sqlite_world: World) -> None:
    model = answering("one")

    async def hydrate_messages(self: Any, context: HydrationContext) -> list[Message]:
        return [Message(user("x", "before")), *context.incoming]

    Talker = talker(model, hydrate_messages=hydrate_messages)
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await sqlite_world.stop()
    assert asked(model) == ["before", "u1"]


async def test_none_is_what_is_stored_here(sqlite_world: World) -> None:
    Talker = talker(model := answering("one", "two"), hydrate_messages=lambda self, context: None)
    host = await sqlite_world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    await host.get(Talker, "a").save_messages("u2")
    await sqlite_world.stop()
    assert asked(model) == ["u1", "u2"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (dict, "a list of messages"),
        (lambda: [{"role": "user"}], "parts"),
        (lambda: 1 / 0, "division by zero"),
    ],
)
async def test_what_makes_no_sense_is_an_error_of_the_turn(
    sqlite_world: World, wrong: Any, why: str
) -> None:
    errors: list[str] = []

    def on_chat_error(self: Any, error: Exception, context: Any) -> str:
        errors.append(str(error))
        return "The conversation could not be loaded."

    members: dict[str, Any] = {"hydrate_messages": lambda self, context: wrong()}
    Talker = talker(model := answering("one"), on_chat_error=on_chat_error, **members)
    host = await sqlite_world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.status == "error"
    assert await transcript(host) == ["user: u1"], "what was accepted is kept"
    await sqlite_world.stop()
    assert why in errors[0]
    assert model.requests == []


async def test_an_interrupted_turn_goes_on_with_what_the_application_has(store_url: str) -> None:
    boots: list[Any] = []
    database = Database(user("x", "from the database"))
    Talker = hydrating(
        model := ScriptedModel(SLOW),
        database,
        on_recovery_boot=lambda self, event: boots.append(event),
    )
    await break_off(store_url, Talker, "u1", killed=True)
    async with hosting(Talker, url=store_url, life="2") as host:
        told = Told(host)
        await wait_for(host, Talker)
        assert told.decided == [(17, "continue", "unknown")]
        assert await transcript(host) == ["user: u1", "assistant: one two three four"]
        check_tree(await stored(host, ADDRESS))
    assert is_continued(model)
    assert asked(model) == ["from the database", "u1"]
    assert [context.attempt for context in database.contexts] == [1, 2]
    assert boots == [], "the chain is the application's"
    check_requests(model)


async def test_an_answer_of_the_client_is_taken_over(world: World) -> None:
    database = Database()
    Talker = hydrating(model := ScriptedModel(Step.call("pick", {}, id="c1"), "picked"), database)
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    turn = await agent.save_messages("u1", client_tools=[PICK])
    # The application has stored the answer as it was then: its call was open.
    database.messages = [user("x", "u1"), turn.message.raw]
    assert await agent.add_tool_output("c1", "red")
    await asyncio.sleep(1)
    assert await transcript(host) == ["user: u1", "assistant: picked"]
    await world.stop()
    assert "red" in str(model.requests[-1].messages)
    check_requests(model)


def test_outcomes_only_advance() -> None:
    done = {"state": "output-available", "output": "red"}
    ours = [calling("m", "c1", **done)]
    [message] = joined([calling("m", "c1")], ours)
    assert message["parts"][0]["output"] == "red"
    theirs = [calling("m", "c1", state="output-available", output="blue")]
    assert joined(theirs, ours) == theirs, "what has an outcome there keeps it"
    assert joined([], ours) == ours
    assert joined([user("x", "hi")], ours) == [user("x", "hi"), *ours]


def test_a_call_that_has_no_outcome_anywhere_is_closed() -> None:
    [first, second] = joined([calling("m", "c1")], [user("u", "hi")])
    assert first["parts"][0]["state"] == "output-error"
    assert first["parts"][0]["errorText"] == WENT_ON
    assert second == user("u", "hi")
