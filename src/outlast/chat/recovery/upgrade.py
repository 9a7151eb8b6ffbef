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

REPLACED_WITHIN = 60.0  # seconds; after that the process does the work itself


class Upgrade(ChatPart):
    """Requests the replacement of the process, for one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._state = parts[TurnState]
        self._runner = parts[Runner]
        self._is_due = False  # request it when the running turn has ended
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

    # --- requests --------------------------------------------------------------------------------

    def upgrade(self, turn: Turn | None) -> bool:
        """Request the replacement: before the turn if nothing was streamed yet, otherwise after it."""
        if self.activation.on_upgrade is None:
            logger.warning(
                "%s requested an upgrade, but this process has no supervisor that could replace it;"
                " use `outlast serve`",
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
        """Leave memory as soon as the agent is idle."""
        self.activation.is_retired = True

    def turn_ended(self) -> None:
        """Make a request that waited for the end of the turn."""
        if self._is_due and self._state.running is None:
            self._is_due = False
            self._ask()

    def _wait_for_replacement(self, turn: Turn) -> None:
        """Begin no turn here until another process takes over, or the wait times out."""
        why = "it is left to newer code"
        self.activation.events.emit(events.TurnInterrupted, turn.agent, turn.request_id, why)
        self._is_due = False
        self.activation.hold()
        loop = asyncio.get_running_loop()
        self._giving_up = loop.call_later(REPLACED_WITHIN, self._not_replaced, context=Context())
        self._ask()

    def _ask(self) -> None:
        replace_process = self.activation.on_upgrade
        assert replace_process is not None
        self.activation.events.emit(events.UpgradeRequested, self.activation.address.text)
        try:
            replace_process()
        except Exception:
            logger.exception("%s: cannot replace the process", self.activation.address)
            self._not_replaced()

    def _wait_no_longer(self) -> None:
        """Stop waiting and release the hold."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
            self.activation.release()

    def _not_replaced(self) -> None:
        """Resume the runner here, because the process was not replaced."""
        if self._runner.is_paused and self.activation.ended is None:
            self._runner_continues()
        self._wait_no_longer()

    def _runner_continues(self) -> None:
        self._runner.is_paused = False
        self._runner.proceed()
