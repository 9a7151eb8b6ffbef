"""Answers that OpenAI makes in the background: after a death they are fetched, not generated again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from outlast import Think, TurnConfig
from outlast.store.operations import Query
from providers.dialect import Answer
from providers.openai_responses import OpenAIResponses
from providers.server import running, stream
from support import hosting

BACKGROUND = {"openai_background": True, "openai_store": True}


def assistant(model: Any, options: Mapping[str, Any] = BACKGROUND) -> type[Think]:
    def before_turn(self: Any, context: Any) -> TurnConfig:
        return TurnConfig(provider_options=options)

    return type("Assistant", (Think,), {"model": model, "before_turn": before_turn})


async def die_after(agent_class: type[Think], url: str, text: str) -> None:
    """A life that ends once this has been seen."""
    async with hosting(agent_class, url=url, shutdown_timeout=0) as host:
        seen = ""
        async for chunk in host.get(agent_class, "a").stream("Hi"):
            seen += chunk.get("delta", "")
            if seen == text:
                break


@pytest.mark.invariant("H4", "G18")
async def test_the_rest_of_the_answer_is_fetched(sqlite_url: str) -> None:
    dialect = OpenAIResponses()
    beginning = dialect.events(Answer(text=("Hello ",)), finished=False, background=True)
    async with running() as server:
        server.replies = [stream(beginning, "hang")]
        async with dialect.model(server.url) as model:
            agent_class = assistant(model)
            await die_after(agent_class, sqlite_url, "Hello ")
            server.replies = [dialect.whole("completed", "Hello there.")]
            async with hosting(agent_class, url=sqlite_url, life="2") as host:
                await host.until_settled()
                answer = (await host.get(agent_class, "a").get_messages())[-1]
                assert answer.text == "Hello there."
                assert [part["type"] for part in answer.raw["parts"]] == ["step-start", "text"]
                found = host.get(agent_class, "a").resume_stream
                query = Query.same("SELECT id FROM inbox", bulk=True)
                ((request,),) = await host.store.fetch(query)
                said = "".join([chunk.get("delta", "") async for _, chunk in found(request)])
                assert said == "Hello there.", "and no client sees anything twice"
        assert [request.method for request in server.requests] == ["POST", "GET"]


async def test_an_answer_that_is_not_kept_any_more_is_gone_on_with(sqlite_url: str) -> None:
    dialect = OpenAIResponses()
    beginning = dialect.events(Answer(text=("Hello ",)), finished=False, background=True)
    async with running() as server:
        server.replies = [stream(beginning, "hang")]
        async with dialect.model(server.url) as model:
            agent_class = assistant(model)
            await die_after(agent_class, sqlite_url, "Hello ")
            gone = dialect.error("rejected")
            server.replies = [gone, stream(dialect.events(Answer(text=("there.",))))]
            async with hosting(agent_class, url=sqlite_url, life="2") as host:
                await host.until_settled()
                answer = (await host.get(agent_class, "a").get_messages())[-1]
                assert answer.text == "Hello there."
        assert [request.method for request in server.requests] == ["POST", "GET", "POST"]


@pytest.mark.parametrize("status", ["completed", "in_progress"])
async def test_an_answer_that_is_only_stored_is_fetched_if_it_is_complete(
    sqlite_url: str, status: str
) -> None:
    """Otherwise nobody continues it, and the model is asked for the rest."""
    dialect = OpenAIResponses()
    beginning = dialect.events(Answer(text=("Hello ",)), finished=False)
    async with running() as server:
        server.replies = [stream(beginning, "hang")]
        async with dialect.model(server.url) as model:
            agent_class = assistant(model, {"openai_store": True})
            await die_after(agent_class, sqlite_url, "Hello ")
            text = "Hello there." if status == "completed" else ""
            kept = dialect.whole(status, text, background=False)
            server.replies = [kept, stream(dialect.events(Answer(text=("Hello there.",))))]
            async with hosting(agent_class, url=sqlite_url, life="2") as host:
                await host.until_settled()
                answer = (await host.get(agent_class, "a").get_messages())[-1]
                assert answer.text == "Hello there."
                query = Query.same("SELECT body FROM decisions", bulk=True)
                ((body,),) = await host.store.fetch(query)
        ways = {"completed": "retrieve", "in_progress": "instruct"}
        assert json.loads(body)["seam"]["way"] == ways[status]
        methods = [request.method for request in server.requests]
        assert methods == ["POST", "GET"] + ["POST"] * (status != "completed")


async def test_an_answer_that_is_not_stored_is_not_looked_for(sqlite_url: str) -> None:
    dialect = OpenAIResponses()
    beginning = dialect.events(Answer(text=("Hello ",)), finished=False)
    async with running() as server:
        server.replies = [stream(beginning, "hang")]
        async with dialect.model(server.url) as model:
            agent_class = assistant(model, {})
            await die_after(agent_class, sqlite_url, "Hello ")
            server.replies = [stream(dialect.events(Answer(text=("Hello there.",))))]
            async with hosting(agent_class, url=sqlite_url, life="2") as host:
                await host.until_settled()
                assert (await host.get(agent_class, "a").get_messages())[-1].text == "Hello there."
        assert [request.method for request in server.requests] == ["POST", "POST"]
