"""Conversations that are too long for the model: a summary takes the place of what is old."""

from __future__ import annotations

from typing import Any

import pytest
from conversation import reasons
from pydantic_ai.exceptions import ModelHTTPError

from outlast import (
    ContextOverflow,
    ProactiveCompaction,
    Session,
    Think,
    TurnConfig,
    default_context_overflow_classifier,
    tool,
)
from outlast.chat.types.events import ContextCompacted
from outlast.core.events import Event
from outlast.testing import ScriptedModel, Step
from support import World

TOO_LONG = ModelHTTPError(400, "m", {"error": {"message": "prompt is too long: 9 > 5 maximum"}})


def texts(messages: Any) -> list[str]:
    """Everything that a request says."""
    return [
        str(part.content)
        for message in messages
        for part in message.parts
        if part.part_kind in ("user-prompt", "text", "tool-return")
    ]


class Wordy(Think):
    """Its model takes six texts, and no more."""

    context_overflow = ContextOverflow(reactive=True)
    summaries: list[int] = []
    most = 6

    def configure_session(self, session: Session) -> Session:
        def summary(messages: Any) -> str | None:
            type(self).summaries.append(len(messages))
            return "They greeted."

        return session.on_compaction(summary)


def wordy(answer: Any = None, **members: Any) -> type[Wordy]:
    def said(messages: Any) -> Step:
        if len(texts(messages)) > Wordy.most:
            return Step.fails(TOO_LONG)
        return Step.text(f"answer {len(texts(messages))}")

    model = ScriptedModel.answering(answer or said)
    return type("Wordy", (Wordy,), {"model": model, "summaries": [], **members})


def heard(host: Any) -> list[ContextCompacted]:
    found: list[ContextCompacted] = []

    def listen(event: Event) -> None:
        if isinstance(event, ContextCompacted):
            found.append(event)

    host.events.subscribe("chat", listen)
    return found


async def talk(agent: Any, times: int) -> list[Any]:
    return [await agent.save_messages(f"question {n}") for n in range(times)]


@pytest.mark.invariant("N1", "N2")
async def test_a_conversation_that_is_too_long_is_shortened_and_asked_again(world: World) -> None:
    agent_class = wordy()
    host = await world.host(agent_class)
    events = heard(host)
    agent = host.get(agent_class, "a")
    turns = await talk(agent, 6)
    assert [turn.status for turn in turns] == ["completed"] * 6
    assert events
    assert all(event.reason == "reactive" and event.shortened for event in events)
    assert len(await agent.get_messages()) == 12, "what is stored stays whole"
    last = texts(agent_class.model.requests[-1].messages)
    assert last[0].startswith("Summary of the conversation so far:")
    assert last[-1] == "question 5"
    host = await world.next_life()
    await host.get(agent_class, "a").get_messages()
    agent_class.summaries.clear()
    assert (await host.get(agent_class, "a").save_messages("more")).status == "completed"


@pytest.mark.invariant("N6")
@pytest.mark.parametrize("door", ["save", "submit", "chat", "continue", "regenerate"])
async def test_it_is_done_at_every_door(sqlite_world: World, door: str) -> None:
    agent_class = wordy()
    host = await sqlite_world.host(agent_class)
    agent = host.get(agent_class, "a")
    await talk(agent, 3)
    agent_class.summaries.clear()
    Wordy.most = 6 if door == "continue" else 4
    try:
        match door:
            case "save":
                await agent.save_messages("more")
            case "submit":
                await agent.submit_messages("more")
            case "chat":
                await agent.run_turn("more", mode="wait")
            case "continue":
                await agent.continue_last_turn()
            case _:
                await agent.regenerate()
        await host.until_settled()
    finally:
        Wordy.most = 6
    assert agent_class.summaries, "it was shortened"
    assert (await agent.get_messages())[-1].role == "assistant"


@pytest.mark.invariant("N1")
@pytest.mark.parametrize("summary", [None, "x" * 10_000], ids=["none", "longer than before"])
async def test_what_does_not_get_shorter_ends_as_an_error(
    sqlite_world: World, summary: str | None
) -> None:
    class Stubborn(Wordy):
        def configure_session(self, session: Session) -> Session:
            return session.on_compaction(lambda messages: summary)

    classified: list[Any] = []

    def on_chat_error(self: Any, error: Exception, context: Any) -> Exception:
        classified.append(context.classification)
        return error

    agent_class = wordy(
        configure_session=Stubborn.configure_session,
        on_chat_error=on_chat_error,
        classify_chat_error=default_context_overflow_classifier,
    )
    host = await sqlite_world.host(agent_class)
    turns = await talk(host.get(agent_class, "a"), 4)
    assert turns[-1].status == "error"
    assert classified == ["context_overflow"]
    asked = list(agent_class.model.requests)
    assert len(asked) == 4, "nobody asks again in vain"


async def test_what_is_too_long_by_itself_says_so(sqlite_world: World) -> None:
    agent_class = wordy(lambda messages: Step.fails(TOO_LONG))
    host = await sqlite_world.host(agent_class)
    turn = await host.get(agent_class, "a").save_messages("question")
    assert turn.status == "error"
    assert turn.error == "The conversation is too long for the model."
    reason = (await reasons(host))[0] or ""
    assert "no older message can be shortened: the system prompt has about" in reason


@pytest.mark.invariant("I8", "N2")
async def test_what_tools_have_done_is_not_done_again(sqlite_world: World) -> None:
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    refusals = [TOO_LONG]

    def answer(messages: Any) -> Step:
        said = texts(messages)
        if "paid" in said:
            return Step.fails(refusals.pop()) if refusals else Step.text("All paid.")
        if said[-1].startswith("pay"):
            return Step.text("I pay. ") + Step.call("pay", {"amount": 5})
        return Step.text("fine")

    agent_class = wordy(answer, get_tools=lambda self: [pay])
    host = await sqlite_world.host(agent_class)
    agent = host.get(agent_class, "a")
    await talk(agent, 3)
    turn = await agent.save_messages("pay it")
    assert (turn.status, turn.message.text) == ("completed", "I pay. All paid.")
    assert paid == [5]
    assert len(await agent.get_messages()) == 8


@pytest.mark.invariant("N4")
async def test_the_conversation_is_shortened_before_it_is_too_long(sqlite_world: World) -> None:
    @tool(effect="read")
    async def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    def answer(messages: Any) -> Step:
        said = texts(messages)
        seen = sum(each.startswith("seen") for each in said)
        if said[-1].startswith("look") or (0 < seen < 3):
            return Step.call("look", {"n": seen})
        return Step.text("Done." if seen else "fine")

    near = ProactiveCompaction(max_input_tokens=1, max_compactions=1)
    agent_class = wordy(
        answer, get_tools=lambda self: [look], context_overflow=ContextOverflow(proactive=near)
    )
    host = await sqlite_world.host(agent_class)
    events = heard(host)
    agent = host.get(agent_class, "a")
    await talk(agent, 3)
    turn = await agent.save_messages("look around")
    assert turn.status == "completed", turn.error
    assert [(event.reason, event.shortened) for event in events] == [("proactive", True)]
    last = texts(agent_class.model.requests[-1].messages)
    assert [each for each in last if each.startswith("seen")] == ["seen 0", "seen 1", "seen 2"]
    assert last[0].startswith("Summary of the conversation")


@pytest.mark.invariant("N7")
async def test_a_classifier_that_raises_is_no_overflow(sqlite_world: World) -> None:
    def classify(self: Any, error: Exception, context: Any) -> Any:
        raise ValueError("no idea")

    agent_class = wordy(classify_chat_error=classify)
    host = await sqlite_world.host(agent_class)
    turns = await talk(host.get(agent_class, "a"), 4)
    assert [turn.status for turn in turns] == ["completed"] * 3 + ["error"]
    assert agent_class.summaries == []


@pytest.mark.invariant("N8")
async def test_a_compaction_that_raises_loses_nothing(sqlite_world: World) -> None:
    def configure(self: Any, session: Session) -> Session:
        def raising(messages: Any) -> str:
            raise ValueError("no idea")

        return session.on_compaction(raising)

    agent_class = wordy(configure_session=configure)
    host = await sqlite_world.host(agent_class)
    agent = host.get(agent_class, "a")
    turns = await talk(agent, 4)
    assert turns[-1].status == "error"
    assert [each.text for each in await agent.get_messages()][-1] == "question 3"


@pytest.mark.invariant("N5")
async def test_a_cancel_while_it_is_shortened_stops_it(sqlite_world: World) -> None:
    async def before_turn(self: Any, context: Any) -> TurnConfig | None:
        self.request = context.request_id
        return None

    def configure(self: Any, session: Session) -> Session:
        async def cancelling(messages: Any) -> str:
            await self.cancel_chat(self.request)
            return "short"

        return session.on_compaction(cancelling)

    agent_class = wordy(configure_session=configure, before_turn=before_turn)
    host = await sqlite_world.host(agent_class)
    turns = await talk(host.get(agent_class, "a"), 4)
    assert turns[-1].status == "aborted"
    assert len(agent_class.model.requests) == 4
