"""A turn whose process died: what it has said, and what is known of the tools that it was running."""

from __future__ import annotations

import logging
from typing import Literal

from outlast.agent.part import Parts
from outlast.chat.answer.sources import contributions
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.encoder import Encoder
from outlast.chat.message.reducer import MessageBuilder
from outlast.chat.message.tool_part import Part, advanced, is_settled
from outlast.chat.recovery.chain import chunks_to, settled_calls
from outlast.chat.recovery.judge import Interruption, Verdict
from outlast.chat.stream.stream import Stream
from outlast.chat.stream.streams import Streams
from outlast.chat.tools.declare import ToolSpec, marked_methods
from outlast.chat.tools.earlier import interrupted_end, nested_rows
from outlast.chat.tools.ledger import CallRow, CallState, Ledger
from outlast.chat.tools.outcome import CallEnd
from outlast.chat.tools.toolset import tool_source
from outlast.chat.turn.part_repair import PartRepair
from outlast.chat.turn.turn import Turn
from outlast.chat.types.events import ToolFinished
from outlast.core import json

logger = logging.getLogger("outlast.chat")


async def close_calls(
    parts: Parts,
    entry: EntryRow,
    builder: MessageBuilder,
    stream: Stream,
    *,
    resumes: bool = False,
) -> dict[str, Part]:
    """Give each call that had begun an outcome: what it is, or that nobody knows.

    `resumes`: only those that may not be made again, since the others are about to be. The agent is asked
    about those that did not end well; returns the parts that take their place.
    """
    ledger, repair = parts[Ledger], parts[PartRepair]
    rows = await ledger.of_turn(entry.id)
    begun = [row for row in rows if row.state == "begun"]
    if not begun:
        return {}
    closing = await Closing.of(parts, entry, stream)
    nested = nested_rows(rows)
    encoder = Encoder()
    replaced: dict[str, Part] = {}
    for row in begun:
        part = builder.call(row.id)
        is_left = resumes and row.effect != "once"  # it is about to be made again
        if part is None or is_settled(part) or is_left:
            continue
        end = await closing.end_of(row)
        if end.state == "done":
            chunk = encoder.tool_output(row.id, end.output)
        else:
            made, mark = None, None
            if resumes and repair.is_wanted:
                closed = advanced(part, json.decode(_error(encoder, row, end)))
                made, mark = await repair.made_of(closed or part), "asked"
            chunk = _error(encoder, row, end, mark)
            if made is not None:
                replaced[row.id] = made
        builder.apply(chunk)
        stream.append(chunk)
        assert end.state != "open"
        is_replayed = row.key is not None and end.state == "done"
        kept = json.encode(end.output) if is_replayed else None
        stream.attach(ledger.end(entry.id, row.id, end.state, kept))
    for row in begun:
        is_nested = row.id in nested and builder.call(row.id) is None
        if is_nested and _is_over(builder.call(nested[row.id])):
            stream.attach(ledger.close(row, await closing.end_of(row)))
    return replaced


def _is_over(part: Part | None) -> bool:
    """Whether a call will not be made again, so that nobody makes the calls inside it again."""
    return part is None or is_settled(part)


class Closing:
    """Finds out what came of calls that had begun, and reports it."""

    def __init__(self, parts: Parts, turn: Turn, specs: dict[str, ToolSpec]) -> None:
        self._parts = parts
        self._turn = turn
        self._specs = specs

    @classmethod
    async def of(cls, parts: Parts, entry: EntryRow, stream: Stream) -> Closing:
        address, id = parts.activation.address.text, entry.message_id or ""
        turn = Turn(address, entry, stream, message_id=id, under=entry.target)
        return cls(parts, turn, await _specs(parts, turn))

    async def end_of(self, row: CallRow) -> CallEnd:
        spec = None if row.name in self._turn.lost_tools else self._specs.get(row.name)
        end = await interrupted_end(self._parts.agent, row, spec, self._turn.message_id)
        self._parts.activation.events.emit(
            ToolFinished,
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


def _error(encoder: Encoder, row: CallRow, end: CallEnd, mark: str | None = None) -> str:
    outcome: Literal["failed", "unknown"] = "unknown" if end.state == "unknown" else "failed"
    return encoder.tool_error(row.id, end.error or "", outcome=outcome, mark=mark)


async def _specs(parts: Parts, turn: Turn) -> dict[str, ToolSpec]:
    """What is known of the functions that this agent's turns can call, by the names of their tools."""
    try:
        given = await contributions(parts, turn, ())
        specs: dict[str, ToolSpec] = {}
        for source, tools in given.tools:
            specs |= tool_source(source, tools).specs
        return specs
    except Exception:
        logger.exception("get_tools() raised; only methods marked with @tool are known")
        return tool_source("agent", marked_methods(parts.agent)).specs


async def settle_by_chain(parts: Parts, what: Interruption, verdict: Verdict) -> None:
    """The answer becomes what `on_recovery_boot` has made of it. Calls that it settles never run."""
    answer = None if verdict.chain is None else verdict.chain.answer
    if answer is None:
        return
    entry, stream, ledger = what.entry, parts[Streams].of(what.entry), parts[Ledger]
    begun = {row.id for row in await ledger.of_turn(entry.id) if row.state == "begun"}
    for part in settled_calls(what.partial, answer):
        if part["toolCallId"] in begun:
            state: CallState = "done" if part["state"] == "output-available" else "failed"
            stream.attach(ledger.end(entry.id, part["toolCallId"], state))
    chunks = chunks_to(what.partial, answer)
    for chunk in chunks:
        stream.append(chunk)
    what.partial.take(chunks)
