"""What a turn leaves open: calls that the client runs, and calls that a user must allow.

The turn ends with them. Each is answered once, the first answer counts; the last answer of a batch makes the
agent go on with the same message, in a turn of its own. All of that is in the commit of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from outlast.agent.commit import Commits
from outlast.agent.state.facts import Facts
from outlast.chat.inbox.inbox import Inbox, Request
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.reducer import MessageBuilder
from outlast.chat.message.repair import open_calls
from outlast.chat.message.tool_part import Part, tool_name
from outlast.chat.tools.toolset import definition_of
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.types import events
from outlast.chat.types.notices import MessageUpdated
from outlast.core import json
from outlast.core.errors import ValueTooLarge
from outlast.host.life.activation import Activation
from outlast.store.operations import Operation

if TYPE_CHECKING:
    from pydantic_ai.tools import ToolDefinition

    from outlast.chat.turn.turn import Turn

CLIENT_TOOLS = "chat:client_tools"  # facts: the client's tools that a model has answered with last,
BROUGHT = "chat:brought_tools"  # those that came with a result, for the turn that goes on after it,
OPTED = "chat:opted"  # the message that goes on when its last call is answered,
OPEN = "chat:open"  # and the message that waits, with what had been asked by then
AUTO = "auto"  # the origin of a turn that goes on by itself
MARGIN = 512 * 1024  # bytes of an answer that always fit
REFUSED = "The client could not run this tool."
MOST_CLIENT_TOOLS = 128
MOST_SCHEMAS = 256 * 1024  # characters of all of them
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Answer = Callable[[Part], list[str]]  # the chunks that answer a call; none: it has an answer


class Live(Protocol):
    """The turns of the agent, as far as answers concern them."""

    @property
    def live(self) -> Turn | None:
        """The turn whose message is not stored yet."""
        ...

    async def wait(self, id: str) -> Any: ...
    def transcript_changed(self) -> None: ...
    def changed(self) -> None: ...


class Interactions:
    """The open calls of one agent."""

    def __init__(
        self,
        activation: Activation,
        commits: Commits,
        facts: Facts,
        inbox: Inbox,
        transcript: Transcript,
    ) -> None:
        self._activation = activation
        self._agent = activation.address.text
        self._commits = commits
        self._facts = facts
        self._inbox = inbox
        self._transcript = transcript
        self.turns: Live | None = None

    # --- what is open ----------------------------------------------------------------------------

    @property
    def pending(self) -> list[Part]:
        """The calls that somebody else has to answer."""
        live = None if self.turns is None else self.turns.live
        message = live.builder.message() if live is not None else self._leaf()
        found = open_calls(message)
        if live is None:
            return found
        return [part for part in found if live.is_for_client(part)]

    def _leaf(self) -> dict[str, Any] | None:
        path = self._transcript.path
        return path[-1] if path and path[-1].get("role") == "assistant" else None

    def holds(self, entries: Sequence[EntryRow]) -> bool:
        """Whether what was asked before the calls were opened has to wait for their answers.

        Whoever asks something when they are open goes on without answering them.
        """
        leaf = self._leaf()
        if leaf is None or not open_calls(leaf):
            return False
        opened = self._facts.get(OPEN, None, None)
        if not isinstance(opened, dict) or opened.get("message") != leaf["id"]:
            return False
        return all(entry.seq <= opened.get("seq", 0) for entry in entries)

    def opening(self, message: Mapping[str, Any]) -> list[Operation]:
        """For the commit of a turn that leaves calls open; `remember` it then."""
        opened = json.encode({"message": message["id"], "seq": self._inbox.last_seq})
        return [self._facts.operation(OPEN, opened)]

    # --- the client's tools ----------------------------------------------------------------------

    def tools_for(self, options: Mapping[str, Any]) -> list[Any]:
        """The client's tools in a turn: its request's own, or those that a model has answered with last."""
        given = options.get("client_tools")
        return given if isinstance(given, list) else self.remembered

    @property
    def remembered(self) -> list[Any]:
        """The client's tools that a model has answered with last."""
        return self._facts.get(CLIENT_TOOLS, None, None) or []

    def remembering(self, turn: Turn) -> list[Operation]:
        """For the commit of a turn that a model has answered; `remember` then.

        A request that says nothing of tools changes nothing, unless its provider has refused one.
        """
        own = turn.options.get("client_tools")
        if turn.executor is not None or not (isinstance(own, list) or turn.left_out):
            return []
        kept = [each for each in self.tools_for(turn.options) if each["name"] not in turn.left_out]
        if kept == self._facts.get(CLIENT_TOOLS, None, None):
            return []
        return [self._facts.operation(CLIENT_TOOLS, json.encode(kept))]

    def remember(self, operations: Sequence[Operation]) -> None:
        """These facts are durable."""
        for _, arguments in operations:
            self._facts.remember(str(arguments[1]), str(arguments[2]))

    def forgetting(self) -> list[Operation]:
        """For the commit that clears the conversation."""
        return [
            self._facts.operation(name, "null") for name in (CLIENT_TOOLS, BROUGHT, OPTED, OPEN)
        ]

    # --- answers ---------------------------------------------------------------------------------

    async def add_output(
        self,
        call_id: str,
        output: Any = None,
        *,
        error: str | None = None,
        goes_on: bool,
        client_tools: Sequence[Any] | None = None,
    ) -> bool:
        """The result of a call that the client has run. False: it waits for none."""
        _check_text("error_text", error)
        stored = json.decode(json.encode(output, "output")) if error is None else None
        encoder = Encoder()

        def answer(part: Part) -> list[str]:
            if part.get("state") == "approval-requested" and error is not None:
                return _approval(encoder, part, approved=False, reason=error)
            if part.get("state") != "input-available":
                return []
            if error is not None:
                return [encoder.tool_error(call_id, error or REFUSED)]
            return [encoder.tool_output(call_id, stored)]

        tools = None if client_tools is None else checked_schemas(client_tools)
        found = await self._answer(call_id, answer, goes_on, tools)
        if found is None:
            return False
        part, request_id = found
        self._activation.events.emit(
            events.ToolAnswered, self._agent, request_id, call_id, tool_name(part) or ""
        )
        return True

    async def add_approval(
        self, call_id: str, approved: bool, *, reason: str | None = None, goes_on: bool
    ) -> bool:
        """A user has allowed a call, or has not. False: it waits for no approval."""
        _check_text("reason", reason)
        encoder = Encoder()

        def answer(part: Part) -> list[str]:
            if part.get("state") != "approval-requested":
                return []
            return _approval(encoder, part, approved=approved, reason=reason)

        found = await self._answer(call_id, answer, goes_on, None)
        if found is None:
            return False
        part, request_id = found
        self._activation.events.emit(
            events.ToolApproval,
            self._agent,
            request_id,
            call_id,
            tool_name(part) or "",
            approved=approved,
        )
        return True

    async def _answer(
        self, call_id: str, answer: Answer, goes_on: bool, tools: list[Any] | None
    ) -> tuple[Part, str] | None:
        """The part that was answered, and the request that made it; None: nothing was."""
        if not isinstance(call_id, str):
            raise TypeError(f"tool_call_id is a text, not {call_id!r}")
        assert self.turns is not None
        async with self._transcript.changing:  # one answer at a time, and no turn ends meanwhile
            turn = self.turns.live
            part = None if turn is None else turn.builder.call(call_id)
            if turn is None or part is None:
                return await self._answer_stored(call_id, answer, goes_on, tools)
            chunks = answer(part) if turn.is_for_client(part) else []
            if not chunks:
                return None
            size = sum(len(chunk.encode()) for chunk in chunks)
            if size > MARGIN and size > (room := turn.room_in(self._activation.store.options)):
                raise ValueTooLarge(
                    f"the output has {size:,} bytes, and there is room for {max(0, room):,} in its"
                    f" message. Keep large data in a file or an object store, and its address here."
                )
            for chunk in chunks:
                turn.emit(chunk)
            message = {**turn.builder.message(), "id": turn.message_id}
            facts = self._noting(message, goes_on, tools)
            turn.stream.attach(*facts)
            self.remember(facts)  # now: whoever waits here may be cancelled
            is_over = turn.stream.is_held
            if not is_over:
                await turn.stream.stored()
        if is_over:  # the turn is about to be settled: this is part of it
            await self.turns.wait(turn.request_id)
        self.turns.changed()
        return part, turn.request_id

    def _noting(
        self, message: Mapping[str, Any], goes_on: bool, tools: list[Any] | None
    ) -> list[Operation]:
        """Facts about the calls that were left open together, for the turn that goes on after them."""
        facts: list[Operation] = []
        if goes_on:
            facts.append(self._facts.operation(OPTED, json.encode(_batch(message))))
        if tools is not None:
            brought = {"batch": _batch(message), "tools": tools}
            facts.append(self._facts.operation(BROUGHT, json.encode(brought)))
        return facts

    async def _answer_stored(
        self, call_id: str, answer: Answer, goes_on: bool, tools: list[Any] | None
    ) -> tuple[Part, str] | None:
        assert self.turns is not None
        message = self._message_with(call_id)
        builder = MessageBuilder(message)
        part = builder.call(call_id)
        if message is None or part is None:
            return None
        chunks = answer(part)
        if not chunks:
            return None
        for chunk in chunks:
            builder.apply(chunk)
        after = builder.message()
        change = self._transcript.replacing(after)
        facts = self._noting(after, goes_on, tools)
        opted = goes_on or self._opted(after)
        made_by = await self._transcript.turn_of(str(after["id"]))
        before = None if made_by is None else await self._inbox.get(made_by)
        options = {} if before is None else json.decode(before.options)
        brought = self._brought(after) if tools is None else tools
        entry = self._continuation(after, opted, self._transcript.leaf, options, brought)
        operations = [*change.operations, *facts]
        if entry is not None:
            operations += [self._inbox.acceptance(entry)]
        turns = self.turns

        def answered() -> None:
            self._transcript.applied(change)
            self.remember(facts)
            self._activation.tell(MessageUpdated(after))
            if entry is not None:
                self._inbox.accepted(entry)
            turns.transcript_changed()

        await self._commits.commit_then(operations, answered)
        return part, made_by or ""

    def _message_with(self, call_id: str) -> dict[str, Any] | None:
        """The message that holds an open call, which has an approval id if it waits for one."""
        for message in reversed(self._transcript.path):
            for part in open_calls(message):
                if part.get("toolCallId") == call_id:
                    named = _with_approval_id(part)
                    parts = [named if each is part else each for each in message["parts"]]
                    return {**message, "parts": parts}
        return None

    # --- going on --------------------------------------------------------------------------------

    def _opted(self, message: Mapping[str, Any]) -> bool:
        return bool(self._facts.get(OPTED, None, None) == _batch(message))

    def continuing(
        self, turn: Turn, message: Mapping[str, Any], leaf: str | None
    ) -> EntryRow | None:
        """The turn that follows one whose open calls were answered while it ran; None: there is none."""
        opted = turn.left_open and self._opted(message)
        brought = self._brought(message)
        return self._continuation(message, opted, leaf, turn.options, brought)

    def _brought(self, message: Mapping[str, Any]) -> list[Any] | None:
        """The tools that came with a result of the calls that were left open last; None: none came."""
        found = self._facts.get(BROUGHT, None, None)
        if not isinstance(found, dict) or found.get("batch") != _batch(message):
            return None
        tools = found.get("tools")
        return tools if isinstance(tools, list) else None

    def _continuation(
        self,
        message: Mapping[str, Any],
        opted: bool,
        leaf: str | None,
        options: Any,
        tools: list[Any] | None,
    ) -> EntryRow | None:
        """The entry that goes on with a message whose calls are all answered, as the turn before had it."""
        if not opted or leaf != message["id"] or open_calls(message):
            return None
        known = options if isinstance(options, dict) else {}
        kept = {name: known[name] for name in ("body", "principal") if name in known}
        if tools is not None:
            kept["client_tools"] = tools
        return self._inbox.entry(
            Request(
                "continue",
                AUTO,
                key=f"auto:{_batch(message)}",
                options={"body": {}, **kept},
                target=str(message["id"]),
            )
        )


def _check_text(what: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what} is a text, not {value!r}")


def _batch(message: Mapping[str, Any]) -> str:
    """The calls that were left open together: those of the last step of a message."""
    steps = sum(
        isinstance(part, dict) and part.get("type") == "step-start" for part in message["parts"]
    )
    return f"{message['id']}:{steps}"


def _approval(encoder: Encoder, part: Part, *, approved: bool, reason: str | None) -> list[str]:
    approval = part.get("approval")
    id = approval.get("id") if isinstance(approval, dict) else None
    chunks = [encoder.tool_approval_response(str(id), approved, reason=reason)]
    return chunks if approved else [*chunks, encoder.tool_denied(str(part["toolCallId"]))]


def _with_approval_id(part: Part) -> Part:
    approval = part.get("approval")
    known = approval if isinstance(approval, dict) else {}
    if part.get("state") != "approval-requested" or isinstance(known.get("id"), str):
        return part
    return {**part, "approval": {**known, "id": f"approval-{part['toolCallId']}"}}


def checked_schemas(client_tools: Sequence[Any]) -> list[Any]:
    """What a client says of its tools, as it is stored; a `ValueError` says what is wrong with it."""
    if isinstance(client_tools, str | bytes | Mapping):
        raise TypeError(f"client_tools is a list of schemas, not {client_tools!r}")
    if len(client_tools) > MOST_CLIENT_TOOLS:
        raise ValueError(
            f"at most {MOST_CLIENT_TOOLS} client tools are accepted, got {len(client_tools)}"
        )
    for schema in client_tools:
        if not isinstance(schema, Mapping):
            raise TypeError(f"the schema of a client's tool is an object, not {schema!r}")
        _check_client_tool(definition_of(schema))
    text = json.encode([dict(each) for each in client_tools], "client_tools")
    if len(text) > MOST_SCHEMAS:
        raise ValueError(
            f"the schemas of client tools may have {MOST_SCHEMAS:,} characters, got {len(text):,}"
        )
    given: list[Any] = json.decode(text)
    return given


def _check_client_tool(tool: ToolDefinition) -> None:
    """What every provider takes: one that it refuses would end each turn of the conversation."""
    if not _NAME.fullmatch(tool.name):
        raise ValueError(
            "the name of a client's tool must be 1 to 64 letters, digits, '_' or '-', got"
            f" {tool.name[:100]!r}"
        )
    kind = tool.parameters_json_schema.get("type", "object")
    if kind != "object":
        raise ValueError(
            f"the schema of the client's tool {tool.name!r} must describe an object, got {kind!r}"
        )
    properties = tool.parameters_json_schema.get("properties", {})
    if not isinstance(properties, Mapping) or not all(
        isinstance(each, Mapping | bool) for each in properties.values()
    ):
        raise ValueError(f"the properties of the client's tool {tool.name!r} must be schemas")
