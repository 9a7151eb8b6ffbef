"""Policies for messages that arrive while others are waiting or being answered. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.types.config import Debounce
from outlast.core.clock import seconds

Concurrency = str | Debounce  # "queue", "latest", "merge", "drop", or Debounce(seconds)

_POLICIES = ("queue", "latest", "merge", "drop")
_DEBOUNCE = "debounce:"


def policy_of(concurrency: Concurrency) -> str:
    """Return the policy as it is stored with an entry."""
    if isinstance(concurrency, Debounce):
        return f"{_DEBOUNCE}{round(seconds(concurrency.seconds) * 1000)}"
    if concurrency == "debounce":
        return policy_of(Debounce())
    if concurrency not in _POLICIES:
        raise ValueError(
            f"message_concurrency must be one of {', '.join(_POLICIES)}, or a Debounce, got {concurrency!r}"
        )
    return concurrency


def is_superseded(entry: EntryRow, behind: Sequence[EntryRow]) -> bool:
    """Return whether a later message replaces this one: it is stored, but gets no answer of its own."""
    return entry.policy != "queue" and any(other.policy != "queue" for other in behind)


def quiet_for(entry: EntryRow, now: int) -> int:
    """Return how many milliseconds an entry still waits for more. A clock set back does not add any."""
    if not entry.policy.startswith(_DEBOUNCE):
        return 0
    window = int(entry.policy.removeprefix(_DEBOUNCE))
    return min(window, entry.accepted_at + window - now)
