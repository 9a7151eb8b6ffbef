"""The PostgreSQL engine: a group of batches becomes one statement.

The statement holds the fence and every write as data-modifying CTEs over arrays, and divides by zero when
a count is not what it must be, so that the server itself undoes it: fence, order check, writes and COMMIT
in one round trip. Where a group cannot be written that way (the same row twice, a stale or failing
batch), it is written batch by batch between savepoints.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from outlast.core.errors import (
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreURLError,
)
from outlast.store import fencing, schema
from outlast.store.attempt import Attempt, Verdict
from outlast.store.base import Row, Store, StoreOptions
from outlast.store.grouping import (
    Slot,
    in_one_order,
    results_from,
    rows_are_distinct,
    slots_of,
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
from outlast.store.postgres_sql import all_sql, combined_sql, rows_sql
from outlast.store.url import without_password

try:
    import asyncpg
except ImportError as missing:
    raise StoreURLError(
        "a postgresql:// store needs asyncpg: pip install 'outlast[postgres]'"
    ) from missing

logger = logging.getLogger("outlast.store")

READERS = 4
ANSWER_WITHIN = 30.0  # seconds; a server that is silent for longer is taken for lost
SHAPES = 500  # statements for whole groups that are kept, here and prepared on the server
MOST_SLOTS = 200  # planning a longer statement takes longer than executing its parts one by one
FIRST_RETRY = 0.05  # seconds
LAST_RETRY = 2.0
READ_FOR = 15.0  # seconds that a read goes on trying to reach the server
MIGRATION_LOCK = 0x6F75746C  # "outl": hosts that start together migrate one after another

_LOST = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InternalClientError,
)
_TRY_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)

HAS_SCHEMA = "SELECT true FROM pg_namespace WHERE nspname = $1"
LOCK_FENCES = "SELECT root, epoch, owner, commit_no FROM agents WHERE root = ANY($1) FOR UPDATE"


async def open_postgres(url: str, options: StoreOptions) -> PostgresStore:
    """Connect, bring the schema up to date, and open the store."""
    dsn, schema_name = parse(url)
    store = PostgresStore(dsn, schema_name, options)
    try:
        await store._open()
    except BaseException:
        store.abandon()
        raise
    return store


def parse(url: str) -> tuple[str, str]:
    """What asyncpg takes, and the schema."""
    parts = urlsplit(url)
    settings = dict(parse_qsl(parts.query))
    name = settings.pop("schema", "outlast")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise StoreURLError(
            f"schema={name!r}: use lower-case letters, digits and _, not starting with a digit"
        )
    return urlunsplit(parts._replace(query=urlencode(settings))), name


def identity_of(dsn: str, schema_name: str) -> str:
    """The same for all who open this schema, whoever they log in as."""
    parts = urlsplit(dsn)
    where = parts.netloc.rpartition("@")[2]
    places = [(name, value) for name, value in parse_qsl(parts.query) if name in ("host", "port")]
    return f"postgresql://{where}{parts.path}?{urlencode([*places, ('schema', schema_name)])}"


class PostgresStore(Store):
    """One connection that writes, a few that read."""

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
        self._combined: OrderedDict[tuple[Any, ...], str] = OrderedDict()  # latest used last

    # --- opening ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            self._writer = await self._connect()
            await self._migrate()
            self._readers = await asyncpg.create_pool(
                self._dsn,
                min_size=1,
                max_size=READERS,
                timeout=10,
                command_timeout=READ_FOR,
                reset=_as_it_is,
                server_settings={"search_path": self._schema, "application_name": "outlast"},
            )
        except ValueError as error:  # asyncpg cannot make sense of the URL
            raise StoreURLError(f"{without_password(self._dsn)}: {error}") from None
        except (asyncpg.PostgresError, *_LOST, TimeoutError) as error:
            raise self._explained(error) from error

    async def _connect(self) -> Any:
        """A connection for keyed writes: with so few rows a statement, an index is always right."""
        return await asyncpg.connect(
            self._dsn,
            timeout=10,
            command_timeout=ANSWER_WITHIN,
            statement_cache_size=SHAPES,
            server_settings={
                "search_path": self._schema,
                "application_name": "outlast",
                "enable_seqscan": "off",
                "enable_hashjoin": "off",
                "enable_mergejoin": "off",
                "jit": "off",
            },
        )

    async def _migrate(self) -> None:
        db = self._writer
        async with db.transaction():
            await db.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            if not await db.fetchval(HAS_SCHEMA, self._schema):
                # IF NOT EXISTS would need the right to create it even when it is there.
                await db.execute(f"CREATE SCHEMA {self._schema}")
            await db.execute(schema.META)
            version = int(await db.fetchval(schema.READ_VERSION) or 0)
            where = f"the PostgreSQL schema {self._schema!r}"
            for migration in schema.pending(schema.migrations("postgres"), version, where):
                for statement in migration.statements:
                    await db.execute(statement)

    # --- writing ---------------------------------------------------------------------------------

    def _kick(self) -> None:
        if self._flusher is None:
            # In a context of its own: it outlives whoever happened to be the first to write.
            self._flusher = self._loop.create_task(
                self._flush(), name="outlast-store-writer", context=contextvars.Context()
            )

    async def _flush(self) -> None:
        """Write until the queue is empty. One group at a time, so each agent's order is kept."""
        while self._queue and self._closed is None:
            queue = self._without_closed(self._queue)
            group, self._queue = take_group(
                queue, self.options.max_group, self.options.max_group_bytes
            )
            if group:
                attempt = self._writing = Attempt(group)
                await self._write(attempt)
                self._writing = None
                self._conclude(attempt)
        self._flusher = None

    async def _write(self, attempt: Attempt) -> None:
        """Commit a group, however often that has to be tried, until its outcome is known."""
        delay = FIRST_RETRY
        while True:
            await self._reach()
            try:
                await self._transact(attempt)
            except _TRY_AGAIN:
                attempt.undo_fences()
                continue
            except (*_LOST, TimeoutError) as error:
                self._lose_writer(error)
                attempt.doubt()
                await self._pause(delay)
                delay = min(LAST_RETRY, delay * 2)
                if await self._was_committed(attempt):
                    return
                continue
            except asyncpg.PostgresError as error:
                # Not the fault of any batch: those were singled out.
                self._drop_writer()
                attempt.undo_fences()
                attempt.verdicts = [self._explained(error) for _ in attempt.group]
                return
            except Exception as error:
                # A fault of ours. Whoever waits must hear of it, and the next group must go on.
                logger.exception("a group could not be written")
                self._drop_writer()
                attempt.doubt()
                if not await self._was_committed(attempt):
                    attempt.verdicts = [error for _ in attempt.group]
                return
            # A try that was in doubt may have come through in between, ahead of this one.
            await self._was_committed(attempt)
            return

    async def _pause(self, delay: float) -> None:
        self._on_timer = True
        try:
            await asyncio.sleep(delay)
        finally:
            self._on_timer = False

    async def _reach(self) -> None:
        """Connect, unless that is done; whatever the server has against it may change."""
        delay = FIRST_RETRY
        while self._writer is None:
            try:
                self._writer = await self._connect()
            except (*_LOST, TimeoutError, asyncpg.PostgresError) as error:
                self._lose_writer(error)
                await self._pause(delay)
                delay = min(LAST_RETRY, delay * 2)

    async def _was_committed(self, attempt: Attempt) -> bool:
        """Whether a try that was in doubt is durable: lock the rows, and see how far they have come.

        It was one transaction, so one agent that shows it is enough: another may have been taken
        over since. Asks until there is an answer.
        """
        doubted = attempt.doubted()
        while doubted:
            await self._reach()
            try:
                async with self._writer.transaction():
                    rows = await self._writer.fetch(LOCK_FENCES, [fence.root for fence in doubted])
            except (*_LOST, TimeoutError, asyncpg.PostgresError) as error:
                self._lose_writer(error)
                await self._pause(FIRST_RETRY)
                continue
            found = {row[0]: (row[1], row[2], row[3]) for row in rows}
            if fencing.is_durable(doubted, found):
                attempt.believe()
                return True
            break
        return False

    async def _transact(self, attempt: Attempt) -> None:
        probe = self.options.probe
        slots = in_one_order(slots_of(attempt.group, attempt.counts))
        if len(slots) <= MOST_SLOTS and rows_are_distinct(slots):
            if probe is not None:
                probe.before_commit(attempt.group)
            if await self._together(attempt, slots):
                if probe is not None:
                    probe.after_commit(attempt.group)
                return
            attempt.undo_fences()
        await self._one_after_another(attempt)

    async def _together(self, attempt: Attempt, slots: list[Slot]) -> bool:
        """Everything in one statement, which is its own transaction; False: nothing was written."""
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
            fencing.passed(fence, count)
        # From here on it may be durable, and what it touched is known only if the answer arrives.
        attempt.verdicts = [(-1,) * len(batch.operations) for batch in attempt.group]
        try:
            row = await self._writer.fetchrow(sql, *arguments_)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if not self._is_answer(error):
                raise
            return False
        results = results_from(slots, row[1 + len(guards) :], attempt.group)
        assert results is not None, "the statement let through counts that decide nothing"
        attempt.verdicts = list(results)
        return True

    def _combine(self, slots: Sequence[Slot], single: bool) -> str:
        """One statement for all slots. Unless single, it ends with the numbers of rows, in order."""
        key = (single, *(slot.statement for slot in slots))
        sql = self._combined.get(key)
        if sql is None:
            sql = combined_sql([slot.statement for slot in slots], single=single)
            self._combined[key] = sql
            if len(self._combined) > SHAPES:
                self._combined.popitem(last=False)
        else:
            self._combined.move_to_end(key)
        return sql

    async def _one_after_another(self, attempt: Attempt) -> None:
        """Each batch between savepoints, so that it can be undone without its neighbours."""
        db, probe = self._writer, self.options.probe
        verdicts: list[Verdict] = []
        broken: set[Fence] = set()
        await db.execute("BEGIN")
        try:
            for batch in attempt.group:
                verdict = "behind" if batch.fence in broken else await self._alone(batch)
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
        if probe is not None:
            probe.after_commit(attempt.group)

    async def _alone(self, batch: Batch) -> Verdict:
        db = self._writer
        await db.execute("SAVEPOINT batch")
        verdict: Verdict
        guard, arguments = fencing.guard(batch.fence, 1)
        try:
            if await self._execute((guard, arguments)) != 1:
                verdict = "stale"
            else:
                verdict = await self._operations(batch)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if not self._is_answer(error):
                raise
            verdict = error if _is_of_a_batch(error) else self._explained(error)
        if isinstance(verdict, tuple):
            fencing.passed(batch.fence, 1)
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
        """True when the statement failed, and neither the connection nor a rival is to blame."""
        if isinstance(error, asyncpg.InterfaceError):
            return not self._writer.is_closed()
        return not isinstance(error, (*_LOST, *_TRY_AGAIN))

    def _lose_writer(self, error: Exception) -> None:
        self._unreachable(error)
        self._drop_writer()

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.terminate()

    # --- reading ---------------------------------------------------------------------------------

    async def _fetch(self, query: Query, arguments: Sequence[Any]) -> list[Row]:
        async def once() -> list[Row]:
            return [tuple(row) for row in await self._readers.fetch(query.postgres, *arguments)]

        return await self._reaching(once)

    async def fetch_all(self, reads: Sequence[Read]) -> list[list[Row]]:
        """All of them as one statement, which sees one state of the database."""
        arguments = [argument for _, each in reads for argument in each]
        [columns] = await self.fetch(Query("", all_sql(reads)), *arguments)
        return list(columns)

    async def _reaching(self, read: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
        """Try a read again while the server cannot be reached, but not for ever."""
        give_up = self._loop.time() + READ_FOR
        delay = FIRST_RETRY
        while True:
            try:
                return await read()
            except (*_LOST, TimeoutError) as error:
                if self._closed is not None:
                    raise StoreClosed(str(self._closed)) from None
                if self._loop.time() + delay > give_up:
                    raise self._explained(error) from error
            except asyncpg.PostgresError as error:
                raise self._explained(error) from error
            await self._pause(delay)
            delay = min(LAST_RETRY, delay * 2)

    def _explained(self, error: BaseException) -> StoreError:
        """What a PostgreSQL error means to the person who runs this."""
        if isinstance(error, asyncpg.DiskFullError):
            return StoreFull(f"PostgreSQL has no space left ({error}). Nothing was written.")
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            return StoreReadOnly(
                f"this PostgreSQL server is read-only ({error}); is it a standby? Point the URL"
                f" at the primary."
            )
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            return StoreReadOnly(
                f"PostgreSQL refuses this user ({error}). It needs CREATE on the database once,"
                f" and all rights in the schema {self._schema!r}."
            )
        return StoreUnavailable(f"PostgreSQL at {without_password(self._dsn)}: {error!r}")

    # --- the rest --------------------------------------------------------------------------------

    @property
    def _in_flight(self) -> int:
        return len(self._writing.group) if self._writing else 0

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
            self._flusher.cancel()  # it would connect again, and write
        self._drop_writer()
        if self._readers is not None:
            self._readers.terminate()


async def _as_it_is(connection: Any) -> None:
    """What a reader gives back needs no reset, which is a round trip: it has only read."""


def _is_of_a_batch(error: Exception) -> bool:
    """True when a batch's own data is to blame: bad values, broken constraints."""
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return False
    state = getattr(error, "sqlstate", None)
    return state is None or state[:2] in ("21", "22", "23", "42", "54")
