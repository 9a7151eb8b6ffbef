"""The settings of `configure_session`: how much of a conversation the model sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlast.chat.message.results import Message
from outlast.core import json


@dataclass(frozen=True, slots=True)
class Session:
    """The system prompt, and how much of the transcript is sent with it.

    ```python
    from outlast import Session, Think

    class Brief(Think):
        def configure_session(self, session: Session) -> Session:
            return session.with_system_prompt("Answer in one sentence.").with_window(messages=20)
    ```
    """

    system_prompt: str | None = None  # None: `get_system_prompt()`
    max_messages: int | None = None
    max_characters: int | None = None
    compaction: Callable[[Sequence[Message]], Any] | None = None

    def with_system_prompt(self, text: str) -> Session:
        """Use this instead of `get_system_prompt()`."""
        if not isinstance(text, str):
            raise TypeError(f"a system prompt must be a str, got {text!r}")
        return replace(self, system_prompt=text)

    def with_window(self, *, messages: int | None = None, characters: int | None = None) -> Session:
        """Show the model only the last messages: at most this many, or this many characters in total."""
        for what, limit in (("messages", messages), ("characters", characters)):
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                raise ValueError(f"{what} must be an int of at least 1, got {limit!r}")
        return replace(self, max_messages=messages, max_characters=characters)

    def on_compaction(self, function: Callable[[Sequence[Message]], Any]) -> Session:
        """Set the function that summarises old messages: it returns a str or None, and may be async."""
        if not callable(function):
            raise TypeError(f"a compaction must be a function, got {function!r}")
        return replace(self, compaction=function)

    def window(self, path: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the end of the conversation that the model sees. It begins with a user's message.

        It always contains the last message, and the one that it answers.
        """
        if self.max_messages is None and self.max_characters is None:
            return list(path)
        first, left = len(path), self.max_characters
        for place in range(len(path) - 1, -1, -1):
            if self.max_messages is not None and len(path) - place > self.max_messages:
                break
            if left is not None:
                left -= len(json.encode(path[place], "message", json.MAX_DEPTH + 10))
                if left < 0:
                    break
            first = place
        latest = [n for n, message in enumerate(path) if message.get("role") == "user"]
        users = [n for n in latest if n >= first]
        if users:
            return list(path[users[0] :])
        return list(path[latest[-1] :] if latest else path)
