"""One turn: the entry that it answers, its message so far, and how it is stopped."""

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

EXECUTOR_TOOLS = "executor_tools"  # an option: the names of the tools that an executor runs

BREATHE_AFTER = 100  # chunks in a row after which the turn yields to other tasks

MARGIN = 1024 * 1024  # bytes of a message that are reserved for the rest of the answer
DEPTH = json.MAX_DEPTH + 10
MAX_DATA = 16 * 1024 * 1024  # characters of the data parts that a turn may store
_ADDS_NOTHING = tuple(
    f'{{"type":"{kind}' for kind in ("start", "error", "abort", "message-metadata")
)

current_turn: ContextVar[Turn | None] = ContextVar("outlast_turn", default=None)
composing_for: ContextVar[str | None] = ContextVar("outlast_composing", default=None)
"""The agent whose next turn waits for the running function."""


Executor = Callable[[ToolCall], Any]  # runs a tool of the client; may be async


class Waiting(Protocol):
    """The turns of an agent, as a turn of another agent sees them."""

    def waits_for(self, turn: Turn) -> bool: ...


class Follower(Protocol):
    """Receives each chunk of a turn."""

    async def caught_up(self) -> None: ...


class TurnAborted(Exception):
    """The turn was stopped; its partial answer is kept. Internal to outlast."""


class PutBack(Exception):
    """The turn is left to another process, before anything was streamed. Internal to outlast."""


class Turn:
    """The work that answers one inbox entry. Facts about a turn are kept here, not on the agent."""

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
        self.begun = begun  # the message that it continues
        self.abort = Abort()
        self.builder = MessageBuilder(begun)
        self.stage: ChatErrorStage = "turn"  # for the context of errors
        self.classification: ChatErrorClassification | None = None  # of the last error
        self.patience: float | timedelta | None = None  # the stall timeout
        self.output: Any = None  # the answer as the requested type
        self.is_running = True
        self.is_put_back = False  # it is left to another process, before anything was streamed
        self.is_recovered = False  # an earlier attempt was interrupted
        self.repaired: tuple[
            str, ...
        ] = ()  # calls that were closed before the request to the model
        self.open_calls: set[str] = set()  # calls that wait for the client or for an approval
        self.client_tools: frozenset[str] = (
            frozenset()
        )  # the names of the tools that the client runs
        self.offered: tuple[str, ...] = ()  # the names of all tools in the last request, in order
        self.left_out: frozenset[str] = frozenset()  # client tools that the provider rejected
        self.is_condensed = False  # the model sees older steps of this turn truncated
        self.last_usage: Any = None  # of the last request to the model
        self.request_sizes: Mapping[str, int] = {}  # characters of each piece of a failed request
        self.request_path: Sequence[dict[str, Any]] = ()  # the conversation of a failed request
        self.has_answer = False  # a model accepted the offered tools and answered
        self.following: Follower | None = None
        self.executor: Executor | None = None  # of the client's tools, if passed to `chat`
        self.waits_for: list[Waiting] = []  # the agents whose turns the code of this turn waits for
        self.resumed: Partial | None = (
            None  # the partial answer of an earlier attempt, if continued
        )
        self.earlier: Sequence[dict[str, Any]] = ()  # messages of this turn that it continues after
        self.held: Any = None  # the note about an answer that the provider keeps
        self.on_held: Callable[[str], Operation] | None = None  # stores such a note
        self.loose_ends: Callable[[], list[str]] = list  # returns the chunks that end open parts
        self.seam: dict[str, Any] | None = None  # how the rest was joined to an interrupted text
        self.on_continued: Callable[[], Operation] | None = None  # for the first continued chunk
        self.said_in_a_row = 0  # chunks; after `BREATHE_AFTER` the turn must `breathe`
        self.writer = DataWriter(self._write_data)
        self._early: (
            list[tuple[str, bool]] | None
        ) = []  # data parts written before the message began
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
        """The options of the request: `body`, and `client_tools` if it named some."""
        options = json.decode(self.entry.options)
        return options if isinstance(options, dict) else {}

    @property
    def body(self) -> Mapping[str, Any]:
        body = self.options.get("body")
        return body if isinstance(body, dict) else {}

    @property
    def lost_tools(self) -> frozenset[str]:
        """The names of the client's tools whose executor was lost with its process."""
        names = () if self.executor is not None else self.options.get(EXECUTOR_TOOLS)
        return frozenset(names if isinstance(names, list) else ())

    @property
    def left_open(self) -> bool:
        """Whether a call had to wait for the client or an approval; it may be answered by now."""
        return bool(self.open_calls)

    def is_for_client(self, part: Mapping[str, Any]) -> bool:
        """Return whether the client or a user must answer this call of the message."""
        return (
            part.get("state") == "approval-requested"
            or tool_name(part) in self.client_tools
            or part.get("toolCallId") in self.open_calls
        )

    def room_in(self, store: StoreOptions) -> int:
        """Return how many bytes the message can still grow within the store's limit."""
        size = len(json.encode(self.builder.message(), "message", DEPTH).encode())
        return store.max_value_bytes - size - MARGIN

    def emit(self, chunk: str, *operations: Operation) -> None:
        """Add a chunk to the stream and to the message; `operations` are written with it."""
        self.stream.append(chunk)
        if operations:
            self.stream.attach(*operations)
        if self.on_continued is not None and not chunk.startswith(_ADDS_NOTHING):
            self._note_continued(self.on_continued)
        self.builder.apply(chunk)
        self.said_in_a_row += 1

    def say(self, kind: str, part_id: str, text: str, chunk: str) -> None:
        """Add more text: the same as `emit` with its chunk, without decoding it."""
        self.stream.append(chunk)
        if self.on_continued is not None:
            self._note_continued(self.on_continued)
        self.builder.append(kind, part_id, text)
        self.said_in_a_row += 1

    def begin(self, *chunks: str) -> None:
        """Begin or continue the message with these chunks, followed by the data parts that waited."""
        for chunk in chunks:
            self.emit(chunk)
        early, self._early = self._early or (), None
        for data in early:
            self._emit_data(*data)

    def begin_anew(self, builder: MessageBuilder, resumed: Partial | None) -> None:
        """Prepare another attempt at the message."""
        self.builder, self.resumed, self.stage = builder, resumed, "turn"
        self._early = []

    def _write_data(self, chunk: str, transient: bool) -> None:
        """Write a data part; thread-safe, for tools that run in a thread."""
        if not self.is_running:
            raise RuntimeError("data parts must be written while their turn is running")
        self._data_size += 0 if transient else len(chunk)
        if self._data_size > MAX_DATA:
            raise ValueTooLarge(
                f"the data parts of a turn must have at most {MAX_DATA:,} characters in total. Write fewer,"
                " or use transient=True for those that need not be stored."
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
        """Write the note once, in the commit of the first chunk of the continuation."""
        self.on_continued = None
        self.stream.attach(note())

    @contextmanager
    def reading_transcript(self) -> Iterator[None]:
        """Assign exceptions in this block to the stage "transcript"."""
        try:
            yield
        except Exception:
            self.stage = "transcript"
            raise

    async def breathe(self) -> None:
        """Yield to other tasks between two chunks, and wait while the store is far behind."""
        self.said_in_a_row = 0
        await asyncio.sleep(0)
        await self.stream.wait_for_room()

    async def unless_stopped(self, work: Awaitable[T]) -> T:
        """Await user code; raise `TurnAborted` as soon as the turn is stopped, wherever that code waits."""
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
                    await asyncio.sleep(0)  # before 3.13, `uncancel` keeps a pending cancellation
                except asyncio.CancelledError:
                    if task.cancelling() > before + 1:
                        raise
                finally:
                    task.uncancel()
