"""The transcript: a tree of UI messages, of which one path is the conversation.

The path's last messages are in memory, as many as fit a window of bytes; the rest stays in the store.
Nothing that is stored is ever cut: limits apply toward the model and the wire only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outlast.agent.facts import Facts
from outlast.chat import events
from outlast.chat import message_rows as rows
from outlast.core import json
from outlast.core.text import described
from outlast.host.activation import Activation
from outlast.store.base import Row
from outlast.store.operations import Operation

logger = logging.getLogger("outlast.chat")

LEAF = "chat:leaf"  # the fact that names the last message of the path
WINDOW_BYTES = 24 * 1024 * 1024
DEPTH = json.MAX_DEPTH + 10  # what fits into a chunk or a request fits into a message
ALWAYS = 4  # messages that are part of the window, however large


@dataclass(slots=True)
class Change:
    """Messages to be stored, and the path as it will be: operations now, `Transcript.applied` then.

    One at a time, under `Transcript.changing`: each builds on the one before.
    """

    operations: list[Operation]
    path: list[dict[str, Any]]
    leaf: str | None


class Transcript:
    """The messages of one agent."""

    def __init__(self, activation: Activation, facts: Facts) -> None:
        self._activation = activation
        self._agent = activation.address.text
        self._facts = facts
        self._last_number = 0
        self.changing = asyncio.Lock()  # held from the making of a change until it is applied
        self._sizes: dict[str, int] = {}  # of messages in the window
        self.path: list[dict[str, Any]] = []  # the window, oldest first
        self.leaf: str | None = None
        self.is_whole = True  # the window reaches back to the first message

    async def load(self) -> None:
        """Read the window, once per activation. Rows that cannot be read are left out."""
        fetch = self._activation.store.fetch
        last = await fetch(rows.LAST_NUMBER, self._agent)
        self._last_number = last[0][0] if last else 0
        leaf = self._facts.get(LEAF, None, None)
        self.leaf = leaf if isinstance(leaf, str) else None
        await self._load_path()
        if self._last_number and not self._sizes:
            self._damaged("the end of the conversation", "it is not known")
            newest = await fetch(rows.NEWEST, self._agent)
            self.leaf = newest[0][0]
            await self._load_path()
        if not self.is_whole:
            self._activation.events.emit(
                events.HydrationWindowed, self._agent, len(self.path), WINDOW_BYTES
            )

    def _damaged(self, what: str, error: str) -> None:
        logger.error("%s: %s cannot be read: %s", self._agent, what, error)
        self._activation.events.emit(events.StoredDamaged, self._agent, what, error)

    async def _load_path(self) -> None:
        found = [] if self.leaf is None else await self._path_rows(self.leaf)
        self.path = self._messages(found)
        self._sizes = {row[0]: len(row[2]) for row in found}
        self.is_whole = not found or found[0][1] is None

    async def _path_rows(self, leaf: str) -> list[Row]:
        agent = self._agent
        found = await self._activation.store.fetch(
            rows.PATH, agent, leaf, agent, ALWAYS, WINDOW_BYTES, agent
        )
        seen: set[str] = set()
        for place in range(len(found) - 1, -1, -1):
            if found[place][0] in seen:
                self._damaged(f"the messages before {found[place + 1][0]}", "they go round")
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
            self._damaged(f"the message {row[0]}", "it is not one")
            return None
        return message

    @property
    def is_answered(self) -> bool:
        """True when there is nothing that an answer could be to."""
        return not self.path or self.path[-1].get("role") == "assistant"

    # --- changing --------------------------------------------------------------------------------

    def parent_of(self, id: str) -> str | None:
        """The message before this one on the path (None: it is the first, or not in the window)."""
        for before, message in zip([None, *self.path], self.path, strict=False):
            if message.get("id") == id:
                return None if before is None else before.get("id")
        return None

    def appending(self, messages: Sequence[dict[str, Any]], *, turn: str | None = None) -> Change:
        """These messages at the end of the path."""
        change = Change([], list(self.path), self.leaf)
        for message in messages:
            change.operations.append(self._put(message, change.leaf, "settled", turn))
            change.path.append(message)
            change.leaf = message["id"]
        return self._with_leaf(change)

    async def answering(
        self, message: dict[str, Any], under: str | None, *, status: str, turn: str
    ) -> Change:
        """An answer under the message that it answers, in place of what may be stored of it.

        Messages that were added while it was being made come after it. If the conversation has gone over
        to another branch meanwhile, it stays there.
        """
        put = self._put(message, under, status, turn)
        ids = [each.get("id") for each in self.path]
        if message["id"] in ids:
            at = ids.index(message["id"])
            path = [*self.path[:at], message, *self.path[at + 1 :]]
            return Change([put], path, self.leaf)
        if under is not None and under not in ids:
            return Change([put], self.path, self.leaf)
        at = 0 if under is None else ids.index(under) + 1
        later = self.path[at:]
        if later and await self.turn_of(later[0]["id"]) is not None:  # another answer to the same
            return Change([put], self.path, self.leaf)
        change = Change([put], [*self.path[:at], message, *later], self.leaf)
        if later:
            change.operations.append((rows.MOVE, (self._agent, later[0]["id"], message["id"])))
            return change
        change.leaf = message["id"]
        return self._with_leaf(change)

    def replacing(self, message: dict[str, Any]) -> Change:
        """This message in place of the stored one with its id."""
        return self.with_replaced(Change([], self.path, self.leaf), [message])

    def with_replaced(self, change: Change, messages: Sequence[dict[str, Any]]) -> Change:
        """The same change, and these messages in place of those with their ids."""
        after = {message["id"]: message for message in messages}
        operations = list(change.operations)
        for id, message in after.items():
            body = json.encode(message, "message", DEPTH)
            self._sizes[id] = len(body)
            operations.append((rows.REPLACE, (self._agent, id, len(body), body)))
        path = [after.get(each["id"], each) for each in change.path]
        return Change(operations, path, change.leaf)

    async def branching(self, under: str) -> Change:
        """The path ends with this message from now on; what followed it stays in the tree."""
        ids = [message.get("id") for message in self.path]
        if under in ids:
            path = self.path[: ids.index(under) + 1]
        else:  # on another branch, or before the window
            path = self._messages(await self._path_rows(under))
        return self._with_leaf(Change([], path, under))

    def clearing(self) -> Change:
        """Nothing is left, on no branch."""
        return self._with_leaf(Change([(rows.CLEAR, (self._agent,))], [], None))

    def _put(
        self, message: dict[str, Any], parent: str | None, status: str, turn: str | None
    ) -> Operation:
        body = json.encode(message, "message", DEPTH)
        self._sizes[message["id"]] = len(body)
        self._last_number += 1
        return rows.PUT, (
            self._agent,
            message["id"],
            parent,
            self._last_number,
            message["role"],
            status,
            turn,
            len(body),
            body,
            self._activation.clock.now(),
        )

    def _with_leaf(self, change: Change) -> Change:
        if change.leaf != self.leaf:
            change.operations.append(self._facts.operation(LEAF, json.encode(change.leaf)))
        return change

    def applied(self, change: Change) -> None:
        """The change is durable."""
        self.path, self.leaf = change.path, change.leaf
        self._facts.remember(LEAF, json.encode(change.leaf))
        self._keep_within_window()

    def _keep_within_window(self) -> None:
        """Let go of the oldest messages once a quarter more than the window is in memory."""
        known = self._sizes
        for message in self.path:
            if message["id"] not in known:
                known[message["id"]] = len(json.encode(message, "message", DEPTH))
        sizes = [known[message["id"]] for message in self.path]
        total = sum(sizes)
        if total > WINDOW_BYTES * 1.25:
            drop = 0
            while len(self.path) - drop > ALWAYS and total > WINDOW_BYTES:
                total -= sizes[drop]
                drop += 1
            self.path = self.path[drop:]
            self.is_whole = False
        if len(known) > 2 * len(self.path) + 100:
            kept = {message["id"] for message in self.path}
            self._sizes = {id: size for id, size in known.items() if id in kept}

    # --- looking ---------------------------------------------------------------------------------

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Which of these are stored, on whatever branch."""
        if not ids:
            return set()
        found = await self._activation.store.fetch(rows.known(len(ids)), self._agent, *ids)
        return {id for (id,) in found}

    async def get(self, id: str) -> dict[str, Any] | None:
        found = await self._activation.store.fetch(rows.BY_ID, self._agent, id)
        return self._decoded(found[0]) if found else None

    async def place_of(self, id: str) -> tuple[str, str | None] | None:
        """The role and the parent of a message, on whatever branch; None: there is no such message."""
        found = await self._activation.store.fetch(rows.PLACE, self._agent, id)
        return (found[0][0], found[0][1]) if found else None

    async def turn_of(self, id: str) -> str | None:
        """The request that made a message; None: it was handed in."""
        found = await self._activation.store.fetch(rows.TURN, self._agent, id)
        return found[0][0] if found else None

    async def branches(self, id: str) -> list[dict[str, Any]]:
        """The message and its siblings: the other answers, or the other questions, in its place."""
        fetch = self._activation.store.fetch
        found = await fetch(rows.BY_ID, self._agent, id)
        if not found:
            return []
        parent = found[0][1]
        siblings = await (
            fetch(rows.ROOTS, self._agent)
            if parent is None
            else fetch(rows.CHILDREN, self._agent, parent)
        )
        return [message for row in siblings if (message := self._decoded(row)) is not None]

    async def forks(self) -> dict[str, list[str]]:
        """The messages of the path that have others in their place: all of these, in order."""
        found = await self._activation.store.fetch(rows.FORKS, self._agent)
        siblings: dict[str | None, list[str]] = {}
        for id, parent in found:
            siblings.setdefault(parent, []).append(id)
        shown = {message.get("id") for message in self.path}
        groups = (group for group in siblings.values() if len(group) > 1)
        return {id: group for group in groups for id in group if id in shown}

    async def newest_below(self, id: str) -> str | None:
        """The last message that was stored below this one, or itself; None: there is no such message."""
        agent = self._agent
        found = await self._activation.store.fetch(rows.NEWEST_BELOW, agent, id, agent)
        return found[0][0] if found else None
