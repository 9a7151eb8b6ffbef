"""Calls `on_chat_response` with every answer, at least once, without delaying the next turn.

A row in the commit of the turn's end records that the call is due; it is deleted when the hook has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from outlast.agent.admission import Origin, current_work, forget, note_statement
from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.message.results import Message
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settlement import Settlement
from outlast.chat.types.contexts import ChatResponseResult
from outlast.core.errors import OutlastError
from outlast.core.hooks import call_hook, is_overridden
from outlast.store.operations import BulkStatement, Query, Statement

logger = logging.getLogger("outlast.chat")

FIRST_RETRY = 1.0  # seconds
LAST_RETRY = 60.0

_DUE = Statement.same(
    "responses due",
    "agent text, turn text, seq bigint",
    """
        INSERT INTO responses (agent, turn, seq) VALUES (:agent, :turn, :seq)
        ON CONFLICT DO NOTHING
    """,
    key=2,
)
_DONE = BulkStatement.same("responses told", "DELETE FROM responses WHERE agent = ? AND turn = ?")
_OF_AGENT = Query.same("SELECT turn FROM responses WHERE agent = ? ORDER BY seq")
DUE_AGENTS = Query.same(
    "SELECT DISTINCT agent FROM responses WHERE agent > ? ORDER BY agent LIMIT ?", bulk=True
)
_NOTE = note_statement("responses WHERE agent = ? AND turn = ?")


class ResponseHook(ChatPart):
    """The due calls of one agent's hook."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._due: list[str] = []
        self._calling: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, parts: Parts) -> ResponseHook | None:
        """Return the part, or None if the agent does not override the hook."""
        return cls(parts) if is_overridden(parts.agent.on_chat_response) else None

    async def load(self) -> None:
        """Read the calls that earlier activations left due."""
        found = await self.activation.store.fetch(_OF_AGENT, self.address)
        self._due = [turn for (turn,) in found]

    async def start(self) -> None:
        self.proceed_with()

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        entry = settlement.entry
        if settlement.message is not None:
            commit.write((_DUE, (self.address, entry.id, entry.seq)))
            commit.then(lambda: self.proceed_with(entry.id))

    def proceed_with(self, *turns: str) -> None:
        """Make the due calls, one after another."""
        self._due += turns
        if self._due and self._calling is None and self.activation.ended is None:
            self._calling = self.activation.spawn(self._call_all(), "on_chat_response")

    @property
    def is_busy(self) -> bool:
        return self._calling is not None

    async def _call_all(self) -> None:
        try:
            while self._due:
                turn = self._due[0]
                origin = Origin(
                    self.address, f"response:{turn}", (_NOTE, (self.address, turn)), place=0
                )
                token = current_work.set(origin)
                try:
                    await self._until_stored(self._call, turn)
                finally:
                    current_work.reset(token)
                ending = [(_DONE, (self.address, turn)), forget(self.address, origin.scope)]
                await self._until_stored(self.commits.commit, ending)
                self._due.remove(turn)
        except OutlastError:  # the next activation continues
            pass
        finally:
            self._calling = None

    async def _until_stored(self, work: Callable[[Any], Awaitable[Any]], what: Any) -> None:
        """Retry the work while the store is unavailable."""
        for failures in count():
            try:
                await work(what)
                return
            except OutlastError as error:
                if self.activation.ended is not None:
                    raise
                logger.error("%s: on_chat_response is delayed: %s", self.address, error)
            await asyncio.sleep(min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(failures, 20)))

    async def _call(self, turn: str) -> None:
        entry = await self._inbox.get(turn)
        if entry is None or entry.message_id is None or entry.outcome is None:
            return
        message = await self._transcript.get(entry.message_id)
        if message is None:
            return
        result = ChatResponseResult(
            entry.id, Message(message), entry.outcome, entry.kind == "continue", entry.error
        )
        try:
            await call_hook(self.parts.agent.on_chat_response, result)
        except Exception:
            logger.exception("%s: on_chat_response raised", self.address)
