"""A chat agent with context blocks, as small as can be: for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from outlast import Host
from outlast.agent.agent import Agent, parts_of
from outlast.agent.battery import Battery, BatteryPart
from outlast.agent.part import Parts
from outlast.agent.receipts import Receipts
from outlast.chat.think import Think
from outlast.chat.tools.contribution import Contribution
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.turn import Turn
from outlast.session.block import BlockSettings, ContextBlock
from outlast.session.blocks.blocks import Blocks
from outlast.session.blocks.render import rendered
from outlast.session.blocks.stored import BlockRows
from outlast.session.blocks.tools import ContextTools
from outlast.store.operations import Query
from outlast.store.schema import Schema
from outlast.testing import ScriptedModel

SCHEMA = Schema(
    "session",
    {
        "0001_session.sql": """
            CREATE TABLE session_blocks (
                agent TEXT NOT NULL, label TEXT NOT NULL, key TEXT NOT NULL, content TEXT NOT NULL,
                description TEXT, at INTEGER NOT NULL, PRIMARY KEY (agent, label, key)
            ) WITHOUT ROWID;
        """
    },
    owned={"session_blocks": "agent"},
)
ROWS = Query.same("SELECT label, key, content, description FROM session_blocks ORDER BY label, key")
RECEIPTS = Query.same("SELECT scope, value FROM receipts ORDER BY scope, key")


class BlocksPart(BatteryPart, ChatPart):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        activation = self.activation
        rows = BlockRows(self.address, activation.store, self.commits, activation.clock)
        self.blocks = Blocks(parts.agent.context_blocks(), rows, where=self.address)
        self.tools = ContextTools(self.blocks, parts[Receipts], parts.agent.forget)

    async def contribute(self, turn: Turn) -> Contribution:
        section = rendered(await self.blocks.read_all())
        return Contribution(source="session", tools=self.tools.offered(), sections=[section])


class HasBlocks(Agent):
    battery = Battery(name="session", part=BlocksPart, schema=SCHEMA)


class Rememberer(HasBlocks, Think):
    """Blocks by class attribute; the application's own methods stand for those of a session."""

    model = ScriptedModel("Hello.", repeat=True)
    blocks_of: ClassVar[Sequence[BlockSettings]] = (
        BlockSettings(label="memory", description="Learned facts", max_tokens=50),
    )
    loaded: ClassVar[set[tuple[str, str]] | None] = None

    def context_blocks(self) -> Sequence[BlockSettings]:
        return self.blocks_of

    async def forget(self, label: str, key: str) -> bool:
        """What a session does to the conversation: here it is stored, so that a commit shows."""
        if self.loaded is not None and (label, key) not in self.loaded:
            return False
        await self.storage.put(f"unloaded {key}", True)
        return True

    @property
    def _blocks(self) -> Blocks:
        return parts_of(self)[BlocksPart].blocks

    async def read(self, label: str) -> ContextBlock:
        return await self._blocks.get(label)

    async def write(self, label: str, content: str) -> ContextBlock:
        return await self._blocks.replace(label, content)

    async def add_to(self, label: str, *contents: str, fails: bool = False) -> str:
        """Append in one commit, and return what the code inside it reads."""
        async with self.commit():
            for content in contents:
                await self._blocks.append(label, content)
            if fails:
                raise ValueError("on purpose")
            return (await self._blocks.get(label)).content

    async def add_at_once(self, label: str, *contents: str) -> None:
        await asyncio.gather(*(self._blocks.append(label, content) for content in contents))


def remembering(*steps: Any, blocks: Sequence[BlockSettings] | None = None) -> type[Rememberer]:
    """The class, with a model that says this, and with these blocks."""
    attributes: dict[str, Any] = {"model": ScriptedModel(*steps)}
    if blocks is not None:
        attributes["blocks_of"] = tuple(blocks)
    return type("Rememberer", (Rememberer,), attributes)


async def outputs(host: Host, agent: type[Rememberer]) -> list[Any]:
    """The results of the tools in one turn."""
    turn = await host.get(agent, "r").save_messages("Go")
    assert turn.message is not None
    return [part["output"] for part in turn.message.parts if part["type"].startswith("tool-")]


def lone(*settings: BlockSettings) -> Blocks:
    """Blocks without a store, for providers that need none."""
    return Blocks(settings, cast(BlockRows, None), where="Test/t")


def of(label: str, provider: Any, **more: Any) -> BlockSettings:
    return BlockSettings(label=label, provider=provider, **more)
