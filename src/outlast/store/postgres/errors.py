"""What an error of PostgreSQL, or of the way to it, means: to the store, and to whoever runs it. Pure."""

from __future__ import annotations

from typing import Final

from outlast.core.errors import (
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreURLError,
)
from outlast.store.attempt import Unstorable
from outlast.store.url import without_password

try:
    import asyncpg as asyncpg
except ImportError as missing:
    raise StoreURLError(
        "a postgresql:// store needs asyncpg: pip install 'outlast[postgres]'"
    ) from missing

# The connection is gone, or the server is about to be: whether it has done the last thing is not known.
LOST: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InternalClientError,
)
# Nothing was done, for a reason that passes.
TRY_AGAIN: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
# Nothing was done, since somebody else has locked a row or a table for longer than we wait.
HELD: Final = asyncpg.LockNotAvailableError

# What a prepared statement meets when the session is not the one that it was prepared in.
_OTHER_SESSION = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)

# Classes of SQLSTATE that blame what a commit holds: cardinality, data, constraints, limits.
_CONTENT = ("21", "22", "23", "54")
_STATEMENT = "42"  # the statement itself: a table or a column is not as it was

POOLED = (
    "a pooler between this host and PostgreSQL gives each transaction another session, and outlast needs"
    " one that stays: for its lock on the schema, its settings and its prepared statements. Connect to"
    " PostgreSQL itself, or to a port of the pooler that pools by session (docs: Poolers)"
)


def told(error: BaseException) -> str:
    """An error in words: some have none of their own."""
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def is_of_a_batch(error: Exception) -> bool:
    """True when a batch is to blame, and not the server: bad values, broken constraints, no such column."""
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return False
    state = getattr(error, "sqlstate", None)
    return state is None or state.startswith((*_CONTENT, _STATEMENT))


def refusal(error: Exception) -> Exception:
    """A batch's own error: `Unstorable` if no attempt with the same values can succeed."""
    state = getattr(error, "sqlstate", None)
    is_content = isinstance(error, asyncpg.DataError) if state is None else state[:2] in _CONTENT
    if not is_content:
        return error
    unstorable = Unstorable(told(error))
    unstorable.__cause__ = error
    return unstorable


def explained(error: BaseException, dsn: str, schema: str) -> StoreError:
    """What an error means to the person who runs this."""
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
            f" and all rights in the schema {schema!r}."
        )
    where = f"PostgreSQL at {without_password(dsn)}"
    if isinstance(error, _OTHER_SESSION):
        return StoreURLError(f"{where}: {POOLED} ({error}).")
    if "unsupported startup parameter" in str(error):
        return StoreURLError(
            f"{where}: a pooler refuses the settings of a session ({error}). Connect to PostgreSQL itself,"
            f" or see docs: Poolers."
        )
    return StoreUnavailable(f"{where}: {told(error)}")
