"""The calls of a turn: run concurrently, recorded in the ledger, shown in the message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from outlast.agent.part import Parts
from outlast.chat.answer.call import Call
from outlast.chat.answer.nested import NestedCalls
from outlast.chat.answer.offer import Offer
from outlast.chat.answer.place import Called
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.tool_part import Part, advanced
from outlast.chat.tools.declare import ToolCall
from outlast.chat.tools.outcome import CallEnd, not_stored, returned
from outlast.chat.tools.toolset import ToolSource
from outlast.chat.turn.part_repair import PartRepair
from outlast.chat.turn.turn import Turn, TurnAborted
from outlast.core import json
from outlast.core.errors import PublicError
from outlast.core.text import described
from outlast.store.operations import Operation

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.tools import ToolDefinition

ALWAYS_FITS = 512 * 1024  # characters of a result that need no size check
HAS_ACTED = "This call can no longer wait: it has already called other tools."
MOST_DETAIL = 2000  # stored characters of an error that clients do not see


_current: ContextVar[Calls | None] = ContextVar("outlast_calls", default=None)


def current_calls() -> Calls:
    """Return the calls of the turn that runs the current tool."""
    calls = _current.get()
    if calls is None:
        raise RuntimeError("current_calls() must be called by a tool while it runs")
    return calls


class InMessage:
    """The place of a call by the model: a part of the message."""

    is_inside = False
    riding: Sequence[Operation] = ()

    def __init__(self, turn: Turn, encoder: Encoder, nested: NestedCalls, called: Called) -> None:
        self._turn = turn
        self._encoder = encoder
        self._nested = nested
        self._called = called

    def block(self, reason: str) -> CallEnd:
        return returned(reason, self._called.name, "read")

    def ask_for_approval(self, id: str, *, for_client: bool) -> CallEnd:
        if self._nested.has_made_calls(id):  # it would repeat them after the approval
            return CallEnd("failed", error=HAS_ACTED)
        chunk = self._encoder.tool_approval_request(id, f"approval-{id}", for_client=for_client)
        self._turn.emit(chunk)
        return CallEnd("open")

    def wait_for_client(self, id: str) -> CallEnd:
        if self._nested.has_made_calls(id):
            return CallEnd("failed", error=HAS_ACTED)
        return CallEnd("open")

    def show(self, id: str, output: Any) -> None:
        self._turn.emit(self._encoder.tool_output(id, output, preliminary=True))


class Calls:
    """The calls of one turn."""

    def __init__(self, parts: Parts, turn: Turn, encoder: Encoder, offer: Offer) -> None:
        self._parts = parts
        self._turn = turn
        self._encoder = encoder
        self._repair = parts[PartRepair]
        self._nested = NestedCalls(parts, turn, offer)
        self.offer = offer
        self.replaced: dict[str, Part] = {}  # repaired parts of calls with an unknown outcome

    async def offered(
        self, active: Sequence[str] | None, context: RunContext[Any] | None = None
    ) -> list[ToolDefinition]:
        """Return the definitions that the model is offered in the next step; only `active` ones, if given."""
        definitions = await self.offer.update(active, context)
        if self._turn.executor is None:
            self._turn.client_tools = frozenset(
                each.name for each in definitions if each.kind == "external"
            )
        return definitions

    async def run(self, calls: Sequence[Called]) -> list[CallEnd]:
        """Run calls concurrently, and return their ends. Each outcome is emitted as soon as it is known."""
        _current.set(self)
        if len(calls) == 1:
            return [await self._one(calls[0])]
        work = (self._one(call) for call in calls)
        ends = await asyncio.gather(*work, return_exceptions=True)
        # Raise only after all have ended: the others have effects, and outcomes to store.
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return [end for end in ends if not isinstance(end, BaseException)]

    async def _one(self, called: Called) -> CallEnd:
        place = InMessage(self._turn, self._encoder, self._nested, called)
        call = Call(self._parts, self._turn, self.offer, called, place)
        self._nested.begin(called)
        try:
            end = await call.run()
        finally:
            self._nested.end(called)
        await self._nested.close_left(called)
        if end.state == "open":
            self._turn.open_calls.add(called.id)
            return end
        end = self._fitting(called, call.effect, end)
        mark = await self._apply_repair(called, end)
        self._turn.emit(self._outcome(called, end, mark), *call.ending(end))
        await call.notify(end)
        return end

    async def inside(
        self,
        parent: ToolCall,
        seq: int,
        name: str,
        arguments: Any,
        riding: Sequence[Operation] = (),
        *,
        tools: ToolSource | None = None,
    ) -> Any:
        """Call a tool from inside a running call, and return its output as a JSON value.

        `seq` numbers the calls of `parent`. A call that runs again must make the same calls with the same
        numbers; calls that have an outcome are not repeated (see `outlast.chat.answer.nested`). `riding` is
        written in the commit of the intent. Without `tools`, the tool is one that the model was offered.

        Raises `CallFailed` (`ApprovalInside` for a tool that needs an approval), `OutcomeUnknown`, and
        `CallChanged` if a different call had this number.

        ```python
        from outlast import Host, Think, ToolCall, tool
        from outlast.chat.answer.calls import current_calls
        from outlast.testing import ScriptedModel

        class Shop(Think):
            model = ScriptedModel.calls("order", items=["tea", "milk"]).then("Ordered.")

            @tool(effect="idempotent")
            async def order(self, items: list[str], call: ToolCall) -> list[str]:
                \"\"\"Order things, one after the other.\"\"\"
                calls = current_calls()
                return [await calls.inside(call, n, "buy", {"item": item}) for n, item in enumerate(items)]

            @tool(effect="once")
            async def buy(self, item: str) -> str:
                \"\"\"Buy one thing.\"\"\"
                return f"bought {item}"

        async with Host(agents=[Shop], store="sqlite:///nested.db") as host:
            turn = await host.get(Shop, "s").save_messages("Tea and milk, please")
            part = next(part for part in turn.message.parts if part["type"] == "tool-order")
            assert part["output"] == ["bought tea", "bought milk"]
        ```
        """
        called = self._nested.called(parent, seq, name, arguments)
        return await self._nested.run(called, riding, tools)

    def _fitting(self, called: Called, effect: str, end: CallEnd) -> CallEnd:
        """Return the end, or a failure if the result is too large to be stored in its message."""
        if end.state != "done":
            return end
        text = end.as_json()
        if len(text) <= ALWAYS_FITS:
            return end
        options = self._parts.activation.store.options
        size, room = len(text.encode()), self._turn.room_in(options)
        if size <= room:
            return end
        why = f"it has {size:,} bytes, and this message has room for {max(0, room):,}"
        return replace(not_stored(called.name, effect, why), input=end.input)

    async def _apply_repair(self, called: Called, end: CallEnd) -> str | None:
        """Apply the repair hook to a call with an unknown outcome. Returns the mark of an unrepaired one."""
        part = self._turn.builder.call(called.id)
        is_wanted = self._repair.is_wanted and not self._turn.abort.is_set
        if end.state != "unknown" or part is None or not is_wanted:
            return None
        closed = advanced(part, json.decode(self._outcome(called, end, None)))
        try:
            made = await self._turn.unless_stopped(self._repair.made_of(closed or part))
        except TurnAborted:  # the hook is called when the next turn begins
            return None
        if made is None:
            return "asked"
        self.replaced[called.id] = made
        return None

    def _outcome(self, called: Called, end: CallEnd, mark: str | None) -> str:
        """Return the chunk that shows an outcome."""
        if end.state == "done":
            return self._encoder.tool_output_text(called.id, end.as_json())
        outcome: Literal["failed", "unknown"] = "failed" if end.state == "failed" else "unknown"
        is_hidden = end.raised is not None and not isinstance(end.raised, PublicError)
        detail = described(end.raised)[:MOST_DETAIL] if is_hidden and end.raised else None
        return self._encoder.tool_error(
            called.id,
            end.error or "",
            outcome=outcome,
            detail=detail,
            for_model=self._parts.agent.tool_error_details,
            mark=mark,
        )
