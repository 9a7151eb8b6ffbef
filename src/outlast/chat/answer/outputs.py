"""Results as the model sees them, where they differ from the stored ones: `@tool(to_model=…)`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from outlast.chat.context.content import as_content
from outlast.chat.message.tool_part import is_settled, tool_name
from outlast.chat.tools.declare import ToolSpec, ask
from outlast.chat.tools.toolset import Found

logger = logging.getLogger("outlast.chat")

_ABSENT = object()


class ModelOutputs:
    """The results of `to_model`, which is called once per tool call in a turn."""

    def __init__(self, agent: object) -> None:
        self._agent = agent
        self._made: dict[str, dict[str, Any]] = {}  # by message and call
        self._failed: set[tuple[str, str]] = set()

    async def of(
        self, messages: Iterable[Any], tools: Mapping[str, Found]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return the results in these messages that `to_model` replaced, by message and call."""
        specs = {name: spec for name, each in tools.items() if (spec := each.spec).to_model}
        if specs:
            for message in messages:
                await self._add(message, specs)
        return self._made

    async def _add(self, message: Any, specs: Mapping[str, ToolSpec]) -> None:
        id = message.get("id") if isinstance(message, Mapping) else None
        parts = message.get("parts") if isinstance(message, Mapping) else None
        if not isinstance(id, str) or not isinstance(parts, list):
            return
        for part in parts:
            spec = specs.get(tool_name(part) or "")
            if spec is not None and is_settled(part) and part.get("state") == "output-available":
                await self._make(id, part, spec)

    async def _make(self, message: str, part: Mapping[str, Any], spec: ToolSpec) -> None:
        call = str(part.get("toolCallId"))
        made = self._made.get(message, {})
        if call in made or (message, call) in self._failed:
            return
        assert spec.to_model is not None
        try:
            output = deepcopy(part.get("output"))  # the function must not change the stored output
            content = as_content(await ask(self._agent, spec, spec.to_model, output))
        except Exception:
            self._failed.add((message, call))
            name = tool_name(dict(part))
            logger.exception("to_model of tool %s raised; the model sees the stored output", name)
            return
        self._made[message] = {**made, call: content}
