"""Facts: named values of an agent, such as its state, held in memory and durable once set."""

from __future__ import annotations

import logging
from typing import Any

from outlast.agent.commit import Commit, Effect
from outlast.agent.part import Part, Parts
from outlast.agent.state import typed
from outlast.store.operations import Query, Statement

logger = logging.getLogger("outlast.agent")

_SET = Statement.same(
    "facts set",
    "agent text, name text, value text",
    """
        INSERT INTO facts (agent, name, value) VALUES (:agent, :name, :value)
        ON CONFLICT (agent, name) DO UPDATE SET value = excluded.value
    """,
    key=2,
)
ALL = Query.same("SELECT name, value FROM facts WHERE agent = ?")


class Facts(Part):
    """The named values of one agent. They are read at activation, so `get` does no I/O."""

    first_reads = (ALL,)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._stored: dict[str, str] = {}

    async def load(self) -> None:
        """Read all facts, once per activation."""
        self._stored = dict(await self.activation.fetch(ALL, self.address))

    def get(self, name: str, kind: type[Any] | None, default: Any) -> Any:
        """Return a copy of the value as `kind`, or `default` if it was never set or is invalid."""
        block = self.commits.current()
        text = None if block is None else block.view(self, dict[str, str]).get(name)
        text = text if text is not None else self._stored.get(name)
        if text is None:
            return default
        try:
            return typed.load(kind, text)
        except Exception as error:
            logger.error(
                "%s: cannot read the stored %s, using the default: %s",
                self.address,
                name,
                error,
            )
            return default

    def text(self, name: str) -> str | None:
        """Return the stored JSON, or None if the fact was never set."""
        return self._stored.get(name)

    def put(self, commit: Commit, name: str, text: str) -> None:
        """Set a value in the caller's commit. `get` returns it once the commit is durable."""
        commit.write((_SET, (self.address, name, text)))
        commit.then(lambda: self.remember(name, text))

    def remember(self, name: str, text: str) -> None:
        self._stored[name] = text

    def forget(self, name: str) -> None:
        self._stored.pop(name, None)

    async def set(self, name: str, text: str, then: Effect | None = None) -> None:
        """Set a value. Durable when this returns; inside `commit()`, when the block ends."""
        block = self.commits.current()
        if block is not None:
            self.put(block, name, text)
            block.view(self, dict[str, str])[name] = text
            if then is not None:
                block.then(then)
            return
        writing = self.commits.submit([(_SET, (self.address, name, text))], then)
        # The next change builds on this one already. If the write fails, the host discards the agent.
        self._stored[name] = text
        await writing
