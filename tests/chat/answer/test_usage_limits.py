"""What a turn may spend: limits that hold over all of its attempts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import reasons
from pydantic_ai.usage import UsageLimits

from outlast import Think, TurnConfig, tool
from outlast.testing import ScriptedModel, Step
from support import World


@tool(effect="read")
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def looking(**members: Any) -> type[Think]:
    """A model that never comes to an end by itself."""
    model = ScriptedModel.answering(
        lambda messages: Step.text("Looking. ") + Step.call("look", {"n": len(messages)})
    )
    return type(
        "Looking",
        (Think,),
        {"model": model, "get_tools": lambda self: [look], "max_steps": 100, **members},
    )


@pytest.mark.parametrize(
    "limits",
    [
        UsageLimits(request_limit=3),
        UsageLimits(tool_calls_limit=3),
        UsageLimits(output_tokens_limit=10),
    ],
    ids=["requests", "calls", "tokens"],
)
@pytest.mark.parametrize("where", ["class", "turn"])
async def test_a_turn_that_spends_too_much_ends(
    sqlite_world: World, limits: UsageLimits, where: str
) -> None:
    def before_turn(self: Any, context: Any) -> TurnConfig:
        return TurnConfig(usage_limits=limits)

    members: dict[str, Any] = {"before_turn": before_turn}
    agent_class = looking(**({"usage_limits": limits} if where == "class" else members))
    host = await sqlite_world.host(agent_class)
    turn = await host.get(agent_class, "a").save_messages("look")
    assert turn.status == "error"
    assert "limit" in ((await reasons(host))[0] or "")
    assert len(agent_class.model.requests) <= 6  # type: ignore[union-attr]


@pytest.mark.virtual_time
async def test_what_was_spent_before_an_interruption_counts(sqlite_world: World) -> None:
    def answer(messages: Any) -> Step:
        if len(messages) >= 7:
            return Step.text("Wait. ") + Step.stalls(1000)
        return Step.text("Looking. ") + Step.call("look", {"n": len(messages)})

    agent_class = looking(
        usage_limits=UsageLimits(request_limit=6), model=ScriptedModel.answering(answer)
    )
    host = await sqlite_world.host(agent_class, shutdown_timeout=0)
    await host.get(agent_class, "a").submit_messages("look")
    await asyncio.sleep(10)
    await sqlite_world.stop()
    before = len(agent_class.model.requests)  # type: ignore[union-attr]
    assert before == 4
    agent_class.model = looking().model
    host = await sqlite_world.next_life()
    await host.until_settled()
    [entry] = await host.get(agent_class, "a").list_submissions()
    assert entry.status == "error"
    assert "limit" in ((await reasons(host))[0] or "")
    assert len(agent_class.model.requests) == 6 - before  # type: ignore[union-attr]


@pytest.mark.virtual_time
async def test_a_request_that_was_interrupted_counts_as_far_as_it_can_be_estimated(
    sqlite_world: World,
) -> None:
    """Its usage never arrived: a token for four characters."""
    said = "word " * 400

    def answer(messages: Any) -> Step:
        return Step.text(said) + Step.stalls(1000)

    agent_class = looking(
        usage_limits=UsageLimits(output_tokens_limit=450), model=ScriptedModel.answering(answer)
    )
    host = await sqlite_world.host(agent_class, shutdown_timeout=0)
    await host.get(agent_class, "a").submit_messages("look")
    await asyncio.sleep(10)
    await sqlite_world.stop()
    agent_class.model = ScriptedModel.answering(lambda _: Step.text("That is all."))
    host = await sqlite_world.next_life()
    await host.until_settled()
    assert "output_tokens_limit" in ((await reasons(host))[0] or "")
