"""The model's view of a conversation, as parts and `configure_session` limit it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from outlast.agent.part import Part, Parts, report_failure
from outlast.chat.context.compaction import Compactions
from outlast.chat.context.history import HistoryCache, Outputs, to_model_messages
from outlast.chat.context.session import Session
from outlast.core.hooks import call_hook

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

logger = logging.getLogger("outlast.chat")


class ModelView(Part):
    """The conversation of one agent, as its model sees it."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._compactions = parts[Compactions]
        self._cache = HistoryCache()
        self.session = Session()

    async def load(self) -> None:
        agent = self.parts.agent
        session = await call_hook(agent.configure_session, Session())
        if not isinstance(session, Session):
            raise TypeError(f"configure_session must return a Session, got {session!r}")
        overflow = agent.context_overflow
        if session.compaction is None and (overflow.reactive or overflow.proactive is not None):
            logger.warning(
                "%s: context_overflow is set, but there is no compaction function: a conversation that is"
                " too long will end with an error. Set one in configure_session: session.on_compaction(…)",
                self.activation.address,
            )
        self.session = session
        self._compactions.function = session.compaction

    def window(self, path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the part of this path that the model sees."""
        for shown in self.parts.overriding("shown"):
            part = cast(Part, shown.__self__)
            try:
                path = shown(path)
            except Exception as error:
                if part.battery is None:
                    raise
                report_failure(part, "shown", error)
        return self.session.window(path)

    def to_model(
        self, window: Sequence[dict[str, Any]], instructions: str, outputs: Outputs
    ) -> list[ModelMessage]:
        """Convert messages for the model, with `outputs` in place of the results of tools."""
        cache = self._cache
        return to_model_messages(
            window, instructions=instructions, cache=cache, shorten=True, outputs=outputs
        ).messages
