"""What a tool raises: who reads the text, and who reads only that it failed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from conversation import inbox, rows
from tool_calls import call_parts, returns

from outlast import Think, ToolError, tool
from outlast.core import json
from outlast.host.address import Address
from outlast.inspect import views
from outlast.server.public import public_chunk, public_message
from outlast.testing import ScriptedModel, Step
from support import World, listen

pytestmark = pytest.mark.virtual_time

SECRET = "postgresql://admin:hunter2@db"
GENERIC = re.compile(r"The tool failed\. \((error_\w+)\)")


class Clerk(Think):
    """Its tools fail; it keeps what `after_tool_call` is given."""

    heard: list[Any] = []

    @tool
    async def refuse(self) -> None:
        raise ToolError("The account is closed.")

    @tool
    async def silent(self) -> None:
        raise ToolError

    @tool
    async def crash(self) -> None:
        raise ConnectionError(f"cannot connect to {SECRET}")

    async def after_tool_call(self, context: Any) -> None:
        self.heard.append(context)


def clerk(name: str, **members: Any) -> type[Clerk]:
    model = ScriptedModel(Step.calls(name), "I see.")
    return type("Clerk", (Clerk,), {"model": model, "heard": [], **members})


async def test_the_text_of_a_tool_error_is_for_the_client_and_the_model(world: World) -> None:
    Closed = clerk("refuse")
    host = await world.host(Closed)
    turn = await host.get(Closed, "a").save_messages("u1")
    await world.stop()
    (part,) = call_parts(turn.message)
    assert (part["state"], part["errorText"]) == ("output-error", "The account is closed.")
    assert "resultProviderMetadata" not in part
    (told,) = returns(Closed.model)
    assert (told.outcome, told.content) == ("failed", "The account is closed.")
    (context,) = Closed.heard
    assert isinstance(context.error, ToolError)
    assert not context.success


async def test_a_tool_error_without_a_text_is_no_secret_either(sqlite_world: World) -> None:
    Silent = clerk("silent")
    host = await sqlite_world.host(Silent)
    turn = await host.get(Silent, "a").save_messages("u1")
    await sqlite_world.stop()
    assert call_parts(turn.message)[0]["errorText"] == "The tool failed."


@pytest.mark.invariant("C9")
async def test_any_other_exception_is_for_the_log_and_the_store_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    Crashing = clerk("crash")
    host = await world.host(Crashing)
    finished = listen(host, "tool:finish")
    a = host.get(Crashing, "a")
    chunks = [chunk async for chunk in a.stream("u1")]
    messages = await a.get_messages()
    ((id,),) = await inbox(host, "id")
    explained = await views.turn(host.store, Address.parse("Clerk/a"), id)
    stored = str(await rows(host, "messages", "body")) + str(await rows(host, "streams", "body"))
    await world.stop()
    (part,) = call_parts(messages[1])
    match = GENERIC.fullmatch(part["errorText"])
    assert match is not None
    public = str([public_chunk(json.encode(chunk)) for chunk in chunks])
    public += str([public_message(message.raw) for message in messages])
    public += str([request.messages for request in Crashing.model.requests])
    assert match[0] in public
    assert SECRET not in public
    assert SECRET in stored
    assert SECRET in str([moment.what for moment in explained.moments]), "for the inspector"
    (event,) = finished
    assert SECRET in event.error
    (record,) = [each for each in caplog.records if each.exc_info]
    assert match[1] in record.getMessage()
    assert SECRET in str(record.exc_info)
    (context,) = Crashing.heard
    assert isinstance(context.error, ConnectionError)
    assert SECRET in str(context.error)


async def test_the_model_reads_the_original_if_it_may(world: World) -> None:
    Trusting = clerk("crash", tool_error_details=True)
    host = await world.host(Trusting)
    turn = await host.get(Trusting, "a").save_messages("u1")
    host = await world.next_life()
    await host.get(Trusting, "a").save_messages("u2")
    await world.stop()
    for request in Trusting.model.requests[1:]:
        assert f"ConnectionError: cannot connect to {SECRET}" in str(request.messages)
    assert SECRET not in str(public_message(turn.message.raw)), "clients never do"
