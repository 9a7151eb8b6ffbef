"""Tools that replace others of the same name: said once."""

from __future__ import annotations

import logging

from outlast.agent.part import Part, Parts

logger = logging.getLogger("outlast.chat")


class ToolClashes(Part):
    """The clashes of one agent that are in the log."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._logged: frozenset[tuple[str, str, str]] = frozenset()

    def report(self, name: str, replaced: str, by: str) -> None:
        """A source has a tool that an earlier source has, too."""
        clash = name, replaced, by
        if clash not in self._logged:
            self._logged |= {clash}
            text = "%s: the tool %r of the source %r replaces the one of %r"
            logger.warning(text, self.address, name, by, replaced)
