"""The state of an agent: one value, validated before it is stored, and sent to its connections."""

from __future__ import annotations

import copy
import inspect
import logging
from typing import Any

from outlast.agent.events import StateUpdated
from outlast.agent.notices import StateChanged
from outlast.agent.part import Part, Parts
from outlast.agent.state import typed
from outlast.agent.state.facts import Facts
from outlast.core.hooks import call_hook

logger = logging.getLogger("outlast.agent")


class State(Part):
    """The state and the configuration of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._facts = parts[Facts]

    def get(self) -> Any:
        """Return a copy of the state."""
        agent = self.parts.agent
        return self._facts.get("state", agent.state_type, copy.deepcopy(agent.initial_state))

    def text(self) -> str | None:
        """Return the state as JSON, or None if the agent has no state."""
        state = self.get()
        if state is None:  # a stored null is a state
            return self._facts.text("state")
        return typed.dump(self.parts.agent.state_type, state, "state")

    async def change(self, state: Any, source: Any) -> None:
        """Replace the state. Durable when this returns; inside `commit()`, when the block ends."""
        kind = self.parts.agent.state_type
        text = typed.dump(kind, state, "state")
        self._validate(typed.load(kind, text), source)

        def changed() -> None:
            self.activation.events.emit(StateUpdated, self.address)
            self.activation.tell(StateChanged(text, source))
            self.activation.spawn(self._call_hook(text, source), "on_state_changed")

        await self._facts.set("state", text, changed)

    def _validate(self, state: Any, source: Any) -> None:
        agent = self.parts.agent
        verdict: Any = agent.validate_state_change(state, source)
        if inspect.isawaitable(verdict):
            if inspect.iscoroutine(verdict):
                verdict.close()
            raise TypeError(
                f"{type(agent).__name__}.validate_state_change must not be async; use a plain `def` that"
                f" raises"
            )

    async def _call_hook(self, text: str, source: Any) -> None:
        agent = self.parts.agent
        try:
            await call_hook(agent.on_state_changed, typed.load(agent.state_type, text), source)
        except Exception:
            logger.exception("%s: on_state_changed failed", self.address)

    async def configure(self, config: Any) -> None:
        text = typed.dump(self.parts.agent.config_type, config, "configuration")
        await self._facts.set("config", text)

    def config(self) -> Any:
        return self._facts.get("config", self.parts.agent.config_type, None)
