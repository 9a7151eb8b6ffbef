"""Hooks around a call: what `before_tool_call` decides, and what `after_tool_call` is told of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import answering

from outlast import Allow, Block, Substitute, Think, ToolError, tool
from outlast.chat.answer.call import CHANGED
from outlast.testing import Step
from support import World

pytestmark = pytest.mark.virtual_time


class Judge(Think):
    """Decides about each call as it is told to, and notes what came of it."""

    looked: list[str] = []
    decision: Any = None
    calls: list[Any] = []

    async def before_tool_call(self, context: Any) -> Any:
        return self.decision

    async def after_tool_call(self, context: Any) -> None:
        self.calls.append(context)

    @tool(effect="read")
    async def look(self, at: str) -> str:
        await asyncio.sleep(2 if at == "l" else 1)
        self.looked.append(at)
        return f"seen {at}"

    @tool
    async def fail(self) -> None:
        await asyncio.sleep(3)
        raise ToolError("The disk is full.")

    @tool
    async def watch(self, times: int) -> Any:
        for n in range(times):
            await asyncio.sleep(1)
            yield f"seen {n}"


def judging(decision: Any, *answers: Any) -> type[Judge]:
    members = {
        "decision": decision,
        "calls": [],
        "looked": [],
        "model": answering(*answers, "Well."),
    }
    return type("Deciding", (Judge,), members)


AT_L = Step.calls("look", at="l")
DECISIONS: dict[str, tuple[Any, Step, list[str], Any, str | None, float]] = {
    # the decision, the call, where it looked; output, error and duration
    "nothing": (None, AT_L, ["l"], "seen l", None, 2000),
    "allow": (Allow(), AT_L, ["l"], "seen l", None, 2000),
    "allow something else": (Allow({"at": "r"}), AT_L, ["r"], "seen r", None, 1000),
    "allow in a dict": ({"action": "allow"}, AT_L, ["l"], "seen l", None, 2000),
    "allow something else in a dict": (
        {"action": "allow", "input": {"at": "r"}},
        AT_L,
        ["r"],
        "seen r",
        None,
        1000,
    ),
    "block in a dict": ({"action": "block", "reason": "no"}, AT_L, [], "no", None, 0),
    "substitute in a dict": ({"action": "substitute", "output": [1]}, AT_L, [], [1], None, 0),
    "allow what does not fit": (Allow({"at": 5}), AT_L, [], None, "arguments are invalid", 0),
    "block": (Block("no looking"), AT_L, [], "no looking", None, 0),
    "block without a reason": (Block(), AT_L, [], "This call was not allowed.", None, 0),
    "substitute": (Substitute({"cached": [1]}), AT_L, [], {"cached": [1]}, None, 0),
    "substitute nothing": (Substitute(None), AT_L, [], None, None, 0),
    "substitute what cannot be stored": (Substitute(object()), AT_L, [], None, "stored", 0),
    "let it fail": (None, Step.calls("fail"), [], None, "The disk is full.", 3000),
    "block what would fail": (Block("no"), Step.calls("fail"), [], "no", None, 0),
    "an unknown tool": (Block("no"), Step.calls("guess"), [], None, "There is no tool", 0),
}


@pytest.mark.invariant("I11")
@pytest.mark.parametrize("what", DECISIONS)
async def test_what_is_decided_about_a_call_is_what_the_model_and_the_hook_behind_it_are_told(
    world: World, what: str
) -> None:
    decision, step, looked, output, error, took = DECISIONS[what]
    Deciding = judging(decision, step)
    host = await world.host(Deciding)
    turn = await host.get(Deciding, "a").save_messages("u1")
    await world.stop()
    assert (turn.status, turn.message.text) == ("completed", "Well.")
    assert Deciding.looked == looked
    (told,) = Deciding.calls
    assert (told.success, told.output) == (error is None, output)
    assert (error or "") in str(told.error or "")
    assert (told.error is None) == (error is None)
    assert took <= told.duration_ms < took + 100
    part = next(part for part in turn.message.parts if part["type"].startswith("tool-"))
    assert part.get("output") == output
    assert (error or "") in part.get("errorText", "")
    (returned,) = Deciding.model.requests[1].messages[-1].parts
    assert returned.tool_call_id == told.tool_call_id == part["toolCallId"]
    assert (error in str(returned.content)) if error else (returned.content == output)


@pytest.mark.invariant("I11")
async def test_a_call_takes_as_long_as_its_tool_however_long_the_hooks_think(
    world: World,
) -> None:
    async def slowly(self: Any, context: Any) -> None:
        await asyncio.sleep(50)

    Deciding = type("Deciding", (judging(None, AT_L),), {"before_tool_call": slowly})
    host = await world.host(Deciding)
    await host.get(Deciding, "a").save_messages("u1")
    await world.stop()
    assert 2000 <= Deciding.calls[0].duration_ms < 2100


@pytest.mark.invariant("I12")
@pytest.mark.parametrize(
    ("decision", "outcome", "looked"),
    [
        (None, "seen l", ["l"]),
        (Allow(), "seen l", ["l"]),
        (Allow({"at": "l"}), "seen l", ["l"]),
        (Allow({"at": "r"}), CHANGED, []),
        (Block("too late"), "too late", []),
    ],
)
async def test_what_was_approved_runs_as_it_is_or_not_at_all(
    world: World, decision: Any, outcome: str, looked: list[str]
) -> None:
    class Asking(judging(decision, AT_L)):  # type: ignore[misc]
        @tool(needs_approval=True)
        async def look(self, at: str) -> str:
            return await Judge.look(self, at)

    host = await world.host(Asking)
    a = host.get(Asking, "a")
    turn = await a.save_messages("u1")
    assert Asking.calls == [], "nothing has come of it yet"
    assert await a.add_tool_approval(turn.message.parts[-1]["toolCallId"], approved=True)
    await host.until_settled()
    (answer,) = [each for each in await a.get_messages() if each.role == "assistant"]
    await world.stop()
    (part,) = [part for part in answer.parts if part["type"] == "tool-look"]
    assert outcome in (part.get("output"), part.get("errorText"))
    assert part["input"] == {"at": "l"}
    assert Asking.looked == looked
    assert [call.success for call in Asking.calls] == ["output" in part]


@pytest.mark.invariant("I15")
@pytest.mark.parametrize(("decision", "times"), [(None, 3), (Allow(), 3), (Allow({"times": 2}), 2)])
async def test_what_a_tool_yields_on_its_way_passes_the_hooks_around_it(
    world: World, decision: Any, times: int
) -> None:
    Deciding = judging(decision, Step.calls("watch", times=3))
    host = await world.host(Deciding)
    chunks = [chunk async for chunk in host.get(Deciding, "a").stream("u1")]
    await world.stop()
    outputs = [each for each in chunks if each["type"] == "tool-output-available"]
    told = [(each["output"], each.get("preliminary", False)) for each in outputs]
    on_the_way = [(f"seen {n}", True) for n in range(times)]
    assert told == [*on_the_way, (f"seen {times - 1}", False)]
    (call,) = Deciding.calls
    assert (call.success, call.output) == (True, f"seen {times - 1}")
    assert times * 1000 <= call.duration_ms < times * 1000 + 100
