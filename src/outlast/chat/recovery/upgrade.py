"""Clean exits: eviction, and handing a turn to a process that runs newer code."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.run.runner import Runner
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settlement import Settlement
from outlast.chat.turn.state import TurnState
from outlast.chat.turn.turn import Turn
from outlast.chat.types import events

logger = logging.getLogger("outlast.chat")

REPLACED_WITHIN = 60.0  # seconds; a process that is still there then does the work itself


class Upgrade(ChatPart):
    """Has the process of one agent replaced."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._state = parts[TurnState]
        self._runner = parts[Runner]
        self._is_due = False  # when the turn that runs has ended
        self._giving_up: asyncio.TimerHandle | None = None

    # --- moments ---------------------------------------------------------------------------------

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        turn = settlement.turn
        if settlement.is_put_back and turn is not None:
            self._runner.is_paused = True  # the next process answers it
            commit.undo(self._runner_continues)
            commit.then(lambda: self._wait_for_replacement(turn))
        elif self._is_due:
            commit.then(self.turn_ended)

    async def host_stops(self, cause: str) -> None:
        self._wait_no_longer()

    # --- asking for it ---------------------------------------------------------------------------

    def upgrade(self, turn: Turn | None) -> bool:
        """Have this process replaced: before the turn if nothing was said yet, and after it if it was."""
        if self.activation.on_upgrade is None:
            logger.warning(
                "%s wants a newer version of its code, and nobody here replaces this process:"
                " `outlast serve` does, with its supervisor",
                self.activation.address,
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
        self.activation.is_retired = True

    def turn_ended(self) -> None:
        """No turn runs: what was put off until now is done."""
        if self._is_due and self._state.running is None:
            self._is_due = False
            self._ask()

    def _wait_for_replacement(self, turn: Turn) -> None:
        """Another process answers what was put back; for so long no turn begins here."""
        why = "it is left to a newer version"
        self.activation.events.emit(events.TurnInterrupted, turn.agent, turn.request_id, why)
        self._is_due = False
        self.activation.hold()
        loop = asyncio.get_running_loop()
        self._giving_up = loop.call_later(REPLACED_WITHIN, self._not_replaced, context=Context())
        self._ask()

    def _ask(self) -> None:
        asked = self.activation.on_upgrade
        assert asked is not None
        self.activation.events.emit(events.UpgradeRequested, self.activation.address.text)
        try:
            asked()
        except Exception:
            logger.exception("%s: the process cannot be replaced", self.activation.address)
            self._not_replaced()

    def _wait_no_longer(self) -> None:
        """The process is being replaced, or never will be: nothing here holds it up."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
            self.activation.release()

    def _not_replaced(self) -> None:
        """What was put back is done here."""
        if self._runner.is_paused and self.activation.ended is None:
            self._runner_continues()
        self._wait_no_longer()

    def _runner_continues(self) -> None:
        self._runner.is_paused = False
        self._runner.proceed()
