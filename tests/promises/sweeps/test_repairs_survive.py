"""Calls that `repair_interrupted_tool_part` makes a text of, killed at every commit."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from chat_rows import (
    check_all_ended,
    check_answers,
    check_request,
    check_tree,
    prompts_of,
    stored,
)
from pydantic_ai.messages import ModelMessage

from outlast import Host, Think, ToolCall, tool
from outlast.store.operations import Query
from outlast.testing import Outcome, ScriptedModel, Step
from sweeps import crash_sweep

NOTE = "(The mail may have been sent.)"

mails: list[str] = []  # the world outside


def answer(messages: list[ModelMessage]) -> Step:
    if prompts_of(messages)[-1] == "two":
        return Step.text("The second answer.", delay=0.01)
    parts = [part for message in messages for part in message.parts]
    if any(part.part_kind == "tool-return" or NOTE in str(part) for part in parts):
        return Step.text("I see.", delay=0.01)
    step = Step.text("I see to it.", delay=0.01)
    return step + Step.call("mail", {}, id="call-mail") + Step.call("look", {}, id="call-look")


model = ScriptedModel.answering(answer)


class Clerk(Think):
    model = model

    @tool
    async def mail(self, call: ToolCall) -> str:
        """Send a mail."""
        mails.append(call.idempotency_key)
        await asyncio.sleep(0.05)
        return "sent"

    @tool(effect="read")
    async def look(self) -> str:
        """Look at something."""
        return "seen"

    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any] | None:
        return {"type": "text", "text": NOTE} if part["type"] == "tool-mail" else None


class Stopper(Clerk):
    chat_recovery = False


class Late(Clerk):
    """Its mail always takes too long, and then it goes on."""

    @tool(timeout=0.02)
    async def mail(self, call: ToolCall) -> str:
        """Send a mail."""
        return await super().mail(call)


def user(prompt: str) -> dict[str, Any]:
    return {"id": f"u-{prompt}", "role": "user", "parts": [{"type": "text", "text": prompt}]}


async def work(host: Host, kind: type[Clerk]) -> None:
    agent = host.get(kind, "c")
    for prompt in ("one", "two"):
        await agent.submit_messages(user(prompt), idempotency_key=prompt)
        await host.until_settled()


def forget() -> None:
    mails.clear()
    model.requests.clear()


async def check(outcome: Outcome, kind: type[Clerk]) -> None:
    address = f"{kind.__name__}/c"
    rows = await stored(outcome.host, address)
    check_all_ended(rows)
    check_tree(rows)
    for request in model.requests:
        check_request(request.messages)
        assert "The outcome of this call is unknown" not in str(request.messages), (
            "no model is shown that"
        )
    assert len(mails) <= 1
    query = Query.same("SELECT state FROM calls WHERE agent = ? AND name = 'mail'")
    states = [state for (state,) in await outcome.host.store.fetch(query, address)]
    parts = [part for row in rows.path for part in row.message["parts"]]
    calls = [part for part in parts if part["type"] == "tool-mail"]
    notes = [part for part in parts if part.get("text") == NOTE]
    if states == ["unknown"]:
        assert (len(calls), len(notes)) == (0, 1)
    if states == ["done"]:
        assert [part["output"] for part in calls] == ["sent"]
        assert notes == []
    assert not any("repair" in str(part.get("resultProviderMetadata")) for part in calls)
    if kind is not Stopper:
        check_answers(rows)
        assert rows.path[-1].text == "The second answer."
    if not outcome.deaths:
        assert states == ["unknown" if kind is Late else "done"]


@pytest.mark.invariant("I8", "I5")
@pytest.mark.parametrize(
    "kind", [Clerk, Stopper, Late], ids=["recovered", "given up", "took too long"]
)
@pytest.mark.parametrize(
    ("mode", "engine", "sample"),
    [("commits", "sqlite", None), ("twice", "sqlite", 30), ("commits", "postgresql", 8)],
)
async def test_a_call_that_becomes_a_text(
    kind: type[Clerk],
    mode: Literal["commits", "twice"],
    engine: str,
    sample: int | None,
    request: pytest.FixtureRequest,
) -> None:
    store = str(request.getfixturevalue("postgres")) if engine == "postgresql" else None
    unknown: list[bool] = []

    async def check_one(outcome: Outcome) -> None:
        await check(outcome, kind)
        unknown.append(any(NOTE in str(request.messages) for request in model.requests))

    report = await crash_sweep(
        agents=[kind], drive=lambda host: work(host, kind), check=check_one, reset=forget, mode=mode,
        store=store, sample=sample, outside=[mails, model.requests],
    )  # fmt: skip
    assert report.deaths >= (sample or 2 * report.commits)
    assert any(unknown), "at some point the outcome was unknown, and a model was shown the text"
