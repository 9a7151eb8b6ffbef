"""The beginning of a turn: claiming an entry and applying its messages, in one commit."""

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
from outlast.chat.transcript.grown import new_in
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
        self._sound: list[dict[str, Any]] = []  # a path that needs no repair

    async def new(self, entry: EntryRow) -> list[dict[str, Any]]:
        """Return the entry's messages that are not stored yet."""
        messages = _messages(entry)
        known = await self._transcript.stored_ids([message["id"] for message in messages])
        return [message for message in messages if message["id"] not in known]

    def _unseen(self, entry: EntryRow) -> list[dict[str, Any]]:
        """Return the entry's messages that are not in memory."""
        seen = self._transcript.ids
        return [message for message in _messages(entry) if message["id"] not in seen]

    async def unanswered(self, entry: EntryRow) -> Change | None:
        """Return the change that stores the messages of an entry without answering them, or None.

        A submission that is cancelled before its turn stores nothing.
        """
        if entry.messages is None or not self._inbox.origins[entry.origin].keeps_messages:
            return None
        if entry.kind == "regenerate":  # an edited message
            found = await self._place(entry)
            return None if found is None else found[0]
        return self._transcript.appending(await self.new(entry))

    async def claim(self, entry: EntryRow) -> Turn | None:
        """Claim an entry and apply its messages. None if there is nothing to answer.

        The caller holds `Transcript.changing`. Messages that are not in memory are assumed to be new, and the
        commit is refused if they are not: reading first would cost a round trip per turn.
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
            raise CommitRefused("the entry ended while it was being claimed")
        stream.open_for(running.attempt, self.activation.submit)
        if now.cancelled is not None:
            turn.abort.set(now.cancelled)
        return turn

    async def _place(
        self, entry: EntryRow, *, is_sure: bool = True
    ) -> tuple[Change, str | None, dict[str, Any] | None] | None:
        """Return the change of the path, the message to answer, and the message to continue."""
        transcript = self._transcript
        if entry.kind == "continue":
            begun = transcript.path[-1] if transcript.path else None
            if begun is None or begun.get("role") != "assistant":
                return None
            is_other = entry.target is not None and entry.target != begun["id"]
            if entry.origin == AUTO and (is_other or open_calls(begun)):
                return None  # the conversation continued differently
            change = Change([], list(transcript.path), transcript.leaf)
            return change, transcript.parent_of(begun["id"]), begun
        if entry.kind == "regenerate":
            under = await self._place_of_another_answer(entry.target)
            if under is None:
                return None
            change = await transcript.branching(under)
            if entry.messages is not None:  # an edited message with the same id
                change = transcript.with_replaced(change, json.decode(entry.messages))
            return change, under, None
        new = await self.new(entry) if is_sure else self._unseen(entry)
        if not new and transcript.is_answered:
            return None
        change = transcript.appending(new, must_be_new=not is_sure)
        return change, change.leaf, None

    async def _place_of_another_answer(self, target: str | None) -> str | None:
        """Return the message that another answer belongs under, or None."""
        path = self._transcript.path
        if target is None:
            if not path:
                return None
            if path[-1].get("role") != "assistant":
                return str(path[-1]["id"])  # it has no answer yet
            target = str(path[-1]["id"])
        found = await self._transcript.place_of(target)
        if found is None:
            return None
        role, parent = found
        return target if role == "user" else parent

    async def _repaired(self, change: Change, *, closes: bool) -> tuple[Change, list[str]]:
        """Give each call that the model will see an outcome. Returns the change, and the changed calls."""
        try:
            changed, closed = self._repair_new(change.path) if closes else ([], [])
        except Exception as error:  # stored messages may be invalid in any way
            logger.exception("%s: cannot repair the conversation", self.address)
            self.activation.events.emit(
                events.StoredDamaged, self.address, "the conversation", described(error)
            )
            return change, []
        if self._repair.is_wanted:
            changed, asked = await self._by_agent(change.path, changed, closes)
            closed += [id for id in asked if id not in closed]
        return (self._transcript.with_replaced(change, changed) if changed else change), closed

    def _repair_new(self, path: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
        """Repair a path, most of which needed no repair when it was last looked at."""
        changed, closed = repaired(path[new_in(path, self._sound) :])
        self._sound = [] if changed else path
        return changed, closed

    async def _by_agent(
        self, path: Sequence[dict[str, Any]], changed: list[dict[str, Any]], closes: bool
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Apply the repair hook to calls with an unknown outcome. Returns messages, and changed calls."""
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
    """Return whether a call was closed as interrupted or unknown, and the hook was not called yet."""
    return tool_name(part) is not None and mark_of(part) == "due"


def is_open(part: Any) -> bool:
    """Return whether a call has no outcome."""
    return tool_name(part) is not None and needs_closing(part)


def _parts_of(message: dict[str, Any]) -> list[Any]:
    parts = message.get("parts")
    is_answer = message.get("role") == "assistant" and isinstance(parts, list)
    return list(parts) if is_answer and parts else []


def _messages(entry: EntryRow) -> list[dict[str, Any]]:
    """Return the messages of an entry. Raises if the stored ones are damaged."""
    messages: list[dict[str, Any]] = [] if entry.messages is None else json.decode(entry.messages)
    if not all(isinstance(message["id"], str) for message in messages):
        raise TypeError("a stored message has no id")
    return messages
