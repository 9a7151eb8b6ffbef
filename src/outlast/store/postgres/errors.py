"""Classification of errors of PostgreSQL and of its connections, and messages for operators. Pure."""

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
from outlast.store.password import without_password

try:
    import asyncpg as asyncpg
except ImportError as missing:
    raise StoreURLError(
        "a postgresql:// store requires asyncpg: pip install 'outlast[postgres]'"
    ) from missing

# The connection is lost, or the server is shutting down: the outcome of the last statement is unknown.
LOST: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InternalClientError,
)
# Nothing was written, for a temporary reason.
TRY_AGAIN: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
# Nothing was written: another session held a lock for longer than the lock timeout.
HELD: Final = asyncpg.LockNotAvailableError

# Raised when a prepared statement is executed in another session than it was prepared in.
_OTHER_SESSION = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)

# Classes of SQLSTATE that blame the values of a commit: cardinality, data, constraints, limits.
_CONTENT = ("21", "22", "23", "54")
_STATEMENT = "42"  # the statement itself, for example a missing table or column

POOLED = (
    "a pooler between this host and PostgreSQL gives each transaction another session, but outlast needs"
    " one session for its lock on the schema, its settings and its prepared statements. Connect directly"
    " to PostgreSQL, or to a port of the pooler that pools by session (docs: Poolers)"
)


def describe(error: BaseException) -> str:
    """Return the type and message of an error; some errors have no message."""
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def is_batch_error(error: Exception) -> bool:
    """Return whether a batch caused the error, not the server: bad values, constraints, missing columns."""
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return False
    state = getattr(error, "sqlstate", None)
    return state is None or state.startswith((*_CONTENT, _STATEMENT))


def refusal(error: Exception) -> Exception:
    """Return the error of a batch, as `Unstorable` if every retry with the same values would fail."""
    state = getattr(error, "sqlstate", None)
    is_content = isinstance(error, asyncpg.DataError) if state is None else state[:2] in _CONTENT
    if not is_content:
        return error
    unstorable = Unstorable(describe(error))
    unstorable.__cause__ = error
    return unstorable


def explained(error: BaseException, dsn: str, schema: str) -> StoreError:
    """Return the `StoreError` for an operator to read."""
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFull(f"PostgreSQL has no space left ({error}). Nothing was written.")
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return StoreReadOnly(
            f"this PostgreSQL server is read-only ({error}), perhaps because it is a standby. Point"
            f" the URL at the primary."
        )
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreReadOnly(
            f"PostgreSQL denies this user access ({error}). The user needs CREATE on the database once,"
            f" and all privileges in the schema {schema!r}."
        )
    where = f"PostgreSQL at {without_password(dsn)}"
    if isinstance(error, _OTHER_SESSION):
        return StoreURLError(f"{where}: {POOLED} ({error}).")
    if "unsupported startup parameter" in str(error):
        return StoreURLError(
            f"{where}: a pooler rejects the settings of the session ({error}). Connect directly to"
            f" PostgreSQL, or see docs: Poolers."
        )
    return StoreUnavailable(f"{where}: {describe(error)}")
