"""The stream of one turn: its chunks, durable before any reader sees them.

Chunks that arrive during a commit are written by the next one. Each reader has its own position and pace:
readers delay neither commits nor each other. With a minimum interval (`Host(flush=…)`), chunks are collected
to save commits; operations that a task waits for are written at once.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from outlast.agent.commit import Commit
from outlast.chat.message.results import TurnEnd
from outlast.chat.stream import sql as rows
from outlast.core.errors import CommitFailed, CommitRefused, again
from outlast.store.operations import Operation

LONGEST_ROW = 8 * 1024 * 1024  # characters, unless it is one chunk
MAX_WAITING = 1024 * 1024  # characters that may wait for a commit before the model must wait
MAX_TRANSIENT = 100  # transient chunks kept for a slow reader


class Transient(str):
    """A transient chunk: it has no number in the stream, and later readers do not see it."""

    __slots__ = ()


class _Reader:
    """A reader of a stream, and its transient chunks, each with the seq of the chunk that follows."""

    __slots__ = ("transient", "waiting")

    def __init__(self) -> None:
        self.transient: deque[tuple[int, Transient]] = deque(maxlen=MAX_TRANSIENT)
        self.waiting: asyncio.Future[None] | None = None


class Submit(Protocol):
    """Submits the operations of a stream."""

    def __call__(self, operations: list[Operation]) -> asyncio.Future[tuple[int, ...]]: ...


def chunks_of(found: Iterable[tuple[int, str]]) -> list[str]:
    """Return the chunks of stored rows (seq, body), each at the index of its seq; "" for missing ones."""
    chunks: list[str] = []
    for seq, body in found:
        del chunks[seq:]
        chunks += [""] * (seq - len(chunks))
        chunks += body.split("\n")
    return chunks


def _rows(chunks: list[str], size: int) -> Iterable[list[str]]:
    """Split chunks into rows of at most `LONGEST_ROW` characters, if possible.

    `size` is their total size: one row is nearly always enough.
    """
    if size + len(chunks) <= LONGEST_ROW:
        return [chunks] if chunks else []
    return _cut(chunks)


def _cut(chunks: list[str]) -> Iterator[list[str]]:
    row: list[str] = []
    size = 0
    for chunk in chunks:
        if row and size + len(chunk) > LONGEST_ROW:
            yield row
            row, size = [], 0
        row.append(chunk)
        size += len(chunk) + 1
    if row:
        yield row


class Stream:
    """The chunks of a turn, while it runs and while it has readers."""

    def __init__(
        self,
        agent: str,
        turn: str,
        chunks: Sequence[str] = (),
        *,
        flush: float = 0.0,
    ) -> None:
        self.turn = turn
        self.chunks: list[str] = list(chunks)  # the durable ones; a chunk's seq is its index
        self.end: TurnEnd | None = None
        self._agent = agent
        self._attempt = 0
        self._commit: Submit | None = None
        self._waiting: list[str] = []
        self._waiting_size = 0
        self._attached: list[Operation] = []  # written in the commit of the waiting chunks
        self._riding: list[Commit] = []  # the commits of those operations, for their effects
        self._writing: asyncio.Future[tuple[int, ...]] | None = None
        self._taken: Sequence[str] = ()  # the chunks being written
        self._ahead: list[tuple[int, Transient]] = []  # after chunks that are not durable yet
        self._scheduled = False
        self._interval = flush  # seconds between commits that contain only chunks
        self._flushed_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._given = self._kept = 0  # chunks and operations: received, and durable
        self._closed = False
        self._muted = False
        self._held = False
        self._failure: Exception | None = None  # of a write
        self._readers: set[_Reader] = set()
        self._interruptions = 0
        self._loop = asyncio.get_running_loop()

    # --- writing ---------------------------------------------------------------------------------

    def open_for(self, attempt: int, commit: Submit) -> None:
        """Open the stream for an attempt of its turn."""
        self._closed, self._held, self._failure = False, False, None
        self._attempt = attempt
        self._commit = commit

    def append(self, chunk: str) -> None:
        """Append a chunk. All chunks of one tick of the event loop are submitted together."""
        if self._closed or self._muted:
            return
        self._waiting.append(chunk)
        self._waiting_size += len(chunk)
        self._given += 1
        if self._writing is None and not self._scheduled:  # otherwise the next flush writes it
            self._flush_in_time()

    def append_transient(self, chunk: str) -> None:
        """Send a chunk to the current readers, after the chunks appended before it, without storing it."""
        if self._closed or self._muted or self._held:
            return
        transient = (len(self.chunks) + len(self._taken) + len(self._waiting), Transient(chunk))
        if transient[0] > len(self.chunks):
            self._ahead.append(transient)
        for reader in self._readers:
            reader.transient.append(transient)
        self._wake_readers()

    def attach(self, *operations: Operation) -> None:
        """Write operations together with the chunks appended so far, before those that follow."""
        if operations and not self._closed and not self._muted:
            self._attached += operations
            self._given += 1
            self._flush_soon()

    def ride(self, commit: Commit) -> None:
        """Write a commit together with the chunks appended so far, before those that follow."""
        if self._closed or self._muted:
            commit.give_up(CommitFailed("the stream of this commit is closed"))
            return
        self._riding.append(commit)
        self.attach(*commit.operations)

    def mute(self) -> None:
        """Stop writing. The readers wait for the end of the turn."""
        self._muted = True
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        self._waiting, self._waiting_size, self._attached = [], 0, []
        riding, self._riding = self._riding, []
        for commit in riding:
            commit.give_up(CommitFailed("the stream of this commit is closed"))
        self._kept = self._given  # so that no task waits for what will not be stored

    def hold(self) -> None:
        """Keep the waiting chunks for the commit of the turn's end, so that both are stored or neither."""
        self._held = True

    @property
    def is_held(self) -> bool:
        return self._held

    async def wait_for_room(self) -> None:
        """Wait while too many characters wait for a commit."""
        while self._waiting_size > MAX_WAITING and not (self._closed or self._held):
            if self._writing is None:
                self._flush()
            if self._writing is not None:
                await asyncio.wait({self._writing})

    async def stored(self) -> None:
        """Wait until everything appended so far is durable. Raises if the write failed."""
        given = self._given
        while self._kept < given and self._failure is None and not self._closed:
            if self._held and self._writing is None:
                return  # the commit of the turn's end writes it
            if self._writing is None and not self._scheduled:
                self._flush()
            if self._writing is not None and not self._writing.done():
                with suppress(Exception):  # recorded as the failure
                    await self._writing
            else:
                await asyncio.sleep(0)  # other tasks of this tick may append more
        if self._failure is not None:
            raise again(self._failure)

    def _flush_soon(self) -> None:
        """Flush at the end of this tick."""
        if self._writing is None and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush_in_time(self) -> None:
        """Flush once the minimum interval has passed."""
        left = self._flushed_at + self._interval - self._loop.time() if self._interval else 0.0
        if left <= 0:
            self._flush_soon()
        elif self._writing is None and self._timer is None:
            self._timer = self._loop.call_later(left, self._flush)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._scheduled = False
        self._stop_timer()
        if self._closed or self._held or self._writing is not None:
            return
        if not self._waiting and not self._attached:
            return
        assert self._commit is not None
        self._flushed_at = self._loop.time()
        taken, operations = self._take()
        riding, self._riding = self._riding, []
        given = self._given
        try:
            self._writing = self._commit(operations)
        except Exception as failure:  # the activation is over
            self._failure = failure
            for commit in riding:
                commit.give_up(failure)
            self.close()
            return
        self._taken = taken
        self._writing.add_done_callback(lambda outcome: self._written(outcome, taken, given))
        for commit in riding:
            self._writing.add_done_callback(commit.conclude)

    def _take(self) -> tuple[list[str], list[Operation]]:
        taken, size = self._waiting, self._waiting_size
        self._waiting, self._waiting_size = [], 0
        attached, self._attached = self._attached, []
        seq, appends = len(self.chunks), []
        for chunks in _rows(taken, size):
            row = (self._agent, self.turn, seq, len(chunks), self._attempt)
            appends.append((rows.APPEND, (*row, "\n".join(chunks))))
            seq += len(chunks)
        return taken, [*appends, *attached]

    def _written(
        self, outcome: asyncio.Future[tuple[int, ...]], taken: list[str], given: int
    ) -> None:
        self._writing, self._taken = None, ()
        failure = outcome.exception()
        if failure is not None:
            assert isinstance(failure, Exception)
            self._failure = failure
            self.close()
            return
        self.chunks += taken
        self._kept = max(self._kept, given)
        self._ahead = [each for each in self._ahead if each[0] > len(self.chunks)]
        self._wake_readers()
        if self._attached or (self._waiting and not self._interval):
            self._flush()
        elif self._waiting:
            self._flush_in_time()

    async def drained(self) -> None:
        """Hold the waiting chunks, and wait for the running commit."""
        self.hold()
        while self._writing is not None:
            await asyncio.wait({self._writing})

    def finish(self, commit: Commit, end: TurnEnd) -> None:
        """Write the waiting chunks with the end of the turn, after `drained`; then end the readers."""
        taken, last = self._take()

        def finished() -> None:
            self.chunks += taken
            self.close(end)

        def given_up() -> None:
            if not isinstance(commit.failure, CommitRefused):  # then another commit ended the turn
                self.close()

        commit.write(*last)
        commit.then(finished)
        commit.undo(given_up)
        riding, self._riding = self._riding, []
        for each in riding:
            commit.follow(each)

    def close(self, end: TurnEnd | None = None) -> None:
        """Stop writing and end the readers; without an `end`, the turn is not over."""
        self._closed = True
        self._stop_timer()
        self._drop_waiting()
        self._ahead.clear()
        if end is not None:
            self.end = end
        self._wake_readers()

    @property
    def is_read(self) -> bool:
        """Whether it has readers."""
        return bool(self._readers)

    # --- reading ---------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """The attempt ended, but not the turn: readers that do not wait for the next attempt end."""
        self._interruptions += 1
        self._wake_readers()

    async def read(self, after: int = 0, *, leaves: bool = False) -> AsyncIterator[tuple[int, str]]:
        """Yield each chunk with its seq, from `after` on: first stored ones, then new ones.

        `leaves` ends at an interruption. A `Transient` chunk has the seq of the chunk that follows it.
        """
        at = max(0, after)
        async for chunks in self._read_lists(at, leaves):
            for chunk in chunks:
                if chunk:
                    yield at, chunk
                if not isinstance(chunk, Transient):
                    at += 1

    async def batches(self, after: int = 0) -> AsyncIterator[tuple[int, list[str]]]:
        """Yield all available chunks at once, with the seq of the first.

        A `Transient` chunk is yielded alone.
        """
        at = max(0, after)
        async for chunks in self._read_lists(at):
            yield at, chunks
            if not isinstance(chunks[0], Transient):
                at += len(chunks)

    async def chunk_lists(self) -> AsyncIterator[list[str]]:
        """Yield all available chunks at once, without numbers."""
        async for chunks in self._read_lists(0):
            if shown := [chunk for chunk in chunks if chunk]:
                yield shown

    async def _read_lists(self, at: int, leaves: bool = False) -> AsyncIterator[list[str]]:
        interruptions = self._interruptions
        reader = _Reader()
        self._readers.add(reader)
        transient = reader.transient
        transient.extend(self._ahead)
        try:
            while True:
                if transient and transient[0][0] <= at:
                    yield [transient.popleft()[1]]
                    continue
                if at < len(self.chunks):
                    chunks = self.chunks[at : transient[0][0] if transient else None]
                    at += len(chunks)
                    yield chunks
                    continue
                if self.end is not None or self._closed:
                    return
                if leaves and self._interruptions > interruptions:
                    return
                reader.waiting = self._loop.create_future()
                await reader.waiting
        finally:
            self._readers.discard(reader)

    def _wake_readers(self) -> None:
        for reader in self._readers:
            if reader.waiting is not None and not reader.waiting.done():
                reader.waiting.set_result(None)
