"""The stream of one turn: its chunks, durable before anybody sees them.

Chunks that arrive while a commit is under way ride in the next one. Whoever reads a stream has a place in
it and moves on at its own pace: readers hold up neither the commits nor one another. With a floor
(`Host(flush=…)`) chunks wait for more of them, so that there are fewer commits; what somebody waits for is
written at once.
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
MOST_WAITING = 1024 * 1024  # characters that may wait for a commit before the model is held back
MOST_PASSING = 100  # transient chunks that a reader which is behind does not miss


class Passing(str):
    """A transient chunk: it has no place in the stream, and whoever comes later does not see it."""

    __slots__ = ()


class _Reader:
    """Somebody who reads a stream, and what passes by: each with the place before which it comes."""

    __slots__ = ("passing", "waiting")

    def __init__(self) -> None:
        self.passing: deque[tuple[int, Passing]] = deque(maxlen=MOST_PASSING)
        self.waiting: asyncio.Future[None] | None = None


class Committing(Protocol):
    """How a stream writes."""

    def __call__(self, operations: list[Operation]) -> asyncio.Future[tuple[int, ...]]: ...


def chunks_of(found: Iterable[tuple[int, str]]) -> list[str]:
    """The chunks of stored rows (seq, body), each at the place of its seq; "" where one is missing."""
    chunks: list[str] = []
    for seq, body in found:
        del chunks[seq:]
        chunks += [""] * (seq - len(chunks))
        chunks += body.split("\n")
    return chunks


def _rows(chunks: list[str], size: int) -> Iterable[list[str]]:
    """Chunks that are stored in one row each time; a row is not longer than it has to be.

    `size` is that of all of them: nearly always, one row is enough."""
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
    """The chunks of a turn, while it runs and for as long as somebody reads it."""

    def __init__(
        self,
        agent: str,
        turn: str,
        chunks: Sequence[str] = (),
        *,
        flush: float = 0.0,
    ) -> None:
        self.turn = turn
        self.chunks: list[str] = list(chunks)  # the durable ones; a chunk's seq is its place
        self.end: TurnEnd | None = None
        self._agent = agent
        self._attempt = 0
        self._commit: Committing | None = None
        self._waiting: list[str] = []
        self._waiting_size = 0
        self._attached: list[Operation] = []  # what rides in the commit of the chunks that wait
        self._riding: list[Commit] = []  # whose operations these are, if anything follows from them
        self._writing: asyncio.Future[tuple[int, ...]] | None = None
        self._taken: Sequence[str] = ()  # the chunks that are being written
        self._ahead: list[tuple[int, Passing]] = []  # what passes after chunks that are not durable
        self._scheduled = False
        self._floor = flush  # seconds from one commit to the next, unless somebody waits for that
        self._flushed_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._given = self._kept = 0  # chunks and operations: so many came, so many are durable
        self._closed = False
        self._muted = False
        self._held = False
        self._failure: Exception | None = None  # of a write, which nobody was shown anything of
        self._readers: set[_Reader] = set()
        self._interruptions = 0
        self._loop = asyncio.get_running_loop()

    # --- writing ---------------------------------------------------------------------------------

    def open_for(self, attempt: int, commit: Committing) -> None:
        """An attempt of its turn begins, whatever became of the one before."""
        self._closed, self._held, self._failure = False, False, None
        self._attempt = attempt
        self._commit = commit

    def append(self, chunk: str) -> None:
        """One more chunk. It is handed over with everything else of this tick of the event loop."""
        if self._closed or self._muted:
            return
        self._waiting.append(chunk)
        self._waiting_size += len(chunk)
        self._given += 1
        if self._writing is None and not self._scheduled:  # or it rides along, or in the next one
            self._flush_in_time()

    def pass_on(self, chunk: str) -> None:
        """Show a chunk to those who read now, after what was appended before it. It is not stored."""
        if self._closed or self._muted or self._held:
            return
        passing = (len(self.chunks) + len(self._taken) + len(self._waiting), Passing(chunk))
        if passing[0] > len(self.chunks):
            self._ahead.append(passing)
        for reader in self._readers:
            reader.passing.append(passing)
        self._tell()

    def attach(self, *operations: Operation) -> None:
        """Write this together with the chunks appended so far, and before those that follow."""
        if operations and not self._closed and not self._muted:
            self._attached += operations
            self._given += 1
            self._flush_soon()

    def ride(self, commit: Commit) -> None:
        """Write a commit together with the chunks appended so far, and before those that follow."""
        if self._closed or self._muted:
            commit.give_up(CommitFailed("the stream that this was to be written with is closed"))
            return
        self._riding.append(commit)
        self.attach(*commit.operations)

    def mute(self) -> None:
        """Nothing more is written; its readers wait for the end that they will be told."""
        self._muted = True
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        self._waiting, self._waiting_size, self._attached = [], 0, []
        riding, self._riding = self._riding, []
        for commit in riding:
            commit.give_up(CommitFailed("the stream that this was to be written with is closed"))
        self._kept = self._given  # nobody waits for what is not going to be stored

    def hold(self) -> None:
        """What waits now is kept for the commit of the turn's end, so that neither is without the other."""
        self._held = True

    @property
    def is_held(self) -> bool:
        return self._held

    async def room(self) -> None:
        """Wait while too much waits for a commit."""
        while self._waiting_size > MOST_WAITING and not (self._closed or self._held):
            if self._writing is None:
                self._flush()
            if self._writing is not None:
                await asyncio.wait({self._writing})

    async def stored(self) -> None:
        """Wait until everything that was appended so far is durable. Raises if it will never be."""
        given = self._given
        while self._kept < given and self._failure is None and not self._closed:
            if self._held and self._writing is None:
                return  # it rides in the commit of the turn's end
            if self._writing is None and not self._scheduled:
                self._flush()
            if self._writing is not None and not self._writing.done():
                with suppress(Exception):  # it is kept as the failure
                    await self._writing
            else:
                await asyncio.sleep(0)  # others of this tick may have something to add
        if self._failure is not None:
            raise again(self._failure)

    def _flush_soon(self) -> None:
        """With everything else of this tick."""
        if self._writing is None and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush_in_time(self) -> None:
        """Not before the floor: nobody waits for chunks alone, but those who read them."""
        left = self._flushed_at + self._floor - self._loop.time() if self._floor else 0.0
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
        except Exception as failure:  # the agent is over; what is not durable was never seen
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
        self._tell()
        if self._attached or (self._waiting and not self._floor):
            self._flush()
        elif self._waiting:
            self._flush_in_time()

    async def drained(self) -> None:
        """Hold what waits, and wait for what is being written."""
        self.hold()
        while self._writing is not None:
            await asyncio.wait({self._writing})

    def finish(self, commit: Commit, end: TurnEnd) -> None:
        """Write what waits together with the end of the turn, once it is `drained`; then tell the readers."""
        taken, last = self._take()

        def finished() -> None:
            self.chunks += taken
            self.close(end)

        def given_up() -> None:
            if not isinstance(commit.failure, CommitRefused):  # then somebody else knows the end
                self.close()

        commit.write(*last)
        commit.then(finished)
        commit.undo(given_up)
        riding, self._riding = self._riding, []
        for each in riding:
            commit.follow(each)

    def close(self, end: TurnEnd | None = None) -> None:
        """Nothing more is written. Without an end its readers are left: the turn is not over."""
        self._closed = True
        self._stop_timer()
        self._drop_waiting()
        self._ahead.clear()
        if end is not None:
            self.end = end
        self._tell()

    @property
    def is_read(self) -> bool:
        """Whether anybody reads it right now."""
        return bool(self._readers)

    # --- reading ---------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """The attempt has ended, and the turn has not: those who do not want to wait for more leave."""
        self._interruptions += 1
        self._tell()

    async def read(self, after: int = 0, *, leaves: bool = False) -> AsyncIterator[tuple[int, str]]:
        """Each chunk with its seq, from `after` on: first what is stored, then what comes.

        `leaves`: not what comes after an interruption. What is `Passing` has the seq of what comes next.
        """
        at = max(0, after)
        async for chunks in self._grown(at, leaves):
            for chunk in chunks:
                if chunk:
                    yield at, chunk
                if not isinstance(chunk, Passing):
                    at += 1

    async def batches(self, after: int = 0) -> AsyncIterator[tuple[int, list[str]]]:
        """The same, all at once what there is to read, with the seq of the first.

        What is `Passing` comes alone.
        """
        at = max(0, after)
        async for chunks in self._grown(at):
            yield at, chunks
            if not isinstance(chunks[0], Passing):
                at += len(chunks)

    async def news(self) -> AsyncIterator[list[str]]:
        """The same without numbers, and all at once what there is to read."""
        async for chunks in self._grown(0):
            if shown := [chunk for chunk in chunks if chunk]:
                yield shown

    async def _grown(self, at: int, leaves: bool = False) -> AsyncIterator[list[str]]:
        interruptions = self._interruptions
        reader = _Reader()
        self._readers.add(reader)
        passing = reader.passing
        passing.extend(self._ahead)
        try:
            while True:
                if passing and passing[0][0] <= at:
                    yield [passing.popleft()[1]]
                    continue
                if at < len(self.chunks):
                    chunks = self.chunks[at : passing[0][0] if passing else None]
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

    def _tell(self) -> None:
        for reader in self._readers:
            if reader.waiting is not None and not reader.waiting.done():
                reader.waiting.set_result(None)
