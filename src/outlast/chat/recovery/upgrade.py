"""Clean exits: an agent that leaves memory, or wants to be gone on with by a newer version of its code."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING

from outlast.agent.commit import Commits
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.turn.turn import Turn
from outlast.chat.types import events
from outlast.core.errors import CommitRefused
from outlast.host.life.activation import Activation

if TYPE_CHECKING:
    from outlast.chat.run.runner import Turns

logger = logging.getLogger("outlast.chat")

REPLACED_WITHIN = 60.0  # seconds; a process that is still there then does the work itself


class PutBack(Exception):
    """The turn is left to another process, before anything was said. Never leaves `outlast`."""


class Leaving:
    """For the turns of one agent."""

    def __init__(
        self, turns: Turns, activation: Activation, commits: Commits, inbox: Inbox
    ) -> None:
        self._turns = turns
        self._activation = activation
        self._commits = commits
        self._inbox = inbox
        self._is_due = False  # an upgrade, when the turn that runs has ended
        self.is_waiting = False  # for the next process: no turn begins here
        self._giving_up: asyncio.TimerHandle | None = None

    def upgrade(self, turn: Turn | None) -> bool:
        """Have this process replaced: before the turn if nothing was said yet, and after it if it was."""
        if self._activation.on_upgrade is None:
            logger.warning(
                "%s wants a newer version of its code, and nobody here replaces this process:"
                " `outlast serve` does, with its supervisor",
                self._activation.address,
            )
            return False
        if turn is not None and turn.is_running:
            if turn.stage == "turn" and turn.entry.attempt == 1:
                turn.is_put_back = True
            self._is_due = True
        else:
            self._is_due = True
            self.turn_ended()
        return True

    def retire(self) -> None:
        """Leave memory as soon as there is nothing to do."""
        self._activation.is_retired = True

    def turn_ended(self) -> None:
        """No turn runs: what was put off until now is done."""
        if self._is_due and self._turns.running is None:
            self._is_due = False
            self._ask()

    async def put_back(self, turn: Turn) -> None:
        """Its messages stay, and somebody else answers them."""
        waiting, operation = self._inbox.put_back(turn.entry)
        id, noted = turn.request_id, self._turns.noted
        notes = [self._turns.incidents.close(id)] if id in noted else []
        await self._commits.commit([operation, *notes])
        now = self._inbox.current(turn.entry)
        if now is None:
            raise CommitRefused("it was ended while it was being put back")
        noted.discard(id)
        self._inbox.claimed(replace(waiting, cancelled=now.cancelled))
        why = "it is left to a newer version"
        emit = self._activation.events.emit
        emit(events.TurnInterrupted, turn.agent, id, why)
        self._is_due, self.is_waiting = False, True
        self._activation.hold()
        loop = asyncio.get_running_loop()
        self._giving_up = loop.call_later(REPLACED_WITHIN, self.wait_no_more, context=Context())
        self._ask()

    def _ask(self) -> None:
        asked = self._activation.on_upgrade
        assert asked is not None
        self._activation.events.emit(events.UpgradeRequested, self._activation.address.text)
        try:
            asked()
        except Exception:
            logger.exception("%s: the process cannot be replaced", self._activation.address)
            self.wait_no_more()

    def host_stops(self) -> None:
        """The process is being replaced: nothing here holds it up."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
            self._activation.release()

    def wait_no_more(self) -> None:
        """It was not replaced: what was put back is done here."""
        if self.is_waiting and self._activation.ended is None:
            self.is_waiting = False
            self._turns.go_on()
        self.host_stops()
