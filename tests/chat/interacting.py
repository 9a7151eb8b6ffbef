"""Calls that a turn leaves open, for tests: how they come about, and what became of them."""

from __future__ import annotations

from typing import Any

from chat_rows import check_request
from conversation import inbox
from pydantic_ai.messages import ModelRequest, RetryPromptPart, ToolReturnPart

from outlast import Host, Message
from outlast.testing import Step


def schema(name: str) -> dict[str, Any]:
    """What a client says of one of its tools."""
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}}


LOCATE, PICK = schema("locate"), schema("pick")
CLIENT = [LOCATE, PICK]


def calls(*named: str) -> Step:
    """A call of each tool: `calls("pick", "pick:2")` has the ids `pick` and `pick:2`."""
    return sum((Step.call(name.partition(":")[0], {}, id=name) for name in named), Step())


def call_parts(message: Message | None) -> dict[str, dict[str, Any]]:
    """The calls of a message, by their ids."""
    assert message is not None
    return {part["toolCallId"]: part for part in message.parts if "toolCallId" in part}


async def last_calls(agent: Any) -> dict[str, dict[str, Any]]:
    """Those of the last message."""
    return call_parts((await agent.get_messages())[-1])


async def states(agent: Any) -> dict[str, str]:
    return {id: part["state"] for id, part in (await last_calls(agent)).items()}


def returned(model: Any, request: int = -1) -> dict[str, Any]:
    """What a model was told of its calls, in one of its requests."""
    check_requests(model)
    return {
        part.tool_call_id: part.content
        for each in model.requests[request].messages
        if isinstance(each, ModelRequest)
        for part in each.parts
        if isinstance(part, ToolReturnPart | RetryPromptPart)
    }


def check_requests(model: Any) -> None:
    for request in model.requests:
        check_request(request.messages)


async def continuations(host: Host) -> list[Any]:
    """The turns that went on by themselves: how each has ended."""
    found = await inbox(host, "origin, kind, outcome")
    assert all(kind == "continue" for origin, kind, _ in found if origin == "auto")
    return [outcome for origin, _, outcome in found if origin == "auto"]
