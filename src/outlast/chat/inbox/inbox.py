"""The inbox: everything that the agent was asked, in order, accepted durably before anybody is told."""

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
COMPOSED = "composed"  # the option of an entry whose messages a function makes


@dataclass(frozen=True, slots=True)
class Request:
    """Something that the agent is asked; not accepted yet."""

    kind: Kind
    origin: str
    messages: list[dict[str, Any]] | None = None
    id: str | None = None
    key: str | None = None
    policy: str = "queue"
    options: dict[str, Any] | None = None
    metadata: Any = None
    target: str | None = None
    cancelled: str | None = None  # why, if it is so from the start
    compose: Compose | None = None  # makes the messages when the turn begins


class Inbox(Part):
    """The entries of one agent. Those that have not ended are in memory, too."""

    first_reads = (rows.LAST_SEQ, rows.OPEN, rows.LAST_ENDED)

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        known = batteries(type(parts.agent))
        self.origins = Origins(origin for battery in known for origin in battery.origins)
        self._last_seq = 0
        self.loaded_seq = 0  # of what was accepted last before this activation
        self._last_ended = 0
        self.last_failed: str | None = None  # the request that ended last, if it failed
        self._open: dict[int, EntryRow] = {}  # in the order of seq
        self._accepting: set[asyncio.Future[None]] = set()  # of what is not durable yet

    async def load(self) -> None:
        """Read what is open, once per activation."""
        fetch = self.activation.fetch
        found = await fetch(rows.LAST_SEQ, self.address)
        self._last_seq = self.loaded_seq = found[0][0] if found else 0
        for values in await fetch(rows.OPEN, self.address):
            if isinstance(values[0], int):
                self._open[values[0]] = entry_of(values)
            else:
                what, error = f"the request {values[1]}", f"its place is {values[0]!r}"
                self.activation.events.emit(events.StoredDamaged, self.address, what, error)
        if found:
            for id, seq, outcome in await fetch(rows.LAST_ENDED, self.address):
                self._last_ended = seq
                self.last_failed = id if outcome in ("error", "interrupted") else None

    @property
    def open(self) -> list[EntryRow]:
        """What has not ended, in order."""
        return list(self._open.values())

    @property
    def last_seq(self) -> int:
        """Of what was accepted last."""
        return self._last_seq

    @property
    def is_busy(self) -> bool:
        """True while anything is open, or about to be."""
        return bool(self._open or self._accepting)

    def first(self) -> EntryRow | None:
        """What is to be seen to next."""
        return self._open[min(self._open)] if self._open else None

    async def accepted_so_far(self) -> None:
        """Wait for everything that is being accepted right now."""
        if self._accepting:
            await asyncio.wait(set(self._accepting))

    async def accept(
        self, request: Request, made: Callable[[EntryRow], None] | None = None
    ) -> tuple[EntryRow, bool]:
        """Store a request. False with the entry that has its id or key, if there is one already.

        The entry is durable when this returns; inside `commit()`, when the block ends. `made` is told of
        a new one before it is.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accepting.add(done)
        try:
            return await self._accept(request, made)
        finally:
            self._accepting.discard(done)
            done.set_result(None)

    async def _accept(
        self, request: Request, made: Callable[[EntryRow], None] | None
    ) -> tuple[EntryRow, bool]:
        key = request.key
        if key is None and request.id is None:
            key = self.derived_key(request)
        texts = _texts(request)  # now: the caller may change what it has handed in
        existing = self._admitted_here(request.id, key) or await self.existing(request.id, key)
        if existing is not None:
            return existing, False
        entry = self._entry(replace(request, key=key), texts)
        if made is not None:
            made(entry)
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
        """What this is recognised by if the work around it runs again; None: nothing does."""
        origin = current_origin()
        if origin is None:
            return None
        messages = [_without_id(each) for each in request.messages or ()]
        said = json.encode([messages, request.target, request.options or {}], "messages")
        return origin.key(self.address, "turn", request.kind, said, self.commits.current())

    def entry(self, request: Request) -> EntryRow:
        """The next entry, which is to be added in a commit."""
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
        """Store the row of work that is done with this commit: it is there for its key, and never open."""
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
        """The entry with this id or key that the open commit() block has admitted."""
        block = self.commits.current()
        entries = [] if block is None else block.view(self, list[EntryRow])
        by_id = next((each for each in entries if id is not None and each.id == id), None)
        by_key = next((each for each in entries if key is not None and each.key == key), None)
        return self._same(by_id, by_key, id, key)

    async def existing(self, id: str | None, key: str | None) -> EntryRow | None:
        """The entry with this id or key."""
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

    # --- on their way ----------------------------------------------------------------------------

    def claim(
        self, commit: Commit, entry: EntryRow, under: str | None, message_id: str
    ) -> EntryRow:
        """Begin the turn of an entry. Returns the entry as it is then."""
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
        return self._becoming(commit, running)

    def retry(self, commit: Commit, entry: EntryRow) -> EntryRow:
        """Begin another attempt at the turn of an entry."""
        commit.write((rows.RESUME, (self.address, entry.seq)))
        return self._becoming(commit, replace(entry, attempt=entry.attempt + 1))

    def put_back(self, commit: Commit, entry: EntryRow) -> EntryRow:
        """Take back a claim; the messages of the entry stay applied."""
        commit.write((rows.PUT_BACK, (self.address, entry.seq)))
        target = entry.message_id if entry.kind == "continue" else entry.target
        waiting = replace(entry, state="accepted", target=target, message_id=None, started_at=None)
        return self._becoming(commit, waiting)

    def move_on(
        self, commit: Commit, entry: EntryRow, under: str | None, message_id: str
    ) -> EntryRow:
        """Continue the turn of an entry in another message, or under another one."""
        commit.write((rows.MOVE_ON, (self.address, entry.seq, under, message_id)))
        return self._becoming(commit, replace(entry, target=under, message_id=message_id))

    def _becoming(self, commit: Commit, entry: EntryRow) -> EntryRow:
        """The row changes with the commit; a cancellation that came meanwhile is kept."""

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
        """End an entry. Only `turn.settle` calls this. Returns the entry as it is then."""
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
        """An entry is not open any more."""
        self._open.pop(entry.seq, None)
        if entry.seq >= self._last_ended and entry.outcome is not None:
            self._last_ended = entry.seq
            self.last_failed = entry.id if entry.outcome in ("error", "interrupted") else None

    def up_to(self, seq: int) -> list[EntryRow]:
        """What is open, as far as it was admitted before this."""
        return [entry for entry in self._open.values() if entry.seq <= seq]

    def cancel(self, commit: Commit, entry: EntryRow, reason: str) -> None:
        """Record that an entry is to be stopped."""

        def cancelled() -> None:
            if entry.seq in self._open:
                self._open[entry.seq] = replace(self._open[entry.seq], cancelled=reason)
            self.activation.events.emit(events.CancelRecorded, self.address, entry.id, reason)

        commit.write((rows.CANCEL, (self.address, entry.seq, reason)))
        commit.then(cancelled)

    def current(self, entry: EntryRow) -> EntryRow | None:
        """The same entry as it is now; None: it has ended."""
        return self._open.get(entry.seq)

    def expire(self, commit: Commit, now: int) -> None:
        forget = rows.forgetting(self.origins.listed)
        commit.write((forget, (self.address, now - rows.KEEP_ENTRIES)))

    # --- looking ---------------------------------------------------------------------------------

    def open_one(self, id: str) -> EntryRow | None:
        """The entry with this id, if it has not ended."""
        return next((entry for entry in self._open.values() if entry.id == id), None)

    async def get(self, id: str) -> EntryRow | None:
        return self.open_one(id) or await self._fetch_one(rows.BY_ID, id)

    async def fetch(self, query: Query, *arguments: Any) -> list[EntryRow]:
        found = await self.activation.store.fetch(query, self.address, *arguments)
        return [entry_of(values) for values in found]

    async def _fetch_one(self, query: Query, value: str) -> EntryRow | None:
        found = await self.fetch(query, value)
        return found[0] if found else None


def entry_of(values: Sequence[Any]) -> EntryRow:
    """A row as it was stored; moments and counts that are damaged are not known."""
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
    """Messages, options and metadata, as they are stored."""
    messages, metadata = request.messages, request.metadata
    return (
        None if messages is None else json.encode(messages, "messages"),
        json.encode(request.options or {}, "options"),
        None if metadata is None else json.encode(metadata, "metadata"),
    )


def _without_id(message: dict[str, Any]) -> dict[str, Any]:
    """What is said, and not the id that it was given in this run."""
    return {name: value for name, value in message.items() if name != "id"}
