"""Overlays: summaries that stand in for the beginning of a conversation, when the model sees it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

HEADING = "Summary of the conversation so far:"
KEEP_TOKENS = 20_000  # of the newest messages, which stay as they are


@dataclass(frozen=True, slots=True)
class Overlay:
    """A summary of all messages up to one."""

    number: int
    first: str | None  # the first message that it covers; None in records of older versions
    last: str
    summary: str
    tokens: int  # of the messages that it covers, estimated
    at: int  # milliseconds


def covering(
    path: Sequence[dict[str, Any]], overlays: Iterable[Overlay]
) -> tuple[Overlay, int] | None:
    """Return the overlay of this path that reaches furthest, and the place behind its last message.

    A message has one parent, so whatever came before `last` is on the path, too; other branches have overlays
    of their own. The last message of a path is never covered: it waits for an answer, or is to be continued.
    The search begins at the end, since few messages follow an overlay.
    """
    by_last: dict[str, Overlay] = {}
    for overlay in sorted(overlays, key=lambda each: each.number):
        by_last[overlay.last] = overlay
    for place in range(len(path) - 2, -1, -1):
        found = by_last.get(str(path[place].get("id")))
        if found is not None:
            return found, place + 1
    return None


def as_message(overlay: Overlay) -> dict[str, Any]:
    """Return the message that the model sees in place of the messages that an overlay covers."""
    text = f"{HEADING}\n\n{overlay.summary}"
    return {
        "id": f"compaction_{overlay.number}",
        "role": "user",
        "parts": [{"type": "text", "text": text}],
    }


def cut(path: Sequence[dict[str, Any]], tokens: Sequence[int], most: int = KEEP_TOKENS) -> int:
    """Return how many messages at the beginning to summarise: 0 if that is of no use.

    The newest messages are kept, up to a quarter of the conversation and to `most` tokens; at least those
    from the user's last message on. The kept part begins with a message of the user, so that providers accept
    it, and that no answer is separated from its question.
    """
    users = [place for place, message in enumerate(path) if message.get("role") == "user"]
    if not users:
        return 0
    budget = min(most, sum(tokens) // 4)
    kept = users[-1]
    used, end = 0, len(tokens)
    for place in reversed(users):
        used, end = used + sum(tokens[place:end]), place
        if used > budget:
            break
        kept = place
    return kept
