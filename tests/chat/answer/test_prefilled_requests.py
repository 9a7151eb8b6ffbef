"""Requests that hand a provider the beginning of an answer: through its own client, in its own words."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Think
from outlast.core import json
from providers.anthropic_messages import Anthropic
from providers.dialect import Answer
from providers.gemini import Gemini
from providers.openai_chat import OpenAIChat
from providers.server import running, stream
from support import hosting

FIRST, REST = "The old man had gone", " eighty-four days without a fish."


def anthropic(url: str) -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(api_key="key", base_url=url)
    return AnthropicModel("claude-haiku-4-5", provider=provider)


def gemini(url: str) -> Any:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(api_key="key", base_url=url)
    return GoogleModel("gemini-2.0-flash", provider=provider)


PROVIDERS: dict[str, tuple[Any, Any, str, Any]] = {
    "anthropic": (Anthropic(), anthropic, "messages", ("assistant", [FIRST])),
    "google": (Gemini(), gemini, "contents", ("model", [FIRST])),
    "a server nearby": (OpenAIChat(), None, "messages", ("assistant", FIRST)),
}


def assistant(model: Any) -> type[Any]:
    def look(where: str) -> str:
        """Look somewhere."""
        return where

    members = {"model": model, "get_tools": lambda self: [look]}
    return type("Assistant", (Think,), members)


def words(message: Any) -> tuple[str, Any]:
    """Who says what, in whatever words."""
    content = message.get("content", message.get("parts"))
    if isinstance(content, list):
        content = [part["text"] for part in content]
    return message["role"], content


@pytest.mark.parametrize("name", PROVIDERS)
async def test_everything_before_the_beginning_is_byte_for_byte_the_first_request(
    sqlite_url: str, name: str
) -> None:
    """So the provider's cache of prompts is hit: what was paid for is not paid twice."""
    dialect, model_at, field, last = PROVIDERS[name]
    async with running() as server:
        server.replies = [stream(dialect.events(Answer(text=(FIRST,)), finished=False), "hang")]
        async with (model_at or dialect.model)(server.url) as model:
            Assistant = assistant(model)
            async with hosting(Assistant, url=sqlite_url, shutdown_timeout=0) as host:
                async for chunk in host.get(Assistant, "a").stream("Tell me a story"):
                    if chunk.get("delta") == FIRST:
                        break
            server.replies = [stream(dialect.events(Answer(text=(REST,))))]
            async with hosting(Assistant, url=sqlite_url, life="2") as host:
                await host.until_settled()
                answer = (await host.get(Assistant, "a").get_messages())[-1]
    assert answer.text == FIRST + REST
    first, second = (request.body for request in server.requests)
    before, after = first.pop(field), second.pop(field)
    assert words(after[-1]) == last
    assert json.encode(after[:-1]) == json.encode(before)
    more = {"continue_final_message": True, "add_generation_prompt": False}
    added = {key: second.pop(key) for key in more if key in second}
    assert added in ({}, more)
    assert json.encode(second) == json.encode(first), "system prompt, tools and settings"
