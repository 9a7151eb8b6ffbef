"""An agent whose session is configured by a test, with methods that look into it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from outlast import Session, Think
from outlast.testing import ScriptedModel

Configure = Callable[[Session], Session]


def talker(configure: Configure, *steps: Any, **members: Any) -> type[Any]:
    """Return an agent class. Without steps, its model always gives the same answer."""

    class Talker(Think):
        model = (
            ScriptedModel(*steps, by="request")
            if steps
            else ScriptedModel("An answer of a few words.", repeat=True)
        )

        def configure_session(self, session: Session) -> Session:
            return configure(session)

        async def history(self) -> list[str]:
            return [message.text for message in self.session.get_history()]

        async def compact(self) -> bool:
            return await self.session.compact()

        async def find(self, query: str) -> list[str]:
            return [hit.snippet.marked() for hit in await self.session.search(query)]

        async def add(self, label: str) -> None:
            await self.session.add_context(label)

        async def append(self, label: str, text: str) -> None:
            await self.session.append_context_block(label, text)

        async def labels(self) -> list[str]:
            return [block.label for block in await self.session.get_context_blocks()]

        async def prompt(self) -> str:
            return await self.session.system_prompt()

    for name, value in members.items():
        setattr(Talker, name, value)
    return Talker


async def talk(agent: Any, *numbers: int) -> None:
    """Ask some questions, and check that each is answered in a reasonable time."""
    for n in numbers:
        asking = agent.save_messages(f"Question {n} of the user, in a few words.")
        turn = await asyncio.wait_for(asking, 1000)
        assert turn.status == "completed", turn.error
