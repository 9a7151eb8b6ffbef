"""The model's view of a conversation, as the parts of the agent limit it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from outlast.agent.part import Part, Parts, report_failure
from outlast.chat.context.history import HistoryCache, Outputs, to_model_messages

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


class ModelView(Part):
    """The conversation of one agent, as its model sees it."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._cache = HistoryCache()

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
        return list(path)

    def to_model(
        self, window: Sequence[dict[str, Any]], instructions: str, outputs: Outputs
    ) -> list[ModelMessage]:
        """Convert messages for the model, with `outputs` in place of the results of tools."""
        cache = self._cache
        return to_model_messages(
            window, instructions=instructions, cache=cache, shorten=True, outputs=outputs
        ).messages
