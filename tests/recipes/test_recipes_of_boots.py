"""What an application does when an answer was cut off: with the conversation, and with each provider."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chat_rows import stored
from conversation import answering, inbox, said
from interruptions import (
    ADDRESS,
    SLOW,
    break_off,
    chunks_of,
    is_continued,
    talker,
    transcript,
    wait_for,
)

from outlast import (
    ChatRecoveryContext,
    ChatRecoveryOptions,
    RecoveryBootEvent,
    Think,
    TurnConfig,
    TurnContext,
)
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time


# --- cancelled in the middle ---------------------------------------------------------------------


def shown(model: Any) -> list[str]:
    """Who has said what in the last request."""
    names = {"user-prompt": "user", "text": "assistant"}
    return [
        f"{names[part.part_kind]}: {part.content}"
        for message in model.requests[-1].messages
        for part in message.parts
        if part.part_kind in names
    ]


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize("follow_up", ["keep going", "actually, what's 7+8?"])
async def test_after_a_cancel_the_follow_up_has_the_partial_answer_before_it(
    world: World, follow_up: str, dies: bool
) -> None:
    class MyChat(Think):
        model = answering("Hi.", SLOW, "As you wish.")

    host = await world.host(MyChat, shutdown_timeout=0)
    chat = host.get(MyChat, "a")
    await chat.save_messages("Hello")
    essay = await chat.submit_messages("Write me a long essay about espresso")
    await asyncio.sleep(2.5)
    await chat.cancel_chat(essay.id)
    if not dies:
        await chat.save_messages(follow_up)
    host = await world.next_life()
    chat = host.get(MyChat, "a")
    if dies:
        await chat.save_messages(follow_up)
    assert said(await chat.get_messages())[-1] == "assistant: As you wish."
    await world.stop()
    assert shown(MyChat.model) == [
        "user: Hello",
        "assistant: Hi.",
        "user: Write me a long essay about espresso",
        "assistant: one two ",
        f"user: {follow_up}",
    ], "the essay is neither written again nor forgotten"
    assert len(MyChat.model.requests) == 3


# --- when the hook is asked ----------------------------------------------------------------------


async def test_a_banner_says_what_happened_and_the_answer_goes_on_by_itself(store_url: str) -> None:
    events: list[RecoveryBootEvent] = []

    class MyChat(Think):
        model = ScriptedModel(SLOW)

        async def on_recovery_boot(self, event: RecoveryBootEvent) -> None:
            events.append(event)
            about = {
                "cause": event.cause,
                "previousRunId": event.previous_run_id,
                "partialPresent": event.partial_assistant is not None,
            }
            event.writer.data("chat-recovery", about, transient=True)

    await break_off(store_url, MyChat, "Hello")
    async with hosting(MyChat, url=store_url, life="2") as host:
        chat = await wait_for(host, MyChat)
        assert said(await chat.get_messages()) == [
            "user: Hello",
            "assistant: one two three four",
        ]
        found = await stored(host, "MyChat/a")
    [event] = events
    [banner] = [c for c in chunks_of(found, "s1") if c["type"] == "data-chat-recovery"]
    assert banner["data"] == {
        "cause": "deploy",
        "previousRunId": event.previous_run_id,
        "partialPresent": True,
    }
    assert banner["transient"] is True
    assert event.previous_run_id, "it names the run that was cut off"


async def no_partial(url: str, MyChat: type[Any]) -> None:
    await break_off(url, MyChat, "Hello", after=0.5)  # the first word takes a second


async def nothing(url: str, MyChat: type[Any]) -> None:
    async with hosting(MyChat, url=url) as host:
        await host.get(MyChat, "a").save_messages("Hello")


async def hydrated(url: str, MyChat: type[Any]) -> None:
    MyChat.hydrate_messages = lambda self, context: [context.messages[-1]]  # type: ignore[attr-defined]
    await break_off(url, MyChat, "Hello")


@pytest.mark.parametrize("before", [no_partial, nothing, hydrated])
async def test_the_hook_is_asked_only_about_half_an_answer(store_url: str, before: Any) -> None:
    asked: list[RecoveryBootEvent] = []
    MyChat = talker(ScriptedModel(SLOW), on_recovery_boot=lambda self, event: asked.append(event))
    await before(store_url, MyChat)
    async with hosting(MyChat, url=store_url, life="2") as host:
        await wait_for(host, MyChat)
        assert await transcript(host) == ["user: Hello", "assistant: one two three four"]
    assert asked == []


# --- what each provider makes possible -----------------------------------------------------------


class MyChat(Think):
    """Knows from its state which provider answers, and recovers as that one allows."""

    model = ScriptedModel(SLOW)
    responses: dict[str, str] = {}
    initial_state = {"last_provider": None}

    async def before_turn(self, context: TurnContext) -> TurnConfig | None:
        provider = context.body.get("provider", self.state["last_provider"])
        await self.set_state({"last_provider": provider})
        if provider == "openai":
            await self.stash({"response_id": "resp_abc123"})
        if context.body.get("reasoning") is False:
            return TurnConfig(provider_options={"anthropic_thinking": {"type": "disabled"}})
        return None

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> ChatRecoveryOptions:
        provider = self.state["last_provider"]
        if provider == "openai":
            text = self.responses.get((context.recovery_data or {}).get("response_id"))
            if text:
                parts = [{"type": "text", "text": text}]
                await self.add_messages({"role": "assistant", "parts": parts})
                return ChatRecoveryOptions(persist=False, continue_=False)
        if provider == "anthropic":
            await self.schedule(0, self.continue_with_synthetic_message, idempotent=True)
            return ChatRecoveryOptions(continue_=False)
        return ChatRecoveryOptions()

    async def continue_with_synthetic_message(self, payload: Any) -> None:
        await self.save_messages("Continue where you left off", body={"reasoning": False})


async def recovered(url: str, Chat: type[Any], provider: str) -> tuple[list[str], list[Any]]:
    await break_off(url, Chat, "Count", body={"provider": provider})
    async with hosting(Chat, url=url, life="2") as host:
        chat = await wait_for(host, Chat)
        await host.until_settled()
        return said(await chat.get_messages()), await inbox(host, "outcome")


async def test_a_stored_response_is_fetched_instead_of_generated_again(store_url: str) -> None:
    class Chat(MyChat):
        model = ScriptedModel(SLOW)
        responses = {"resp_abc123": "one two three four"}

    messages, outcomes = await recovered(store_url, Chat, "openai")
    assert messages == ["user: Count", "assistant: one two three four"]
    assert outcomes == [("skipped",)]
    assert len(Chat.model.requests) == 1, "the model is not asked again"


async def test_a_response_that_is_gone_is_continued_like_any_other(store_url: str) -> None:
    class Chat(MyChat):
        model = ScriptedModel(SLOW)

    messages, outcomes = await recovered(store_url, Chat, "openai")
    assert messages == ["user: Count", "assistant: one two three four"]
    assert outcomes == [("completed",)]
    assert is_continued(Chat.model)


async def test_a_scheduled_message_asks_for_the_rest_without_reasoning(store_url: str) -> None:
    class Chat(MyChat):
        model = answering(SLOW, Step.reasoning("Hm.") + Step.text("three four"))

    messages, _ = await recovered(store_url, Chat, "anthropic")
    assert messages == [
        "user: Count",
        "assistant: one two ",
        "user: Continue where you left off",
        "assistant: three four",
    ]
    settings = [
        (request.settings or {}).get("anthropic_thinking") for request in Chat.model.requests
    ]
    assert settings == [None, {"type": "disabled"}]


async def test_by_default_the_answer_goes_on_inline(store_url: str) -> None:
    class Chat(MyChat):
        model = ScriptedModel(SLOW)

    messages, outcomes = await recovered(store_url, Chat, "workersai")
    assert messages == ["user: Count", "assistant: one two three four"]
    assert outcomes == [("completed",)]
    assert is_continued(Chat.model)


async def test_a_continued_turn_has_its_body_and_client_tools_again(store_url: str) -> None:
    heard: list[ChatRecoveryContext] = []
    tools = [{"name": "ask_user", "parameters": {"type": "object"}}]
    Talker = talker(
        model := ScriptedModel(SLOW),
        on_chat_recovery=lambda self, context: heard.append(context),
        before_turn=lambda self, context: bodies.append(dict(context.body)),
    )
    bodies: list[dict[str, Any]] = []
    await break_off(store_url, Talker, "Hello", body={"tone": "dry"}, client_tools=tools)
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        found = await stored(host, ADDRESS)
        assert [row.role for row in found.path] == ["user", "assistant"], "no synthetic message"
    [context] = heard
    assert context.last_body == {"tone": "dry"}
    assert [each["name"] for each in context.last_client_tools] == ["ask_user"]
    assert bodies == [{"tone": "dry"}] * 2
    offered = [each.name for each in model.requests[-1].parameters.function_tools]
    assert offered == ["ask_user"]
