"""Nested calls: calls that a tool makes while it runs.

Each nested call has its own row in the ledger, `<call>/<seq>`, but no chunk: the message shows only the call
around it. A call that runs again after a crash makes its nested calls again, with the same numbers. The row
of an earlier attempt decides what happens to each:

| its row | what happens |
| --- | --- |
| none | it runs |
| `done` | its recorded output is returned |
| `failed`, `unknown` | its recorded error is raised |
| `begun`, of a tool that may run again | it runs again |
| `begun`, of a "once" tool | `reconcile` is called; if it does not know either, `OutcomeUnknown` is raised |
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlast.agent.part import Parts
from outlast.chat.answer.call import Call
from outlast.chat.answer.offer import Offer
from outlast.chat.answer.place import Called
from outlast.chat.tools.arguments import as_object, plain
from outlast.chat.tools.declare import ToolCall
from outlast.chat.tools.earlier import interrupted_end, recorded_end
from outlast.chat.tools.ledger import CallRow, Ledger, input_of
from outlast.chat.tools.outcome import CallEnd, not_stored
from outlast.chat.tools.toolset import ToolSource
from outlast.chat.turn.turn import Turn
from outlast.chat.types import events
from outlast.core import json
from outlast.core.errors import ApprovalInside, CallChanged, CallFailed, OutcomeUnknown
from outlast.core.hooks import is_overridden
from outlast.store.operations import Operation

MOST_DEPTH = 16  # levels of nested calls


@dataclass(frozen=True, slots=True)
class InsideCall:
    """The place of a nested call. It is not shown, so nobody can approve it or return its result."""

    name: str
    riding: Sequence[Operation] = ()
    is_inside: bool = True

    def ask_for_approval(self, id: str, *, for_client: bool) -> CallEnd:
        text = (
            f"The tool {self.name!r} needs an approval, so it cannot be called inside another call."
        )
        return CallEnd("failed", error=text, raised=ApprovalInside(text))

    def wait_for_client(self, id: str) -> CallEnd:
        text = f"The tool {self.name!r} runs elsewhere, so it cannot be called inside another call."
        return CallEnd("failed", error=text, raised=CallFailed(text))

    def block(self, reason: str) -> CallEnd:
        return CallEnd("failed", error=reason, raised=CallFailed(reason))

    def show(self, id: str, output: Any) -> None:
        """Preliminary results of a nested call are not shown."""


class NestedCalls:
    """The nested calls of one attempt."""

    def __init__(self, parts: Parts, turn: Turn, offer: Offer) -> None:
        self._parts = parts
        self._turn = turn
        self._offer = offer
        self._ledger = parts[Ledger]
        self._loading = asyncio.Lock()
        self._rows: dict[str, CallRow] | None = None  # of earlier attempts
        self._around: dict[str, Called] = {}  # running calls, which may make nested ones
        self._running: dict[str, Call] = {}  # the nested calls among them
        self._made: set[str] = set()  # the ids of all nested calls of this attempt

    # --- the calls around ------------------------------------------------------------------------

    def begin(self, called: Called) -> None:
        """Let a call make nested calls: it runs now."""
        self._around[called.id] = called

    def end(self, called: Called) -> None:
        """Let a call make no more nested calls, and abandon those that still run: it has ended."""
        self._around.pop(called.id, None)
        for id, call in list(self._running.items()):
            if id.startswith(f"{called.id}/"):
                self._turn.stream.attach(*call.ending(call.abandon()))

    def has_made_calls(self, id: str) -> bool:
        """Return whether a call has made nested calls in this attempt."""
        return any(each.startswith(f"{id}/") for each in self._made)

    # --- the calls inside ------------------------------------------------------------------------

    def called(self, parent: ToolCall, seq: int, name: str, arguments: Any) -> Called:
        """Return a nested call of a running call. Raises if its number is invalid or in use."""
        around = self._running_around(parent.id, name)
        if not isinstance(seq, int) or seq < 0:
            raise ValueError(f"seq must be a non-negative int, got {seq!r}")
        id = f"{parent.id}/{seq}"
        if id in self._made or self._turn.builder.call(id) is not None:
            raise ValueError(
                f"seq must be different for each call inside {parent.id!r}, got {seq!r} again"
            )
        if self._depth(id) > MOST_DEPTH:
            raise CallFailed(
                f"Calls are nested too deeply: at most {MOST_DEPTH} levels are allowed."
            )
        given = arguments if isinstance(arguments, str) else plain(arguments)
        self._made.add(id)
        return replace(around, id=id, name=name, arguments=given, approved=False)

    def _depth(self, id: str) -> int:
        """Return the number of calls around a call."""
        depth = 0
        while (id := id.rpartition("/")[0]) in self._around:
            depth += 1
        return depth

    def _running_around(self, id: str, name: str) -> Called:
        around = self._around.get(id)
        if around is None:
            raise RuntimeError(f"the call {id!r} has ended, so it cannot call {name!r}")
        return around

    async def run(
        self, called: Called, riding: Sequence[Operation], tools: ToolSource | None
    ) -> Any:
        """Make a nested call unless an earlier attempt did. Returns its output, or raises its error."""
        offer = self._offer if tools is None else await self._offer.of(tools)
        row = await self._row(called.id)
        end = None if row is None else await self._known(row, called, offer)
        if end is None:
            place = InsideCall(called.name, riding if row is None else ())  # written before
            end = await self._run(called, Call(self._parts, self._turn, offer, called, place))
        return _result(end)

    async def _run(self, called: Called, call: Call) -> CallEnd:
        self._running_around(called.id.rpartition("/")[0], called.name)  # raises if it has ended
        self.begin(called)
        self._running[called.id] = call
        try:
            end = self._fitting(called, call, await call.run())
        except BaseException:  # most likely, the call around it is being stopped
            end = call.abandon()
            raise
        finally:
            del self._running[called.id]
            self.end(called)
            self._turn.stream.attach(*call.ending(end))
        if call.effect == "once":  # its caller acts on an outcome that could be lost
            await self._turn.stream.stored()
        await call.notify(end)
        return end

    def _fitting(self, called: Called, call: Call, end: CallEnd) -> CallEnd:
        """Return the end, or a failure if the result is too large to be recorded."""
        most = self._parts.activation.store.options.max_value_bytes
        if end.state != "done" or len(size := end.as_json().encode()) <= most:
            return end
        why = f"it has {len(size):,} bytes, and the store allows {most:,}"
        return replace(not_stored(called.name, call.effect, why), input=end.input)

    async def close_left(self, around: Called) -> None:
        """Close nested calls that an earlier attempt began, and that this attempt did not make."""
        if self._turn.entry.attempt <= 1:
            return
        for row in (await self._load()).values():
            is_inside = row.id.startswith(f"{around.id}/") and row.id not in self._made
            if is_inside and row.state == "begun" and self._turn.builder.call(row.id) is None:
                await self._close(row, self._offer)

    async def _row(self, id: str) -> CallRow | None:
        return (await self._load()).get(id)

    async def _load(self) -> dict[str, CallRow]:
        async with self._loading:
            if self._rows is None:
                found = await self._ledger.of_turn(self._turn.request_id)
                self._rows = {row.id: row for row in found}
        return self._rows

    async def _known(self, row: CallRow, called: Called, offer: Offer) -> CallEnd | None:
        """Return the end of a nested call of an earlier attempt, or None if it may run again."""
        self._check_same(row, called)
        end = recorded_end(row)
        if end is not None or row.effect != "once":
            return end
        return await self._close(row, offer)

    async def _close(self, row: CallRow, offer: Offer) -> CallEnd:
        """Determine the outcome of a nested call that an earlier process began, and record it."""
        found = None if self._turn.abort.is_set else offer.found.get(row.name)
        spec = None if found is None else found.spec
        end = await interrupted_end(self._parts.agent, row, spec, self._turn.message_id)
        self._turn.stream.attach(self._ledger.close(row, end))
        self._parts.activation.events.emit(
            events.ToolFinished,
            self._turn.agent,
            row.turn,
            row.id,
            row.name,
            row.effect,
            outcome=end.state,
            elapsed_ms=0,
            error=end.error,
        )
        return end

    def _check_same(self, row: CallRow, called: Called) -> None:
        """Raise if the row belongs to another call. `before_tool_call` may have changed the input."""
        given = as_object(called.arguments)
        may_differ = is_overridden(self._parts.agent.before_tool_call)
        if row.name != called.name or not (may_differ or given == input_of(row)):
            raise CallChanged(
                f"call {called.id} must be {row.name}({row.input[:200]}) as before the interruption, got"
                f" {called.name}({json.encode(given)[:200]}): make the same calls in the same order"
            )


def _result(end: CallEnd) -> Any:
    if end.state == "done":
        return end.output
    if isinstance(end.raised, CallFailed):
        raise end.raised
    kind = OutcomeUnknown if end.state == "unknown" else CallFailed
    raise kind(end.error or "") from end.raised
