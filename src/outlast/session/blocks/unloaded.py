"""The conversation without the contents of entries that the model has unloaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.chat.transcript.grown import Grown
from outlast.session.blocks.loaded import Entry, followed, unloaded_marker

Actions = tuple[tuple[int, str, Entry], ...]
"""Which parts of a message load or unload which entry."""


class UnloadedView:
    """Replaces the results of `load_context` whose entry was unloaded later by one line.

    A message that is shown changed is the same object each time, so that its conversion can be kept.
    """

    __slots__ = ("_actions", "_changed")

    def __init__(self) -> None:
        self._actions = Grown(_actions_of)
        self._changed: dict[str, tuple[dict[str, Any], dict[int, Entry], dict[str, Any]]] = {}

    def over(self, path: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return the path as the model sees it."""
        messages = list(path)
        actions = self._actions.of(messages)
        last = {
            entry: (place, part)
            for place, each in enumerate(actions)
            for part, action, entry in each
            if action == "unload"
        }
        if not last:
            return path
        shown = list(messages)
        for place, each in enumerate(actions):
            void = {
                part: entry
                for part, action, entry in each
                if action == "load" and (place, part) < last.get(entry, (-1, -1))
            }
            if void:
                shown[place] = self._without(messages[place], void)
        return shown

    def _without(self, message: dict[str, Any], void: dict[int, Entry]) -> dict[str, Any]:
        id = str(message.get("id"))
        known = self._changed.get(id)
        if known is None or known[0] is not message or known[1] != void:
            parts = [
                {**part, "output": unloaded_marker(*void[place])} if place in void else part
                for place, part in enumerate(message["parts"])
            ]
            known = self._changed[id] = (message, void, {**message, "parts": parts})
        return known[2]


def _actions_of(message: dict[str, Any]) -> Actions:
    parts = message.get("parts")
    found = enumerate(map(followed, parts if isinstance(parts, list) else ()))
    return tuple((place, *action) for place, action in found if action is not None)
