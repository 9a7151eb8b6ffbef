"""How a turn begins: an entry is claimed and applied, in one commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from outlast.agent.part import Parts
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.origin import AUTO
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.repair import needs_closing, open_calls, repaired
from outlast.chat.message.tool_part import tool_name
from outlast.chat.stream.streams import Streams
from outlast.chat.transcript.transcript import Change, Transcript
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.part_repair import PartRepair, mark_of, without_mark
from outlast.chat.turn.turn import Turn
from outlast.chat.types import events
from outlast.core import json
from outlast.core.errors import CommitRefused
from outlast.core.text import described

logger = logging.getLogger("outlast.chat")


class Claims(ChatPart):
    """The beginnings of the turns of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._streams = parts[Streams]
        self._repair = parts[PartRepair]

    async def new(self, entry: EntryRow) -> list[dict[str, Any]]:
        """The entry's messages that are not stored yet."""
        messages = _messages(entry)
        known = await self._transcript.stored_ids([message["id"] for message in messages])
        return [message for message in messages if message["id"] not in known]

    def _unseen(self, entry: EntryRow) -> list[dict[str, Any]]:
        """Those that are not among the messages in memory."""
        seen = {message.get("id") for message in self._transcript.path}
        return [message for message in _messages(entry) if message["id"] not in seen]

    async def unanswered(self, entry: EntryRow) -> Change | None:
        """What keeps the messages of a user that are not to be answered; None: there are none.

        A submission that is cancelled before its turn leaves nothing behind.
        """
        if entry.messages is None or not self._inbox.origins[entry.origin].keeps_messages:
            return None
        if entry.kind == "regenerate":  # another text for a message
            found = await self._place(entry)
            return None if found is None else found[0]
        return self._transcript.appending(await self.new(entry))

    async def claim(self, entry: EntryRow) -> Turn | None:
        """Claim an entry and apply it. None: there is nothing to answer.

        The caller holds `Transcript.changing`. What is not in memory is taken for new, and stored on that
        condition: a look at the store first would cost a round trip of every turn.
        """
        try:
            return await self._claim(entry, is_sure=False)
        except CommitRefused:
            known = await self._transcript.stored_ids([each["id"] for each in _messages(entry)])
            if not known:
                raise
            return await self._claim(entry, is_sure=True)

    async def _claim(self, entry: EntryRow, *, is_sure: bool) -> Turn | None:
        found = await self._place(entry, is_sure=is_sure)
        if found is None:
            return None
        change, under, begun = found
        message_id = begun["id"] if begun is not None else self.activation.ids.new("message")
        change, closed = await self._repaired(change, closes=entry.origin != AUTO)
        if begun is not None:
            begun = change.path[-1]
        commit = self.commits.new()
        running = self._inbox.claim(commit, entry, under, message_id)
        stream = self._streams.of(entry)
        commit.undo(lambda: self._streams.drop_unread(entry.id))
        turn = Turn(self.address, running, stream, message_id=message_id, under=under, begun=begun)
        turn.repaired = tuple(closed)
        self._transcript.apply(commit, change)
        self.parts.join("claimed", commit, turn)
        await commit.stored()
        now = self._inbox.current(entry)
        if now is None:
            raise CommitRefused("it was ended while it was being claimed")
        stream.open_for(running.attempt, self.activation.submit)
        if now.cancelled is not None:
            turn.abort.set(now.cancelled)
        return turn

    async def _place(
        self, entry: EntryRow, *, is_sure: bool = True
    ) -> tuple[Change, str | None, dict[str, Any] | None] | None:
        """The path as it will be, the message that is answered, and the one that goes on."""
        transcript = self._transcript
        if entry.kind == "continue":
            begun = transcript.path[-1] if transcript.path else None
            if begun is None or begun.get("role") != "assistant":
                return None
            is_other = entry.target is not None and entry.target != begun["id"]
            if entry.origin == AUTO and (is_other or open_calls(begun)):
                return None  # the conversation has gone another way
            change = Change([], list(transcript.path), transcript.leaf)
            return change, transcript.parent_of(begun["id"]), begun
        if entry.kind == "regenerate":
            under = await self._place_of_another_answer(entry.target)
            if under is None:
                return None
            change = await transcript.branching(under)
            if entry.messages is not None:  # another text under the same id
                change = transcript.with_replaced(change, json.decode(entry.messages))
            return change, under, None
        new = await self.new(entry) if is_sure else self._unseen(entry)
        if not new and transcript.is_answered:
            return None
        change = transcript.appending(new, must_be_new=not is_sure)
        return change, change.leaf, None

    async def _place_of_another_answer(self, target: str | None) -> str | None:
        """The message under which another answer belongs; None: there is none."""
        path = self._transcript.path
        if target is None:
            if not path:
                return None
            if path[-1].get("role") != "assistant":
                return str(path[-1]["id"])  # it has none yet
            target = str(path[-1]["id"])
        found = await self._transcript.place_of(target)
        if found is None:
            return None
        role, parent = found
        return target if role == "user" else parent

    async def _repaired(self, change: Change, *, closes: bool) -> tuple[Change, list[str]]:
        """The same, with an outcome for each call that the model will be shown; and which were changed."""
        try:
            changed, closed = repaired(change.path) if closes else ([], [])
        except Exception as error:  # what is stored may be anything
            logger.exception("%s: the conversation cannot be repaired", self.address)
            self.activation.events.emit(
                events.StoredDamaged, self.address, "the conversation", described(error)
            )
            return change, []
        if self._repair.is_wanted:
            changed, asked = await self._by_agent(change.path, changed, closes)
            closed += [id for id in asked if id not in closed]
        return (self._transcript.with_replaced(change, changed) if changed else change), closed

    async def _by_agent(
        self, path: Sequence[dict[str, Any]], changed: list[dict[str, Any]], closes: bool
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """What the agent makes of the calls whose outcome nobody knows; and which it has changed."""
        after = {message["id"]: message for message in changed}
        asked: list[str] = []
        for stored in path:
            closed = after.get(stored["id"], stored)
            places = [
                place
                for place, part in enumerate(_parts_of(stored))
                if is_due(part) or (closes and is_open(part))
            ]
            if not places:
                continue
            parts = list(closed["parts"])
            for place in places:
                before, part = stored["parts"][place], without_mark(parts[place])
                shown = {**before, "input": part.get("input", {})}
                made = await self._repair.made_of(shown)
                if made is not None:
                    asked.append(str(before.get("toolCallId")))
                parts[place] = part if made is None else made
            after[stored["id"]] = {**closed, "parts": parts}
        return list(after.values()), asked


def is_due(part: Any) -> bool:
    """Whether this call has been closed as interrupted or unknown, and the agent has not been asked."""
    return tool_name(part) is not None and mark_of(part) == "due"


def is_open(part: Any) -> bool:
    """Whether this call has no outcome."""
    return tool_name(part) is not None and needs_closing(part)


def _parts_of(message: dict[str, Any]) -> list[Any]:
    parts = message.get("parts")
    is_answer = message.get("role") == "assistant" and isinstance(parts, list)
    return list(parts) if is_answer and parts else []


def _messages(entry: EntryRow) -> list[dict[str, Any]]:
    """The messages that an entry brings. Raises if they are not what was accepted."""
    messages: list[dict[str, Any]] = [] if entry.messages is None else json.decode(entry.messages)
    if not all(isinstance(message["id"], str) for message in messages):
        raise TypeError("a message without an id")
    return messages
