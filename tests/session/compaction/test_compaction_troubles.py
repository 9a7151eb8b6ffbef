"""Compaction by functions that misbehave, and in conversations that change meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai.usage import RequestUsage
from troubled import talk, talker

from outlast import (
    CompactionContext,
    ContextOverflow,
    Message,
    ProactiveCompaction,
    Session,
    Think,
    summarise,
)
from outlast.session.compaction.function import MAX_PROMPT_CHARACTERS
from outlast.session.compaction.overlay import Overlay, covering, cut
from outlast.session.events import CompactionFailed
from outlast.session.part import SessionPart
from outlast.store.operations import Query
from outlast.testing import ScriptedModel, Step
from support import World, forever, listen

pytestmark = pytest.mark.virtual_time

TOO_LONG = Step.fails(ValueError("prompt is too long: 215000 tokens > 200000 maximum"))
REACTIVE = ContextOverflow(reactive=True)


async def test_a_summary_may_have_characters_that_no_store_accepts(world: World) -> None:
    Talker = talker(
        lambda session: session.on_compaction(lambda _: "S\0x\ud800y").compact_after(50)
    )
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, 0, 1, 2, 3, 4)
    await host.until_settled()
    assert (await agent.history())[0].endswith("S\ufffdx\ufffdy")
    assert len(await agent.get_messages()) == 10


async def test_a_function_that_never_returns_is_given_up(sqlite_world: World) -> None:
    Talker = talker(lambda session: session.on_compaction(forever).compact_after(50))
    host = await sqlite_world.host(Talker)
    failed = listen(host, CompactionFailed)
    agent = host.get(Talker, "a")
    await talk(agent, 0, 1, 2, 3, 4)
    assert await asyncio.wait_for(agent.compact(), 3600) is False
    assert failed


@pytest.mark.parametrize("count", [ValueError("no counter"), 1.5, None, -5, 10**30])
async def test_a_token_counter_that_fails_is_replaced_by_the_estimate(
    sqlite_world: World, caplog: pytest.LogCaptureFixture, count: Any
) -> None:
    def counted(_: Any) -> Any:
        if isinstance(count, Exception):
            raise count
        return count

    Talker = talker(
        lambda session: session.on_compaction(lambda _: "S").compact_after(
            50, token_counter=counted
        )
    )
    host = await sqlite_world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, *range(5))
    await host.until_settled()
    assert (await agent.history())[0].startswith("Summary")
    logged = [each for each in caplog.records if "token_counter failed" in each.getMessage()]
    assert len(logged) == 1


async def test_a_conversation_that_is_cleared_meanwhile_leaves_no_summary(world: World) -> None:
    going, go = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> str:
        going.set()
        await go.wait()
        return "A secret."

    Talker = talker(lambda session: session.on_compaction(slow))
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, 0, 1, 2)
    compacting = asyncio.create_task(agent.compact())
    await going.wait()
    await agent.clear_messages()
    go.set()
    assert await compacting is False
    assert await host.store.fetch(Query.same("SELECT summary FROM session_overlays")) == []


async def test_a_window_is_shown_behind_the_summary(sqlite_world: World) -> None:
    Talker = talker(
        lambda session: session.on_compaction(lambda _: "Short.").with_window(messages=4)
    )
    host = await sqlite_world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, *range(6))
    assert await agent.compact()
    await talk(agent, *range(6, 12))
    first, *others = await agent.history()
    assert first.endswith("Short.")
    assert [text for text in others if text.startswith("Question")] == [
        f"Question {n} of the user, in a few words." for n in (10, 11)
    ]


async def test_a_summary_of_messages_that_are_not_in_memory_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages behind it may be so large that the end of what it covers is not in memory."""
    monkeypatch.setattr("outlast.chat.transcript.transcript.WINDOW_BYTES", 1500)
    handed: list[str | None] = []

    def summarised(_: list[Message], context: CompactionContext) -> str:
        handed.append(context.previous)
        return f"Summary number {len(handed)}."

    Talker = talker(lambda session: session.on_compaction(summarised))
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, *range(6))
    assert await agent.compact()
    await talk(agent, *range(6, 20))
    assert "Summary number 1." in str(Talker.model.requests[-1].messages)
    host = await world.next_life()
    agent = host.get(Talker, "a")
    await talk(agent, 20)
    assert "Summary number 1." in str(Talker.model.requests[-1].messages)
    assert await agent.compact()
    assert handed == [None, "Summary number 1."]


async def test_a_conversation_of_the_application_is_shortened(sqlite_world: World) -> None:
    def hydrate_messages(self: Any, _: Any) -> list[dict[str, Any]]:
        return [
            {"id": f"x{n}", "role": role, "parts": [{"type": "text", "text": f"Message {n}"}]}
            for n, role in enumerate(("user", "assistant") * 10)
        ]

    Talker = talker(
        lambda session: session.on_compaction(lambda _: "S"),
        *(TOO_LONG, "Hello."),
        context_overflow=REACTIVE,
        hydrate_messages=hydrate_messages,
    )
    host = await sqlite_world.host(Talker)
    await talk(host.get(Talker, "a"), 0)
    asked = str(Talker.model.requests[-1].messages)
    assert "Summary of the conversation" in asked
    assert "Message 0" not in asked


async def test_a_turn_is_stopped_while_its_conversation_is_summarised(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, phases = asyncio.Event(), []

    async def slow(_: Any) -> None:
        going.set()
        await forever()

    def tell(self: Any, phase: str, *_: Any) -> None:
        phases.append(phase)

    monkeypatch.setattr(SessionPart, "_tell", tell)
    Talker = talker(
        lambda session: session.on_compaction(slow),
        *("One.", TOO_LONG, "Three."),
        context_overflow=REACTIVE,
    )
    host = await sqlite_world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, 0)
    submission = await agent.submit_messages("And now?")
    await going.wait()
    assert await agent.cancel_submission(submission.id)
    await host.until_settled()
    assert phases == ["compacting", "idle"]
    await talk(agent, 2)


async def test_a_reminder_stays_when_the_turn_is_compacted(sqlite_world: World) -> None:
    day = ["Monday"]
    near = RequestUsage(input_tokens=95, output_tokens=1)

    class Talker(Think):
        model = ScriptedModel(
            *("One.", "Two.", Step(Step.call("ping", {}).pieces, usage=near), "Four."), by="request"
        )
        context_overflow = ContextOverflow(proactive=ProactiveCompaction(max_input_tokens=100))

        def get_tools(self) -> Any:
            def ping() -> str:
                return "pong"

            return [ping]

        def configure_session(self, session: Session) -> Session:
            return session.with_context(
                "day", provider=lambda: day[0], when_changed="remind"
            ).on_compaction(lambda _: "S")

    host = await sqlite_world.host(Talker)
    agent = host.get(Talker, "a")
    await talk(agent, 0, 1)
    day[0] = "Tuesday"
    await talk(agent, 2)
    asked = str(Talker.model.requests[-1].messages)
    assert "Summary of the conversation" in asked
    assert asked.count("Tuesday") == 1


async def test_a_model_summarises_a_long_conversation_in_pieces() -> None:
    model = ScriptedModel("First part.", "Both parts.", by="request")
    messages = [
        Message({"id": str(n), "role": "user", "parts": [{"type": "text", "text": "x" * 10_000}]})
        for n in range(40)
    ]
    summary = await summarise(model)(messages, CompactionContext(None, 1000))
    first, second = (request.messages[0].parts[0].content for request in model.requests)
    assert summary == "Both parts."
    assert max(len(first), len(second)) < MAX_PROMPT_CHARACTERS + 2000
    assert "Summary of what came before:\nFirst part." in second
    assert (first + second).count("user: ") == 40


class Counting(list[int]):
    """Tokens of messages, which count how many of them are looked at."""

    looked_at = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.looked_at += len(found) if isinstance(place, slice) else 1
        return found


def _path(*roles: str) -> list[dict[str, Any]]:
    return [{"id": f"m{n}", "role": role, "parts": []} for n, role in enumerate(roles)]


def test_a_long_conversation_is_cut_in_one_pass() -> None:
    path = _path(*("user", "assistant") * 5000)
    tokens = Counting([20] * len(path))
    assert cut(path, tokens) == 9000
    assert tokens.looked_at <= len(path)


def test_the_last_message_is_never_covered() -> None:
    """A path can end where a summary ends: what followed was taken back. An answer there is continued."""
    path = _path("user", "assistant", "user", "assistant")
    overlay = Overlay(1, "m0", "m3", "Summary", 100, 0)
    assert (covering(path, [overlay]) or (None,))[0] is None
    assert (covering([*path, {"id": "m4", "role": "user"}], [overlay]) or (None,))[0] is overlay


def test_the_summary_that_covers_most_counts() -> None:
    """A newer one may be shorter: it was made on another branch, before the two parted."""
    path = _path("user", "assistant") * 1 + _path("user", "assistant", "user", "assistant")
    path = [{**message, "id": f"m{n}"} for n, message in enumerate(path)]
    long, short = Overlay(1, "m0", "m3", "Long", 9, 0), Overlay(2, "m0", "m1", "Short", 9, 0)
    assert (covering(path, [short, long]) or (None,))[0] is long
