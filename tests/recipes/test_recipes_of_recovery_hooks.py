"""The recipes for `on_recovery_boot` and `on_chat_recovery` that users are given, with what they promise."""

from __future__ import annotations

from typing import Any

import pytest
from chat_rows import check_all_ended, check_tree, stored
from conversation import answering, inbox, rows
from interruptions import (
    ADDRESS,
    SLOW,
    asked,
    break_off,
    call_states,
    check_requests,
    check_stream,
    is_continued,
    kinds,
    talker,
    transcript,
    wait_for,
)

from outlast import (
    ChatRecoveryContext,
    ChatRecoveryOptions,
    RecoveryBootEvent,
    RecoveryBootResult,
    tool,
)
from outlast.chat.recovery.chain import LEFT_OUT
from outlast.testing import ScriptedModel, Step
from support import hosting

pytestmark = pytest.mark.virtual_time

INTERRUPTED = {"interrupted": True, "reason": "previous run was cancelled"}


# --- drop the partial ----------------------------------------------------------------------------


def drop(self: Any, event: RecoveryBootEvent) -> RecoveryBootResult:
    return RecoveryBootResult(
        chain=event.settled_messages, recovered_turns=event.in_flight_users[1:]
    )


async def test_a_partial_answer_is_dropped_and_the_follow_up_starts_fresh(store_url: str) -> None:
    Talker = talker(model := answering(SLOW, "15."), on_recovery_boot=drop)
    await break_off(store_url, Talker, "Write an essay", "What is 7 + 8?")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: What is 7 + 8?", "assistant: 15."]
        assert asked(model) == ["What is 7 + 8?"]
        assert await inbox(host, "outcome, error") == [("skipped", LEFT_OUT), ("completed", None)]
        found = await stored(host, ADDRESS)
        check_all_ended(found)
        check_tree(found)
        assert "one two" not in str(found.messages), "it is not part of any message"
        assert kinds(found, "s1")[-2:] == ["reset-step", "abort"]
    check_requests(model)
    assert len(model.requests) == 2


async def test_what_was_asked_first_can_be_answered_anew(store_url: str) -> None:
    def afresh(self: Any, event: RecoveryBootEvent) -> RecoveryBootResult:
        return RecoveryBootResult(
            chain=event.settled_messages, recovered_turns=event.in_flight_users
        )

    Talker = talker(model := answering("Hi.", SLOW, "Anew."), on_recovery_boot=afresh)
    async with hosting(Talker, url=store_url) as host:
        await host.get(Talker, "a").save_messages("u0")
    await break_off(store_url, Talker, "u1", life="2")
    async with hosting(Talker, url=store_url, life="3") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == [
            "user: u0",
            "assistant: Hi.",
            "user: u1",
            "assistant: Anew.",
        ]
        assert asked(model) == ["u0", "u1"]
        assert not is_continued(model)
    check_requests(model)


async def test_what_a_tool_has_done_stays_in_the_store_when_it_is_dropped(store_url: str) -> None:
    sent: list[str] = []

    @tool
    async def mail() -> str:
        sent.append("mail")
        return "sent"

    first = Step.call("mail", {}, id="m")
    Talker = talker(
        model := answering(first, SLOW, "15."),
        on_recovery_boot=drop,
        get_tools=lambda self: [mail],
    )
    await break_off(store_url, Talker, "Write to them", "What is 7 + 8?")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: What is 7 + 8?", "assistant: 15."]
        found = await stored(host, ADDRESS)
        check_tree(found)
        aside = [row for row in found.messages.values() if row.status == "interrupted"]
        assert [call_states(row_message(row)) for row in aside] == [{"m": "output-available"}]
    assert sent == ["mail"]
    check_requests(model)


def row_message(row: Any) -> Any:
    from outlast import Message

    return Message(row.message)


# --- synthesise results --------------------------------------------------------------------------


def synthesise(self: Any, event: RecoveryBootEvent) -> RecoveryBootResult | None:
    if not event.pending_tool_calls:
        return None
    parts = list(event.partial_assistant.parts)
    for pending in event.pending_tool_calls:
        part = parts[pending.part_index]
        parts[pending.part_index] = {**part, "state": "output-available", "output": INTERRUPTED}
    repaired = {**event.partial_assistant.raw, "parts": parts}
    return RecoveryBootResult(
        chain=[*event.settled_messages, event.in_flight_users[0], repaired],
        recovered_turns=event.in_flight_users[1:],
    )


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_a_synthetic_result_is_the_result_and_the_tool_never_runs_again(
    store_url: str, effect: Any
) -> None:
    charged: list[str] = []

    @tool(effect=effect)
    async def charge() -> str:
        import asyncio

        charged.append("charge")
        await asyncio.sleep(100)
        return "charged"

    calling = Step.text("Let me see. ") + Step.call("charge", {}, id="c")
    Talker = talker(
        model := answering(calling, "It was cancelled.", "Hello."),
        on_recovery_boot=synthesise,
        get_tools=lambda self: [charge],
    )
    await break_off(store_url, Talker, "Charge them", "Hello?")
    async with hosting(Talker, url=store_url, life="2") as host:
        agent = await wait_for(host, Talker)
        assert charged == ["charge"], "it began once, in the process that died"
        [_, answer, _, _] = await agent.get_messages()
        [call] = [part for part in answer.parts if "toolCallId" in part]
        assert (call["state"], call["output"]) == ("output-available", INTERRUPTED)
        assert answer.text == "Let me see. It was cancelled."
        returned = [
            part.content
            for message in model.requests[1].messages
            for part in message.parts
            if part.part_kind == "tool-return"
        ]
        assert returned == [INTERRUPTED]
        assert await rows(host, "calls", "id, state") == [("c", "done")]
        assert await inbox(host, "outcome") == [("completed",), ("completed",)]
        found = await stored(host, ADDRESS)
        check_tree(found)
        check_stream(found, "s1", "Let me see. It was cancelled.")
    check_requests(model)


async def test_an_answer_that_is_rewritten_goes_on_as_it_is_now(store_url: str) -> None:
    def rewrite(self: Any, event: RecoveryBootEvent) -> RecoveryBootResult:
        parts = [{"type": "step-start"}, {"type": "text", "text": "In short: "}]
        shorter = {**event.partial_assistant.raw, "parts": parts}
        return RecoveryBootResult(chain=[*event.settled_messages, *event.in_flight_users, shorter])

    Talker = talker(model := answering(SLOW, "yes."), on_recovery_boot=rewrite)
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: In short: yes."]
        found = await stored(host, ADDRESS)
        assert kinds(found, "s1").count("start") == 2, "clients begin the message anew"
        check_tree(found)
    assert is_continued(model)
    check_requests(model)


async def test_the_conversation_before_the_answer_can_be_another_one(store_url: str) -> None:
    def summarise(self: Any, event: RecoveryBootEvent) -> RecoveryBootResult:
        short = {"id": "short", "role": "user", "parts": [{"type": "text", "text": "In short."}]}
        return RecoveryBootResult(chain=[short, event.in_flight_users[0], event.partial_assistant])

    Talker = talker(model := answering("Hi.", SLOW, "five"), on_recovery_boot=summarise)
    async with hosting(Talker, url=store_url) as host:
        await host.get(Talker, "a").save_messages("u0")
    await break_off(store_url, Talker, "u1", life="2")
    async with hosting(Talker, url=store_url, life="3") as host:
        agent = await wait_for(host, Talker)
        assert asked(model) == ["In short.", "u1"]
        assert await transcript(host) == [
            "user: In short.",
            "user: u1",
            "assistant: one two five",
        ]
        check_tree(await stored(host, ADDRESS))
        assert await agent.get_message("short") is not None
    async with hosting(Talker, url=store_url, life="4") as host:  # and so it stays
        assert len(await transcript(host)) == 3
    check_requests(model)


@pytest.mark.parametrize("wrong", ["twice", "not last", "user"])
async def test_a_chain_that_makes_no_sense_is_as_good_as_none(store_url: str, wrong: str) -> None:
    def boot(self: Any, event: RecoveryBootEvent) -> RecoveryBootResult:
        answer = event.partial_assistant.raw
        user = event.in_flight_users[0]
        chain = {
            "twice": [user, answer, answer],
            "not last": [answer, user],
            "user": [user, {**answer, "role": "user"}],
        }[wrong]
        return RecoveryBootResult(chain=chain)

    Talker = talker(model := ScriptedModel(SLOW), on_recovery_boot=boot)
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: one two three four"]
    check_requests(model)


# --- persist before boot, and a banner -----------------------------------------------------------


async def test_the_partial_answer_is_persisted_before_anything_goes_on(store_url: str) -> None:
    database: list[tuple[str, str]] = []

    def boot(self: Any, event: RecoveryBootEvent) -> RecoveryBootResult:
        async def persist() -> None:
            database.append((event.request_id, event.partial_assistant.text))
            assert len(model.requests) == 1, "before the next request"

        return RecoveryBootResult(before_boot=persist)

    Talker = talker(model := ScriptedModel(SLOW), on_recovery_boot=boot)
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert database == [("s1", "one two ")]
        assert await transcript(host) == ["user: u1", "assistant: one two three four"]


async def test_a_banner_stands_in_the_stream_before_the_model_speaks(store_url: str) -> None:
    def boot(self: Any, event: RecoveryBootEvent) -> None:
        about = {"cause": event.cause, "previous_run_id": event.previous_run_id}
        event.writer.data("chat-recovery", about, transient=True)

    Talker = talker(ScriptedModel(SLOW), on_recovery_boot=boot)
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        agent = await wait_for(host, Talker)
        found = await stored(host, ADDRESS)
        seen = kinds(found, "s1")
        assert seen.index("data-chat-recovery") < len(seen) - 1 - seen[::-1].index("text-delta")
        assert all(
            part["type"] != "data-chat-recovery" for part in (await agent.get_messages())[-1].parts
        )


# --- recovery that a provider makes possible -----------------------------------------------------


async def test_openai_a_stored_response_is_fetched_and_is_the_whole_answer(store_url: str) -> None:
    responses = {"resp_1": "one two three four"}

    async def on_chat_recovery(self: Any, context: ChatRecoveryContext) -> ChatRecoveryOptions:
        text = responses[context.recovery_data["response_id"]]
        parts = [{"type": "text", "text": text}]
        await self.add_messages({"id": "fetched", "role": "assistant", "parts": parts})
        return ChatRecoveryOptions(persist=False, continue_=False)

    async def before_step(self: Any, context: Any) -> None:
        await self.stash({"response_id": "resp_1"})

    Talker = talker(
        model := ScriptedModel(SLOW), on_chat_recovery=on_chat_recovery, before_step=before_step
    )
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: one two three four"]
        assert await inbox(host, "outcome, error") == [("skipped", "on_chat_recovery handled it")]
        check_tree(await stored(host, ADDRESS))
    assert len(model.requests) == 1


async def test_anthropic_a_synthetic_message_asks_for_the_rest(store_url: str) -> None:
    async def on_chat_recovery(self: Any, context: ChatRecoveryContext) -> ChatRecoveryOptions:
        await self.submit_messages("Continue where you left off", idempotency_key="rest")
        return ChatRecoveryOptions(continue_=False)

    Talker = talker(model := answering(SLOW, "three four"), on_chat_recovery=on_chat_recovery)
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == [
            "user: u1",
            "assistant: one two ",
            "user: Continue where you left off",
            "assistant: three four",
        ]
    check_requests(model)


async def test_others_go_on_in_the_same_message(store_url: str) -> None:
    Talker = talker(
        model := ScriptedModel(SLOW), on_chat_recovery=lambda self, context: ChatRecoveryOptions()
    )
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: one two three four"]
    assert is_continued(model)


async def test_what_a_tool_has_done_is_kept_although_all_is_handled(store_url: str) -> None:
    @tool
    async def mail() -> str:
        return "sent"

    Talker = talker(
        answering(Step.call("mail", {}, id="m"), SLOW),
        get_tools=lambda self: [mail],
        on_chat_recovery=lambda self, context: ChatRecoveryOptions(persist=False, continue_=False),
    )
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        agent = await wait_for(host, Talker)
        [_, answer] = await agent.get_messages()
        assert call_states(answer) == {"m": "output-available"}
        [(outcome, error)] = await inbox(host, "outcome, error")
        assert outcome == "skipped"
        assert "kept, because a tool has run" in error


async def test_a_recovery_that_is_too_late_is_left_alone(store_url: str) -> None:
    from datetime import timedelta

    def on_chat_recovery(self: Any, context: ChatRecoveryContext) -> ChatRecoveryOptions | None:
        is_stale = context.age > timedelta(seconds=1)
        return ChatRecoveryOptions(continue_=False) if is_stale else None

    Talker = talker(model := ScriptedModel(SLOW), on_chat_recovery=on_chat_recovery)
    await break_off(store_url, Talker, "u1")
    async with hosting(Talker, url=store_url, life="2") as host:
        await wait_for(host, Talker)
        assert await transcript(host) == ["user: u1", "assistant: one two "]
    assert len(model.requests) == 1
