"""How an entry of the inbox ends: one value for every way in which it can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.results import TurnEnd
from outlast.chat.turn.turn import Turn


@dataclass(frozen=True, slots=True)
class Settlement:
    """An entry as it ends, with what comes of it."""

    entry: EntryRow  # as it is then
    end: TurnEnd
    turn: Turn | None = None  # None: it ends without one, or in the place of one that is gone
    message: dict[str, Any] | None = None  # the answer, as it is stored
    leaf: str | None = None  # the last message of the conversation, as it is then
    was_running: bool = False  # its turn had begun, in this process or in another
    is_put_back: bool = False  # it does not end: another process answers it
    is_sealed: bool = False  # recovery gives it up, and keeps the record
