"""The end of an inbox entry as a value, for every kind of end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.results import TurnEnd
from outlast.chat.turn.turn import Turn


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of an entry."""

    entry: EntryRow  # after the end
    end: TurnEnd
    turn: Turn | None = None  # None: it ends without a turn in this process
    message: dict[str, Any] | None = None  # the answer, as it is stored
    leaf: str | None = None  # the last message of the conversation after the end
    was_running: bool = False  # its turn had begun, in this process or an earlier one
    is_put_back: bool = False  # it does not end, but is left to another process
    is_sealed: bool = False  # recovery gave it up, and keeps the record
