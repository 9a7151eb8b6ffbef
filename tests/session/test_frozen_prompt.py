"""The prompt of a session is the same to the byte across turns and processes: provider caches hit."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Session, Think, tool
from outlast.core import json
from providers.anthropic_messages import Anthropic
from providers.dialect import Answer
from providers.openai_chat import OpenAIChat
from providers.server import running, stream
from support import World

PROVIDERS: dict[str, Any] = {"anthropic": Anthropic(), "openai": OpenAIChat()}


def assistant(model: Any, calls: list[int]) -> type[Any]:
    def clock() -> str:
        """A block that is another one each time it is read."""
        calls.append(1)
        return f"read {len(calls)} times"

    class Assistant(Think):
        def configure_session(self, session: Session) -> Session:
            return (
                session.with_system_prompt("Be kind.")
                .with_context("memory", description="Learned facts", max_tokens=100)
                .with_context("clock", provider=clock)
                .with_cached_prompt()
            )

        @tool(effect="read")
        async def look(self) -> str:
            """Look."""
            return "seen"

        async def learn(self, fact: str) -> None:
            await self.session.append_context_block("memory", fact)

        async def refresh(self) -> None:
            await self.session.refresh_system_prompt()

    Assistant.model = model
    return Assistant


def before_messages(body: dict[str, Any]) -> str:
    """The request up to its second message: everything that a provider caches of the first request."""
    fields = {name: value for name, value in body.items() if name != "messages"}
    return json.encode([fields, body["messages"][: 1 if "system" in body else 2]])


@pytest.mark.parametrize("name", PROVIDERS)
async def test_requests_of_two_lives_begin_with_the_same_bytes(world: World, name: str) -> None:
    dialect, calls = PROVIDERS[name], []
    async with running() as server:
        server.replies = [stream(dialect.events(Answer(text=("Hello.",)))) for _ in range(5)]
        async with dialect.model(server.url) as model:
            Assistant = assistant(model, calls)
            host = await world.host(Assistant)
            agent = host.get(Assistant, "a")
            await agent.save_messages("One")
            await agent.learn("Owls.")
            await agent.save_messages("Two")
            await world.kill()
            host = await world.next_life()
            agent = host.get(Assistant, "a")
            await agent.save_messages("Three")
            first, second, third = map(before_messages, server.bodies)
            assert first == second == third
            assert "read 1 times" in first
            assert "Owls." not in first
            await agent.refresh()
            await agent.save_messages("Four")
            assert "Owls." in before_messages(server.bodies[-1])
            await agent.clear_messages()
            await agent.save_messages("Five")
            assert "read 3 times" in before_messages(server.bodies[-1])


async def test_other_settings_in_the_code_make_another_prompt(world: World) -> None:
    from outlast.testing import ScriptedModel

    def version(prompt: str) -> type[Any]:
        def configure_session(self: Any, session: Session) -> Session:
            session = session.with_context("memory").with_cached_prompt()
            return session.with_system_prompt(prompt)

        members = {"model": ScriptedModel("Hello."), "configure_session": configure_session}
        return type("Assistant", (Think,), members)

    old, new = version("Old."), version("New.")
    host = await world.host(old)
    await host.get(old, "a").save_messages("Hi")
    host = await world.next_life(new)
    await host.get(new, "a").save_messages("Hi")
    assert new.model.requests[0].instructions.startswith("New.")
