"""Data parts, messages that a function makes, and a client's tool that waits for an approval: killed at every
commit, each is there once or says why it is not."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from chat_rows import check_all_ended, check_answers, check_request, check_tree, stored
from pydantic_ai.messages import ModelMessage

from outlast import Host, Think, tool
from outlast.chat.model.beginnings import asks_to_continue
from outlast.chat.run.runner import LOST_FUNCTION
from outlast.testing import Outcome, ScriptedModel, Step
from sweeps import crash_sweep

Mode = Literal["commits", "groups", "twice"]
AGENT = "Shop/s"
COPY = {"name": "copy", "inputSchema": {"type": "object"}, "needsApproval": True}
TEXT = "Your receipt is ready to print."

approved: list[str] = []  # calls whose approval somebody was told to be stored
copied: list[str] = []  # calls that the client has run
composed: list[str] = []


def answer(messages: list[ModelMessage]) -> Step:
    """What is left to say after what was said."""
    returned = {p.tool_name for m in messages for p in m.parts if p.part_kind == "tool-return"}
    if "look" not in returned:
        return Step.call("look", {}, id="call-look")
    if "copy" not in returned:
        return Step.call("copy", {}, id="call-copy")
    last = [part for part in messages[-1].parts if asks_to_continue(getattr(part, "content", None))]
    texts = [part.content for part in messages[-2].parts if part.part_kind == "text"]
    said = "".join(texts) if last else ""
    return Step.text(TEXT.removeprefix(said), delay=0.01)


model = ScriptedModel.answering(answer)


class Shop(Think):
    model = model

    @tool(effect="read")
    async def look(self) -> str:
        self.emit_data("receipt", {"state": "open"}, id="r")
        self.emit_data("progress", 0.5, transient=True)
        return "seen"

    def on_chunk(self, context: Any) -> None:
        if context.chunk.get("delta", "").startswith("receipt"):
            self.emit_data("receipt", {"state": "said"}, id="r")

    def on_step_finish(self, context: Any) -> None:
        context.writer.data("step", context.finish_reason, id=f"s{len(context.tool_calls)}")


def compose(messages: list[Any]) -> dict[str, Any]:
    composed.append("u-1")
    return {"id": "u-1", "role": "user", "parts": [{"type": "text", "text": "One, please"}]}


async def shop(host: Host) -> None:
    agent = host.get(Shop, "s")
    if not await agent.get_messages():
        for key in ("one", "again", "once more"):
            turn = await agent.save_messages(compose, idempotency_key=key, client_tools=[COPY])
            if turn.error != LOST_FUNCTION:  # it says that it is to be asked anew
                break
    await host.until_settled()
    for _ in range(2):
        for part in (await agent.get_messages())[-1].parts:
            if part.get("state") == "approval-requested":
                assert part["toolCallId"] not in approved, "nobody is asked twice"
                if await agent.add_tool_approval(part["toolCallId"], True):
                    approved.append(part["toolCallId"])
            elif part.get("state") == "input-available":
                assert part["approval"]["approved"] is True
                copied.append(part["toolCallId"])
                await agent.add_tool_output(part["toolCallId"], "a poem")
        await host.until_settled()


async def check(outcome: Outcome) -> None:
    rows = await stored(outcome.host, AGENT)
    check_all_ended(rows)
    check_tree(rows)
    check_answers(rows)
    for request in model.requests:
        check_request(request.messages)
    [asked, answered] = rows.path
    assert asked.id == "u-1"
    assert answered.text == TEXT
    parts = answered.message["parts"]
    data = {part["id"]: part["data"] for part in parts if part["type"].startswith("data-")}
    assert len([part for part in parts if part["type"].startswith("data-")]) == len(data)
    whole = {"r": {"state": "said"}, "s1": "tool_call", "s0": "stop"}
    if outcome.deaths:  # a hook that has not returned may have written nothing, a tool that has did
        assert data.pop("r") in ({"state": "open"}, {"state": "said"})
        assert data.items() <= whole.items()
    else:
        assert data == whole
    assert all("data-progress" not in chunk for turn in rows.streams.values() for chunk in turn)
    [copy] = [part for part in parts if part["type"] == "tool-copy"]
    assert (copy["state"], copy["output"]) == ("output-available", "a poem")
    assert set(copied) == {"call-copy"}
    lost = [entry for entry in rows.entries if entry.error == LOST_FUNCTION]
    assert len(lost) <= len(outcome.deaths)
    assert {entry.outcome for entry in rows.entries if entry not in lost} == {"completed"}


OUTSIDE: list[Any] = [approved, copied, composed, model.requests]


def forget() -> None:
    for each in OUTSIDE:
        each.clear()


@pytest.mark.parametrize(
    ("mode", "engine", "sample"),
    [
        ("commits", "sqlite", None),
        ("groups", "sqlite", 20),
        ("twice", "sqlite", 30),
        ("commits", "postgresql", 8),
        ("twice", "postgresql", 4),
    ],
)
async def test_parts_functions_and_approvals_of_ones_own(
    mode: Mode, engine: str, sample: int | None, request: pytest.FixtureRequest
) -> None:
    store = str(request.getfixturevalue("postgres")) if engine == "postgresql" else None
    report = await crash_sweep(
        agents=[Shop],
        drive=shop,
        check=check,
        reset=forget,
        outside=OUTSIDE,
        mode=mode,
        store=store,
        sample=sample,
    )
    assert report.deaths >= (sample or 2 * report.commits)
