"""What tests about tools look at: the calls of a message, what the model heard of them, and the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

from chat_rows import check_request
from conversation import rows
from pydantic_ai.messages import ModelRequest, RetryPromptPart, ToolReturnPart

from outlast import Host
from outlast.chat.message.tool_part import tool_name
from outlast.testing.death import Drive, Life
from outlast.testing.virtual import START


def call_parts(message: Any) -> list[dict[str, Any]]:
    return [part for part in message.parts if tool_name(part) is not None]


def outcome(part: dict[str, Any]) -> str:
    """What a message says of a call, in the words of the ledger."""
    states = {"output-available": "done", "output-error": "failed", "output-denied": "denied"}
    metadata = part.get("resultProviderMetadata", {}).get("outlast", {})
    return str(metadata.get("outcome", states.get(part["state"], "open")))


def outcomes(message: Any) -> list[str]:
    return [outcome(part) for part in call_parts(message)]


def returns(model: Any, request: int = -1) -> list[ToolReturnPart]:
    """What a model was told of its calls."""
    return [
        part
        for each in model.requests[request].messages
        if isinstance(each, ModelRequest)
        for part in each.parts
        if isinstance(part, ToolReturnPart | RetryPromptPart)
    ]


def check_requests(model: Any) -> None:
    """Each call in each request is followed by its one result."""
    for request in model.requests:
        check_request(request.messages)


async def ledger(host: Host, columns: str = "name, state") -> list[Any]:
    return await rows(host, "calls", columns, "started_at, id")


async def go_on(end: asyncio.Event) -> None:
    """Whoever says stop."""
    while not end.is_set():
        try:
            await end.wait()
        except asyncio.CancelledError:
            continue


class Lives:
    """Hosts on one store, one after another. Each can die in the middle of whatever it is doing."""

    def __init__(self, url: str, *agents: type[Any]) -> None:
        self._url = url
        self._agents: Sequence[type[Any]] = agents
        self._lives: list[Life] = []

    def run(self, *acts: Drive) -> Life:
        start = self._lives[-1].next_start if self._lives else START
        number = len(self._lives) + 1
        self._lives.append(Life(self._agents, self._url, number=number, start=start))
        self._lives[-1].run(*acts)
        return self._lives[-1]

    def die(self) -> NoReturn:
        """To be called by code of the agent: nothing of this life runs after it."""
        self._lives[-1]._die()
        raise AssertionError
