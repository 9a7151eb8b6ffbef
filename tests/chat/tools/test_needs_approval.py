"""Which calls need an approval: what a tool says of itself, in whichever way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import answering, rows, talker
from interacting import calls, continuations, returned, schema, states
from pydantic_ai import RunContext, Tool
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.tools import ToolDefinition

from outlast import Think, ToolCall, tool
from outlast.chat.context.history import DENIED
from outlast.testing import ScriptedModel, Step
from support import World

pytestmark = pytest.mark.virtual_time


def _above(call: ToolCall) -> bool:
    return bool(call.input["amount"] > 10)


async def _above_later(call: ToolCall) -> bool:
    await asyncio.sleep(1)
    return _above(call)


def _above_limit(self: Any, call: ToolCall) -> bool:
    return bool(call.input["amount"] > self.limit)


class Careful(Think):
    limit = 10

    async def is_much(self, call: ToolCall) -> bool:
        return bool(call.input["amount"] > self.limit)


@pytest.mark.parametrize("needs", [_above, _above_later, _above_limit, "is_much"])
async def test_a_function_says_which_calls_need_an_approval(world: World, needs: Any) -> None:
    paid: list[int] = []

    @tool(needs_approval=needs)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    step = Step.call("pay", {"amount": 5}, id="little") + Step.call(
        "pay", {"amount": 50}, id="much"
    )
    model = ScriptedModel(step, "Done.")
    Talker = type("Talker", (Careful,), {"model": model, "get_tools": lambda _: [pay]})
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    assert await states(a) == {"little": "output-available", "much": "approval-requested"}
    assert paid == [5]
    await a.add_tool_approval("much", True)
    await host.until_settled()
    assert (paid, returned(model)) == ([5, 50], {"little": "paid", "much": "paid"})


async def test_a_call_of_which_nobody_can_say_whether_it_needs_one_does_not_run(
    world: World,
) -> None:
    def broken(call: ToolCall) -> bool:
        raise ValueError("no idea")

    class Broken(Think):
        model = ScriptedModel(calls("pay"), "Done.")

        @tool(needs_approval=broken)
        async def pay(self) -> None:
            raise AssertionError("it must not run")

    host = await world.host(Broken)
    a = host.get(Broken, "a")
    assert (await a.save_messages("u1")).status == "completed"
    assert returned(Broken.model)["pay"].startswith("The tool failed. (error_")


# --- tools of others -----------------------------------------------------------------------------


async def _when_approved(context: RunContext[Any], amount: int = 1) -> str:
    if not context.tool_call_approved:
        raise ApprovalRequired
    return f"paid {amount}"


async def _plain(amount: int = 1) -> str:
    return f"paid {amount}"


@tool(idempotency_key=lambda call: "one payment")
async def _keyed(call: ToolCall, amount: int = 1) -> str:
    if not call.approved:
        raise ApprovalRequired
    return f"paid {amount}"


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize(
    "given",
    [Tool(_plain, name="pay", requires_approval=True), Tool(_when_approved, name="pay"), _keyed],
    ids=["requires_approval", "raises", "raises, with a key"],
)
async def test_tools_may_ask_in_the_way_of_pydantic_ai(
    world: World, given: Any, approved: bool
) -> None:
    name = given.name if isinstance(given, Tool) else "_keyed"
    step = Step.call(name, {"amount": 3}, id="c")
    Talker = talker(model := ScriptedModel(step, "So."), get_tools=lambda _: [given])
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    assert await states(a) == {"c": "approval-requested"}
    assert await a.add_tool_approval("c", approved)
    await asyncio.wait_for(host.until_settled(), 100)
    assert returned(model) == {"c": "paid 3" if approved else DENIED}
    begun = [state for (state,) in await rows(host, "calls", "state") if state == "begun"]
    assert begun == []


async def test_a_call_that_its_tool_defers_is_answered_by_somebody_else(world: World) -> None:
    async def ask_a_colleague(question: str) -> str:
        raise CallDeferred

    step = Step.call("ask_a_colleague", {"question": "Why?"}, id="c")
    Talker = talker(model := ScriptedModel(step, "So."), get_tools=lambda _: [ask_a_colleague])
    host = await world.host(Talker)
    await host.get(Talker, "a").save_messages("u1")
    host = await world.next_life()
    a = host.get(Talker, "a")
    assert await states(a) == {"c": "input-available"}
    assert await a.add_tool_output("c", "Because.")
    await host.until_settled()
    assert returned(model) == {"c": "Because."}
    assert await continuations(host) == ["completed"]


@pytest.mark.parametrize("again", [ApprovalRequired, CallDeferred])
async def test_a_call_that_waits_once_more_after_its_approval_is_over(
    world: World, again: type[Exception]
) -> None:
    """Nobody could answer it; and a turn that goes on by itself must not do so for ever."""

    @tool(needs_approval=True)
    async def pay() -> None:
        raise again

    Talker = talker(model := answering(calls("pay"), "So."), get_tools=lambda _: [pay])
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1")
    await a.add_tool_approval("pay", True)
    await asyncio.sleep(10)
    assert returned(model)["pay"]
    assert (len(model.requests), await continuations(host)) == (2, ["completed"])
    assert not await a.has_pending_interaction()
    assert await a.wait_until_stable(timeout=1)


# --- tools that the client runs ------------------------------------------------------------------

CAREFUL = {**schema("copy"), "needsApproval": True}
DEFINITION = ToolDefinition(name="copy", kind="unapproved")


@pytest.mark.parametrize("given", ["client", "agent", "definition"])
@pytest.mark.parametrize("approved", [True, False])
async def test_a_client_runs_its_tool_only_once_it_is_approved(
    world: World, given: str, approved: bool
) -> None:
    Talker = talker(model := ScriptedModel(calls("copy"), "Done."))
    if given != "client":
        Talker.get_tools = lambda self: [CAREFUL if given == "agent" else DEFINITION]
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[CAREFUL] if given == "client" else None)
    assert await states(a) == {"copy": "approval-requested"}
    assert not await a.add_tool_output("copy", "unasked")
    assert await a.add_tool_approval("copy", approved)
    if approved:
        assert await states(a) == {"copy": "input-available"}  # now it is the client's
        assert await continuations(host) == []
        assert not await a.add_tool_approval("copy", False)
        assert await a.add_tool_output("copy", "the text")
    await a.wait_until_stable()
    assert returned(model) == {"copy": "the text" if approved else DENIED}
    assert await states(a) == {"copy": "output-available" if approved else "output-denied"}
    assert await continuations(host) == ["completed"]


async def test_an_approval_that_was_given_survives_the_process(world: World) -> None:
    Talker = talker(ScriptedModel(calls("copy"), "Done.", by="turn"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages("u1", client_tools=[CAREFUL])
    await a.add_tool_approval("copy", True)
    host = await world.next_life()
    a = host.get(Talker, "a")
    assert await states(a) == {"copy": "input-available"}
    assert await a.add_tool_output("copy", "the text")
    await a.wait_until_stable()
    assert await states(a) == {"copy": "output-available"}
    assert (await a.get_messages())[-1].text == "Done."


async def test_an_executor_is_not_called_before_an_approval(world: World) -> None:
    Talker = talker(ScriptedModel(calls("copy"), "Done."))
    called: list[str] = []

    class Silent:
        def on_event(self, chunk: str) -> None: ...

    host = await world.host(Talker)
    a = host.get(Talker, "a")
    options: Any = {"client_tools": [CAREFUL], "executor": lambda call: called.append(call.id)}
    await a.chat("u1", Silent(), **options)
    assert await states(a) == {"copy": "approval-requested"}
    assert called == []
    await a.add_tool_approval("copy", True)
    assert await states(a) == {"copy": "input-available"}


async def test_an_approval_is_the_word_of_a_bool(sqlite_world: World) -> None:
    Talker = talker(ScriptedModel("Hi."))
    host = await sqlite_world.host(Talker)
    wrong = {**schema("copy"), "needsApproval": "yes"}
    with pytest.raises(ValueError, match="needsApproval of the client's tool 'copy'"):
        await host.get(Talker, "a").save_messages("u1", client_tools=[wrong])
