"""The transcript: a tree of UI messages, of which one path is the conversation.

The last messages of the path are in memory, as many as fit a window of bytes; the rest stays in the store.
Stored messages are never truncated: limits apply only to requests to the model and to clients.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Part, Parts
from outlast.agent.state.facts import Facts
from outlast.chat.transcript import sql as rows
from outlast.chat.transcript.grown import Grown
from outlast.chat.transcript.shown import Shown, Stamp, stamp_of
from outlast.chat.types import events
from outlast.core import json
from outlast.core.text import described
from outlast.store.base import Row
from outlast.store.operations import Operation, Statement

logger = logging.getLogger("outlast.chat")

LEAF = "chat:leaf"  # the fact that names the last message of the path
WINDOW_BYTES = 24 * 1024 * 1024
DEPTH = json.MAX_DEPTH + 10  # deeper than a chunk or a request, which it contains
ALWAYS = 4  # messages that are in the window regardless of their size


def message_body(message: dict[str, Any]) -> str:
    """Return a message as it is stored."""
    return json.encode(message, "message", DEPTH)


@dataclass(slots=True)
class Change:
    """Messages to store, and the resulting path: for `Transcript.apply`.

    Create and apply changes one at a time, under `Transcript.changing`: each builds on the previous one.
    """

    operations: list[Operation]
    path: list[dict[str, Any]]
    leaf: str | None
    stamps: dict[str, Stamp] = field(default_factory=dict)  # of the messages that it writes


_id = operator.methodcaller("get", "id")  # of a message


class Transcript(Part):
    """The messages of one agent."""

    first_reads = (rows.LAST_NUMBER,)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._facts = parts[Facts]
        self._last_number = 0
        self.changing = asyncio.Lock()  # held from the creation of a change until it is applied
        self._stamps: dict[str, Stamp] = {}  # of messages in the window
        self._path_stamps = Grown(self._stamp)
        self._path_ids = Grown(_id)
        self._measured: tuple[list[Stamp], int] = ([], 0)  # the window, and its size
        self._shown: Shown | None = None
        self.path: list[dict[str, Any]] = []  # the window, oldest first
        self.leaf: str | None = None
        # The partial answer of a turn that is failing, and the message that it answers.
        self.failing_answer: tuple[Callable[[], dict[str, Any] | None], str | None] | None = None
        self.is_whole = True  # the window reaches back to the first message

    async def load(self) -> None:
        """Read the window, once per activation. Damaged rows are ignored."""
        fetch = self.activation.fetch
        last = await fetch(rows.LAST_NUMBER, self.address)
        self._last_number = last[0][0] if last else 0
        leaf = self._facts.get(LEAF, None, None)
        self.leaf = leaf if isinstance(leaf, str) else None
        await self._load_path()
        if self._last_number and not self._stamps:
            self._damaged("the end of the conversation", "it is unknown")
            newest = await fetch(rows.NEWEST, self.address)
            self.leaf = newest[0][0]
            await self._load_path()
        if not self.is_whole:
            self.activation.events.emit(
                events.HydrationWindowed, self.address, len(self.path), WINDOW_BYTES
            )

    def _damaged(self, what: str, error: str) -> None:
        logger.error("%s: cannot read %s: %s", self.address, what, error)
        self.activation.events.emit(events.StoredDamaged, self.address, what, error)

    async def _load_path(self) -> None:
        found = [] if self.leaf is None else await self._path_rows(self.leaf)
        self.path = self._messages(found)
        self._stamps = {row[0]: stamp_of(row[0], row[2]) for row in found}
        self.is_whole = not found or found[0][1] is None

    async def _path_rows(
        self, leaf: str, always: int = ALWAYS, most: int | None = None
    ) -> list[Row]:
        agent, most = self.address, WINDOW_BYTES if most is None else most
        found = await self.activation.store.fetch(
            rows.PATH, agent, leaf, agent, always, most, agent
        )
        seen: set[str] = set()
        for place in range(len(found) - 1, -1, -1):
            if found[place][0] in seen:
                self._damaged(f"the messages before {found[place + 1][0]}", "they form a cycle")
                return found[place + 1 :]
            seen.add(found[place][0])
        return found

    def _messages(self, found: Sequence[Row]) -> list[dict[str, Any]]:
        return [message for row in found if (message := self._decoded(row)) is not None]

    def _decoded(self, row: Row) -> dict[str, Any] | None:
        try:
            message = json.decode(row[2])
        except ValueError as error:
            self._damaged(f"the message {row[0]}", described(error))
            return None
        if not isinstance(message, dict) or message.get("id") != row[0]:
            self._damaged(f"the message {row[0]}", "it is not a message with this id")
            return None
        return message

    @property
    def is_answered(self) -> bool:
        """True if no message waits for an answer."""
        return not self.path or self.path[-1].get("role") == "assistant"

    def with_failing_answer(self) -> list[dict[str, Any]]:
        """Return the path, with the partial answer of a failing turn in its future place."""
        message = None if self.failing_answer is None else self.failing_answer[0]()
        if self.failing_answer is None or message is None:
            return self.path
        under, ids = self.failing_answer[1], [each.get("id") for each in self.path]
        if message["id"] in ids:
            at = ids.index(message["id"])
            return [*self.path[:at], message, *self.path[at + 1 :]]
        if under is not None and under not in ids:
            return self.path
        at = 0 if under is None else ids.index(under) + 1
        later = self.path[at:]
        if later and later[0].get("role") == "assistant":  # another answer to the same message
            return self.path
        return [*self.path[:at], message, *later]

    # --- changing --------------------------------------------------------------------------------

    def parent_of(self, id: str) -> str | None:
        """Return the id of the message before this one on the path; None if first, or not in the window."""
        for before, message in zip([None, *self.path], self.path, strict=False):
            if message.get("id") == id:
                return None if before is None else before.get("id")
        return None

    def appending(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        turn: str | None = None,
        must_be_new: bool = False,
    ) -> Change:
        """Append messages to the path. With `must_be_new`, the commit is refused if one is stored."""
        change = Change([], list(self.path), self.leaf)
        statement = rows.CREATE if must_be_new else rows.PUT
        for message in messages:
            self._put(change, message, change.leaf, "settled", turn, statement)
            change.path.append(message)
            change.leaf = message["id"]
        return change

    async def answering(
        self, message: dict[str, Any], under: str | None, *, status: str, turn: str
    ) -> Change:
        """Store an answer under the message that it answers, replacing an earlier version of it.

        Messages that were added during the turn follow it. If the conversation was switched to another
        branch in the meantime, it stays on that branch.
        """
        change = Change([], self.path, self.leaf)
        self._put(change, message, under, status, turn)
        ids = self.ids
        if message["id"] in ids:
            at = ids.index(message["id"])
            change.path = [*self.path[:at], message, *self.path[at + 1 :]]
            return change
        if under is not None and under not in ids:
            return change
        at = 0 if under is None else ids.index(under) + 1
        later = self.path[at:]
        if later and await self.turn_of(later[0]["id"]) is not None:  # another answer
            return change
        change.path = [*self.path[:at], message, *later]
        if later:
            change.operations.append((rows.MOVE, (self.address, later[0]["id"], message["id"])))
            return change
        change.leaf = message["id"]
        return change

    def replacing(self, message: dict[str, Any]) -> Change:
        """Replace the stored message with this id."""
        return self.with_replaced(Change([], self.path, self.leaf), [message])

    def with_replaced(self, change: Change, messages: Sequence[dict[str, Any]]) -> Change:
        """Extend a change: replace the stored messages with these ids."""
        after = {message["id"]: message for message in messages}
        operations, stamps = list(change.operations), dict(change.stamps)
        for id, message in after.items():
            body = message_body(message)
            stamps[id] = stamp_of(id, body)
            operations.append((rows.REPLACE, (self.address, id, len(body), body)))
        path = [after.get(each["id"], each) for each in change.path]
        return Change(operations, path, change.leaf, stamps)

    async def chaining(
        self,
        messages: Sequence[dict[str, Any]],
        answer: str | None = None,
        turn: str | None = None,
    ) -> Change:
        """Make these messages the conversation; other messages stay in the tree.

        A stored message that has another parent is stored again under a new id. One of the messages may be
        the `answer` of an interrupted `turn`.
        """
        change = Change([], [], None)
        kept = 0
        for message, stored in zip(messages, self.path, strict=False):
            if message["id"] != stored["id"]:
                break
            kept += 1
            change.path.append(message)
            change.leaf = message["id"]
            if message != stored:
                self._rewrite(change, message)
        for message in messages[kept:]:
            place = await self.place_of(message["id"])
            if place is not None and place[1] == change.leaf:
                self._rewrite(change, message)
            else:
                if place is not None:
                    message = {**message, "id": self.activation.ids.new("message")}
                if message["id"] == answer:
                    self._put(change, message, change.leaf, "interrupted", turn)
                else:
                    self._put(change, message, change.leaf, "settled", None)
            change.path.append(message)
            change.leaf = message["id"]
        return change

    def put_aside(
        self, change: Change, message: dict[str, Any], under: str | None, turn: str
    ) -> None:
        """Extend a change: store an answer on a branch of its own."""
        self._put(change, message, under, "interrupted", turn)

    def _rewrite(self, change: Change, message: dict[str, Any]) -> None:
        id, body = message["id"], message_body(message)
        change.operations.append((rows.REPLACE, (self.address, id, len(body), body)))
        change.stamps[id] = stamp_of(id, body)

    async def branching(self, under: str) -> Change:
        """End the path with this message; what followed it stays in the tree."""
        ids = [message.get("id") for message in self.path]
        if under in ids:
            path = self.path[: ids.index(under) + 1]
        else:  # on another branch, or before the window
            path = self._messages(await self._path_rows(under))
        return Change([], path, under)

    def clearing(self) -> Change:
        """Delete all messages, on all branches."""
        return Change([(rows.CLEAR, (self.address,))], [], None)

    def _put(
        self,
        change: Change,
        message: dict[str, Any],
        parent: str | None,
        status: str,
        turn: str | None,
        statement: Statement = rows.PUT,
    ) -> None:
        id, body = message["id"], message_body(message)
        self._last_number += 1
        place = (self.address, id, parent, self._last_number, message["role"])
        made = (status, turn, len(body), body, self.activation.clock.now())
        change.operations.append((statement, (*place, *made)))
        change.stamps[id] = stamp_of(id, body)

    def is_changed_by(self, change: Change) -> bool:
        return bool(change.operations) or change.leaf != self.leaf

    def apply(self, commit: Commit, change: Change) -> None:
        """Store a change. It becomes the conversation once the commit is durable."""
        commit.write(*change.operations)
        if change.operations:
            self.parts.join("messages_stored", commit, change.operations)
        if change.leaf != self.leaf:
            self._facts.put(commit, LEAF, json.encode(change.leaf))
        commit.then(lambda: self._applied(change))

    def _applied(self, change: Change) -> None:
        self.path, self.leaf = change.path, change.leaf
        self._stamps |= change.stamps
        self._trim_window()

    def _trim_window(self) -> None:
        """Drop the oldest messages from memory once they exceed the window by a quarter."""
        known, stamps = self._stamps, self.as_shown().stamps
        total = self._size_of(stamps)
        if total > WINDOW_BYTES * 1.25:
            sizes = [stamp.size for stamp in stamps]
            drop = 0
            while len(self.path) - drop > ALWAYS and total > WINDOW_BYTES:
                total -= sizes[drop]
                drop += 1
            self.path = self.path[drop:]
            self.is_whole = False
        if len(known) > 2 * len(self.path) + 100:
            kept = {message["id"] for message in self.path}
            self._stamps = {id: stamp for id, stamp in known.items() if id in kept}

    def _size_of(self, stamps: list[Stamp]) -> int:
        """Return the size of the window, counting only what is new in it."""
        before, size = self._measured
        if len(stamps) < len(before) or stamps[: len(before)] != before:
            before, size = [], 0
        size += sum(stamp.size for stamp in stamps[len(before) :])
        self._measured = (stamps, size)
        return size

    # --- reading ---------------------------------------------------------------------------------

    def as_shown(self) -> Shown:
        """Return the window as clients see it: the same object until the path changes."""
        known = self._shown
        if known is None or known.messages is not self.path or known.is_whole != self.is_whole:
            known = self._shown = Shown(self.path, self._path_stamps.of(self.path), self.is_whole)
        return known

    def _stamp(self, message: dict[str, Any]) -> Stamp:
        id = message["id"]
        stamp = self._stamps.get(id)
        if stamp is None:
            stamp = self._stamps[id] = stamp_of(id, message_body(message))
        return stamp

    @property
    def ids(self) -> list[Any]:
        """The ids of the messages of the path, in order."""
        return self._path_ids.of(self.path)

    async def before(self, id: str, most: int, count: int) -> Shown | None:
        """Return the messages before one, as many as fit; None if that message does not exist."""
        place = await self.place_of(id)
        if place is None:
            return None
        found = [] if place[1] is None else await self._path_rows(place[1], 1, most)
        found = found[-count:]
        messages = [(each, row) for row in found if (each := self._decoded(row)) is not None]
        stamps = [stamp_of(row[0], row[2]) for _, row in messages]
        is_whole = not found or found[0][1] is None
        return Shown([each for each, _ in messages], stamps, is_whole)

    async def stored_ids(self, ids: Sequence[str]) -> set[str]:
        """Return those of the ids that are stored, on any branch."""
        if not ids:
            return set()
        found = await self.activation.store.fetch(rows.stored_ids(len(ids)), self.address, *ids)
        return {id for (id,) in found}

    async def get(self, id: str) -> dict[str, Any] | None:
        found = await self.activation.store.fetch(rows.BY_ID, self.address, id)
        return self._decoded(found[0]) if found else None

    async def place_of(self, id: str) -> tuple[str, str | None] | None:
        """Return the role and the parent of a message on any branch; None if it does not exist."""
        found = await self.activation.store.fetch(rows.PLACE, self.address, id)
        return (found[0][0], found[0][1]) if found else None

    async def turn_of(self, id: str) -> str | None:
        """Return the request that produced a message; None if it came from outside."""
        found = await self.activation.store.fetch(rows.TURN, self.address, id)
        return found[0][0] if found else None

    async def branches(self, id: str) -> list[dict[str, Any]]:
        """Return the message and its siblings: alternative answers, or alternative questions."""
        fetch = self.activation.store.fetch
        found = await fetch(rows.BY_ID, self.address, id)
        if not found:
            return []
        parent = found[0][1]
        siblings = await (
            fetch(rows.ROOTS, self.address)
            if parent is None
            else fetch(rows.CHILDREN, self.address, parent)
        )
        return [message for row in siblings if (message := self._decoded(row)) is not None]

    async def forks(self) -> dict[str, list[str]]:
        """Return the messages of the path that have siblings, each with all siblings in order."""
        found = await self.activation.store.fetch(rows.FORKS, self.address)
        siblings: dict[str | None, list[str]] = {}
        for id, parent in found:
            siblings.setdefault(parent, []).append(id)
        shown = {message.get("id") for message in self.path}
        groups = (group for group in siblings.values() if len(group) > 1)
        return {id: group for group in groups for id in group if id in shown}

    async def newest_below(self, id: str) -> str | None:
        """Return the newest message below this one, or itself; None if it does not exist."""
        agent = self.address
        found = await self.activation.store.fetch(rows.NEWEST_BELOW, agent, id, agent)
        return found[0][0] if found else None
