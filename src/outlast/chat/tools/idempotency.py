"""Calls with an idempotency key: they run once, however often the model makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from outlast.agent.part import Part, Parts
from outlast.chat.tools.ledger import CallRow, Ledger
from outlast.chat.tools.outcome import CallEnd
from outlast.chat.types import events
from outlast.core import json


class KeyedCalls(Part):
    """The keys of one agent: of the running calls, and of those in the ledger."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._ledger = parts[Ledger]
        self._running: dict[str, tuple[Any, asyncio.Future[CallEnd]]] = {}  # with their inputs

    async def known(
        self, key: str, name: str, input: str, effect: str, stored: Callable[[], Awaitable[None]]
    ) -> CallEnd | None:
        """Return the end of the call with this key, or None if there is none and this call may begin.

        `stored` waits until the earlier calls of this turn are durable, which may have used the key.
        """
        given = json.decode(input)
        while (running := self._running.get(key)) is not None:
            if running[0] != given:
                return self._conflict(key, name)
            first = await asyncio.shield(running[1])
            if first.state == "done":
                self.activation.events.emit(events.LedgerReplayed, self.address, name, key)
                return first
        promise: asyncio.Future[CallEnd] = asyncio.get_running_loop().create_future()
        self._running[key] = (given, promise)
        try:
            await stored()
            row = await self._ledger.by_key(key)
            known = None if row is None else self._recorded(row, key, name, input, effect)
        except BaseException:
            self._forget(key, CallEnd("failed"))
            raise
        if known is not None:
            self._forget(key, known)
        return known

    def _recorded(
        self, row: CallRow, key: str, name: str, input: str, effect: str
    ) -> CallEnd | None:
        emit, agent = self.activation.events.emit, self.address
        if json.decode(row.input) != json.decode(input):
            return self._conflict(key, name)
        if row.state == "done" and row.output is not None:
            emit(events.LedgerReplayed, agent, name, key)
            return CallEnd("done", json.decode(row.output))
        if row.state == "failed" or effect != "once":
            emit(events.LedgerReclaimed, agent, name, key)
            return None
        emit(events.LedgerPending, agent, name, key)
        why = "an earlier call with the same key was interrupted"
        return CallEnd("unknown", error=f"The outcome of this call is unknown: {why}.")

    def _conflict(self, key: str, name: str) -> CallEnd:
        self.activation.events.emit(events.LedgerConflict, self.address, name, key)
        text = f"This call did not run: an earlier call with the key {key!r} had a different input."
        return CallEnd("failed", error=text)

    def ended(self, key: str, end: CallEnd) -> None:
        """Report the end of a call for which `known` returned None."""
        self._forget(key, CallEnd(end.state, end.output, end.error))

    def _forget(self, key: str, known: CallEnd) -> None:
        _, promise = self._running.pop(key)
        if not promise.done():
            promise.set_result(known)
