"""What clients see of a conversation: the stored path, then what was accepted and is not in it yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class Stamp(NamedTuple):
    """Tells two states of a message apart without looking at what it says."""

    id: str
    size: int  # of its JSON
    digest: int  # the same in one process only


def stamp_of(id: str, body: str) -> Stamp:
    return Stamp(id, len(body), hash(body))


@dataclass(frozen=True, slots=True)
class Shown:
    """Messages, oldest first, each with its stamp."""

    messages: list[dict[str, Any]]
    stamps: list[Stamp]
    is_whole: bool = True  # nothing is older

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.messages)

    @property
    def answer(self) -> dict[str, Any] | None:
        """The last message of the assistant."""
        found = (each for each in reversed(self.messages) if each["role"] == "assistant")
        return next(found, None)


def with_waiting(
    stored: Shown, waiting: Iterable[tuple[bool, list[tuple[dict[str, Any], Stamp]]]]
) -> Shown:
    """The path and then the messages of requests that wait, in order. Pure.

    `waiting` says of each request whether it edits a message: then what followed that message is gone.
    """
    messages, stamps = list(stored.messages), list(stored.stamps)
    places = {stamp.id: place for place, stamp in enumerate(stamps)}
    for edits, brought in waiting:
        for message, stamp in brought:
            place = places.get(stamp.id)
            if place is None:
                places[stamp.id] = len(messages)
            elif edits:
                for gone in stamps[place + 1 :]:
                    places.pop(gone.id, None)
                del messages[place:], stamps[place:]
            else:
                continue
            messages.append(message)
            stamps.append(stamp)
    return Shown(messages, stamps, stored.is_whole)
