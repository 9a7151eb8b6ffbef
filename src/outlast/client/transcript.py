"""The conversation as a client knows it: its newest messages, and older ones it has loaded. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

Messages = list[dict[str, Any]]


class Transcript:
    """The known messages, oldest first. `has_earlier`: the server has older ones."""

    def __init__(self) -> None:
        self.messages: Messages = []
        self.has_earlier = False

    def show(self, window: Sequence[dict[str, Any]], *, has_earlier: bool) -> None:
        """Show the newest messages. Known older ones stay above them."""
        at = self._place(window[0].get("id")) if window and has_earlier else None
        if at is None:
            self.messages, self.has_earlier = list(window), has_earlier
        else:
            self.messages = [*self.messages[:at], *window]

    def show_after(self, id: str | None, changed: Sequence[dict[str, Any]]) -> bool:
        """Replace everything after the message `id` (None: everything). False if it is unknown."""
        if id is None:
            self.messages, self.has_earlier = list(changed), False
            return True
        at = self._place(id)
        if at is None:
            return False
        self.messages = [*self.messages[: at + 1], *changed]
        return True

    def update(self, message: dict[str, Any]) -> None:
        """Replace a changed message; an unknown one is ignored."""
        at = self._place(message.get("id"))
        if at is not None:
            self.messages = [*self.messages[:at], message, *self.messages[at + 1 :]]

    def prepend(
        self, older: Sequence[dict[str, Any]], *, before: str, has_earlier: bool
    ) -> Messages:
        """Add older messages before that one, and return the new ones; None if that message is gone."""
        if not self.messages or self.messages[0].get("id") != before:
            return []
        news = [*takewhile(lambda message: message.get("id") != before, older)]
        self.messages, self.has_earlier = [*news, *self.messages], has_earlier
        return news

    def clear(self) -> None:
        self.messages, self.has_earlier = [], False

    def _place(self, id: object) -> int | None:
        """Return the index of a message, searching from the end."""
        for at in range(len(self.messages) - 1, -1, -1):
            if self.messages[at].get("id") == id:
                return at
        return None


def unanswered(part: Mapping[str, Any]) -> bool:
    """Return whether a call still needs its result or its approval."""
    return part.get("state") in ("input-streaming", "input-available", "approval-requested")
