"""The overlays of one agent, and their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.agent.state.facts import Facts
from outlast.session import tables
from outlast.session.compaction.overlay import Overlay, as_message, covering

OLD_RECORD = "chat:compaction"  # a fact of older versions: overlay number 0
IN_MEMORY = 20  # the newest ones; older branches may have older ones


class Overlays:
    """The summaries of one agent's conversation, on all its branches."""

    def __init__(self, parts: Parts) -> None:
        self._activation = parts.activation
        self._address = parts.activation.address.text
        self._facts = parts[Facts]
        self._known: list[Overlay] = []
        self.clears = 0  # how often the conversation was deleted
        self._before: dict[str, Overlay | None] = {}  # by the first message of a path
        self._shown: tuple[Overlay | None, dict[str, Any]] = (None, {})

    async def load(self) -> None:
        found = await self._activation.fetch(tables.OVERLAYS, self._address, IN_MEMORY)
        self._known = [Overlay(*row) for row in found]
        record = self._facts.get(OLD_RECORD, None, None)
        if isinstance(record, Mapping):
            last, summary = record.get("until"), record.get("summary")
            if isinstance(last, str) and isinstance(summary, str):
                self._known.append(Overlay(0, None, last, summary, 0, 0))

    async def find(self, path: Sequence[dict[str, Any]]) -> None:
        """Find the overlay of a path whose beginning is not in memory, for the methods below."""
        if not self._known or not path or covering(path, self._known) is not None:
            return
        first = str(path[0].get("id"))
        if first not in self._before:
            found = await self._activation.store.fetch(tables.OVERLAY_BEFORE, self._address, first)
            self._before = {first: Overlay(*found[0]) if found else None}

    def of(self, path: Sequence[dict[str, Any]]) -> Overlay | None:
        """Return the overlay that applies to a path, or None."""
        found = self._covering(path)
        return None if found is None else found[0]

    def _covering(self, path: Sequence[dict[str, Any]]) -> tuple[Overlay, int] | None:
        if not self._known or not path:
            return None
        found = covering(path, self._known)
        if found is None:
            before = self._before.get(str(path[0].get("id")))
            found = None if before is None else (before, 0)
        return found

    def over(
        self, path: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], Sequence[dict[str, Any]]]:
        """Return the summary of a path, if it has one, and the messages that it does not cover.

        The summary is the same object until it changes.
        """
        found = self._covering(path)
        if found is None:
            return [], path
        overlay, place = found
        if self._shown[0] is not overlay:  # messages are cached by identity
            self._shown = (overlay, as_message(overlay))
        return [self._shown[1]], path[place:]

    def next_number(self) -> int:
        return max((overlay.number for overlay in self._known), default=0) + 1

    def add(self, commit: Commit, overlay: Overlay) -> None:
        """Store an overlay; it applies once the commit is durable."""
        row = (
            overlay.number,
            overlay.first,
            overlay.last,
            overlay.summary,
            overlay.tokens,
            overlay.at,
        )
        commit.write((tables.ADD_OVERLAY, (self._address, *row)))
        commit.then(lambda: self._known.insert(0, overlay))

    def clear(self, commit: Commit) -> None:
        """Delete all overlays."""
        self.clears += 1
        commit.write((tables.CLEAR_OVERLAYS, (self._address,)))
        if self._facts.text(OLD_RECORD) not in (None, "null"):
            self._facts.put(commit, OLD_RECORD, "null")
        commit.then(self._known.clear)
        commit.then(self._before.clear)
