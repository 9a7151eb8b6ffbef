"""What clients see of a conversation: the stored path, then accepted messages that are not in it yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class Stamp(NamedTuple):
    """Distinguishes two states of a message without comparing their contents."""

    id: str
    size: int  # of its JSON
    digest: int  # valid in one process only


def stamp_of(id: str, body: str) -> Stamp:
    return Stamp(id, len(body), hash(body))


@dataclass(frozen=True, slots=True)
class Shown:
    """Messages, oldest first, each with its stamp."""

    messages: list[dict[str, Any]]
    stamps: list[Stamp]
    is_whole: bool = True  # there are no older messages

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.messages)

    @property
    def answer(self) -> dict[str, Any] | None:
        """The last assistant message."""
        found = (each for each in reversed(self.messages) if each["role"] == "assistant")
        return next(found, None)


def with_waiting(
    stored: Shown, waiting: Iterable[tuple[bool, list[tuple[dict[str, Any], Stamp]]]]
) -> Shown:
    """Return the path, followed by the messages of waiting requests, in order. Pure.

    `waiting` says for each request whether it edits a message: an edit removes what followed that message.
    """
    messages, stamps = list(stored.messages), list(stored.stamps)
    places = {stamp.id: place for place, stamp in enumerate(stamps)}
    for edits, brought in waiting:
        for message, stamp in brought:
            place = places.get(stamp.id)
            if place is None:
                places[stamp.id] = len(messages)
            elif edits:
                for removed in stamps[place + 1 :]:
                    places.pop(removed.id, None)
                del messages[place:], stamps[place:]
            else:
                continue
            messages.append(message)
            stamps.append(stamp)
    return Shown(messages, stamps, stored.is_whole)
