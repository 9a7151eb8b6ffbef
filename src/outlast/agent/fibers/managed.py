"""Managed fibers: their records outlive them, and are found by id or idempotency key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from outlast.agent.admission import current_origin, fiber_scope, forget
from outlast.agent.fibers import sql as rows
from outlast.agent.fibers.fibers import UNSET, FiberFunction, Fibers, check_function
from outlast.agent.fibers.recovery import FiberResolution, Recovery, checked, decoded, settlement
from outlast.agent.fibers.sql import FiberRow
from outlast.agent.part import Part, Parts
from outlast.core import json
from outlast.core.clock import to_datetime, to_milliseconds
from outlast.core.errors import CommitRefused, FiberConflict, FiberInterrupted
from outlast.core.text import problem_of
from outlast.store.operations import Query

FiberStatus = Literal["pending", "running", "completed", "error", "aborted", "interrupted"]
STATUSES: tuple[FiberStatus, ...] = (
    "pending",
    "running",
    "completed",
    "error",
    "aborted",
    "interrupted",
)
DELETED_BY_DEFAULT: tuple[FiberStatus, ...] = ("completed", "error", "aborted")
MAX_LISTED = 100
MAX_DELETED = 500


@dataclass(frozen=True, slots=True)
class FiberInspection:
    """The stored record of a managed fiber."""

    id: str
    name: str
    status: FiberStatus
    idempotency_key: str | None
    snapshot: Any
    metadata: Any
    error: str | None
    created_at: datetime
    started_at: datetime | None
    settled_at: datetime | None
    accepted: bool = True  # False: start_fiber found this one by id or key, and started nothing


class ManagedFibers(Part):
    """The managed fibers of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._fibers = parts[Fibers]
        self._recovery = parts[Recovery]
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}

    async def launch(
        self,
        name: str,
        function: FiberFunction[Any],
        input: Any,
        id: str | None,
        idempotency_key: str | None,
        wait: bool,
        metadata: Any,
    ) -> FiberInspection:
        check_function(name, function)
        _check_text("id", id)
        _check_text("idempotency_key", idempotency_key)
        block = self._fibers.commits.current()
        if block is not None and wait:
            raise ValueError("wait=True inside commit() would deadlock; wait after the block")
        has_input = input is not UNSET
        snapshot = json.encode(input, "input") if has_input else None
        origin = current_origin()
        if id is None and idempotency_key is None and origin is not None:
            idempotency_key = origin.key(self._fibers.address, "fiber", name, snapshot, block)
        described = None if metadata is None else json.encode(metadata, "metadata")
        existing = await self._existing_or_free(id, idempotency_key)
        started = {} if block is None else block.view(self, dict[str, FiberRow])
        if idempotency_key is not None and idempotency_key in started:
            return self._inspection(started[idempotency_key], accepted=False)
        if existing is None:
            row = self._fibers.new_row(
                name,
                snapshot,
                id=id,
                managed=True,
                idempotency_key=idempotency_key,
                metadata=described,
            )
            fiber = self._fibers.launch(
                row, function, has_input, [self._fibers.insertion(row)], claim=True
            )
            if block is not None:  # durable when the block ends
                if idempotency_key is not None:
                    started[idempotency_key] = row
                return self._inspection(row)
            try:
                await fiber.accepted
            except CommitRefused:
                existing = await self._existing(id, idempotency_key)
                if existing is None:
                    raise
            else:
                return await self.wait(row.id) if wait else self._inspection(row)
        if wait:
            await self.wait(existing.id)
        found = await self._row(existing.id) or existing
        return self._inspection(found, accepted=False)

    async def _existing_or_free(self, id: str | None, key: str | None) -> FiberRow | None:
        """Return the fiber with this id or key, or None once a new one can start.

        A fiber that still runs under the id (just started, or cancelled and ending) goes first: it must not
        be displaced, and must not write into the row of its successor.
        """
        while True:
            before = self._fibers.running.get(id) if id is not None else None
            was_stored = before is not None and before.accepted.done()
            existing = await self._existing(id, key)
            live = self._fibers.running.get(id) if id is not None else None
            if existing is not None or live is None:
                return existing
            if live.block is not None and live.block is self._fibers.commits.current():
                raise FiberConflict(f"the fiber {id!r} was already started in this commit() block")
            if not live.accepted.done():
                await asyncio.wait({live.accepted})
            elif live is before and was_stored and live.task is not None:  # its row was deleted
                await asyncio.wait({live.task})

    async def _existing(self, id: str | None, key: str | None) -> FiberRow | None:
        by_id = await self._row(id) if id is not None else None
        by_key = await self._fetch_one(rows.BY_KEY, key) if key is not None else None
        if id is not None and by_key is not None and by_key.id != id:
            raise FiberConflict(
                f"the idempotency key {key!r} belongs to the fiber {by_key.id!r}, not to {id!r}"
            )
        if key is not None and by_id is not None and by_id.idempotency_key != key:
            raise FiberConflict(
                f"the fiber {id!r} has the idempotency key {by_id.idempotency_key!r}, not {key!r}"
            )
        return by_id or by_key

    async def inspect(self, id: str | None, key: str | None) -> FiberInspection | None:
        row = await self._named(id, key)
        return None if row is None else self._inspection(row)

    async def _named(self, id: str | None, key: str | None) -> FiberRow | None:
        """Return the fiber with this id, or with this key."""
        if (id is None) == (key is None):
            raise TypeError("pass either the fiber's id or idempotency_key=, not both")
        if id is not None:
            return await self._row(id)
        _check_text("idempotency_key", key)
        return await self._existing(None, key)

    async def list(
        self, status: FiberStatus | Iterable[FiberStatus] | None, name: str | None, limit: int
    ) -> list[FiberInspection]:
        _check_limit(limit, MAX_LISTED)
        statuses = STATUSES if status is None else _statuses(status)
        if not statuses:
            return []
        arguments = [*statuses, *([name] if name is not None else []), limit]
        found = await self._fibers.activation.store.fetch(
            rows.listing(len(statuses), name is not None), self._fibers.address, *arguments
        )
        return [self._inspection(FiberRow(*values)) for values in found]

    async def cancel(self, id: str | None, key: str | None) -> bool:
        """Make the end durable, then stop the running code. Waiters return without waiting for the code."""
        row = await self._named(id, key)
        if row is None or row.settled_at is not None:
            return False
        id = row.id
        now = self._fibers.activation.clock.now()

        def stop() -> None:
            fiber = self._fibers.running.get(id)
            if fiber is not None:
                fiber.cancel()
            self.fiber_ended(id)

        cancelled = FiberResolution("aborted")
        agent = self._fibers.address
        touched = await self._fibers.commits.write(
            [
                (rows.SETTLE, settlement(agent, id, cancelled, now)),
                forget(agent, fiber_scope(row.root_id)),
            ],
            stop,
        )
        return touched is None or touched[0] != 0

    async def resolve(self, id: str, resolution: FiberResolution) -> bool:
        row = await self._row(id)
        if row is None or row.status != "interrupted":
            return False
        now = self._fibers.activation.clock.now()
        agent = self._fibers.address
        touched = await self._fibers.commits.write(
            [
                (rows.RESOLVE, settlement(agent, id, checked(resolution), now)),
                forget(agent, fiber_scope(row.root_id)),
            ],
            lambda: self.fiber_ended(id),
        )
        return touched is None or touched[0] != 0

    async def delete(
        self,
        status: FiberStatus | Iterable[FiberStatus] | None,
        settled_before: datetime | None,
        limit: int,
    ) -> int:
        _check_limit(limit, MAX_DELETED)
        statuses = DELETED_BY_DEFAULT if status is None else _statuses(status)
        arguments: list[str | int | None] = [self._fibers.address, *statuses]
        if settled_before is not None:
            arguments.append(to_milliseconds(settled_before, "settled_before"))
        if not statuses:
            return 0
        statement = rows.deletion(statuses, settled_before is not None)
        touched = await self._fibers.commits.commit([(statement, (*arguments, limit))])
        return touched[0]

    async def wait(self, id: str) -> FiberInspection:
        """Wait until the fiber has ended, in this or in a later run."""
        while True:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(id, set()).add(waiter)  # before reading, to miss no end
            try:
                row = await self._row(id)
                if row is None:
                    raise FiberInterrupted(f"the fiber {id!r} was deleted during the wait")
                if row.settled_at is not None:
                    return self._inspection(row)
                ended = self._fibers.activation.ended
                if ended is not None:
                    raise FiberInterrupted(f"the fiber {id!r} was interrupted: {ended}")
                if id not in self._fibers.running:
                    self._recovery.scan_soon()
                await waiter
            finally:
                waiters = self._waiters.get(id, set())
                waiters.discard(waiter)
                if not waiters:
                    self._waiters.pop(id, None)

    def fiber_ended(self, id: str) -> None:
        for waiter in self._waiters.pop(id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def leave(self, reason: Exception) -> None:
        """Wake the waiters, so that they see that this activation is over."""
        for id in list(self._waiters):
            self.fiber_ended(id)

    async def _row(self, id: str) -> FiberRow | None:
        return await self._fetch_one(rows.BY_ID, id)

    async def _fetch_one(self, query: Query, value: str) -> FiberRow | None:
        found = await self._fibers.activation.store.fetch(query, self._fibers.address, value)
        return FiberRow(*found[0]) if found else None

    def _inspection(self, row: FiberRow, *, accepted: bool = True) -> FiberInspection:
        agent = self._fibers.address
        return FiberInspection(
            id=row.id,
            name=row.name,
            status=row.status,  # type: ignore[arg-type]
            idempotency_key=row.idempotency_key,
            snapshot=decoded(row.snapshot, agent, f"the snapshot of {row.id}"),
            metadata=decoded(row.metadata, agent, f"the metadata of {row.id}"),
            error=row.error,
            created_at=to_datetime(row.created_at),
            started_at=None if row.started_at is None else to_datetime(row.started_at),
            settled_at=None if row.settled_at is None else to_datetime(row.settled_at),
            accepted=accepted,
        )


def _statuses(status: FiberStatus | Iterable[FiberStatus]) -> Sequence[FiberStatus]:
    statuses: Sequence[Any] = [status] if isinstance(status, str) else list(status)
    for one in statuses:
        if one not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {one!r}")
    return statuses


def _check_text(what: str, value: str | None) -> None:
    problem = None if value is None else problem_of(value)
    if problem is not None:
        raise FiberConflict(f"{what} {problem}")


def _check_limit(limit: int, most: int) -> None:
    if not isinstance(limit, int) or not 1 <= limit <= most:
        raise ValueError(f"limit must be an int from 1 to {most}, got {limit!r}")
