"""Executing the calls of a step: checked, approved, written into the ledger, run, and told.

Whatever goes wrong becomes a result that the model can read; nothing here ends a turn. A call of a "once"
tool that has begun and did not return is never said to have failed: its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from outlast.agent.admission import admitting, forget
from outlast.agent.part import Parts
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.tool_part import Part, advanced
from outlast.chat.tools.declare import NotDone, ToolCall, ToolSpec, ask, current_call
from outlast.chat.tools.idempotency import KeyedCalls
from outlast.chat.tools.ledger import Ledger, origin_of
from outlast.chat.tools.toolset import Tools
from outlast.chat.turn.part_repair import PartRepair
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

if TYPE_CHECKING:
    from pydantic_ai import ModelRetry, RunContext
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.tools import ToolDefinition

logger = logging.getLogger("outlast.chat")

GRACE = 0.5  # seconds that a tool has to stop when it is told to; then it is left behind
RECONCILE_TIMEOUT = 30.0
ALWAYS_FITS = 512 * 1024  # characters of a result
STOPPED = "The turn was stopped before this call began."
WAITS_AGAIN = "This call was approved but did not run: it would have to wait a second time."
FAILED = "The tool failed."
MOST_DETAIL = 2000  # characters that are stored of an error that nobody outside is shown
UNKNOWN = "It is not known whether this call has happened: {why}. Do not repeat it without asking."


class InvalidDecision(TypeError):
    """`before_tool_call` returned something that is not a decision: a mistake in the application.

    It ends the turn, so that the developer sees it; the model could do nothing about it.
    """


def decided(given: Any) -> Allow | Block | Substitute | None:
    """What `before_tool_call` has returned, as an object or as a dict with an `action`."""
    if isinstance(given, Mapping):
        rest = {name: value for name, value in given.items() if name != "action"}
        action = given.get("action")
        kind = _DECISIONS.get(action) if isinstance(action, str) else None
        try:
            given = given if kind is None else kind(**rest)
        except TypeError as error:
            raise InvalidDecision(f"before_tool_call returned {given!r}: {error}") from None
    if isinstance(given, Allow) and not isinstance(given.input, Mapping | None):
        raise InvalidDecision(f"Allow(input=) must be a dict, got {given.input!r}")
    if given is None or isinstance(given, Allow | Block | Substitute):
        return given
    raise InvalidDecision(
        "before_tool_call must return Allow, Block, Substitute, a dict with the action 'allow', 'block' or"
        f" 'substitute', or None, got {given!r}"
    )


_DECISIONS: dict[str, Any] = {"allow": Allow, "block": Block, "substitute": Substitute}


@dataclass(frozen=True, slots=True)
class Called:
    """A call as it stands in the answer of the model, or in a message that goes on."""

    id: str
    name: str
    arguments: Any  # JSON text, or what it says
    approved: bool = False


@dataclass(frozen=True, slots=True)
class CallEnd:
    """What came of a call; `open`: it waits for an approval, or for the client."""

    state: Literal["done", "failed", "unknown", "open"]
    output: Any = None
    error: str | None = None
    input: Mapping[str, Any] | None = None
    text: str | None = None  # the output as JSON, if it is there already
    raised: Exception | None = None  # what the tool, or code around it, has raised


class Calls:
    """The calls of one turn."""

    def __init__(
        self,
        parts: Parts,
        turn: Turn,
        encoder: Encoder,
        tools: Tools,
        context: RunContext[Any],
    ) -> None:
        self._agent = parts.agent
        self._activation = parts.activation
        self._ledger = parts[Ledger]
        self._keyed = parts[KeyedCalls]
        self._turn = turn
        self._encoder = encoder
        self.tools = tools
        self._context = context
        self._found: dict[str, Any] = {}  # what the model was offered
        self.given: Any = None  # the `context` of this step's `StepConfig`
        self._repair = parts[PartRepair]
        self.replaced: dict[
            str, Part
        ] = {}  # unknown calls, and the parts that the agent made of them

    async def offered(
        self, active: Sequence[str] | None, context: RunContext[Any] | None = None
    ) -> list[ToolDefinition]:
        """What the model is offered in the next step; `active`: only these."""
        if context is not None:
            self._context = context
        self.tools.toolset = await self.tools.toolset.for_run_step(self._context)
        found = await self.tools.get(self._context)
        self._found = {
            name: each for name, each in found.items() if active is None or name in active
        }
        if self._turn.executor is None:
            self._turn.client_tools = frozenset(
                name for name, each in self._found.items() if each.tool_def.kind == "external"
            )
        return [each.tool_def for each in self._found.values()]

    async def run(
        self, calls: Sequence[Called], messages: Sequence[ModelMessage], step: int
    ) -> list[CallEnd]:
        """Side by side, to the end of each; every outcome is told as it comes."""
        if len(calls) == 1:
            return [await self._one(calls[0], messages, step)]
        work = (self._one(call, messages, step) for call in calls)
        ends = await asyncio.gather(*work, return_exceptions=True)
        # Only after all of them: the others have effects, and outcomes that are to be stored.
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return [end for end in ends if not isinstance(end, BaseException)]

    # --- one call --------------------------------------------------------------------------------

    async def _one(self, call: Called, messages: Sequence[ModelMessage], step: int) -> CallEnd:
        running = _Running(self, call, messages, step)
        end = await running.end()
        if end.state == "open":
            self._turn.open_calls.add(call.id)
            return end
        end = self._fitting(call, running, end)
        self._tell(call, running, end, await self._asked(call, end))
        hook = self._agent.after_tool_call
        if is_overridden(hook):
            context = ToolCallResultContext(
                call.name,
                end.input or {},
                call.id,
                self._turn.request_id,
                step,
                messages,
                self._turn.writer,
                duration_ms=running.took,
                success=end.state == "done",
                output=end.output,
                error=end.error if end.raised is None else end.raised,
                unknown=end.state == "unknown",
                context=self.given,
            )
            try:
                await self._turn.unless_stopped(call_hook(hook, context))
            except TurnAborted:
                pass
            except Exception:
                logger.exception("%s: after_tool_call raised", self._activation.address)
        return end

    def _fitting(self, call: Called, running: _Running, end: CallEnd) -> CallEnd:
        """The same, unless the result is too large for its message to be stored."""
        if end.state != "done":
            return end
        text = json.encode(end.output) if end.text is None else end.text
        if len(text) <= ALWAYS_FITS:
            return end
        size, room = len(text.encode()), self._turn.room_in(self._activation.store.options)
        if size <= room:
            return end
        why = f"it has {size:,} bytes, and there is room for {max(0, room):,} in this message"
        return replace(not_stored(call.name, running.effect, why), input=end.input)

    async def _asked(self, call: Called, end: CallEnd) -> str | None:
        """Ask the agent about a call whose outcome nobody knows. Returns the mark of one that stays so."""
        part = self._turn.builder.call(call.id)
        is_wanted = self._repair.is_wanted and not self._turn.abort.is_set
        if end.state != "unknown" or part is None or not is_wanted:
            return None
        closed = advanced(part, json.decode(self._error(call, end, None)))
        try:
            made = await self._turn.unless_stopped(self._repair.made_of(closed or part))
        except TurnAborted:  # it is asked when the next turn begins
            return None
        if made is None:
            return "asked"
        self.replaced[call.id] = made
        return None

    def _tell(self, call: Called, running: _Running, end: CallEnd, mark: str | None) -> None:
        """The outcome, as a chunk, in one commit with what the ledger knows of it."""
        turn, encoder = self._turn, self._encoder
        operations = running.ending(end)
        if end.state == "done":
            text = json.encode(end.output) if end.text is None else end.text
            turn.emit(encoder.tool_output_text(call.id, text), *operations)
        else:
            turn.emit(self._error(call, end, mark), *operations)

    def _error(self, call: Called, end: CallEnd, mark: str | None) -> str:
        outcome: Literal["failed", "unknown"] = "failed" if end.state == "failed" else "unknown"
        is_hidden = end.raised is not None and not isinstance(end.raised, PublicError)
        detail = described(end.raised)[:MOST_DETAIL] if is_hidden and end.raised else None
        return self._encoder.tool_error(
            call.id,
            end.error or "",
            outcome=outcome,
            detail=detail,
            for_model=self._agent.tool_error_details,
            mark=mark,
        )


class _Running:
    """One call, from its arguments to its outcome."""

    def __init__(
        self, calls: Calls, call: Called, messages: Sequence[ModelMessage], step: int
    ) -> None:
        self._calls = calls
        self._call = call
        self._messages = messages
        self._step = step
        self._agent = calls._agent
        self._turn = calls._turn
        self._spec = ToolSpec()
        self._key: str | None = None
        self._has_begun = False
        self._is_cut = False  # nobody waits for the tool any more
        self._made = ToolCall(call.id, call.name, _object(call.arguments), "", "")
        self.took = 0  # milliseconds that the tool itself has run
        self._origin = origin_of(
            calls._activation.address.text, self._turn.request_id, self._turn.message_id, call.id
        )

    @property
    def effect(self) -> str:
        return self._spec.effect

    async def end(self) -> CallEnd:
        """What comes of it."""
        try:
            end = await self._judged()
        except TurnAborted:
            end = CallEnd("failed", error=STOPPED)
        except InvalidDecision:
            raise
        except Exception as error:  # of a hook, or of something that it was told
            end = self._failed(error)
        return end if end.input is not None else replace(end, input=self._made.input)

    def _failed(self, error: Exception) -> CallEnd:
        """The end of a call that has raised: only an error that is meant to be read is shown as it is."""
        if isinstance(error, PublicError):
            return CallEnd("failed", error=str(error) or FAILED, raised=error)
        id, name = self._calls._activation.ids.new("error"), self._call.name
        logger.error("%s: the tool %s failed (%s)", self._turn.agent, name, id, exc_info=error)
        return CallEnd("failed", error=f"{FAILED} ({id})", raised=error)

    def ending(self, end: CallEnd) -> list[Any]:
        """What the ledger is told with the outcome."""
        if not self._has_begun:
            return []
        assert end.state != "open"
        turn, ledger = self._turn, self._calls._ledger
        kept = None
        if self._key is not None and end.state == "done":
            kept = json.encode(end.output) if end.text is None else end.text
        operations = [ledger.end(turn.request_id, self._call.id, end.state, kept)]
        if self._key is not None:
            self._calls._keyed.ended(self._key, end)
            if end.state == "failed":
                operations.append(ledger.release(self._key))
        if self._origin.has_noted or self._call.approved:  # then an earlier run may have noted
            operations.append(forget(self._origin.agent, self._origin.scope))
        return operations

    # --- before it runs --------------------------------------------------------------------------

    async def _judged(self) -> CallEnd:
        call, calls = self._call, self._calls
        found = calls._found.get(call.name)
        if found is None:
            known = ", ".join(sorted(calls._found)) or "none"
            return CallEnd("failed", error=f"There is no tool {call.name!r}. There are: {known}.")
        definition: ToolDefinition = found.tool_def
        self._spec = calls.tools.spec(call.name, found)
        executor = self._turn.executor if definition.kind == "external" else None
        if definition.kind == "external" and executor is None:
            return self._left_to_client()
        given, arguments, problem = _checked(found, call.arguments)
        self._made = ToolCall(
            call.id,
            call.name,
            given,
            f"{self._turn.message_id}:{call.id}",
            self._turn.request_id,
            self._step,
            call.approved,
            self._turn.abort,
            calls.given,
        )
        if problem is not None:
            return CallEnd("failed", error=problem)
        if not call.approved and await self._needs_approval():
            return self._ask_for_approval(for_client=executor is not None)
        decision = await self._decision()
        if isinstance(decision, Block):
            return _as_json(decision.reason, call.name, "read")
        if isinstance(decision, Substitute):
            return _as_json(decision.output, call.name, "read")
        if isinstance(decision, Allow) and decision.input is not None:
            if call.approved and dict(decision.input) != given:
                return CallEnd("failed", error="What was approved cannot be changed afterwards.")
            given, arguments, problem = _checked(found, dict(decision.input))
            self._made = replace(self._made, input=given)
            if problem is not None:
                return CallEnd("failed", error=problem)
        return await self._begun_or_replayed(found, arguments, executor)

    def _left_to_client(self) -> CallEnd:
        if not self._call.approved and self._spec.needs_approval is True:
            return self._ask_for_approval(for_client=True)
        part = self._turn.builder.call(self._call.id) or {}
        if part.get("state") == "approval-responded":  # it was to run here when it was approved
            return CallEnd("failed", error=WAITS_AGAIN)
        return CallEnd("open")

    async def _needs_approval(self) -> bool:
        needs = self._spec.needs_approval
        if isinstance(needs, bool):
            return needs
        asking = ask(self._agent, needs, self._made)
        return bool(await self._turn.unless_stopped(asking))

    def _ask_for_approval(self, *, for_client: bool = False) -> CallEnd:
        id, encoder = self._call.id, self._calls._encoder
        self._turn.emit(encoder.tool_approval_request(id, f"approval-{id}", for_client=for_client))
        return CallEnd("open")

    async def _decision(self) -> Any:
        hook = self._agent.before_tool_call
        if not is_overridden(hook):
            return None
        context = ToolCallContext(
            self._call.name,
            self._made.input,
            self._call.id,
            self._turn.request_id,
            self._step,
            self._messages,
            self._turn.abort,
            self._turn.writer,
            self._calls.given,
        )
        return decided(await self._turn.unless_stopped(call_hook(hook, context)))

    async def _begun_or_replayed(self, found: Any, arguments: Any, executor: Any) -> CallEnd:
        calls, spec = self._calls, self._spec
        input = json.encode(dict(self._made.input), "input")
        if spec.idempotency_key is not None:
            asking = ask(self._agent, spec.idempotency_key, self._made)
            named = await self._turn.unless_stopped(asking)
            if not isinstance(named, str) or not named:
                raise TypeError(f"idempotency_key returns a text, not {named!r}")
            key = f"{self._call.name}:{named}"
            self._made = replace(self._made, idempotency_key=key)
            known = await calls._keyed.known(
                key, self._call.name, input, spec.effect, self._turn.stream.stored
            )
            if known is not None:
                return CallEnd(known.state, known.output, known.error)
            self._key = key
        operation = calls._ledger.begin(
            self._turn.request_id, self._call.id, self._call.name, spec.effect, self._key, input
        )
        self._has_begun = True
        releases = [] if self._key is None else [calls._ledger.release(self._key)]
        self._turn.stream.attach(*releases, operation)
        await self._turn.stream.stored()
        if self._turn.abort.is_set:  # it has not run, and that is certain
            return CallEnd("failed", error=STOPPED)
        return await self._run(found, arguments, executor)

    # --- the tool itself -------------------------------------------------------------------------

    async def _run(self, found: Any, arguments: Any, executor: Any) -> CallEnd:
        activation, turn, call = self._calls._activation, self._turn, self._call
        context = _copied(self._calls._context)
        context.tool_call_id = call.id
        context.tool_name = call.name
        context.tool_call_approved = call.approved
        context.max_retries = found.max_retries
        tool = self._executed(found, arguments, context, executor)
        work = activation.spawn(tool, f"tool {call.name}", copy_context())
        began = activation.clock.now()
        try:
            cut = await self._watch(work, self._spec.timeout or found.tool_def.timeout)
            self.took = activation.clock.now() - began
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
            elapsed_ms=self.took,
            error=end.error if end.raised is None else described(end.raised),
        )
        return end

    async def _executed(
        self, found: Any, arguments: Any, context: RunContext[Any], executor: Any
    ) -> Any:
        from pydantic_ai import ToolReturn

        current_call.set(self._made)
        admitting.set(self._origin)
        self._calls._activation.events.emit(
            events.ToolStarted,
            self._turn.agent,
            self._turn.request_id,
            self._call.id,
            self._call.name,
            self._spec.effect,
        )
        if executor is not None:
            output = executor(self._made)
            output = await output if inspect.isawaitable(output) else output
        else:
            toolset = self._calls.tools.toolset
            output = await toolset.call_tool(self._call.name, arguments, context, found)
        if isinstance(output, ToolReturn):
            output = output.return_value
        if not hasattr(output, "__aiter__"):
            return output
        last: Any = None
        async for last in output:
            shown = _as_json(last, self._call.name, "read")
            if shown.state == "done" and not self._is_cut and not self._turn.abort.is_set:
                chunk = self._calls._encoder.tool_output(
                    self._call.id, shown.output, preliminary=True
                )
                self._turn.emit(chunk)
        return last

    async def _watch(
        self, work: asyncio.Task[Any], timeout: float | None
    ) -> Literal["stopped", "timeout"] | None:
        """Wait for the tool. If it is told to stop, it has a moment to do so, and is left behind then."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def end(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        work.add_done_callback(end)
        forget = self._turn.abort.listen(end)
        timer = None if timeout is None else loop.call_later(timeout, end)
        try:
            await over
        finally:
            forget()
            if timer is not None:
                timer.cancel()
        if work.done():
            return None
        self._is_cut = True
        work.cancel()
        await asyncio.wait({work}, timeout=GRACE)
        if not work.done():
            logger.warning(
                "%s: the tool %s does not stop; it is left behind",
                self._turn.agent,
                self._call.name,
            )
            work.add_done_callback(_swallow)
        elif not work.cancelled() and work.exception() is None:
            return None  # it was done all the same
        return "stopped" if self._turn.abort.is_set else "timeout"

    def _outcome(self, work: asyncio.Task[Any]) -> CallEnd:
        from pydantic_ai import ModelRetry
        from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed

        name, effect = self._call.name, self._spec.effect
        if work.cancelled():
            return self._not_known(f"the tool {name!r} was cancelled")
        error = work.exception()
        if error is None:
            return _as_json(work.result(), name, effect)
        if isinstance(error, ApprovalRequired | CallDeferred):
            if self._call.approved:  # nobody could answer it a second time
                return CallEnd("failed", error=WAITS_AGAIN)
            self._has_begun = False
            ledger = self._calls._ledger
            ended = [ledger.end(self._turn.request_id, self._call.id, "failed")]
            if self._key is not None:  # it is free for the call that follows the answer
                self._calls._keyed.ended(self._key, CallEnd("failed"))
                ended.append(ledger.release(self._key))
            self._turn.stream.attach(*ended)  # what it has admitted is remembered until then
            is_approval = isinstance(error, ApprovalRequired)
            return self._ask_for_approval() if is_approval else CallEnd("open")
        if isinstance(error, ModelRetry) and _is_timeout_of_toolset(error):
            return self._not_known(f"the tool {name!r} took too long and was stopped")
        if isinstance(error, ModelRetry | ToolFailed):
            return CallEnd("failed", error=error.message)
        if not isinstance(error, Exception):
            raise error
        return self._failed(error)

    async def _cut_short(self, cut: Literal["stopped", "timeout"]) -> CallEnd:
        name = self._call.name
        if cut == "stopped":
            return self._not_known(f"the turn was stopped while the tool {name!r} was running")
        if self._spec.effect == "once" and self._spec.reconcile is not None:
            found = None
            with suppress(TurnAborted):
                asking = reconciled(self._agent, self._spec, self._made)
                found = await self._turn.unless_stopped(asking)
            if found is not None:
                return found
        return self._not_known(f"the tool {name!r} took too long and was stopped")

    def _not_known(self, why: str) -> CallEnd:
        if self._spec.effect == "once":
            return CallEnd("unknown", error=UNKNOWN.format(why=why))
        return CallEnd("failed", error=f"{why[0].upper()}{why[1:]}.")


def _copied(context: RunContext[Any]) -> RunContext[Any]:
    """The same as `dataclasses.replace`, or `copy`, each of which takes as long as a commit."""
    made = object.__new__(type(context))
    made.__dict__.update(context.__dict__)
    return made


async def reconciled(agent: object, spec: ToolSpec, call: ToolCall) -> CallEnd | None:
    """What `reconcile` finds out about a call that was interrupted; None: nothing."""
    if spec.reconcile is None:
        return None
    try:
        async with asyncio.timeout(RECONCILE_TIMEOUT):
            found = await ask(agent, spec.reconcile, call)
    except Exception:
        logger.exception("reconcile of the tool %s raised", call.tool_name)
        return None
    if found is None:
        return None
    if isinstance(found, NotDone) or found is NotDone:
        return CallEnd("failed", error="The call was interrupted. It has not happened.")
    return _as_json(found, call.tool_name, spec.effect)


def _object(arguments: Any) -> dict[str, Any]:
    """What the model has said, as far as it is an object."""
    try:
        given = json.decode(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _checked(found: Any, arguments: Any) -> tuple[dict[str, Any], Any, str | None]:
    """The arguments as an object, as the tool takes them, and what is wrong with them."""
    from pydantic import ValidationError

    text = arguments if isinstance(arguments, str) else None
    try:
        given = json.decode(text or "{}") if arguments is None or text is not None else arguments
    except ValueError as error:
        return {}, None, f"The arguments do not fit: they are not JSON ({error})"
    if not isinstance(given, dict):
        return {}, None, "The arguments do not fit: they are not an object"
    try:
        return given, found.args_validator.validate_python(given), None
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        return given, None, f"The arguments do not fit: {problems}"


def _as_json(output: Any, name: str, effect: str) -> CallEnd:
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        plain = to_jsonable_python(output, inf_nan_mode="null", bytes_mode="base64")
        return CallEnd("done", output=plain, text=json.encode(plain, "output"))
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        return not_stored(name, effect, described(error))


def not_stored(name: str, effect: str, problem: str) -> CallEnd:
    """The end of a call whose result is lost."""
    why = f"the tool {name!r} has run, but its result cannot be stored: {problem}"
    if effect == "once":
        return CallEnd("unknown", error=UNKNOWN.format(why=why))
    return CallEnd("failed", error=f"{why[0].upper()}{why[1:]}")


def _is_timeout_of_toolset(error: ModelRetry) -> bool:
    """A toolset with a `timeout` says so in these words; the tool may have done its work."""
    is_late = isinstance(error.__context__, TimeoutError)
    return is_late and error.message.startswith("Timed out after ")


def _swallow(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a tool that was left behind has failed: %s", described(error))
