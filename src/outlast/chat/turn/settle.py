"""The only place that ends an entry: outcome, answer, last chunks and additions of parts, in one commit."""

from __future__ import annotations

from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import EntryRow, Outcome
from outlast.chat.message.incoming import sanitised
from outlast.chat.message.results import Message, TurnEnd
from outlast.chat.stream.stream import Stream
from outlast.chat.transcript.transcript import Change, Transcript
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settlement import Settlement
from outlast.chat.turn.turn import Turn

_STATUS = {"completed": "settled", "aborted": "stopped", "interrupted": "interrupted"}


class Settler(ChatPart):
    """Ends the entries of one agent. The callers hold `Transcript.changing`."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]

    async def answer_change(
        self, message: dict[str, Any], entry: EntryRow, under: str | None, outcome: Outcome
    ) -> Change:
        """Return the change that stores an answer."""
        status = _STATUS.get(outcome, "settled")
        return await self._transcript.answering(message, under, status=status, turn=entry.id)

    def end(
        self,
        commit: Commit,
        entry: EntryRow,
        outcome: Outcome,
        *,
        error: str | None = None,
        detail: str | None = None,
        turn: Turn | None = None,
        stream: Stream | None = None,
        message: dict[str, Any] | None = None,
        change: Change | None = None,
        is_sealed: bool = False,
    ) -> None:
        """End an entry. `stream` must be drained; its waiting chunks are written, too."""
        answer = None if message is None else Message(message)
        end = TurnEnd(outcome, answer, error, None if turn is None else turn.output)
        if stream is not None:
            stream.finish(commit, end)
        message_id = None if message is None else message["id"]
        ended = self._inbox.end(commit, entry, outcome, error, message_id, detail)
        if change is not None:
            self._transcript.apply(commit, change)
        leaf = self._transcript.leaf if change is None else change.leaf
        was_running = entry.state == "running"
        self._settled(
            commit,
            Settlement(ended, end, turn, message, leaf, was_running, is_sealed=is_sealed),
        )

    def put_back(self, commit: Commit, turn: Turn) -> None:
        """Return an entry to the queue for another process; its messages stay applied."""
        waiting = self._inbox.put_back(commit, turn.entry)
        end = TurnEnd("skipped")
        self._settled(commit, Settlement(waiting, end, turn, was_running=True, is_put_back=True))

    def _settled(self, commit: Commit, settlement: Settlement) -> None:
        self.parts.join("settled", commit, settlement)


def storable(message: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a message without the fields that are not stored."""
    return None if message is None else sanitised(message)
