"""What becomes of messages that arrive while others are waiting or being answered. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.types.config import Debounce
from outlast.core.clock import seconds

Concurrency = str | Debounce  # "queue", "latest", "merge", "drop", or Debounce(seconds)

_POLICIES = ("queue", "latest", "merge", "drop")
_DEBOUNCE = "debounce:"


def policy_of(concurrency: Concurrency) -> str:
    """The policy as it is stored with an entry."""
    if isinstance(concurrency, Debounce):
        return f"{_DEBOUNCE}{round(seconds(concurrency.seconds) * 1000)}"
    if concurrency == "debounce":
        return policy_of(Debounce())
    if concurrency not in _POLICIES:
        raise ValueError(
            f"message_concurrency is one of {', '.join(_POLICIES)}, or a Debounce, not {concurrency!r}"
        )
    return concurrency


def is_superseded(entry: EntryRow, behind: Sequence[EntryRow]) -> bool:
    """True when a later message stands for this one too: it is stored, but gets no answer of its own."""
    return entry.policy != "queue" and any(other.policy != "queue" for other in behind)


def quiet_for(entry: EntryRow, now: int) -> int:
    """How many milliseconds an entry still waits for more. A clock that was set back adds none."""
    if not entry.policy.startswith(_DEBOUNCE):
        return 0
    window = int(entry.policy.removeprefix(_DEBOUNCE))
    return min(window, entry.accepted_at + window - now)
