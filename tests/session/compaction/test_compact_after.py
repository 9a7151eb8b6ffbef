"""Compaction between turns, by hand, on branches and across versions: an overlay, never a deletion."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.usage import RequestUsage

from outlast import CompactionContext, Message, Session, Think
from outlast.agent.agent import parts_of
from outlast.core import json
from outlast.session.compaction.overlays import OLD_RECORD
from outlast.session.events import CompactionFailed, SessionCompacted
from outlast.testing import ScriptedModel, Step
from support import World, listen

pytestmark = pytest.mark.virtual_time

Call = tuple[list[str], str | None]


def talker(
    threshold: int | None = None, summary: Any = "They talked.", **members: Any
) -> tuple[type[Any], list[Call]]:
    calls: list[Call] = []

    def summarised(messages: list[Message], context: CompactionContext) -> Any:
        calls.append(([message.text for message in messages], context.previous))
        return summary(len(calls)) if callable(summary) else summary

    class Talker(Think):
        model = ScriptedModel("An answer of a few words.", repeat=True)

        def configure_session(self, session: Session) -> Session:
            session = session.on_compaction(summarised)
            return session if threshold is None else session.compact_after(threshold)

        async def history(self) -> list[str]:
            return [message.text for message in self.session.get_history()]

        async def compact(self) -> bool:
            return await self.session.compact()

        async def tokens(self) -> Any:
            return self.session.tokens

    for name, value in members.items():
        setattr(Talker, name, value)
    return Talker, calls


async def talk(agent: Any, *numbers: int) -> None:
    for n in numbers:
        turn = await agent.save_messages(f"Question {n} of the user, in a few words.")
        assert turn.status == "completed", turn.error


async def test_a_long_conversation_is_summarised_after_a_turn_and_again_later(world: World) -> None:
    Talker, calls = talker(100, summary=lambda n: f"Summary {n}.")
    host = await world.host(Talker)
    events = listen(host, SessionCompacted)
    agent = host.get(Talker, "a")
    await talk(agent, *range(24))
    await host.until_settled()
    assert len(events) == len(calls) > 1
    assert [previous for _, previous in calls] == [None] + [
        f"Summary {n}." for n in range(1, len(calls))
    ]
    said = [text for texts, _ in calls for text in texts if text.startswith("Question")]
    assert said == [f"Question {n} of the user, in a few words." for n in range(len(said))], (
        "once each"
    )
    shown = await agent.history()
    assert shown[0] == f"Summary of the conversation so far:\n\nSummary {len(calls)}."
    assert shown[-2].startswith("Question 23")
    assert len(await agent.get_messages()) == 48, "what is stored stays whole"
    before = shown
    host = await world.next_life()
    assert await host.get(Talker, "a").history() == before
    assert (await host.get(Talker, "a").tokens()).estimate <= 100


async def test_without_a_gain_nothing_is_stored_and_it_is_said_once(
    sqlite_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    Talker, calls = talker(20, summary="x" * 4000)
    host = await sqlite_world.host(Talker)
    await talk(host.get(Talker, "a"), *range(4))
    await host.until_settled()
    assert len(calls) >= 2
    warned = [each for each in caplog.records if "is not shorter" in each.getMessage()]
    assert len(warned) == 1
    assert len(await host.get(Talker, "a").history()) == 8


async def test_a_summary_that_fails_is_reported_and_the_turn_is_not(sqlite_world: World) -> None:
    told: list[Exception] = []

    def failing(n: int) -> str:
        raise ValueError("no model")

    Talker, _ = talker(20, summary=failing)
    configure = Talker.configure_session

    def configure_session(self: Any, session: Session) -> Session:
        result: Session = configure(self, session).on_compaction_error(told.append)
        return result

    Talker.configure_session = configure_session
    host = await sqlite_world.host(Talker)
    failed = listen(host, CompactionFailed)
    await talk(host.get(Talker, "a"), 1, 2)
    await host.until_settled()
    assert [str(error) for error in told] == ["no model"] * len(failed)
    assert failed
    assert await host.get(Talker, "a").compact() is False


async def test_a_branch_has_an_overlay_of_its_own(world: World) -> None:
    Talker, _ = talker()
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, 0, 1, 2)
    first = (await agent.get_messages())[1]
    assert await agent.compact()
    assert (await agent.history())[0].startswith("Summary")
    await agent.regenerate(first.id)
    assert [text[:10] for text in await agent.history()] == ["Question 0", "An answer "]
    other = (await agent.get_messages())[1].id
    assert other != first.id
    assert await agent.select_branch(first.id)
    assert (await agent.history())[0].startswith("Summary")


async def test_a_function_of_messages_alone_is_given_the_summary_as_the_first(
    sqlite_world: World,
) -> None:
    given: list[list[str]] = []

    def summarised(messages: list[Message]) -> str:
        given.append([message.text for message in messages])
        return f"Summary {len(given)}."

    Talker, _ = talker(
        configure_session=lambda _, session: session.on_compaction(summarised).with_window(
            messages=4
        )
    )
    host = await sqlite_world.host(Talker)
    agent = host.get(Talker, "a")
    for numbers in ((0, 1, 2), (3, 4, 5, 6)):
        await talk(agent, *numbers)
        assert await agent.compact()
    assert given[0][0].startswith("Question 0")
    assert given[1][0] == "Summary of the conversation so far:\n\nSummary 1."
    await talk(agent, 7, 8, 9)
    shown = await agent.history()
    assert shown[0].endswith("Summary 2."), "a window does not hide it"
    assert [text[:10] for text in shown[1::2]] == ["Question 8", "Question 9"]


async def test_a_short_conversation_with_one_huge_message_is_shortened(sqlite_world: World) -> None:
    Talker, calls = talker()
    host = await sqlite_world.host(Talker)
    agent = host.get(Talker, "a")
    await agent.save_messages("x" * 100_000)
    await agent.add_messages("And now?")
    assert await agent.compact()
    assert len(calls[0][0]) == 2
    assert [len(text) for text in await agent.history()] == [49, 8]


async def test_clearing_the_conversation_clears_its_summaries(world: World) -> None:
    Talker, _ = talker()
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, 0, 1)
    assert await agent.compact()
    await agent.clear_messages()
    assert await agent.history() == []
    host = await world.next_life()
    await talk(host.get(Talker, "a"), 5)
    assert (await host.get(Talker, "a").history())[0].startswith("Question 5")


async def test_a_summary_of_an_older_version_counts(world: World) -> None:
    Talker, _ = talker()

    async def remember(self: Any, last: str) -> None:
        from outlast.agent.state.facts import Facts

        record = json.encode({"until": last, "summary": "Old times."})
        await parts_of(self)[Facts].set(OLD_RECORD, record)

    Talker.remember = remember
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, 0, 1)
    await agent.remember((await agent.get_messages())[1].id)
    host = await world.next_life()
    agent = host.get(Talker, "a")
    assert (await agent.history())[0] == "Summary of the conversation so far:\n\nOld times."
    await talk(agent, 2, 3)
    assert await agent.compact()
    assert (await agent.history())[0].endswith("They talked.")


async def test_the_estimate_follows_what_the_model_reports(world: World) -> None:
    Talker, _ = talker(1_000_000)
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, 0, 1, 2)
    before = (await agent.tokens()).estimate
    usage = RequestUsage(input_tokens=4 * before, output_tokens=20)
    Talker.model = ScriptedModel(Step.text("An answer.", usage=usage), repeat=True)
    await talk(agent, 3, 4, 5, 6)
    after = (await agent.tokens()).estimate
    host = await world.next_life()
    assert (await host.get(Talker, "a").tokens()).estimate == after, "it is stored"
    assert after > 2.2 * before
