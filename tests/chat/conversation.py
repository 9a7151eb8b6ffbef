"""A chat agent for tests, and a look at everything that it has stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart

from outlast import Host, Message, Think, TurnFailed, TurnStatistics
from outlast.agent.agent import parts_of
from outlast.chat.admission import Admission
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.run.runner import Runner
from outlast.chat.stream.streams import Streams
from outlast.chat.turn.state import TurnState
from outlast.store.operations import BulkStatement, Query
from outlast.testing import ScriptedModel
from outlast.testing.scripted import Answer, ScriptedRequest
from support import live_activation

TABLES = ("messages", "inbox", "streams", "facts", "alarms")


def talker(model: Any, **members: Any) -> type[Any]:
    """A class of chat agents with this model. Interrupted turns are over, unless it says otherwise."""
    return type("Talker", (Think,), {"model": model, "chat_recovery": False, **members})


def answering(*answers: Answer, **options: Any) -> ScriptedModel:
    """A model that gives these answers, one a request, and the last one from then on."""
    return ScriptedModel(*answers, by="request", repeat=True, **options)


def agent_of(host: Host, agent_class: type[Any], name: str = "a") -> Any:
    """The object itself, while it is in memory."""
    return live_activation(host, agent_class, name).agent


def doing(host: Host, agent_class: type[Any], name: str = "a") -> TurnStatistics:
    """What an agent in memory is doing."""
    return agent_of(host, agent_class, name).turn_statistics()  # type: ignore[no-any-return]


IN_ORDER = {
    "messages": "agent, number",
    "streams": "agent, turn, seq",
    "facts": "agent, name",
    "fibers": "agent, id",
    "responses": "agent, seq",
}
"""The order of a table's rows, of which PostgreSQL keeps none when it is not asked for one."""


async def rows(host: Host, table: str, columns: str = "*", order: str = "") -> list[Any]:
    order = order or IN_ORDER.get(table, "1")
    return await host.store.fetch(
        Query.same(f"SELECT {columns} FROM {table} ORDER BY {order}", bulk=True)
    )


async def inbox(host: Host, columns: str = "state, outcome") -> list[Any]:
    return await rows(host, "inbox", columns, "agent, seq")


async def reasons(host: Host) -> list[str | None]:
    """Why turns have failed, as operators see it: the original errors."""
    return [detail or error for detail, error in await inbox(host, "detail, error")]


async def counts(host: Host, *tables: str) -> dict[str, int]:
    """How many rows there are."""
    return {table: len(await rows(host, table)) for table in tables or TABLES}


async def meddle(agent: Any, sql: str, *arguments: Any) -> None:
    """Change what is stored, behind the agent's back."""
    statement = BulkStatement("meddle", sql, Query.same(sql).postgres)
    await parts_of(agent).commits.commit([(statement, arguments)])


def said(messages: Iterable[Message]) -> list[str]:
    """Who said what: `["user: Hi", "assistant: Hello"]`."""
    return [f"{message.role}: {message.text}" for message in messages]


def asked(request: ScriptedRequest) -> list[str]:
    """What the user has said in a request, oldest first."""
    return [
        str(part.content)
        for message in request.messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


async def failing(answer: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chunks of an answer that fails: the last one says why, and the same is raised."""
    chunks = []
    with pytest.raises(TurnFailed) as failure:
        async for chunk in answer:
            chunks.append(chunk)
    assert chunks[-1] == {"type": "error", "errorText": str(failure.value)}
    return chunks


async def followed(
    agent: Any, request: str, after: int = 0, *, may_be_gone: bool = False
) -> AsyncIterator[tuple[int, str]]:
    """The stream of a request from a place on, as a server reads it."""
    parts = parts_of(agent)
    entry = await parts[Inbox].get(request)
    assert entry is not None or may_be_gone, f"there is no request {request!r}"
    if entry is not None:
        async for item in (await parts[Admission].stream(entry)).read(after):
            yield item


async def until(condition: Callable[[], Any]) -> Any:
    """Wait for it, in virtual time: a thousandth of a second at a time."""
    for _ in range(100_000):
        found = condition()
        if found:
            return found
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


async def until_running(host: Host, agent_class: type[Any], name: str = "a") -> Any:
    """Wait until a turn runs; returns it."""
    await host.get(agent_class, name).get_messages()
    agent = agent_of(host, agent_class, name)
    return await until(lambda: parts_of(agent)[TurnState].running)


def leftovers(agent: Any) -> dict[str, int]:
    """What an agent holds in memory for the sake of turns, by name; nothing when it is at rest."""
    parts, statistics = parts_of(agent), agent.turn_statistics()
    inbox = parts[Inbox]
    held = {
        "running": int(statistics.running is not None),
        "work": int(parts[Runner]._work is not None),
        "streams": len(parts[Streams].open),
        "waiters": statistics.waiters,
        "open": len(inbox._open),
        "accepting": int(inbox.is_busy and not inbox._open),
        "tasks": len(parts_of(agent).activation.tasks),
    }
    return {name: count for name, count in held.items() if count}
