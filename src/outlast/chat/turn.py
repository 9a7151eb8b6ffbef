"""One turn: what it answers, what it has said so far, and how it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from outlast.chat.abort import Abort
from outlast.chat.inbox_rows import EntryRow
from outlast.chat.reducer import MessageBuilder
from outlast.chat.stream import Stream
from outlast.core import json

BREATHE_AFTER = 50  # chunks in a row that a model may bring without anybody else getting a word in

current_turn: ContextVar[Turn | None] = ContextVar("outlast_turn", default=None)


class Waiting(Protocol):
    """The turns of an agent, seen from a turn of another one."""

    def waits_for(self, turn: Turn) -> bool: ...


class Turn:
    """The work that answers one entry of the inbox. Facts about a turn live here, not on the agent."""

    def __init__(
        self,
        agent: str,
        entry: EntryRow,
        stream: Stream,
        *,
        message_id: str,
        under: str | None,
        begun: dict[str, Any] | None = None,
    ) -> None:
        self.agent = agent
        self.entry = entry
        self.stream = stream
        self.message_id = message_id
        self.under = under  # the message that it answers
        self.begun = begun  # the message that it goes on with
        self.abort = Abort()
        self.builder = MessageBuilder(begun)
        self.output: Any = None  # the answer as the type that was asked for
        self.is_running = True
        self.waits_for: list[Waiting] = []  # the agents whose turns code inside this one waits for
        self._since_breath = 0

    @property
    def request_id(self) -> str:
        return self.entry.id

    @property
    def is_continuation(self) -> bool:
        return self.begun is not None

    @property
    def body(self) -> Mapping[str, Any]:
        """What came along with the request."""
        options = json.decode(self.entry.options)
        body = options.get("body") if isinstance(options, dict) else None
        return body if isinstance(body, dict) else {}

    def emit(self, chunk: str) -> None:
        """Say something: it becomes part of the stream and of the message."""
        self.stream.append(chunk)
        self.builder.apply(chunk)
        self._since_breath += 1

    def say(self, kind: str, part_id: str, text: str, chunk: str) -> None:
        """Say more of a text: the same as to `emit` its chunk, which nobody has to decode here."""
        self.stream.append(chunk)
        if kind == "text":
            self.builder.append_text(part_id, text)
        else:
            self.builder.append_reasoning(part_id, text)
        self._since_breath += 1

    @property
    def is_out_of_breath(self) -> bool:
        """Many chunks have come in a row: it is time to `breathe`."""
        return self._since_breath >= BREATHE_AFTER

    async def breathe(self) -> None:
        """Between two chunks: let others work, and wait while the store is far behind."""
        self._since_breath = 0
        await asyncio.sleep(0)
        await self.stream.room()
