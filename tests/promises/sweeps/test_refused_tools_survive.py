"""A tool of the client that a provider refuses, killed at every commit: the conversation does without it."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from chat_rows import check_all_ended, check_answers, check_request, check_tree, prompts_of, stored
from picky import Picky
from pydantic_ai.messages import ModelMessage

from outlast import Host, Think, ToolCall, tool
from outlast.core import json
from outlast.store.operations import Query
from outlast.testing import Outcome, Step
from sweeps import crash_sweep

AGENT = "Clerk/c"
LOCATE, BAD = (
    {"name": name, "inputSchema": {"type": "object", "properties": {}}}
    for name in ("locate", "bad")
)

mails: list[str] = []  # the world outside


def answer(messages: list[ModelMessage]) -> Step:
    if prompts_of(messages)[-1] == "two":
        return Step.text("The second answer.", delay=0.01)
    parts = [part for message in messages for part in message.parts]
    calls = [part.tool_name for part in parts if part.part_kind == "tool-return"]
    if not calls:
        return Step.text("I see to it.", delay=0.01) + Step.call("mail", {}, id="call-mail")
    if "locate" not in calls:
        return Step.call("locate", {}, id="call-locate")
    return Step.text("All is done.", delay=0.01)


model = Picky(answer, repeat=True)
model.refuses = frozenset({"bad"})


class Clerk(Think):
    model = model

    @tool(effect="idempotent")
    async def mail(self, call: ToolCall) -> str:
        """Send a mail."""
        mails.append(call.idempotency_key)
        return "sent"


def user(prompt: str) -> dict[str, Any]:
    return {"id": f"u-{prompt}", "role": "user", "parts": [{"type": "text", "text": prompt}]}


async def work(host: Host) -> None:
    agent = host.get(Clerk, "c")
    await agent.submit_messages(user("one"), idempotency_key="one", client_tools=[LOCATE, BAD])
    await host.until_settled()
    await agent.add_tool_output("call-locate", {"lat": 1}, client_tools=[BAD, LOCATE])
    await host.until_settled()
    await agent.submit_messages(user("two"), idempotency_key="two")
    await host.until_settled()


async def check(outcome: Outcome) -> None:
    rows = await stored(outcome.host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    check_answers(rows)
    for request in model.requests:
        check_request(request.messages)
        assert request.tools == ["mail", "locate"], "what is fine is always offered"
    assert [entry.outcome for entry in rows.entries] == ["completed"] * 3
    assert set(mails) == {mails[0]}
    assert [row.text for row in rows.path if row.role == "assistant"] == [
        "I see to it.All is done.",
        "The second answer.",
    ]
    query = Query.same("SELECT value FROM facts WHERE agent = ? AND name = 'chat:client_tools'")
    ((value,),) = await outcome.host.store.fetch(query, AGENT)
    assert json.decode(value) == [LOCATE]


def forget() -> None:
    mails.clear()
    model.requests.clear()


@pytest.mark.parametrize(
    ("mode", "engine", "sample"),
    [("commits", "sqlite", None), ("twice", "sqlite", 30), ("commits", "postgresql", 8)],
)
async def test_a_conversation_with_a_tool_that_its_provider_refuses(
    mode: Literal["commits", "twice"],
    engine: str,
    sample: int | None,
    request: pytest.FixtureRequest,
) -> None:
    store = str(request.getfixturevalue("postgres")) if engine == "postgresql" else None
    report = await crash_sweep(
        agents=[Clerk], drive=work, check=check, reset=forget,
        outside=[mails, model.requests],
        mode=mode, store=store, sample=sample,
    )  # fmt: skip
    assert report.deaths >= (sample or 2 * report.commits)
