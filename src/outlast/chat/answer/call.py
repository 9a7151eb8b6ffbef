"""One call of a tool, from its arguments to its outcome.

Every error becomes a result that the model can read, and does not end the turn. The exception is an invalid
decision of `before_tool_call`. A call of a "once" tool that began and did not return is never reported as
failed: its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlast.agent.admission import current_work, forget
from outlast.agent.part import Parts
from outlast.chat.answer.offer import Offer
from outlast.chat.answer.place import Called, Place
from outlast.chat.tools.arguments import as_object, checked
from outlast.chat.tools.decision import InvalidDecision, decided
from outlast.chat.tools.declare import ToolCall, ToolSpec, ask, current_call
from outlast.chat.tools.idempotency import KeyedCalls
from outlast.chat.tools.ledger import Ledger, origin_of
from outlast.chat.tools.outcome import CallEnd, not_known, reconciled, returned
from outlast.chat.tools.toolset import Found
from outlast.chat.tools.watch import Cut, watched
from outlast.chat.turn.turn import Turn, TurnAborted
from outlast.chat.types import events
from outlast.chat.types.contexts import (
    Allow,
    Block,
    Substitute,
    ToolCallContext,
    ToolCallResultContext,
)
from outlast.core import json
from outlast.core.errors import PublicError
from outlast.core.hooks import call_hook, is_overridden
from outlast.core.text import described
from outlast.store.operations import Operation

if TYPE_CHECKING:
    from pydantic_ai import ModelRetry

logger = logging.getLogger("outlast.chat")

STOPPED = "The turn was stopped before this call began."
WAITS_AGAIN = "This call was approved but did not run: it would have to wait a second time."
CHANGED = "This call did not run: its input was changed after it had been approved."
CLIENT_GONE = "This call was not made: the client that runs the tool is no longer connected."
FAILED = "The tool failed."


class Call:
    """One call of a turn."""

    def __init__(
        self, parts: Parts, turn: Turn, offer: Offer, called: Called, place: Place
    ) -> None:
        self._agent = parts.agent
        self._activation = parts.activation
        self._ledger = parts[Ledger]
        self._keyed = parts[KeyedCalls]
        self._turn = turn
        self._offer = offer
        self._called = called
        self._place = place
        self._spec = ToolSpec()
        self._key: str | None = None
        self._has_begun = False  # the ledger has a row without an outcome
        self._work: asyncio.Task[Any] | None = None  # the tool itself
        self._is_cut = False  # its result is no longer awaited
        self._made = ToolCall(called.id, called.name, as_object(called.arguments), "", "")
        self._content: Any = None  # more content for the model, of a `ToolReturn`
        self._took = 0  # the running time of the tool, in milliseconds
        self._origin = origin_of(
            self._activation.address.text, turn.request_id, turn.message_id, called.id
        )

    @property
    def effect(self) -> str:
        return self._spec.effect

    async def run(self) -> CallEnd:
        """Make the call, and return its end."""
        try:
            end = await self._check_and_run()
        except TurnAborted:
            end = CallEnd("failed", error=STOPPED)
        except InvalidDecision:
            raise
        except Exception as error:  # of a hook, or of a value that it returned
            end = self._failed(error)
        return end if end.input is not None else replace(end, input=self._made.input)

    def _failed(self, error: Exception) -> CallEnd:
        """Return the end of a call that raised. Only the message of a `PublicError` is shown."""
        if isinstance(error, PublicError):
            return CallEnd("failed", error=str(error) or FAILED, raised=error)
        id, name = self._activation.ids.new("error"), self._called.name
        logger.error("%s: tool %s failed (%s)", self._turn.agent, name, id, exc_info=error)
        return CallEnd("failed", error=f"{FAILED} ({id})", raised=error)

    def abandon(self) -> CallEnd:
        """Stop a nested call because the call around it has ended, and return its end."""
        self._is_cut = True
        if self._work is None:
            return CallEnd("failed", error=STOPPED)
        if self._work.done():
            return self._outcome(self._work)
        self._work.cancel()
        why = f"the call around it ended while the tool {self._called.name!r} was running"
        return not_known(self._spec.effect, why)

    def ending(self, end: CallEnd) -> list[Operation]:
        """Return the operations that record the outcome in the ledger; none if that was done before."""
        if not self._has_begun:
            return []
        assert end.state != "open"
        turn, ledger = self._turn, self._ledger
        self._has_begun = False
        is_kept = self._place.is_inside or (self._key is not None and end.state == "done")
        kept = end.recorded() if is_kept else None
        operations = [ledger.end(turn.request_id, self._called.id, end.state, kept)]
        if self._key is not None:
            self._keyed.ended(self._key, end)
            if end.state == "failed":
                operations.append(ledger.release(self._key))
        if self._origin.has_noted or self._called.approved:  # an earlier run may have noted
            operations.append(forget(self._origin.agent, self._origin.scope))
        return operations

    async def notify(self, end: CallEnd) -> None:
        """Call `after_tool_call`. Its exceptions are logged."""
        hook = self._agent.after_tool_call
        if not is_overridden(hook):
            return
        context = ToolCallResultContext(
            self._called.name,
            end.input or {},
            self._called.id,
            self._turn.request_id,
            self._called.step,
            self._called.messages,
            self._turn.writer,
            duration_ms=self._took,
            success=end.state == "done",
            output=end.output,
            error=end.error if end.raised is None else end.raised,
            unknown=end.state == "unknown",
            context=self._offer.given,
        )
        try:
            await self._turn.unless_stopped(call_hook(hook, context))
        except TurnAborted:
            pass
        except Exception:
            logger.exception("%s: after_tool_call raised", self._activation.address)

    # --- before it runs --------------------------------------------------------------------------

    async def _check_and_run(self) -> CallEnd:
        call, offer = self._called, self._offer
        found = offer.found.get(call.name)
        if found is None:
            known = ", ".join(sorted(offer.found)) or "none"
            text = f"There is no tool {call.name!r}. Available tools: {known}."
            return CallEnd("failed", error=text)
        if call.is_for_client and not found.is_external:
            return CallEnd("failed", error=CLIENT_GONE)
        self._spec = found.spec
        executor = self._turn.executor if found.is_external else None
        if found.is_external and executor is None:
            return self._wait_for_client()
        given, arguments, problem = checked(found.tool, call.arguments)
        self._made = ToolCall(
            call.id,
            call.name,
            given,
            f"{self._turn.message_id}:{call.id}",
            self._turn.request_id,
            call.step,
            call.approved,
            self._turn.abort,
            offer.given,
        )
        if problem is not None:
            return CallEnd("failed", error=problem)
        if not call.approved and await self._needs_approval():
            return self._place.ask_for_approval(call.id, for_client=executor is not None)
        decision = await self._decision()
        if isinstance(decision, Block):
            return self._place.block(decision.reason)
        if isinstance(decision, Substitute):
            return returned(decision.output, call.name, "read")
        if isinstance(decision, Allow) and decision.input is not None:
            if call.approved and dict(decision.input) != given:
                return CallEnd("failed", error=CHANGED)
            given, arguments, problem = checked(found.tool, dict(decision.input))
            self._made = replace(self._made, input=given)
            if problem is not None:
                return CallEnd("failed", error=problem)
        return await self._run_or_replay(found, arguments, executor)

    def _wait_for_client(self) -> CallEnd:
        id = self._called.id
        if not self._called.approved and self._spec.needs_approval is True:
            return self._place.ask_for_approval(id, for_client=True)
        part = self._turn.builder.call(id) or {}
        if part.get("state") == "approval-responded":  # it was approved as a tool of the server
            return CallEnd("failed", error=WAITS_AGAIN)
        return self._place.wait_for_client(id)

    async def _needs_approval(self) -> bool:
        needs = self._spec.needs_approval
        if isinstance(needs, bool):
            return needs
        asking = ask(self._agent, self._spec, needs, self._made)
        return bool(await self._turn.unless_stopped(asking))

    async def _decision(self) -> Allow | Block | Substitute | None:
        hook = self._agent.before_tool_call
        if not is_overridden(hook):
            return None
        context = ToolCallContext(
            self._called.name,
            self._made.input,
            self._called.id,
            self._turn.request_id,
            self._called.step,
            self._called.messages,
            self._turn.abort,
            self._turn.writer,
            self._offer.given,
        )
        return decided(await self._turn.unless_stopped(call_hook(hook, context)))

    async def _run_or_replay(self, found: Found, arguments: Any, executor: Any) -> CallEnd:
        turn, spec = self._turn, self._spec
        input = json.encode(dict(self._made.input), "input")
        if spec.idempotency_key is not None:
            replayed = await self._replay(spec, input)
            if replayed is not None:
                return replayed
        operation = self._ledger.begin(
            turn.request_id, self._called.id, self._called.name, spec.effect, self._key, input
        )
        self._has_begun = True
        releases = [] if self._key is None else [self._ledger.release(self._key)]
        turn.stream.attach(*releases, *self._place.riding, operation)
        await turn.stream.stored()
        if turn.abort.is_set or self._is_cut:  # it certainly did not run
            return CallEnd("failed", error=STOPPED)
        return await self._run_tool(found, arguments, executor)

    async def _replay(self, spec: ToolSpec, input: str) -> CallEnd | None:
        """Return the end of an earlier call with the same key. If there is none, take the key."""
        assert spec.idempotency_key is not None
        asking = ask(self._agent, spec, spec.idempotency_key, self._made)
        named = await self._turn.unless_stopped(asking)
        if not isinstance(named, str) or not named:
            raise TypeError(f"idempotency_key must return a non-empty str, got {named!r}")
        key = f"{self._called.name}:{named}"
        self._made = replace(self._made, idempotency_key=key)
        stored = self._turn.stream.stored
        known = await self._keyed.known(key, self._called.name, input, spec.effect, stored)
        if known is None:
            self._key = key
        return known

    # --- the tool itself -------------------------------------------------------------------------

    async def _run_tool(self, found: Found, arguments: Any, executor: Any) -> CallEnd:
        activation, turn, call = self._activation, self._turn, self._called
        tool = self._executed(found, arguments, executor)
        work = self._work = activation.spawn(tool, f"tool {call.name}", copy_context())
        began = activation.clock.now()
        timeout = self._spec.timeout or found.definition.timeout
        name = f"{turn.agent}: the tool {call.name}"
        try:
            cut = await watched(work, turn.abort, timeout, self._cut, name)
            self._took = activation.clock.now() - began
            end = self._outcome(work) if cut is None else await self._cut_short(cut)
        finally:
            work.cancel()
        activation.events.emit(
            events.ToolFinished,
            turn.agent,
            turn.request_id,
            call.id,
            call.name,
            self._spec.effect,
            outcome=end.state,
            elapsed_ms=self._took,
            error=end.error if end.raised is None else described(end.raised),
        )
        return end

    def _cut(self) -> None:
        self._is_cut = True

    async def _executed(self, found: Found, arguments: Any, executor: Any) -> Any:
        from pydantic_ai import ToolReturn

        current_call.set(self._made)
        current_work.set(self._origin)
        self._activation.events.emit(
            events.ToolStarted,
            self._turn.agent,
            self._turn.request_id,
            self._called.id,
            self._called.name,
            self._spec.effect,
        )
        if executor is not None:
            output = executor(self._made)
            output = await output if inspect.isawaitable(output) else output
        else:
            output = await self._offer.run(self._made, arguments, found)
        if isinstance(output, ToolReturn):
            self._content = output.content
            output = output.return_value
        if not hasattr(output, "__aiter__"):
            return output
        last: Any = None
        async for last in output:
            shown = returned(last, self._called.name, "read")
            if shown.state == "done" and not self._is_cut and not self._turn.abort.is_set:
                self._place.show(self._called.id, shown.output)
        return last

    def _outcome(self, work: asyncio.Task[Any]) -> CallEnd:
        from pydantic_ai import ModelRetry
        from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed

        name, effect = self._called.name, self._spec.effect
        if work.cancelled():
            return not_known(effect, f"the tool {name!r} was cancelled")
        error = work.exception()
        if error is None:
            return replace(returned(work.result(), name, effect), content=self._content)
        if isinstance(error, ApprovalRequired | CallDeferred):
            if self._called.approved:  # a call can wait only once
                return CallEnd("failed", error=WAITS_AGAIN)
            return self._suspend(is_approval=isinstance(error, ApprovalRequired))
        if isinstance(error, ModelRetry) and _is_timeout_of_toolset(error):
            return not_known(effect, f"the tool {name!r} took too long and was stopped")
        if isinstance(error, ModelRetry | ToolFailed):
            return CallEnd("failed", error=error.message)
        if not isinstance(error, Exception):
            raise error
        return self._failed(error)

    def _suspend(self, *, is_approval: bool) -> CallEnd:
        """Let a call wait because its tool asks for that. The ledger no longer counts it as begun."""
        id, place = self._called.id, self._place
        end = (
            place.ask_for_approval(id, for_client=False)
            if is_approval
            else place.wait_for_client(id)
        )
        if end.state != "open":
            return end
        self._has_begun = False
        ended = [self._ledger.end(self._turn.request_id, self._called.id, "failed")]
        if self._key is not None:  # the call takes the key again once it was answered
            self._keyed.ended(self._key, CallEnd("failed"))
            ended.append(self._ledger.release(self._key))
        self._turn.stream.attach(*ended)  # its admissions stay noted until then
        return end

    async def _cut_short(self, cut: Cut) -> CallEnd:
        name, effect = self._called.name, self._spec.effect
        if cut == "stopped":
            return not_known(effect, f"the turn was stopped while the tool {name!r} was running")
        if effect == "once" and self._spec.reconcile is not None:
            found = None
            with suppress(TurnAborted):
                asking = reconciled(self._agent, self._spec, self._made)
                found = await self._turn.unless_stopped(asking)
            if found is not None:
                return found
        return not_known(effect, f"the tool {name!r} took too long and was stopped")


def _is_timeout_of_toolset(error: ModelRetry) -> bool:
    """Return whether a toolset reports a timeout, after which the tool may have done its work."""
    is_late = isinstance(error.__context__, TimeoutError)
    return is_late and error.message.startswith("Timed out after ")
