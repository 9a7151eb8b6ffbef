"""Calls that a user must allow: what was approved runs once, and what was denied never does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import agent_of, answering, inbox, leftovers, said, until_running
from interacting import (
    CLIENT,
    call_parts,
    calls,
    check_requests,
    continuations,
    last_calls,
    returned,
    states,
)
from pydantic_ai.messages import ModelRequest, ToolReturnPart

from outlast import Allow, Think, ToolCall, tool
from outlast.agent.agent import parts_of
from outlast.chat.context.history import DENIED
from outlast.chat.message.reducer import MessageBuilder
from outlast.chat.message.repair import WENT_ON
from outlast.chat.turn.state import TurnState
from outlast.chat.types.events import ToolApproval
from outlast.testing import ScriptedModel, Step
from support import World, listen

pytestmark = pytest.mark.virtual_time


class Clerk(Think):
    """Pays, if it is allowed to; its hooks and its tools note what they are told."""

    chat_recovery = False

    log: list[Any] = []

    @tool(needs_approval=True)
    async def pay(self, call: ToolCall, amount: int = 1) -> str:
        """Pay something."""
        self.log.append(("pay", amount, call.approved, call.idempotency_key))
        await asyncio.sleep(5)
        self.log.append("paid")
        return f"paid {amount}"

    @tool(effect="read")
    async def look(self) -> str:
        """Look at something."""
        return "seen"

    async def before_tool_call(self, context: Any) -> Any:
        self.log.append(("before", context.tool_call_id, dict(context.input)))

    async def after_tool_call(self, context: Any) -> None:
        self.log.append(("after", context.tool_call_id, context.success, context.output))


PAY = Step.text("May I? ") + Step.call("pay", {"amount": 5}, id="pay")


@pytest.fixture(autouse=True)
def _forget() -> None:
    Clerk.log.clear()


def outcomes(model: Any) -> dict[str, str]:
    """How the model was told that its calls had ended."""
    return {
        part.tool_call_id: part.outcome
        for each in model.requests[-1].messages
        if isinstance(each, ModelRequest)
        for part in each.parts
        if isinstance(part, ToolReturnPart)
    }


# --- allowed -------------------------------------------------------------------------------------


@pytest.mark.invariant("I13", "J17")
async def test_an_approved_call_runs_once_in_the_turn_that_goes_on(world: World) -> None:
    Clerk.model = model = ScriptedModel(PAY, "It is paid.")
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    told = listen(host, ToolApproval)
    turn = await a.save_messages("u1")
    asked = call_parts(turn.message)["pay"]
    assert (turn.status, asked["state"]) == ("completed", "approval-requested")
    assert asked["approval"] == {"id": "approval-pay"}
    assert await a.has_pending_interaction()
    assert Clerk.log == []
    assert await a.add_tool_approval("pay", True, reason="it is due")
    assert await states(a) == {"pay": "approval-responded"}
    await host.until_settled()
    [_, message] = await a.get_messages()
    assert (message.id, message.text) == (turn.message.id, "May I? It is paid.")
    part = call_parts(message)["pay"]
    assert (part["state"], part["output"]) == ("output-available", "paid 5")
    assert part["approval"] == {"id": "approval-pay", "approved": True, "reason": "it is due"}
    assert Clerk.log == [
        ("before", "pay", {"amount": 5}),
        ("pay", 5, True, f"{message.id}:pay"),
        "paid",
        ("after", "pay", True, "paid 5"),
    ]
    assert (returned(model), len(model.requests)) == ({"pay": "paid 5"}, 2)
    assert [(each.tool_name, each.approved) for each in told] == [("pay", True)]
    assert await continuations(host) == ["completed"]
    assert not await a.add_tool_approval("pay", False)
    (request,) = [id for id, origin in await inbox(host, "id, origin") if origin == "auto"]
    chunks = [chunk async for _, chunk in a.resume_stream(request)]
    results = [chunk for chunk in chunks if chunk["type"] == "tool-output-available"]
    assert [chunk["toolCallId"] for chunk in results] == ["pay"], "it is told once"
    builder = MessageBuilder(turn.message.raw)
    approved = {"type": "tool-approval-response", "approvalId": "approval-pay"}
    builder.apply({**approved, "approved": True, "reason": "it is due"})
    begun = builder.message()
    for replay in (chunks, [*chunks, *chunks], [*chunks, *results]):
        builder = MessageBuilder(begun)
        for chunk in replay:
            builder.apply(chunk)
        assert builder.message()["parts"] == message.raw["parts"]
    assert leftovers(agent_of(host, Clerk)) == {}


@pytest.mark.invariant("J17")
async def test_an_approval_may_come_in_another_life_after_the_agent_was_forgotten(
    world: World,
) -> None:
    Clerk.model = model = ScriptedModel(PAY, "It is paid.")
    host = await world.host(Clerk, idle_timeout=5)
    a = host.get(Clerk, "a")
    await a.submit_messages("u1")
    await asyncio.sleep(3600)
    assert host.statistics().active == 0
    assert await a.has_pending_interaction()
    host = await world.next_life()
    a = host.get(Clerk, "a")
    assert await a.add_tool_approval("pay", True)
    await host.until_settled()
    assert said(await a.get_messages()) == ["user: u1", "assistant: May I? It is paid."]
    assert (Clerk.log.count("paid"), returned(model)) == (1, {"pay": "paid 5"})


async def test_an_approval_may_come_while_the_answer_still_streams(world: World) -> None:
    class Slow(Clerk):
        @tool(effect="read")
        async def wait(self) -> int:
            await asyncio.sleep(10)
            return 1

    Slow.model = model = ScriptedModel(PAY + calls("wait"), "Done.")
    host = await world.host(Slow)
    a = host.get(Slow, "a")
    first = asyncio.create_task(a.save_messages("u1"))
    await until_running(host, Slow)
    await asyncio.sleep(1)
    assert await a.has_pending_interaction()
    durable = parts_of(agent_of(host, Slow))[TurnState].live.stream.chunks
    assert await a.add_tool_approval("pay", True)
    assert "tool-approval-response" in durable[-1], "when it returns"
    assert not await a.has_pending_interaction()
    assert not await a.add_tool_approval("pay", False)
    assert call_parts((await first).message)["pay"]["state"] == "approval-responded"
    assert len(model.requests) == 1
    await host.until_settled()
    assert (returned(model), len(model.requests)) == ({"pay": "paid 5", "wait": 1}, 2)
    assert await continuations(host) == ["completed"]


async def test_one_answer_after_another_makes_one_message(world: World) -> None:
    Clerk.model = model = answering(calls("pay"), calls("pay:2", "look"), calls("pay:3"), "Done.")
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    await a.save_messages("u1")
    for name, approved in (("pay", True), ("pay:2", False), ("pay:3", True)):
        assert await a.add_tool_approval(name, approved)
        await host.until_settled()
    assert said(await a.get_messages()) == ["user: u1", "assistant: Done."]
    assert returned(model) == {
        "pay": "paid 1",
        "pay:2": DENIED,
        "look": "seen",
        "pay:3": "paid 1",
    }
    assert await continuations(host) == ["completed"] * 3


async def test_what_was_approved_cannot_be_changed_before_it_runs(world: World) -> None:
    class Sly(Clerk):
        async def before_tool_call(self, context: Any) -> Any:
            return Allow(input={"amount": 1_000_000})

    Sly.model = model = ScriptedModel(PAY, "Done.")
    host = await world.host(Sly)
    a = host.get(Sly, "a")
    await a.save_messages("u1")
    await a.add_tool_approval("pay", True)
    await host.until_settled()
    assert (await states(a))["pay"] == "output-error"
    assert "its input was changed after it had been approved" in returned(model)["pay"]
    assert [entry for entry in Clerk.log if entry[0] == "pay"] == []


# --- denied --------------------------------------------------------------------------------------


@pytest.mark.invariant("I14")
@pytest.mark.parametrize("reason", [None, "", "Too expensive. \ud83d", "by error_text"])
async def test_a_denial_is_a_result_at_once_and_the_model_reads_why(
    world: World, reason: str | None
) -> None:
    Clerk.model = model = ScriptedModel(PAY, "Then not.")
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    await a.save_messages("u1")
    if reason == "by error_text":
        assert await a.add_tool_output("pay", error_text=reason)
    else:
        assert await a.add_tool_approval("pay", False, reason=reason)
    part = (await last_calls(a))["pay"]
    assert (part["state"], part["approval"]["approved"]) == ("output-denied", False)
    assert part["input"] == {"amount": 5}
    await host.until_settled()
    expected = reason.replace("\ud83d", "\ufffd") if reason else DENIED
    assert (returned(model), outcomes(model)) == ({"pay": expected}, {"pay": "denied"})
    assert said(await a.get_messages())[1] == "assistant: May I? Then not."
    for again in (True, False):
        assert not await a.add_tool_approval("pay", again)
    host = await world.next_life()
    await host.get(Clerk, "a").save_messages("u2")
    assert returned(model) == {"pay": expected}
    await world.stop()
    assert Clerk.log == []


async def test_of_two_calls_one_may_be_denied(world: World) -> None:
    Clerk.model = model = ScriptedModel(PAY + calls("pay:2", "look", "locate"), "Done.")
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    await a.save_messages("u1", client_tools=CLIENT)
    assert await states(a) == {
        "pay": "approval-requested",
        "pay:2": "approval-requested",
        "look": "output-available",
        "locate": "input-available",
    }
    assert not await a.add_tool_output("pay", "paid by the client"), "it is not a client's tool"
    assert not await a.add_tool_approval("locate", True), "nobody has asked for it"
    answers = [a.add_tool_approval("pay:2", False), a.add_tool_approval("pay", True)]
    assert await asyncio.gather(*answers) == [True, True]
    await asyncio.sleep(60)
    assert (len(model.requests), await continuations(host)) == (1, [])
    assert ("pay", 5, True, f"{(await a.get_messages())[-1].id}:pay") not in Clerk.log
    assert await a.add_tool_output("locate", "here")
    await host.until_settled()
    results = {"pay": "paid 5", "pay:2": DENIED, "look": "seen", "locate": "here"}
    assert returned(model) == results
    assert (Clerk.log.count("paid"), await continuations(host)) == (1, ["completed"])


@pytest.mark.parametrize("answers", [(True, False), (False, True), (True, True)])
async def test_the_first_answer_counts(world: World, answers: tuple[bool, bool]) -> None:
    Clerk.model = ScriptedModel(PAY, "Done.")
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    await a.save_messages("u1")
    given = [a.add_tool_approval("pay", each) for each in answers]
    assert await asyncio.gather(*given) == [True, False]
    await host.until_settled()
    assert Clerk.log.count("paid") == answers[0]
    assert (await last_calls(a))["pay"]["approval"]["approved"] is answers[0]
    assert await continuations(host) == ["completed"]


async def test_whoever_goes_on_without_answering_has_not_approved(world: World) -> None:
    Clerk.model = model = answering(PAY, "Something else.")
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    await a.save_messages("u1")
    await a.save_messages("u2")
    assert returned(model) == {"pay": WENT_ON}
    assert not await a.add_tool_approval("pay", True)
    await host.until_settled()
    assert (Clerk.log, await continuations(host)) == ([], [])


async def test_what_is_no_approval_is_refused(world: World) -> None:
    Clerk.model = ScriptedModel(PAY, "Done.")
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    await a.save_messages("u1")
    wrong: list[Any] = [1, 0, None, "yes", "true", []]
    for approved in wrong:
        with pytest.raises(TypeError):
            await a.add_tool_approval("pay", approved)
    for reason in (5, b"x", ["why"]):
        with pytest.raises(TypeError):
            await a.add_tool_approval("pay", False, reason=reason)
    assert not await a.add_tool_approval("approval-pay", True), "that is not the call's id"
    assert await states(a) == {"pay": "approval-requested"}


# --- approvals that others have stored, and turns that break off ---------------------------------


@pytest.mark.invariant("J14")
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("stored", [None, {}, {"id": None}, {"id": 5, "descriptor": "d"}, "text"])
async def test_an_approval_without_an_id_is_given_one(
    world: World, stored: Any, approved: bool
) -> None:
    Clerk.model = model = answering("Done.")
    part = {"type": "tool-pay", "toolCallId": "pay", "state": "approval-requested"}
    part |= {"input": {"amount": 5}} | ({} if stored is None else {"approval": stored})
    message = {"id": "m", "role": "assistant", "parts": [{"type": "step-start"}, part]}
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    await a.add_messages(["u1", message])
    assert await a.has_pending_interaction()
    assert await a.add_tool_approval("pay", approved)
    await host.until_settled()
    found = (await last_calls(a))["pay"]["approval"]
    kept = {"descriptor": "d"} if isinstance(stored, dict) and len(stored) == 2 else {}
    assert found == {"id": "approval-pay", "approved": approved, **kept}
    assert returned(model) == {"pay": "paid 5" if approved else DENIED}


@pytest.mark.invariant("I18")
async def test_what_was_approved_and_has_not_begun_can_be_taken_up_again(world: World) -> None:
    class Slow(Clerk):
        async def before_turn(self, context: Any) -> None:
            await asyncio.sleep(10 * context.continuation)

    Slow.model = model = answering(PAY, "It is paid.")
    host = await world.host(Slow, shutdown_timeout=0)
    a = host.get(Slow, "a")
    await a.save_messages("u1")
    await a.add_tool_approval("pay", True)
    await until_running(host, Slow)
    await asyncio.sleep(1)
    host = await world.next_life()
    a = host.get(Slow, "a")
    await host.until_settled()
    assert await continuations(host) == ["interrupted"]
    assert (await states(a), Clerk.log) == ({"pay": "approval-responded"}, [])
    assert (await a.continue_last_turn()).status == "completed"
    assert (returned(model), Clerk.log.count("paid")) == ({"pay": "paid 5"}, 1)


async def test_an_approved_call_that_is_stopped_does_not_run_again(world: World) -> None:
    Clerk.model = model = answering(PAY, "Next.")
    host = await world.host(Clerk)
    a = host.get(Clerk, "a")
    await a.save_messages("u1")
    await a.add_tool_approval("pay", True)
    turn = await until_running(host, Clerk)
    await asyncio.sleep(2)
    assert await a.cancel_chat(turn.request_id, "stop")
    await host.until_settled()
    assert await continuations(host) == ["aborted"]
    assert (await states(a))["pay"] == "output-error"
    assert (await a.continue_last_turn()).status == "completed"
    assert "is unknown" in returned(model)["pay"]
    assert [entry[0] for entry in Clerk.log if entry[0] in ("pay", "paid")] == ["pay"]
    check_requests(model)
