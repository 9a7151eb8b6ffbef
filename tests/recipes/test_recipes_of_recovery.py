"""How applications tune recovery: what each example of the guide promises."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conversation import answering, inbox, said
from interruptions import (
    SLOW,
    asked,
    break_off,
    is_continued,
    talker,
    transcript,
    wait_for,
)
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.usage import RequestUsage

from outlast import (
    ChatRecovery,
    ChatRecoveryContext,
    ChatRecoveryOptions,
    ContextOverflow,
    KeepRecoveringContext,
    ProactiveCompaction,
    RecoveryExhaustedContext,
    Session,
    Think,
    default_context_overflow_classifier,
    tool,
)
from outlast.agent.agent import parts_of
from outlast.chat.types.events import ContextCompacted
from outlast.testing import ScriptedModel, Step
from support import World, hosting, listen

pytestmark = pytest.mark.virtual_time

SILENT = Step.text(chunks=["one "]) + Step.stalls()
ASK_USER = [{"name": "ask_user", "parameters": {"type": "object"}}]


async def live_on(url: str, Talker: type[Any], life: str, seconds: float = 31) -> None:
    """A process that takes the turn up, and dies before the model says anything more."""
    async with hosting(Talker, url=url, life=life, shutdown_timeout=0):
        await asyncio.sleep(seconds)


# --- bounded recovery ----------------------------------------------------------------------------


async def test_recovery_without_progress_is_given_up_with_the_agent_s_own_words(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_exhausted(context: RecoveryExhaustedContext) -> None:
        logging.getLogger("app").warning("Chat recovery exhausted %s", context.incident_id)

    class MyAgent(Think):
        model = answering(SILENT, Step.stalls())
        chat_recovery = ChatRecovery(
            max_attempts=2,
            terminal_message="The assistant was interrupted and could not recover.",
            on_exhausted=on_exhausted,
        )

    await break_off(store_url, MyAgent, "Hello", after=1)
    for life in "234":
        await live_on(store_url, MyAgent, life)
    async with hosting(MyAgent, url=store_url, life="9") as host:
        agent = await wait_for(host, MyAgent)
        assert said(await agent.get_messages()) == ["user: Hello", "assistant: one "]
        assert await inbox(host, "outcome, error") == [
            ("error", "The assistant was interrupted and could not recover.")
        ]
    exhausted = [each.getMessage() for each in caplog.records if each.name == "app"]
    assert len(exhausted) == 1, "it is told once"
    assert exhausted[0].startswith("Chat recovery exhausted ")


def test_a_wait_for_a_stable_state_is_refused_with_what_bounds_a_turn_instead() -> None:
    with pytest.raises(ValueError, match=r"stable_timeout is not supported.*no_progress_timeout"):
        ChatRecovery(max_attempts=6, stable_timeout=10)  # type: ignore[arg-type]


async def test_a_hook_that_only_watches_leaves_the_default_in_force(store_url: str) -> None:
    heard: list[tuple[str, int]] = []

    class MyAgent(Think):
        model = ScriptedModel(SLOW)
        chat_recovery = ChatRecovery(
            max_attempts=10, terminal_message="The assistant was interrupted. Please try again."
        )

        async def on_chat_recovery(self, context: ChatRecoveryContext) -> ChatRecoveryOptions:
            heard.append((context.incident_id, context.attempt))
            return ChatRecoveryOptions()  # keep what was said, and go on

    await break_off(store_url, MyAgent, "Hello")
    await live_on(store_url, MyAgent, "2", 0.5)
    async with hosting(MyAgent, url=store_url, life="3") as host:
        agent = await wait_for(host, MyAgent)
        assert said(await agent.get_messages()) == [
            "user: Hello",
            "assistant: one two three four",
        ]
    assert len(heard) == 2
    assert len({incident for incident, _ in heard}) == 1, (
        "the incident has one id, however long it lasts"
    )
    assert heard[0][1] == 1, "attempts begin with 1"


async def test_an_interruption_before_the_first_token_is_recognised_and_asked_again(
    store_url: str,
) -> None:
    noticed: list[str] = []

    class MyAgent(Think):
        model = answering(Step.stalls(), "Hi.")

        def on_chat_recovery(self, context: ChatRecoveryContext) -> ChatRecoveryOptions:
            if not context.stream_id and not context.partial_text:
                noticed.append("Recovering a pre-stream interruption")
            return ChatRecoveryOptions()

    await break_off(store_url, MyAgent, "Hello", after=5)
    async with hosting(MyAgent, url=store_url, life="2") as host:
        agent = await wait_for(host, MyAgent)
        assert said(await agent.get_messages()) == ["user: Hello", "assistant: Hi."]
    assert noticed == ["Recovering a pre-stream interruption"]


async def test_a_pre_stream_interruption_is_not_asked_again_if_it_is_not_to_go_on(
    store_url: str,
) -> None:
    class MyAgent(Think):
        model = answering(Step.stalls(), "Hi.")

        def on_chat_recovery(self, context: ChatRecoveryContext) -> ChatRecoveryOptions:
            return ChatRecoveryOptions(continue_=False)

    await break_off(store_url, MyAgent, "Hello", after=5)
    async with hosting(MyAgent, url=store_url, life="2") as host:
        agent = await wait_for(host, MyAgent)
        assert said(await agent.get_messages()) == ["user: Hello"]
        assert (await inbox(host, "state"))[0] == ("ended",)
    assert len(MyAgent.model.requests) == 1


@pytest.mark.parametrize(("pause", "answer"), [(60, "one two three four"), (600, "one two ")])
async def test_an_old_turn_is_kept_as_it_is_and_a_recent_one_goes_on(
    store_url: str, pause: float, answer: str
) -> None:
    class MyAgent(Think):
        model = ScriptedModel(SLOW)

        def on_chat_recovery(self, context: ChatRecoveryContext) -> ChatRecoveryOptions:
            now = datetime.fromtimestamp(parts_of(self).activation.clock.now() / 1000, UTC)
            is_stale = now - context.created_at > timedelta(minutes=5)
            return ChatRecoveryOptions(continue_=False) if is_stale else ChatRecoveryOptions()

    await break_off(store_url, MyAgent, "Hello")
    await asyncio.sleep(pause)
    async with hosting(MyAgent, url=store_url, life="2") as host:
        agent = await wait_for(host, MyAgent)
        assert said(await agent.get_messages()) == ["user: Hello", f"assistant: {answer}"]
    assert len(MyAgent.model.requests) == (2 if pause == 60 else 1)


async def test_a_policy_of_the_application_stops_a_turn_that_costs_too_much(store_url: str) -> None:
    spend: dict[str, float] = {}
    exhausted: list[tuple[str, str]] = []

    async def should_keep_recovering(context: KeepRecoveringContext) -> bool:
        return spend.get(context.recovery_root_request_id, 0) < 1.0

    async def on_exhausted(context: RecoveryExhaustedContext) -> None:
        exhausted.append((context.recovery_root_request_id, context.reason))

    class MyAgent(Think):
        model = answering(SILENT, Step.stalls())
        chat_recovery = ChatRecovery(
            max_attempts=10,
            no_progress_timeout=timedelta(hours=5),
            should_keep_recovering=should_keep_recovering,
            on_exhausted=on_exhausted,
        )

    await break_off(store_url, MyAgent, "Hello", after=1)
    for life in "234":
        await live_on(store_url, MyAgent, life)
        assert exhausted == [], "there is money left"
    spend["s1"] = 1.5
    async with hosting(MyAgent, url=store_url, life="9") as host:
        await wait_for(host, MyAgent)
    assert exhausted == [("s1", "recovery_aborted")]


async def test_a_turn_that_keeps_making_progress_is_never_given_up(store_url: str) -> None:
    words = [f"word{n} " for n in range(12)]
    Talker = talker(
        ScriptedModel(Step.text(chunks=words, delay=1)),
        chat_recovery=ChatRecovery(max_attempts=1, no_progress_timeout=60),
    )
    await break_off(store_url, Talker, "Hello", after=1.5)
    for life in range(2, 9):
        await live_on(store_url, Talker, str(life), 100 if life == 5 else 1.5)
    async with hosting(Talker, url=store_url, life="9") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: Hello", f"assistant: {''.join(words)}"]


# --- interrupted calls ---------------------------------------------------------------------------


async def test_a_question_to_the_user_becomes_text_and_other_calls_are_closed(
    world: World,
) -> None:
    class MyAgent(Think):
        model = answering(
            Step.call("ask_user", {"prompt": "Which city?"}, id="q")
            + Step.call("look", {}, id="l"),
            "Paris it is.",
        )

        def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any] | None:
            if part["type"] == "tool-ask_user" and (prompt := part["input"].get("prompt")):
                return {"type": "text", "text": prompt}
            return super().repair_interrupted_tool_part(part)

    tools = [*ASK_USER, {"name": "look", "parameters": {"type": "object"}}]
    host = await world.host(MyAgent)
    agent = host.get(MyAgent, "a")
    await agent.save_messages("Book a flight", client_tools=tools)
    assert await agent.has_pending_interaction()
    turn = await agent.save_messages("Paris")  # the answer comes as a message
    assert (turn.status, turn.message.text) == ("completed", "Paris it is.")
    [_, question, _, _] = await agent.get_messages()
    assert {"type": "text", "text": "Which city?"} in question.parts, "and is stored"
    [closed] = [part for part in question.parts if "toolCallId" in part]
    assert (closed["toolCallId"], closed["state"]) == ("l", "output-error")
    await world.stop()
    shown = [part for message in MyAgent.model.requests[-1].messages for part in message.parts]
    assert [part.content for part in shown if part.part_kind == "text"] == ["Which city?"]
    assert [part.tool_name for part in shown if part.part_kind == "tool-call"] == ["look"]


# --- conversations that are too long -------------------------------------------------------------

TOO_LONG = ModelHTTPError(400, "m", {"error": {"message": "prompt is too long: 9 > 5 maximum"}})


def texts(messages: Any) -> list[str]:
    kinds = ("user-prompt", "text", "tool-return")
    return [str(p.content) for m in messages for p in m.parts if p.part_kind in kinds]


class Shortened(Think):
    """Its model takes four texts, and its compaction leaves a summary."""

    model = ScriptedModel.answering(
        lambda messages: (
            Step.text("Half an ") + Step.fails(TOO_LONG)
            if len(texts(messages)) > 4
            else Step.text("Answered.")
        )
    )

    def configure_session(self, session: Session) -> Session:
        return session.on_compaction(lambda messages: "They talked.")


async def talk(agent: Any, times: int) -> list[Any]:
    return [await agent.save_messages(f"question {n}") for n in range(times)]


async def test_an_overflow_is_compacted_and_the_turn_starts_from_scratch(world: World) -> None:
    class MyAgent(Shortened):
        context_overflow = ContextOverflow(reactive=True)
        classify_chat_error = default_context_overflow_classifier

    host = await world.host(MyAgent)
    compacted = listen(host, ContextCompacted)
    agent = host.get(MyAgent, "a")
    turns = await talk(agent, 3)
    assert [turn.status for turn in turns] == ["completed"] * 3
    assert turns[-1].message.text == "Answered.", "the truncated partial is not kept"
    assert all("Half an" not in text for text in said(await agent.get_messages()))
    await world.stop()
    assert len(compacted) == 1


async def test_an_overflow_that_cannot_be_helped_ends_visibly_as_what_it_is(world: World) -> None:
    heard: list[Any] = []

    class MyAgent(Shortened):
        model = ScriptedModel.answering(lambda messages: Step.fails(TOO_LONG))
        context_overflow = ContextOverflow(reactive=True)
        classify_chat_error = default_context_overflow_classifier

        def on_chat_error(self, error: Exception, context: Any) -> Any:
            heard.append(context.classification)
            return error

    host = await world.host(MyAgent)
    [turn] = await talk(host.get(MyAgent, "a"), 1)
    await world.stop()
    assert (turn.status, heard) == ("error", ["context_overflow"])


async def test_a_turn_is_compacted_between_steps_before_it_overflows(world: World) -> None:
    nearly = Step.call("look", {}, id="l") + Step(usage=RequestUsage(input_tokens=190_000))

    class MyAgent(Shortened):
        model = answering("Hello.", "Hello.", "Hello.", nearly, "Found it.")
        context_overflow = ContextOverflow(
            reactive=True, proactive=ProactiveCompaction(max_input_tokens=200_000)
        )
        classify_chat_error = default_context_overflow_classifier

        @tool(effect="read")
        async def look(self) -> str:
            """Look."""
            return "a large result"

    host = await world.host(MyAgent)
    compacted = listen(host, ContextCompacted)
    agent = host.get(MyAgent, "a")
    await talk(agent, 3)
    assert compacted == [], "there is room"
    turn = await agent.save_messages("Look")
    assert (turn.status, turn.message.text) == ("completed", "Found it.")
    await world.stop()
    assert [(event.reason, event.shortened) for event in compacted] == [("proactive", True)]
    shown = texts(MyAgent.model.requests[-1].messages)
    assert "They talked." in shown[0]
    assert shown[-1] == "a large result", "what this turn has done is kept"


# --- stable states -------------------------------------------------------------------------------


async def test_a_summary_is_asked_for_once_the_agent_is_stable(world: World) -> None:
    class MyAgent(Think):
        model = answering(SLOW, "In short: one to four.")

        async def summarise_when_done(self, timeout: float) -> str | None:
            if await self.wait_until_stable(timeout=timeout):
                turn = await self.save_messages("Now that you are done, summarize.")
                return turn.message.text
            return None

    host = await world.host(MyAgent)
    agent = host.get(MyAgent, "a")
    await agent.submit_messages("Count")
    assert await agent.summarise_when_done(1) is None, "the answer takes longer than that"
    assert await agent.summarise_when_done(30) == "In short: one to four."
    assert said(await agent.get_messages()) == [
        "user: Count",
        "assistant: one two three four",
        "user: Now that you are done, summarize.",
        "assistant: In short: one to four.",
    ]


async def test_an_agent_with_an_open_call_is_not_stable(world: World) -> None:
    Talker = talker(answering(Step.call("ask_user", {}, id="q"), "Thanks."))
    host = await world.host(Talker)
    agent = host.get(Talker, "a")
    await agent.save_messages("Hi", client_tools=ASK_USER)
    assert await agent.has_pending_interaction()
    assert not await agent.wait_until_stable(timeout=30)
    await agent.add_tool_output("q", "Paris")
    assert await agent.wait_until_stable(timeout=30)
    assert not await agent.has_pending_interaction()


async def test_a_stalled_stream_is_just_another_interruption(world: World) -> None:
    class MyAgent(Think):
        model = answering(Step.text("one two ") + Step.stalls(), "three four")
        chat_stream_stall_timeout = 10

    host = await world.host(MyAgent)
    turn = await host.get(MyAgent, "a").save_messages("Count")
    assert (turn.status, turn.message.text) == ("completed", "one two three four")
    await world.stop()
    assert is_continued(MyAgent.model)
    assert asked(MyAgent.model) == ["Count"]
