"""State and configuration: one value each per agent, in memory while the agent is, durable when set."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from outlast.agent.commit import Commits
from outlast.agent.state import typed
from outlast.host.life.activation import Activation
from outlast.store.operations import Operation, Query, Statement

logger = logging.getLogger("outlast.agent")

_SET = Statement(
    "facts set",
    sqlite="""
        INSERT INTO facts (agent, name, value) VALUES (?, ?, ?)
        ON CONFLICT (agent, name) DO UPDATE SET value = excluded.value
    """,
    postgres="""
        INSERT INTO facts (agent, name, value) SELECT u.agent, u.name, u.value FROM {rows}
        ON CONFLICT (agent, name) DO UPDATE SET value = excluded.value
    """,
    columns=[("agent", "text"), ("name", "text"), ("value", "text")],
    key=2,
)
ALL = Query.same("SELECT name, value FROM facts WHERE agent = ?")


class Facts:
    """The values that belong to an agent by name. Read at activation, so that reading them is free."""

    def __init__(self, activation: Activation, commits: Commits) -> None:
        self._agent = activation.address.text
        self._activation = activation
        self._commits = commits
        self._stored: dict[str, str] = {}

    async def load(self) -> None:
        """Read them once, when the agent is activated."""
        self._stored = dict(await self._activation.fetch(ALL, self._agent))

    def get(self, name: str, kind: type[Any] | None, default: Any) -> Any:
        """A copy of the value, of the given type; `default` when it was never set or cannot be read."""
        unit = self._commits.current()
        text = unit.facts.get(name) if unit is not None else None
        text = text if text is not None else self._stored.get(name)
        if text is None:
            return default
        try:
            return typed.load(kind, text)
        except Exception as error:
            logger.error(
                "%s: the stored %s cannot be read (%s); the default is used",
                self._agent,
                name,
                error,
            )
            return default

    def text(self, name: str) -> str | None:
        """What is stored, as JSON; None: it was never set."""
        return self._stored.get(name)

    def operation(self, name: str, text: str) -> Operation:
        """What sets a value, for a commit of the caller's own; `remember` it when that is durable."""
        return _SET, (self._agent, name, text)

    def remember(self, name: str, text: str) -> None:
        self._stored[name] = text

    def forget(self, name: str) -> None:
        self._stored.pop(name, None)

    async def set(self, name: str, text: str, then: Callable[[], None] | None = None) -> None:
        """Set a value. Durable when this returns; inside `commit()`, when the block ends."""
        unit = self._commits.current()
        if unit is not None:
            unit.facts[name] = text

        def durable() -> None:
            if unit is not None:
                self._stored[name] = text
            if then is not None:
                then()

        writing = self._commits.hand_over([self.operation(name, text)], durable)
        if unit is None:
            # From here on the next change builds on this one. If it fails, the object is discarded.
            self._stored[name] = text
            await writing
