"""The end of a conversation that the model sees, as `with_window` limits it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.core import json
from outlast.session.builder import Session


def windowed(path: Sequence[dict[str, Any]], settings: Session) -> Sequence[dict[str, Any]]:
    """Return the end of the conversation, beginning with a user's message.

    It always contains the last message, and the one that it answers.
    """
    if settings.max_messages is None and settings.max_characters is None:
        return path
    first, left = len(path), settings.max_characters
    for place in range(len(path) - 1, -1, -1):
        if settings.max_messages is not None and len(path) - place > settings.max_messages:
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
