"""The entries of an agent's inbox, and every change of an entry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlast.agent.admission import current_origin
from outlast.agent.agent import batteries
from outlast.agent.commit import Block, Commit
from outlast.agent.part import Part, Parts
from outlast.chat.inbox import sql as rows
from outlast.chat.inbox.origin import Origins
from outlast.chat.inbox.sql import EntryRow, Kind, Outcome
from outlast.chat.message.results import Message
from outlast.chat.types import events
from outlast.core import json
from outlast.core.errors import CommitRefused, SubmissionConflict
from outlast.store.operations import Query

Compose = Callable[[list[Message]], Any]  # the conversation in, messages out; may be async
COMPOSED = "composed"  # the option of an entry whose messages a function creates


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the agent, not accepted yet."""

    kind: Kind
    origin: str
    messages: list[dict[str, Any]] | None = None
    id: str | None = None
    key: str | None = None
    policy: str = "queue"
    options: dict[str, Any] | None = None
    metadata: Any = None
    target: str | None = None
    cancelled: str | None = None  # the reason, if it is cancelled from the start
    compose: Compose | None = None  # creates the messages when the turn begins


class Inbox(Part):
    """The entries of one agent. Open entries are in memory, too."""

    first_reads = (rows.LAST_SEQ, rows.OPEN, rows.LAST_ENDED)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        known = batteries(type(parts.agent))
        self.origins = Origins(origin for battery in known for origin in battery.origins)
        self._last_seq = 0
        self.loaded_seq = 0  # of the last entry accepted before this activation
        self._last_ended = 0
        self.last_failed: str | None = None  # the request that ended last, if it failed
        self._open: dict[int, EntryRow] = {}  # in the order of seq
        self._accepting: set[asyncio.Future[None]] = set()  # of entries that are not durable yet

    async def load(self) -> None:
        """Read the open entries, once per activation."""
        fetch = self.activation.fetch
        found = await fetch(rows.LAST_SEQ, self.address)
        self._last_seq = self.loaded_seq = found[0][0] if found else 0
        for values in await fetch(rows.OPEN, self.address):
            if isinstance(values[0], int):
                self._open[values[0]] = entry_of(values)
            else:
                what, error = f"the request {values[1]}", f"its seq is {values[0]!r}"
                self.activation.events.emit(events.StoredDamaged, self.address, what, error)
        if found:
            for id, seq, outcome in await fetch(rows.LAST_ENDED, self.address):
                self._last_ended = seq
                self.last_failed = id if outcome in ("error", "interrupted") else None

    @property
    def open(self) -> list[EntryRow]:
        """The entries that have not ended, in order."""
        return list(self._open.values())

    @property
    def last_seq(self) -> int:
        """The seq of the last accepted entry."""
        return self._last_seq

    @property
    def is_busy(self) -> bool:
        """True while an entry is open, or being accepted."""
        return bool(self._open or self._accepting)

    def first(self) -> EntryRow | None:
        """Return the next entry to handle, or None."""
        return self._open[min(self._open)] if self._open else None

    async def wait_for_accepting(self) -> None:
        """Wait for the entries that are being accepted now."""
        if self._accepting:
            await asyncio.wait(set(self._accepting))

    async def accept(
        self, request: Request, on_new: Callable[[EntryRow], None] | None = None
    ) -> tuple[EntryRow, bool]:
        """Store a request. Returns an existing entry with its id or key and False instead, if there is one.

        The entry is durable when this returns; inside `commit()`, when the block ends. `on_new` is called
        with a new entry before it is durable.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accepting.add(done)
        try:
            return await self._accept(request, on_new)
        finally:
            self._accepting.discard(done)
            done.set_result(None)

    async def _accept(
        self, request: Request, on_new: Callable[[EntryRow], None] | None
    ) -> tuple[EntryRow, bool]:
        key = request.key
        if key is None and request.id is None:
            key = self.derived_key(request)
        texts = _texts(request)  # at once: the caller may modify the request later
        existing = self._admitted_here(request.id, key) or await self.existing(request.id, key)
        if existing is not None:
            return existing, False
        entry = self._entry(replace(request, key=key), texts)
        if on_new is not None:
            on_new(entry)
        commit = self.commits.current_or_new()
        if isinstance(commit, Block):
            commit.view(self, list[EntryRow]).append(entry)
        self.add(commit, entry)
        try:
            await commit.stored()
        except CommitRefused:
            existing = await self.existing(request.id, key)
            if existing is None:
                raise
            return existing, False
        return entry, True

    def derived_key(self, request: Request) -> str | None:
        """Return a key that is the same if the surrounding durable work runs again; None outside of such."""
        origin = current_origin()
        if origin is None:
            return None
        messages = [_without_id(each) for each in request.messages or ()]
        content = json.encode([messages, request.target, request.options or {}], "messages")
        return origin.key(self.address, "turn", request.kind, content, self.commits.current())

    def entry(self, request: Request) -> EntryRow:
        """Return a new entry, for `add`."""
        return self._entry(request, _texts(request))

    def _entry(self, request: Request, texts: tuple[str | None, str, str | None]) -> EntryRow:
        messages, options, metadata = texts
        self._last_seq += 1
        return EntryRow(
            seq=self._last_seq,
            id=request.id or self.activation.ids.new("request"),
            kind=request.kind,
            origin=request.origin,
            policy=request.policy,
            key=request.key,
            state="accepted",
            outcome=None,
            error=None,
            messages=messages,
            options=options,
            metadata=metadata,
            target=request.target,
            message_id=None,
            attempt=0,
            cancelled=request.cancelled,
            accepted_at=self.activation.clock.now(),
            started_at=None,
            ended_at=None,
        )

    def add(self, commit: Commit, entry: EntryRow) -> None:
        """Accept an entry."""
        self._write(commit, entry)
        commit.then(lambda: self._accepted(entry))
        self.parts.join("accepted", commit, entry)

    def write_ended(self, commit: Commit, entry: EntryRow) -> None:
        """Store an entry that ends in the same commit: it records its key, and is never open."""
        self._write(commit, entry)
        now = self.activation.clock.now()
        commit.write((rows.END, (self.address, entry.seq, "completed", None, None, now, None)))

    def _write(self, commit: Commit, entry: EntryRow) -> None:
        values = (entry.seq, entry.id, entry.kind, entry.origin, entry.policy, entry.key)
        given = (entry.messages, entry.options, entry.metadata, entry.target, entry.cancelled)
        commit.write((rows.ACCEPT, (self.address, *values, *given, entry.accepted_at)))

    def _accepted(self, entry: EntryRow) -> None:
        self._open[entry.seq] = entry
        emit = self.activation.events.emit
        emit(events.InboxAccepted, self.address, entry.id, entry.kind, entry.origin)
        if self.origins[entry.origin].is_listed:
            emit(events.SubmissionCreated, self.address, entry.id, entry.key)
        if entry.kind == "message":
            emit(events.MessageRequest, self.address, entry.id)

    def _admitted_here(self, id: str | None, key: str | None) -> EntryRow | None:
        """Return the entry with this id or key that the open commit() block accepted, or None."""
        block = self.commits.current()
        entries = [] if block is None else block.view(self, list[EntryRow])
        by_id = next((each for each in entries if id is not None and each.id == id), None)
        by_key = next((each for each in entries if key is not None and each.key == key), None)
        return self._same(by_id, by_key, id, key)

    async def existing(self, id: str | None, key: str | None) -> EntryRow | None:
        """Return the entry with this id or key, or None."""
        by_id = await self.get(id) if id is not None else None
        by_key = await self._fetch_one(rows.BY_KEY, key) if key is not None else None
        return self._same(by_id, by_key, id, key)

    @staticmethod
    def _same(
        by_id: EntryRow | None, by_key: EntryRow | None, id: str | None, key: str | None
    ) -> EntryRow | None:
        if by_key is not None and id is not None and by_key.id != id:
            raise SubmissionConflict(
                f"the idempotency key {key!r} belongs to the request {by_key.id!r}, not to {id!r}"
            )
        if by_id is not None and key is not None and by_id.key != key:
            raise SubmissionConflict(
                f"the request {id!r} has the idempotency key {by_id.key!r}, not {key!r}"
            )
        return by_id or by_key

    # --- transitions -----------------------------------------------------------------------------

    def claim(
        self, commit: Commit, entry: EntryRow, under: str | None, message_id: str
    ) -> EntryRow:
        """Begin the turn of an entry. Returns the changed entry."""
        now = self.activation.clock.now()
        running = replace(
            entry,
            state="running",
            messages=None,
            target=under,
            message_id=message_id,
            attempt=entry.attempt + 1,
            started_at=now,
        )
        commit.write((rows.CLAIM, (self.address, entry.seq, under, message_id, now)))
        return self._replace_on_commit(commit, running)

    def retry(self, commit: Commit, entry: EntryRow) -> EntryRow:
        """Begin another attempt at the turn of an entry."""
        commit.write((rows.RESUME, (self.address, entry.seq)))
        return self._replace_on_commit(commit, replace(entry, attempt=entry.attempt + 1))

    def put_back(self, commit: Commit, entry: EntryRow) -> EntryRow:
        """Take back a claim; the messages of the entry stay applied."""
        commit.write((rows.PUT_BACK, (self.address, entry.seq)))
        target = entry.message_id if entry.kind == "continue" else entry.target
        waiting = replace(entry, state="accepted", target=target, message_id=None, started_at=None)
        return self._replace_on_commit(commit, waiting)

    def move_on(
        self, commit: Commit, entry: EntryRow, under: str | None, message_id: str
    ) -> EntryRow:
        """Continue the turn of an entry in another message, or under another one."""
        commit.write((rows.MOVE_ON, (self.address, entry.seq, under, message_id)))
        return self._replace_on_commit(commit, replace(entry, target=under, message_id=message_id))

    def _replace_on_commit(self, commit: Commit, entry: EntryRow) -> EntryRow:
        """Replace the entry in memory once the commit is durable, keeping a newer cancellation."""

        def changed() -> None:
            current = self._open.get(entry.seq)
            if current is not None:
                self._open[entry.seq] = replace(entry, cancelled=current.cancelled)

        commit.then(changed)
        return entry

    def end(
        self,
        commit: Commit,
        entry: EntryRow,
        outcome: Outcome,
        error: str | None,
        message_id: str | None,
        detail: str | None = None,
    ) -> EntryRow:
        """End an entry. Only `turn.settle` calls this. Returns the ended entry."""
        now = self.activation.clock.now()
        values = (self.address, entry.seq, outcome, error, message_id, now, detail)
        commit.write((rows.END, values))
        ended = replace(
            entry,
            state="ended",
            outcome=outcome,
            error=error,
            messages=None,
            message_id=message_id,
            ended_at=now,
            detail=detail,
        )
        commit.then(lambda: self.ended(ended))
        return ended

    def ended(self, entry: EntryRow) -> None:
        """Remove an ended entry from memory."""
        self._open.pop(entry.seq, None)
        if entry.seq >= self._last_ended and entry.outcome is not None:
            self._last_ended = entry.seq
            self.last_failed = entry.id if entry.outcome in ("error", "interrupted") else None

    def up_to(self, seq: int) -> list[EntryRow]:
        """Return the open entries with at most this seq."""
        return [entry for entry in self._open.values() if entry.seq <= seq]

    def cancel(self, commit: Commit, entry: EntryRow, reason: str) -> None:
        """Record the cancellation of an entry."""

        def cancelled() -> None:
            if entry.seq in self._open:
                self._open[entry.seq] = replace(self._open[entry.seq], cancelled=reason)
            self.activation.events.emit(events.CancelRecorded, self.address, entry.id, reason)

        commit.write((rows.CANCEL, (self.address, entry.seq, reason)))
        commit.then(cancelled)

    def current(self, entry: EntryRow) -> EntryRow | None:
        """Return the current state of an entry, or None if it has ended."""
        return self._open.get(entry.seq)

    def expire(self, commit: Commit, now: int) -> None:
        forget = rows.expiry(self.origins.listed)
        commit.write((forget, (self.address, now - rows.KEEP_ENTRIES)))

    # --- reading ---------------------------------------------------------------------------------

    def find_open(self, id: str) -> EntryRow | None:
        """Return the open entry with this id, or None."""
        return next((entry for entry in self._open.values() if entry.id == id), None)

    async def get(self, id: str) -> EntryRow | None:
        return self.find_open(id) or await self._fetch_one(rows.BY_ID, id)

    async def fetch(self, query: Query, *arguments: Any) -> list[EntryRow]:
        found = await self.activation.store.fetch(query, self.address, *arguments)
        return [entry_of(values) for values in found]

    async def _fetch_one(self, query: Query, value: str) -> EntryRow | None:
        found = await self.fetch(query, value)
        return found[0] if found else None


def entry_of(values: Sequence[Any]) -> EntryRow:
    """Return a stored row; damaged times and counts are replaced by 0 or None."""
    entry = EntryRow(*values)
    numbers = (entry.attempt, entry.accepted_at, entry.started_at or 0, entry.ended_at or 0)
    if all(isinstance(number, int) for number in numbers):
        return entry
    known = [number if isinstance(number, int) else 0 for number in numbers]
    attempt, accepted_at, started_at, ended_at = known
    return replace(
        entry,
        attempt=attempt,
        accepted_at=accepted_at,
        started_at=started_at or None,
        ended_at=ended_at or None,
    )


def _texts(request: Request) -> tuple[str | None, str, str | None]:
    """Return messages, options and metadata as JSON."""
    messages, metadata = request.messages, request.metadata
    return (
        None if messages is None else json.encode(messages, "messages"),
        json.encode(request.options or {}, "options"),
        None if metadata is None else json.encode(metadata, "metadata"),
    )


def _without_id(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message without its id, which differs from run to run."""
    return {name: value for name, value in message.items() if name != "id"}
