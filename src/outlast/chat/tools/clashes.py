"""Tools that replace others of the same name: each clash is logged once."""

from __future__ import annotations

import logging

from outlast.agent.part import Part, Parts

logger = logging.getLogger("outlast.chat")


class ToolClashes(Part):
    """The logged clashes of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._logged: frozenset[tuple[str, str, str]] = frozenset()

    def report(self, name: str, replaced: str, by: str) -> None:
        """Log that a tool of one source replaces that of an earlier source, unless that was logged."""
        clash = name, replaced, by
        if clash not in self._logged:
            self._logged |= {clash}
            text = "%s: tool %r of source %r replaces that of source %r"
            logger.warning(text, self.address, name, by, replaced)
