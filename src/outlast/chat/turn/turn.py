"""One turn: what it answers, what it has said so far, and how it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.partial import Partial
from outlast.chat.message.reducer import MessageBuilder
from outlast.chat.message.tool_part import tool_name
from outlast.chat.stream.stream import Stream
from outlast.chat.tools.declare import ToolCall
from outlast.chat.types.contexts import ChatErrorClassification, ChatErrorStage
from outlast.chat.types.data_parts import DataWriter
from outlast.core import json
from outlast.core.abort import Abort
from outlast.core.errors import ValueTooLarge
from outlast.store.base import StoreOptions
from outlast.store.operations import Operation

T = TypeVar("T")

EXECUTOR_TOOLS = "executor_tools"  # of the options: the names of the tools that an executor runs

BREATHE_AFTER = 100  # chunks in a row that a model may bring without anybody else getting a word in

MARGIN = 1024 * 1024  # bytes of a message that results leave free for the rest of the answer
DEPTH = json.MAX_DEPTH + 10
MOST_DATA = 16 * 1024 * 1024  # characters of the data parts that a turn may store
_ADDS_NOTHING = tuple(
    f'{{"type":"{kind}' for kind in ("start", "error", "abort", "message-metadata")
)

current_turn: ContextVar[Turn | None] = ContextVar("outlast_turn", default=None)
composing_for: ContextVar[str | None] = ContextVar("outlast_composing", default=None)
"""The agent whose next turn waits for the function that runs here."""


Executor = Callable[[ToolCall], Any]  # runs a tool of the client; may be async


class Waiting(Protocol):
    """The turns of an agent, seen from a turn of another one."""

    def waits_for(self, turn: Turn) -> bool: ...


class CaughtUp(Protocol):
    """Whoever follows a turn chunk by chunk."""

    async def caught_up(self) -> None: ...


class TurnAborted(Exception):
    """The turn was stopped; what it has said is kept. Never leaves `outlast`."""


class PutBack(Exception):
    """The turn is left to another process, before anything was said. Never leaves `outlast`."""


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
        self.stage: ChatErrorStage = "turn"  # how far it has come, for whoever is told of an error
        self.classification: ChatErrorClassification | None = None  # of the last error
        self.patience: float | timedelta | None = None  # with a model that sends nothing
        self.output: Any = None  # the answer as the type that was asked for
        self.is_running = True
        self.is_put_back = False  # before anything was said: another process answers it
        self.is_recovered = False  # an earlier attempt was interrupted
        self.repaired: tuple[str, ...] = ()  # calls that were closed before the model is asked
        self.open_calls: set[str] = set()  # calls that wait for somebody else
        self.client_tools: frozenset[str] = frozenset()  # the names of those that the client runs
        self.offered: tuple[str, ...] = ()  # the names of all tools in the last request, in order
        self.left_out: frozenset[str] = frozenset()  # tools of the client that its provider refused
        self.has_answer = False  # a model has answered with the tools that it was offered
        self.following: CaughtUp | None = None  # who is told of each chunk
        self.executor: Executor | None = None  # of the client's tools, if `chat` brought one
        self.waits_for: list[Waiting] = []  # the agents whose turns code inside this one waits for
        self.resumed: Partial | None = (
            None  # what an earlier attempt has said, if it is gone on with
        )
        self.earlier: Sequence[dict[str, Any]] = ()  # messages of its own that it goes on with
        self.held: Any = None  # what is noted of an answer that the provider keeps
        self.on_held: Callable[[str], Operation] | None = None  # notes such an answer
        self.loose_ends: Callable[[], list[str]] = list  # what ends the parts that are still open
        self.seam: dict[str, Any] | None = (
            None  # how the rest of an interrupted text was joined to it
        )
        self.on_continued: Callable[[], Operation] | None = None  # an interrupted answer continues
        self.said_in_a_row = 0  # chunks; after `BREATHE_AFTER` it is time to `breathe`
        self.writer = DataWriter(self._write_data)
        self._early: list[tuple[str, bool]] | None = []  # data parts that come before the message
        self._data_size = 0
        self._loop = asyncio.get_running_loop()

    @property
    def request_id(self) -> str:
        return self.entry.id

    @property
    def is_continuation(self) -> bool:
        return self.begun is not None

    @property
    def options(self) -> dict[str, Any]:
        """What came along with the request: `body`, and `client_tools` if it named some."""
        options = json.decode(self.entry.options)
        return options if isinstance(options, dict) else {}

    @property
    def body(self) -> Mapping[str, Any]:
        body = self.options.get("body")
        return body if isinstance(body, dict) else {}

    @property
    def lost_tools(self) -> frozenset[str]:
        """The names of the client's tools that an executor was to run, if it is gone."""
        names = () if self.executor is not None else self.options.get(EXECUTOR_TOOLS)
        return frozenset(names if isinstance(names, list) else ())

    @property
    def left_open(self) -> bool:
        """Whether a call had to wait for somebody else; it may have been answered since."""
        return bool(self.open_calls)

    def is_for_client(self, part: Mapping[str, Any]) -> bool:
        """Whether it is somebody else's to answer this call, which is part of the message."""
        return (
            part.get("state") == "approval-requested"
            or tool_name(part) in self.client_tools
            or part.get("toolCallId") in self.open_calls
        )

    def room_in(self, store: StoreOptions) -> int:
        """Bytes that the message can still grow by, as the store takes it."""
        size = len(json.encode(self.builder.message(), "message", DEPTH).encode())
        return store.max_value_bytes - size - MARGIN

    def emit(self, chunk: str, *operations: Operation) -> None:
        """Say something: it becomes part of the stream and of the message. What else is written with it."""
        self.stream.append(chunk)
        if operations:
            self.stream.attach(*operations)
        if self.on_continued is not None and not chunk.startswith(_ADDS_NOTHING):
            self._note_continued(self.on_continued)
        self.builder.apply(chunk)
        self.said_in_a_row += 1

    def say(self, kind: str, part_id: str, text: str, chunk: str) -> None:
        """Say more of a text: the same as to `emit` its chunk, which nobody has to decode here."""
        self.stream.append(chunk)
        if self.on_continued is not None:
            self._note_continued(self.on_continued)
        self.builder.append(kind, part_id, text)
        self.said_in_a_row += 1

    def begin(self, *chunks: str) -> None:
        """The message begins with these chunks, or goes on; then come the data parts that wait for it."""
        for chunk in chunks:
            self.emit(chunk)
        early, self._early = self._early or (), None
        for data in early:
            self._emit_data(*data)

    def begin_anew(self, builder: MessageBuilder, resumed: Partial | None) -> None:
        """Another attempt at the message, before anybody has said that it begins."""
        self.builder, self.resumed, self.stage = builder, resumed, "turn"
        self._early = []

    def _write_data(self, chunk: str, transient: bool) -> None:
        """Also from the thread of a tool that is a plain function."""
        if not self.is_running:
            raise RuntimeError("data parts can only be written while their turn runs")
        self._data_size += 0 if transient else len(chunk)
        if self._data_size > MOST_DATA:
            raise ValueTooLarge(
                f"the data parts of a turn may have {MOST_DATA:,} characters together. Write fewer, or"
                " write those that need not be stored with transient=True."
            )
        try:
            here: object = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            self._emit_data(chunk, transient)
        else:
            self._loop.call_soon_threadsafe(self._emit_data, chunk, transient)

    def _emit_data(self, chunk: str, transient: bool) -> None:
        if self._early is not None:
            self._early.append((chunk, transient))
        elif transient:
            self.stream.append_transient(chunk)
        elif self.is_running:
            self.emit(chunk)

    def _note_continued(self, note: Callable[[], Operation]) -> None:
        """Once, in the commit of the first chunk that an interrupted answer adds."""
        self.on_continued = None
        self.stream.attach(note())

    @contextmanager
    def reading_transcript(self) -> Iterator[None]:
        """An exception in this block is one of the stage "transcript"."""
        try:
            yield
        except Exception:
            self.stage = "transcript"
            raise

    async def breathe(self) -> None:
        """Between two chunks: let others work, and wait while the store is far behind."""
        self.said_in_a_row = 0
        await asyncio.sleep(0)
        await self.stream.wait_for_room()

    async def unless_stopped(self, work: Awaitable[T]) -> T:
        """Code of the user; `TurnAborted` as soon as the turn is stopped, wherever that code waits."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()

        def stop() -> None:
            task.cancel()

        forget = self.abort.listen(stop)
        try:
            return await work
        except asyncio.CancelledError:
            if self.abort.is_set and task.cancelling() == before + 1:
                raise TurnAborted from None
            raise
        finally:
            forget()
            if self.abort.is_set and task.cancelling() > before:
                try:
                    await asyncio.sleep(0)  # before 3.13, `uncancel` leaves one that is on its way
                except asyncio.CancelledError:
                    if task.cancelling() > before + 1:
                        raise
                finally:
                    task.uncancel()
