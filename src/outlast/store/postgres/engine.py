"""The PostgreSQL engine: a group of batches becomes one statement.

The statement contains the fence and every write as data-modifying CTEs over arrays, and divides by zero if a
count is wrong, so that the server rolls it back: fence, order check, writes and COMMIT in one round trip. A
group that cannot be written that way (the same row twice, a stale or failing batch) is written batch by batch
with savepoints.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from outlast.core.errors import StoreClosed, StoreError, StoreURLError
from outlast.store import fencing
from outlast.store.attempt import Attempt, Verdict
from outlast.store.base import Row, Store, StoreOptions
from outlast.store.grouping import (
    Slot,
    results_from,
    rows_are_distinct,
    slots_of,
    sorted_by_table,
    take_group,
)
from outlast.store.operations import (
    Batch,
    BulkStatement,
    Fence,
    Operation,
    Query,
    Read,
    Statement,
)
from outlast.store.postgres import session as postgres_session
from outlast.store.postgres.blocking import (
    BLOCKERS,
    FIND_BLOCKERS_AFTER,
    LONGEST_QUERY,
    TRIES,
    TRY_FOR,
    Blocking,
)
from outlast.store.postgres.errors import (
    HELD,
    LOST,
    TRY_AGAIN,
    asyncpg,
    describe,
    explained,
    is_batch_error,
    refusal,
)
from outlast.store.postgres.lock import SchemaLock
from outlast.store.postgres.migrate import migrate
from outlast.store.postgres.statements import all_sql, combined_sql, rows_sql
from outlast.store.schema import Schema

logger = logging.getLogger("outlast.store")

READERS = 4
MAX_SLOTS = 200  # planning a longer statement takes longer than executing its parts separately
FIRST_RETRY = 0.05  # seconds
LAST_RETRY = 1.0
READ_FOR = 15.0  # seconds that a read keeps trying to reach the server
TRY_READ_FOR = 10.0  # seconds of these for one connection to answer

LOCK_FENCES = "SELECT root, epoch, owner, commit_no FROM agents WHERE root = ANY($1) FOR UPDATE"


async def open_postgres(
    url: str, options: StoreOptions, schemas: Sequence[Schema] = ()
) -> PostgresStore:
    """Connect, run missing migrations, and open the store."""
    dsn, schema_name = parse(url)
    store = PostgresStore(dsn, schema_name, options)
    try:
        await store._open(schemas)
    except BaseException:
        store.abandon()
        raise
    return store


def parse(url: str) -> tuple[str, str]:
    """Split a store URL into the DSN for asyncpg and the name of the schema."""
    parts = urlsplit(url)
    settings = dict(parse_qsl(parts.query))
    name = settings.pop("schema", "outlast")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise StoreURLError(
            f"schema must be lower-case letters, digits and _, and not start with a digit, got {name!r}"
        )
    return urlunsplit(parts._replace(query=urlencode(settings))), name


def identity_of(dsn: str, schema_name: str) -> str:
    """Return the same string for every DSN of one schema, regardless of the user."""
    parts = urlsplit(dsn)
    where = parts.netloc.rpartition("@")[2]
    places = [(name, value) for name, value in parse_qsl(parts.query) if name in ("host", "port")]
    return f"postgresql://{where}{parts.path}?{urlencode([*places, ('schema', schema_name)])}"


class PostgresStore(Store):
    """A store with one connection for writing, and a few for reading."""

    engine = "postgresql"

    def __init__(self, dsn: str, schema_name: str, options: StoreOptions) -> None:
        super().__init__(options)
        self._dsn = dsn
        self._schema = schema_name
        self.identity = identity_of(dsn, schema_name)
        self._writer: Any = None
        self._readers: Any = None
        self._flusher: asyncio.Task[None] | None = None
        self._writing: Attempt | None = None
        self._combined: OrderedDict[tuple[Any, ...], str] = (
            OrderedDict()
        )  # least recently used first
        self._lock = SchemaLock(schema_name, options.server or secrets.token_hex())
        self._blocking = Blocking()
        self._finding: asyncio.Task[None] | None = None  # looks up the blockers
        self._more: asyncio.Event = asyncio.Event()  # a batch was queued
        self._failures = 0  # failed writes in a row

    # --- opening ---------------------------------------------------------------------------------

    async def _open(self, schemas: Sequence[Schema]) -> None:
        with self._explaining():
            self._writer = await self._session(is_first=True)
            await migrate(self._writer, self._schema, schemas)
            self._readers = await asyncpg.create_pool(
                self._dsn,
                min_size=0,  # otherwise the pool logs a traceback for each failed connection
                max_size=READERS,
                timeout=postgres_session.CONNECT_WITHIN,
                reset=_no_reset,
                server_settings=postgres_session.reader_settings(self._schema),
            )

    async def _add_schemas(self, schemas: Sequence[Schema]) -> None:
        """Migrate in a separate session: the writer's may be in the middle of a commit."""
        with self._explaining():
            connection = await postgres_session.connect(self._dsn, self._schema)
            try:
                await migrate(connection, self._schema, schemas)
            finally:
                connection.terminate()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except (asyncpg.PostgresError, *LOST, TimeoutError) as error:
            raise self._explained(error) from error

    async def _session(self, *, is_first: bool = False) -> Any:
        """Open a connection for writing, which holds the schema's lock."""
        connection = await postgres_session.connect(self._dsn, self._schema)
        try:
            await postgres_session.check(connection, self._dsn, self._schema, warns=is_first)
            if not self.options.is_lockless:
                await self._lock.take(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    # --- writing ---------------------------------------------------------------------------------

    def _kick(self) -> None:
        self._more.set()
        if self._flusher is None:
            # In a context of its own, because it outlives the first submitter.
            self._flusher = self._loop.create_task(
                self._flush(), name="outlast-store-writer", context=contextvars.Context()
            )

    async def _flush(self) -> None:
        """Write until the queue is empty, one group at a time, which keeps each agent's order."""
        while self._queue and self._closed is None:
            queue = self._without_closed(self._queue)
            free, waiting = self._blocking.split(queue, self._loop.time())
            group, rest = take_group(free, self.options.max_group, self.options.max_group_bytes)
            self._queue = waiting + rest
            if group:
                attempt = self._writing = Attempt(group)
                await self._write(attempt)
                self._writing = None
                self._failures = 0
                self._put_back(attempt)
                self._conclude(attempt)
            elif waiting:
                await self._wait_for_retry()
        self._flusher = None

    def _put_back(self, attempt: Attempt) -> None:
        """Return batches that wait for a lock to the queue, before later batches of their agents."""
        assert attempt.verdicts is not None
        if self._blocking or "held" in attempt.verdicts:
            ends = list(zip(attempt.group, attempt.verdicts, strict=True))
            held = [batch for batch, verdict in ends if verdict == "held"]
            self._queue = held + self._queue
            done = {batch.fence.root for batch, _ in ends} - {batch.fence.root for batch in held}
            self._blocking.written(done, self._loop.time())

    async def _wait_for_retry(self) -> None:
        """Wait until the next retry of a locked agent, or until a batch is queued."""
        self._more.clear()
        self._on_timer = True
        next_at = self._blocking.next_at
        with suppress(TimeoutError):
            async with asyncio.timeout_at(next_at):
                await self._more.wait()
        self._on_timer = False

    async def _write(self, attempt: Attempt) -> None:
        """Commit a group, retrying until its outcome is known."""
        while True:
            if self._writer is None:
                await self._reach()
            try:
                await self._transact(attempt)
            except (*TRY_AGAIN, HELD):
                attempt.undo_fences()
                await self._pause()
                continue
            except (*LOST, TimeoutError) as error:
                self._lose_writer(error)
                attempt.doubt()
                await self._pause()
                if await self._was_committed(attempt):
                    return
                continue
            except asyncpg.PostgresError as error:
                # Not the fault of any batch: errors of batches have become verdicts.
                self._drop_writer()
                attempt.undo_fences()
                attempt.verdicts = [self._explained(error) for _ in attempt.group]
                return
            except Exception as error:
                # A bug. The waiters must learn of it, and the next group must be written.
                logger.exception("cannot write a group")
                self._drop_writer()
                attempt.doubt()
                if not await self._was_committed(attempt):
                    attempt.verdicts = [error for _ in attempt.group]
                return
            if attempt.is_in_doubt:  # an earlier try may have been committed before this one
                await self._was_committed(attempt)
            return

    async def _pause(self) -> None:
        """Wait before a retry, longer after each failure in a row."""
        delay = min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(self._failures, 20))
        self._failures += 1
        await self._rest(delay)

    async def _rest(self, delay: float) -> None:
        self._on_timer = True
        try:
            await asyncio.sleep(delay)
        finally:
            self._on_timer = False

    async def _reach(self) -> None:
        """Connect the writer, retrying until the server accepts it."""
        while self._writer is None:
            try:
                self._writer = await self._session()
            except (*LOST, TimeoutError, asyncpg.PostgresError, StoreError) as error:
                self._lose_writer(error)
                await self._pause()

    async def _was_committed(self, attempt: Attempt) -> bool:
        """Return whether a try with an unknown outcome is durable, by locking and reading the agents' rows.

        It was one transaction, so one agent is proof enough: another may have been taken over since. Retries
        until the server answers.
        """
        in_doubt = attempt.in_doubt()
        while in_doubt:
            await self._reach()
            try:
                async with self._writer.transaction():
                    rows = await self._writer.fetch(LOCK_FENCES, [fence.root for fence in in_doubt])
            except HELD:  # perhaps by the try in doubt
                await self._pause()
                continue
            except (*LOST, TimeoutError, asyncpg.PostgresError) as error:
                self._lose_writer(error)
                await self._pause()
                continue
            found = {row[0]: (row[1], row[2], row[3]) for row in rows}
            if fencing.is_durable(in_doubt, found):
                attempt.confirm()
                return True
            break
        return False

    async def _transact(self, attempt: Attempt) -> None:
        """Try to write a group once; look up the blockers if that takes long."""
        watch = self._loop.call_later(
            FIND_BLOCKERS_AFTER, self._watch, context=contextvars.Context()
        )
        began, probe = self._loop.time(), self.options.probe
        try:
            slots = sorted_by_table(slots_of(attempt.group, attempt.counts))
            if len(slots) <= MAX_SLOTS and rows_are_distinct(slots) and not self._blocking.is_retry:
                if probe is not None:
                    probe.before_commit(attempt.group)
                try:
                    if await self._together(attempt, slots):
                        if probe is not None:
                            probe.after_commit(attempt.group)
                        return
                except HELD:  # writing batch by batch shows whose row is locked
                    if attempt.is_in_doubt:
                        raise
                attempt.undo_fences()
            await self._separately(attempt, began)
        finally:
            watch.cancel()

    def _watch(self) -> None:
        finding = self._find_blockers()
        self._finding = self._loop.create_task(finding, name="outlast-store-blockers")

    async def _find_blockers(self) -> None:
        if self._writer is not None and self._closed is None:
            arguments = (self._writer.get_server_pid(), LONGEST_QUERY)
            with suppress(StoreError):
                self._blocking.found(await self._fetch(Query("", BLOCKERS), arguments))

    async def _together(self, attempt: Attempt, slots: list[Slot]) -> bool:
        """Write the group as one statement, which is its own transaction. False if nothing was written."""
        guards: dict[Statement, Slot] = {}
        counts = attempt.counts
        for fence, count in counts.items():
            statement, arguments = fencing.guard(fence, count)
            guards.setdefault(statement, Slot(statement)).rows.append(arguments)
        everything = [*guards.values(), *slots]
        single = all(len(slot.rows) == 1 for slot in everything)
        sql = self._combine(everything, single)
        arguments_: list[Any]
        if single:
            arguments_ = [argument for slot in everything for argument in slot.rows[0]]
        else:
            arguments_ = [column for slot in everything for column in zip(*slot.rows, strict=True)]
            arguments_ += [len(slot.rows) for slot in everything]
        for fence, count in counts.items():
            fencing.advance(fence, count)
        # From here on it may be durable; the touched rows are known only if the answer arrives.
        attempt.verdicts = [(-1,) * len(batch.operations) for batch in attempt.group]
        try:
            row = await self._writer.fetchrow(sql, *arguments_)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if not self._is_answer(error) or isinstance(error, HELD):
                raise
            return False
        results = results_from(slots, row[len(guards) : len(everything)], attempt.group)
        assert results is not None, "the statement accepted ambiguous counts"
        attempt.verdicts = list(results)
        return True

    def _combine(self, slots: Sequence[Slot], single: bool) -> str:
        """Return one cached statement for all slots. Unless single, its last arguments are the row counts."""
        key = (single, *(slot.statement for slot in slots))
        sql = self._combined.get(key)
        if sql is None:
            sql = combined_sql([slot.statement for slot in slots], single=single)
            self._combined[key] = sql
            if len(self._combined) > postgres_session.CACHED_STATEMENTS:
                self._combined.popitem(last=False)
        else:
            self._combined.move_to_end(key)
        return sql

    async def _separately(self, attempt: Attempt, began: float) -> None:
        """Write each batch in a savepoint, so that it can be rolled back alone."""
        db, probe = self._writer, self.options.probe
        verdicts: list[Verdict] = []
        broken: set[Fence] = set()
        held: dict[Fence, None] = {}
        most = 0 if attempt.is_in_doubt else TRY_FOR
        await db.execute(f"BEGIN; SET LOCAL lock_timeout = {most}")
        try:
            for batch in attempt.group:
                verdict: Verdict
                if batch.fence in held or len(held) == TRIES:
                    verdict = "held"
                elif batch.fence in broken:
                    verdict = "behind"
                else:
                    verdict = await self._in_savepoint(batch)
                    if verdict == "held":
                        held[batch.fence] = None
                if isinstance(verdict, Exception) or verdict == "stale":
                    broken.add(batch.fence)
                verdicts.append(verdict)
            if probe is not None:
                probe.before_commit(attempt.group)
            attempt.verdicts = verdicts
            await db.execute("COMMIT")
        except asyncpg.PostgresError:
            await db.execute("ROLLBACK")
            raise
        self._blocking.held((fence.root for fence in held), began, self._loop.time())
        if probe is not None:
            probe.after_commit(attempt.group)

    async def _in_savepoint(self, batch: Batch) -> Verdict:
        db = self._writer
        await db.execute("SAVEPOINT batch")
        verdict: Verdict
        guard, arguments = fencing.guard(batch.fence, 1)
        try:
            if await self._execute((guard, arguments)) != 1:
                verdict = "stale"
            else:
                verdict = await self._operations(batch)
        except HELD:
            verdict = "held"
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if not self._is_answer(error):
                raise
            verdict = refusal(error) if is_batch_error(error) else self._explained(error)
        if isinstance(verdict, tuple):
            fencing.advance(batch.fence, 1)
            await db.execute("RELEASE SAVEPOINT batch")
        else:
            await db.execute("ROLLBACK TO SAVEPOINT batch")
        return verdict

    async def _operations(self, batch: Batch) -> Verdict:
        touched = []
        for operation in batch.operations:
            count = await self._execute(operation)
            if not count and operation[0].expect:
                return "refused"
            touched.append(count)
        return tuple(touched)

    async def _execute(self, operation: Operation) -> int:
        statement, arguments = operation
        if isinstance(statement, BulkStatement):
            status = await self._writer.execute(statement.postgres, *arguments)
        else:
            sql = statement.postgres.replace("{rows}", rows_sql(statement, 1, single=True))
            status = await self._writer.execute(sql, *arguments)
        return int(status.rpartition(" ")[2])

    def _is_answer(self, error: Exception) -> bool:
        """Return whether the statement itself failed, not the connection or a concurrent transaction."""
        if isinstance(error, asyncpg.InterfaceError):
            return not self._writer.is_closed()
        return not isinstance(error, (*LOST, *TRY_AGAIN))

    def _lose_writer(self, error: Exception) -> None:
        self._unreachable(describe(error))
        self._drop_writer()

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.terminate()

    # --- reading ---------------------------------------------------------------------------------

    async def _fetch(self, query: Query, arguments: Sequence[Any]) -> list[Row]:
        async def once() -> list[Row]:
            return await postgres_session.read(self._readers, query.postgres, arguments)

        return await self._reaching(once)

    async def fetch_all(self, reads: Sequence[Read]) -> list[list[Row]]:
        """Run all reads as one statement, which sees one snapshot."""
        arguments = [argument for _, each in reads for argument in each]
        [columns] = await self.fetch(Query("", all_sql(reads)), *arguments)
        return list(columns)

    async def _reaching(self, read: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
        """Retry a read while the server is unreachable, for at most `READ_FOR` seconds."""
        give_up = self._loop.time() + READ_FOR
        delay = FIRST_RETRY
        while True:
            try:
                async with asyncio.timeout_at(min(give_up, self._loop.time() + TRY_READ_FOR)):
                    rows = await read()
                self._reachable("reads")
                return rows
            except (*LOST, TimeoutError) as error:
                if self._closed is not None:
                    raise StoreClosed(str(self._closed)) from None
                self._unreachable(describe(error), "reads")
                if self._loop.time() + delay > give_up:
                    raise self._explained(error) from error
            except asyncpg.PostgresError as error:
                raise self._explained(error) from error
            await self._rest(delay)
            delay = min(LAST_RETRY, delay * 2)

    def _explained(self, error: BaseException) -> StoreError:
        return explained(error, self._dsn, self._schema)

    # --- state and closing -----------------------------------------------------------------------

    @property
    def _in_flight(self) -> int:
        return len(self._writing.group) if self._writing else 0

    def _blocked(self) -> dict[str, Any]:
        return self._blocking.statistics(self._loop.time())

    def _pending(self) -> list[Batch]:
        return (self._writing.group if self._writing else []) + self._queue

    async def close(self) -> None:
        if self._closed is None:
            await self.drained()
            self._closed = StoreClosed("the store was closed")
            self._closing = True
            try:
                if self._readers is not None:
                    await self._readers.close()
                if self._writer is not None:
                    await self._writer.close()
            finally:
                self._closing = False

    def _release(self) -> None:
        if self._flusher is not None:
            self._flusher.cancel()  # it would reconnect and write
        self._drop_writer()
        if self._readers is not None:
            self._readers.terminate()


async def _no_reset(connection: Any) -> None:
    """Skip the reset, which costs a round trip: a reader's session has nothing to reset."""
