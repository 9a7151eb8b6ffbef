"""What operators can do about turns that were interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import ChatRecovery, Think
from outlast.testing import ScriptedModel, Step
from support import World


def silent(**members: Any) -> type[Think]:
    """A model that says one word, and no more."""
    model = ScriptedModel(Step.text("Well ") + Step.stalls(), by="request", repeat=True)
    return type("Silent", (Think,), {"model": model, **members})


@pytest.mark.virtual_time
async def test_an_incident_is_listed_and_can_be_sealed(world: World) -> None:
    agent_class = silent()
    host = await world.host(agent_class, shutdown_timeout=0)
    request = (await host.get(agent_class, "a").submit_messages("Hi")).id
    await asyncio.sleep(5)
    assert await host.get(agent_class, "a").list_incidents() == []
    host = await world.next_life()
    agent = host.get(agent_class, "a")
    await asyncio.sleep(5)
    (incident,) = await agent.list_incidents()
    assert (incident.request_id, incident.state, incident.attempt) == (request, "open", 1)
    assert (incident.cause, incident.row) == ("deploy", 17)
    assert await agent.seal_incident(request)
    await host.until_settled()
    assert not await agent.seal_incident(request)
    assert await agent.list_incidents() == []
    answer = (await agent.get_messages())[-1]
    assert (answer.role, answer.text.strip()[:4]) == ("assistant", "Well")


@pytest.mark.virtual_time
async def test_what_was_given_up_can_be_tried_again(world: World) -> None:
    agent_class = silent(
        chat_recovery=ChatRecovery(max_attempts=1, terminal_message="No."),
        chat_stream_stall_timeout=1,
    )
    host = await world.host(agent_class)
    agent = host.get(agent_class, "a")
    turn = await agent.save_messages("Hi")
    assert (turn.status, turn.error) == ("error", "No.")
    (incident,) = await agent.list_incidents()
    assert (incident.state, incident.reason) == ("exhausted", "max_attempts_exceeded")
    agent_class.model = ScriptedModel("Well then.")
    again = await agent.retry_incident(turn.request_id)
    assert (again.status, again.message.text) == ("completed", "Well then.")
    with pytest.raises(LookupError):
        await agent.retry_incident("nobody")
    await asyncio.sleep(2 * 3600)
    await host.until_settled()
    assert await agent.list_incidents() == [], "after an hour it is forgotten"
