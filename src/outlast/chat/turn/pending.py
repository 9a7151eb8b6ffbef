"""Pending calls: those that the client runs, and those that a user must approve.

The turn ends with them open. Each is answered once, and the first answer counts; the last answer of a batch
adds a turn that continues the same message. All of that is in the commit of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.agent.state.facts import Facts
from outlast.chat.inbox.inbox import Inbox, Request
from outlast.chat.inbox.origin import AUTO
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.reducer import MessageBuilder
from outlast.chat.message.repair import open_calls
from outlast.chat.message.tool_part import Part, tool_name
from outlast.chat.tools.toolset import definition_of
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.notices import MessageUpdated
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.settlement import Settlement
from outlast.chat.turn.state import TurnState
from outlast.chat.turn.turn import Turn
from outlast.chat.types import events
from outlast.core import json
from outlast.core.errors import ValueTooLarge

if TYPE_CHECKING:
    from pydantic_ai.tools import ToolDefinition

# Facts:
CLIENT_TOOLS = "chat:client_tools"  # the client's tools of the last answer
BROUGHT = "chat:brought_tools"  # tools that came with a result, for the turn that continues
OPTED = "chat:opted"  # the batch after which the message continues
OPEN = "chat:open"  # the message with pending calls, and the last request before them
MARGIN = 512 * 1024  # bytes of an output that always fit
FAILED = "The client could not run this tool."
MAX_CLIENT_TOOLS = 128
MAX_SCHEMAS = 256 * 1024  # characters in total
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Answer = Callable[[Part], list[str]]  # the chunks that answer a call; empty if it is not pending


class PendingCalls(ChatPart):
    """The pending calls of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._facts = parts[Facts]
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._state = parts[TurnState]

    # --- pending calls ---------------------------------------------------------------------------

    @property
    def pending(self) -> list[Part]:
        """The calls that wait for the client or for an approval."""
        live = self._state.live
        message = live.builder.message() if live is not None else self._leaf()
        found = open_calls(message)
        if live is None:
            return found
        return [part for part in found if live.is_for_client(part)]

    def _leaf(self) -> dict[str, Any] | None:
        path = self._transcript.path
        return path[-1] if path and path[-1].get("role") == "assistant" else None

    def holds(self, entries: Sequence[EntryRow]) -> bool:
        """Return whether these entries must wait for the answers of pending calls.

        Requests that arrived before the calls became pending wait; a later request continues without the
        answers.
        """
        leaf = self._leaf()
        if leaf is None or not open_calls(leaf):
            return False
        opened = self._facts.get(OPEN, None, None)
        if not isinstance(opened, dict) or opened.get("message") != leaf["id"]:
            return False
        return all(entry.seq <= opened.get("seq", 0) for entry in entries)

    # --- the client's tools ----------------------------------------------------------------------

    def tools_for(self, options: Mapping[str, Any]) -> list[Any]:
        """Return the client's tools of a turn: those of its request, or those of the last answer."""
        given = options.get("client_tools")
        return given if isinstance(given, list) else self.remembered

    @property
    def remembered(self) -> list[Any]:
        """The client's tools of the last answer."""
        return self._facts.get(CLIENT_TOOLS, None, None) or []

    # --- moments ---------------------------------------------------------------------------------

    def settled(self, commit: Commit, settlement: Settlement) -> None:
        turn, message = settlement.turn, settlement.message
        if turn is None or settlement.is_put_back:
            return
        is_completed = settlement.end.status == "completed"
        if is_completed or turn.has_answer:
            self._remember_tools(commit, turn)
        if message is not None and is_completed and turn.left_open:
            opened = {"message": message["id"], "seq": self._inbox.last_seq}
            self._facts.put(commit, OPEN, json.encode(opened))
            opted, brought = self._opted(message), self._brought(message)
            self._continue(commit, message, opted, settlement.leaf, turn.options, brought)

    def _remember_tools(self, commit: Commit, turn: Turn) -> None:
        """Store the client's tools if the request named some, or if the provider rejected one."""
        own = turn.options.get("client_tools")
        if turn.executor is not None or not (isinstance(own, list) or turn.left_out):
            return
        kept = [each for each in self.tools_for(turn.options) if each["name"] not in turn.left_out]
        if kept != self._facts.get(CLIENT_TOOLS, None, None):
            self._facts.put(commit, CLIENT_TOOLS, json.encode(kept))

    def cleared(self, commit: Commit) -> None:
        for name in (CLIENT_TOOLS, BROUGHT, OPTED, OPEN):
            self._facts.put(commit, name, "null")

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
        """Store the result of a call that the client ran. False if the call does not wait for one."""
        _check_text("error_text", error)
        stored = json.decode(json.encode(output, "output")) if error is None else None
        encoder = Encoder()

        def answer(part: Part) -> list[str]:
            if part.get("state") == "approval-requested" and error is not None:
                return _approval(encoder, part, approved=False, reason=error)
            if part.get("state") != "input-available":
                return []
            if error is not None:
                return [encoder.tool_error(call_id, error or FAILED)]
            return [encoder.tool_output(call_id, stored)]

        tools = None if client_tools is None else checked_schemas(client_tools)
        found = await self._answer(call_id, answer, goes_on, tools)
        if found is None:
            return False
        part, request_id = found
        self.activation.events.emit(
            events.ToolAnswered, self.address, request_id, call_id, tool_name(part) or ""
        )
        return True

    async def add_approval(
        self, call_id: str, approved: bool, *, reason: str | None = None, goes_on: bool
    ) -> bool:
        """Store a user's approval or denial. False if the call does not wait for an approval."""
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
        self.activation.events.emit(
            events.ToolApproval,
            self.address,
            request_id,
            call_id,
            tool_name(part) or "",
            approved=approved,
        )
        return True

    async def _answer(
        self, call_id: str, answer: Answer, goes_on: bool, tools: list[Any] | None
    ) -> tuple[Part, str] | None:
        """Return the answered part and its request, or None if the call is not pending."""
        if not isinstance(call_id, str):
            raise TypeError(f"tool_call_id must be a str, got {call_id!r}")
        async with self._transcript.changing:  # one answer at a time, and no turn ends in between
            turn = self._state.live
            part = None if turn is None else turn.builder.call(call_id)
            if turn is None or part is None:
                return await self._answer_stored(call_id, answer, goes_on, tools)
            chunks = answer(part) if turn.is_for_client(part) else []
            if not chunks:
                return None
            size = sum(len(chunk.encode()) for chunk in chunks)
            if size > MARGIN and size > (room := turn.room_in(self.activation.store.options)):
                raise ValueTooLarge(
                    f"the output must have at most {max(0, room):,} bytes to fit its message, got {size:,}."
                    f" Put large data into a file or an object store, and send its address."
                )
            for chunk in chunks:
                turn.emit(chunk)
            message = {**turn.builder.message(), "id": turn.message_id}
            commit = self.commits.new()
            for name, text in self._notes(message, goes_on, tools).items():
                self._facts.put(commit, name, text)
                self._facts.remember(name, text)  # at once: the commit may end the turn
            turn.stream.ride(commit)
            is_over = turn.stream.is_held
            if not is_over:
                await turn.stream.stored()
        if is_over:  # the settlement of the turn writes it
            await self._state.wait(turn.request_id)
        self._state.changed()
        return part, turn.request_id

    def _notes(
        self, message: Mapping[str, Any], goes_on: bool, tools: list[Any] | None
    ) -> dict[str, str]:
        """Return facts about a batch of calls, for the turn that continues after it."""
        notes: dict[str, str] = {}
        if goes_on:
            notes[OPTED] = json.encode(_batch(message))
        if tools is not None:
            notes[BROUGHT] = json.encode({"batch": _batch(message), "tools": tools})
        return notes

    async def _answer_stored(
        self, call_id: str, answer: Answer, goes_on: bool, tools: list[Any] | None
    ) -> tuple[Part, str] | None:
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
        opted = goes_on or self._opted(after)
        made_by = await self._transcript.turn_of(str(after["id"]))
        before = None if made_by is None else await self._inbox.get(made_by)
        options = {} if before is None else json.decode(before.options)
        brought = self._brought(after) if tools is None else tools
        commit = self.commits.new()
        self._transcript.apply(commit, change)
        for name, text in self._notes(after, goes_on, tools).items():
            self._facts.put(commit, name, text)
        commit.then(lambda: self.activation.tell(MessageUpdated(after)))
        self._continue(commit, after, opted, self._transcript.leaf, options, brought)
        commit.then(self._state.transcript_changed)
        await commit.stored()
        return part, made_by or ""

    def _message_with(self, call_id: str) -> dict[str, Any] | None:
        """Return the message with a pending call, which gets an approval id if it needs one."""
        for message in reversed(self._transcript.path):
            for part in open_calls(message):
                if part.get("toolCallId") == call_id:
                    named = _with_approval_id(part)
                    parts = [named if each is part else each for each in message["parts"]]
                    return {**message, "parts": parts}
        return None

    # --- continuing ------------------------------------------------------------------------------

    def _opted(self, message: Mapping[str, Any]) -> bool:
        return bool(self._facts.get(OPTED, None, None) == _batch(message))

    def _brought(self, message: Mapping[str, Any]) -> list[Any] | None:
        """Return the tools that came with a result of the last batch, or None."""
        found = self._facts.get(BROUGHT, None, None)
        if not isinstance(found, dict) or found.get("batch") != _batch(message):
            return None
        tools = found.get("tools")
        return tools if isinstance(tools, list) else None

    def _continue(
        self,
        commit: Commit,
        message: Mapping[str, Any],
        opted: bool,
        leaf: str | None,
        options: Any,
        tools: list[Any] | None,
    ) -> None:
        """Add the turn that continues a message whose calls are all answered, with its earlier options."""
        if not opted or leaf != message["id"] or open_calls(message):
            return
        known = options if isinstance(options, dict) else {}
        kept = {name: known[name] for name in ("body", "principal") if name in known}
        if tools is not None:
            kept["client_tools"] = tools
        request = Request(
            "continue",
            AUTO,
            key=f"auto:{_batch(message)}",
            options={"body": {}, **kept},
            target=str(message["id"]),
        )
        self._inbox.add(commit, self._inbox.entry(request))


def _check_text(what: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what} must be a str, got {value!r}")


def _batch(message: Mapping[str, Any]) -> str:
    """Return the id of a batch: the calls of the last step of a message."""
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
    """Return a client's tool schemas as they are stored; raise if they are invalid."""
    if isinstance(client_tools, str | bytes | Mapping):
        raise TypeError(f"client_tools must be a list of schemas, got {client_tools!r}")
    if len(client_tools) > MAX_CLIENT_TOOLS:
        raise ValueError(
            f"there must be at most {MAX_CLIENT_TOOLS} client tools, got {len(client_tools)}"
        )
    for schema in client_tools:
        if not isinstance(schema, Mapping):
            raise TypeError(f"the schema of a client tool must be a dict, got {schema!r}")
        _check_client_tool(definition_of(schema))
    text = json.encode([dict(each) for each in client_tools], "client_tools")
    if len(text) > MAX_SCHEMAS:
        raise ValueError(
            f"the schemas of client tools must have at most {MAX_SCHEMAS:,} characters, got {len(text):,}"
        )
    given: list[Any] = json.decode(text)
    return given


def _check_client_tool(tool: ToolDefinition) -> None:
    """Raise unless every provider accepts the tool: a rejected one would fail each later turn."""
    if not _NAME.fullmatch(tool.name):
        raise ValueError(
            "the name of a client tool must be 1 to 64 letters, digits, '_' or '-', got"
            f" {tool.name[:100]!r}"
        )
    kind = tool.parameters_json_schema.get("type", "object")
    if kind != "object":
        raise ValueError(
            f"the schema of the client tool {tool.name!r} must describe an object, got {kind!r}"
        )
    properties = tool.parameters_json_schema.get("properties", {})
    if not isinstance(properties, Mapping) or not all(
        isinstance(each, Mapping | bool) for each in properties.values()
    ):
        raise ValueError(f"the properties of the client tool {tool.name!r} must be schemas")
