"""Turns with tools, killed at every commit: nothing happens twice, and no outcome is invented."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from chat_rows import (
    Stored,
    check_all_ended,
    check_answers,
    check_request,
    check_tree,
    prompts_of,
    stored,
)
from pydantic_ai.messages import ModelMessage

from outlast import ChatResponseResult, Host, Think, ToolCall, tool
from outlast.agent.agent import parts_of
from outlast.chat.inbox.origin import AUTO
from outlast.store.operations import Query
from outlast.testing import Outcome, ScriptedModel, Step
from sweeps import crash_sweep

Mode = Literal["commits", "groups", "twice"]
MODES: list[Mode] = ["commits", "groups", "twice"]
AGENT = "Clerk/c"
LOCATE = {"name": "locate", "inputSchema": {"type": "object", "properties": {}}}
PROMPTS = ["one", "two"]

mails: list[str] = []  # the world outside: the keys of what was sent,
payments: list[str] = []  # of what was paid,
looks: list[str] = []  # of what was only looked at,
late: list[str] = []  # and of what took too long
told: list[tuple[str, str]] = []  # on_chat_response
allowed: list[str] = []  # calls that the user was told to be allowed


def answer(messages: list[ModelMessage]) -> Step:
    """Depends on nothing but what is asked."""
    prompt = prompts_of(messages)[-1]
    if prompt == "two":
        return Step.text("The second answer.", delay=0.01)
    if any(part.part_kind == "tool-return" for part in messages[-1].parts):
        return Step.text("All is done.", delay=0.01)
    calls = {"one": ["mail", "look", "pay", "locate"], "late": ["slow"]}[prompt]
    step = Step.text("I see to it.", delay=0.01)
    for name in calls:
        step = step + Step.call(name, {}, id=f"call-{name}")
    return step


model = ScriptedModel.answering(answer)


class Clerk(Think):
    chat_recovery = False
    model = model

    @tool
    async def mail(self, call: ToolCall) -> str:
        """Send a mail."""
        mails.append(call.idempotency_key)
        await asyncio.sleep(0.05)
        await self.submit_messages("two", idempotency_key="two")  # durable work of a tool
        return "sent"

    @tool(effect="read")
    async def look(self, call: ToolCall) -> str:
        """Look at something."""
        looks.append(call.idempotency_key)
        return "seen"

    @tool(needs_approval=True)
    async def pay(self, call: ToolCall) -> str:
        """Pay something."""
        assert call.approved
        payments.append(call.idempotency_key)
        return "paid"

    @tool(timeout=1)
    async def slow(self, call: ToolCall) -> str:
        """Take too long."""
        late.append(call.idempotency_key)
        await asyncio.sleep(100)
        return "never"

    async def on_chat_response(self, result: ChatResponseResult) -> None:
        told.append((result.request_id, result.status))

    async def call_rows(self) -> list[Any]:
        query = Query.same("SELECT id, effect, state FROM calls WHERE agent = ? ORDER BY id")
        return list(await parts_of(self).activation.store.fetch(query, AGENT))


def user(prompt: str) -> dict[str, Any]:
    return {"id": f"u-{prompt}", "role": "user", "parts": [{"type": "text", "text": prompt}]}


async def work(host: Host) -> None:
    """A turn with every kind of tool, a second message that waits, and a user who answers what is open."""
    agent = host.get(Clerk, "c")
    await agent.submit_messages(user("one"), idempotency_key="one", client_tools=[LOCATE])
    await agent.submit_messages(user("two"), idempotency_key="two")
    await host.until_settled()
    for part in (await agent.get_messages())[-1].parts:
        if part.get("state") == "approval-requested":
            if await agent.add_tool_approval(part["toolCallId"], True):
                allowed.append(part["toolCallId"])
        elif part.get("state") == "input-available":
            await agent.add_tool_output(part["toolCallId"], {"lat": 1})
    await host.until_settled()


OUTSIDE: list[Any] = [mails, payments, looks, late, told, allowed, model.requests]


def forget() -> None:
    for each in OUTSIDE:
        each.clear()


def tool_parts(rows: Stored, name: str) -> list[dict[str, Any]]:
    return [
        part
        for row in rows.messages.values()
        for part in row.message["parts"]
        if part["type"] == f"tool-{name}"
    ]


def check_once(rows: Stored, name: str, done: list[str], output: str) -> None:
    """It happened at most once, and what is told of it is what happened."""
    assert len(done) <= 1, f"{name} happened twice"
    for part in tool_parts(rows, name):
        if part["state"] == "output-available":
            assert (part["output"], len(done)) == (output, 1)
        elif part["state"] == "output-error":
            outcome = part.get("resultProviderMetadata", {}).get("outlast", {}).get("outcome")
            if outcome != "unknown":
                assert done == [], f"{name} is said not to have happened: {part}"


async def check(outcome: Outcome) -> None:
    host, deaths = outcome.host, len(outcome.deaths)
    agent = host.get(Clerk, "c")
    rows = await stored(host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    check_answers(rows)
    for request in model.requests:
        check_request(request.messages)
        assert prompts_of(request.messages) in (["one"], ["one", "two"])
    check_once(rows, "mail", mails, "sent")
    check_once(rows, "pay", payments, "paid")
    if payments:
        assert tool_parts(rows, "pay")[0]["approval"]["approved"] is True
    assert len(looks) <= 1 + deaths
    assert not await agent.has_pending_interaction()
    asked = [row.id for row in rows.path if row.role == "user"]
    assert asked == ["u-one", "u-two"], "in the order in which they were asked"
    assert rows.path[-1].text == "The second answer." or deaths
    continued = [entry for entry in rows.entries if entry.origin == AUTO]
    assert len(continued) <= 1, "one continuation a batch"
    first = next(entry for entry in rows.entries if entry.key == "one")
    if first.outcome == "completed":
        assert len(continued) == 1, "the last answer of a batch makes the agent go on"
    assert sum(entry.kind == "message" for entry in rows.entries) == 2
    if not deaths:
        assert [entry.outcome for entry in rows.entries] == ["completed"] * 3
        assert rows.path[1].text == "I see to it.All is done."
        assert (len(mails), len(payments), len(looks), allowed) == (1, 1, 1, ["call-pay"])
    with_answer = {entry.id for entry in rows.entries if entry.message_id is not None}
    assert {request for request, _ in told} >= with_answer, "the hook is called at least once"
    assert all(state in ("done", "failed", "unknown") for _, _, state in await agent.call_rows())


def swept(sample: int) -> Any:
    """On SQLite at every point, otherwise at some; `test_recovery_survives` does the same with recovery."""
    on_postgresql = 2 * sample
    return pytest.mark.parametrize(
        ("mode", "engine", "sample"),
        [(mode, "sqlite", None if mode == "commits" else 30) for mode in MODES]
        + [(mode, "postgresql", on_postgresql if mode == "commits" else sample) for mode in MODES],
        ids=[f"{mode}-{engine}" for engine in ("sqlite", "postgresql") for mode in MODES],
    )


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest) -> str | None:
    return str(request.getfixturevalue("postgres")) if engine == "postgresql" else None


@pytest.mark.invariant("I2", "I8", "I18", "J7", "J9", "J17")
@swept(sample=8)
async def test_a_turn_with_every_kind_of_tool(
    mode: Mode, store: str | None, sample: int | None
) -> None:
    report = await crash_sweep(
        agents=[Clerk],
        drive=work,
        check=check,
        reset=forget,
        outside=OUTSIDE,
        mode=mode,
        store=store,
        sample=sample,
    )
    assert report.commits >= 20
    assert report.deaths >= (sample or 2 * report.commits)


# --- tools that are stopped ----------------------------------------------------------------------


async def be_late(host: Host, how: Literal["timeout", "cancel"]) -> None:
    agent = host.get(Clerk, "c")
    first = await agent.submit_messages(user("late"), idempotency_key="late")
    if how == "cancel":
        async for _, chunk in agent.resume_stream(first.id):
            if chunk["type"] == "tool-input-available":
                await agent.cancel_chat(first.id, "enough")
    await agent.submit_messages(user("two"), idempotency_key="two")
    await host.until_settled()


async def check_late(outcome: Outcome, how: Literal["timeout", "cancel"]) -> None:
    rows = await stored(outcome.host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    for request in model.requests:
        check_request(request.messages)
    check_once(rows, "slow", late, "never")
    assert [row.id for row in rows.path if row.role == "user"] == ["u-late", "u-two"]
    assert rows.path[-1].text == "The second answer." or outcome.deaths
    if not outcome.deaths:
        [part] = tool_parts(rows, "slow")
        assert part["state"] == "output-error"
        outcomes = [entry.outcome for entry in rows.entries]
        assert outcomes == [{"timeout": "completed", "cancel": "aborted"}[how], "completed"]


@pytest.mark.invariant("I8", "D12")
@pytest.mark.parametrize("how", ["timeout", "cancel"])
@swept(sample=4)
async def test_a_tool_that_is_stopped(
    mode: Mode, store: str | None, sample: int | None, how: Literal["timeout", "cancel"]
) -> None:
    await crash_sweep(
        agents=[Clerk],
        drive=lambda host: be_late(host, how),
        check=lambda outcome: check_late(outcome, how),
        reset=forget,
        outside=OUTSIDE,
        mode=mode,
        store=store,
        sample=sample,
    )
