"""The errors that outlast raises, one tree. Catch `OutlastError` for all of them."""

from __future__ import annotations


class OutlastError(Exception):
    """Base of every error that outlast raises on its own account."""


# --- the store -----------------------------------------------------------------------------------


class StoreError(OutlastError):
    """The store could not do what it was asked. The subclasses say why."""


class StoreURLError(StoreError, ValueError):
    """The store's URL names no engine that outlast has, or has a setting that it does not know."""


class StoreLocked(StoreError):
    """Another process has this SQLite file, or writes in this PostgreSQL schema. The message names it."""

    pid: int | None = None  # of that process, if it is known and on this machine


class StoreTooNew(StoreError):
    """A newer version of outlast, or of a battery, wrote the store. Upgrade it, or restore a backup."""


class StoreReadOnly(StoreError):
    """The store cannot be written: check the permissions of the file and of its folder."""


class StoreFull(StoreError):
    """There is no space left. The commit was undone; free some space and the store goes on."""


class StoreCorrupt(StoreError):
    """The file is not a sound database. Restore a backup."""


class StoreUnavailable(StoreError):
    """The store cannot be reached. The message says what was tried."""


class StoreGone(StoreUnavailable):
    """The files of a SQLite store were removed, moved or replaced under the host. Nothing is stored any
    more until it is started again, and whether the last commits are durable is not known."""


class StoreClosed(StoreError):
    """The store was closed, or its host has stopped."""


class ValueTooLarge(StoreError, ValueError):
    """A value is larger than the store accepts (`max_value_bytes`). Nothing was written."""


class CorruptValue(StoreError):
    """A stored value is not JSON any more. The message names it; its neighbours are unharmed."""


# --- commits and ownership -----------------------------------------------------------------------


class OwnershipLost(OutlastError):
    """Another activation has taken this agent over. Nothing was written; this one must stop."""


class CommitRefused(OutlastError):
    """A condition of the commit did not hold, so nothing of it was written. The agent goes on."""


class CommitFailed(OutlastError):
    """The commit failed, or one before it did, and nothing of it was written.

    The agent is discarded and boots again from the store; call it again."""

    # Set when the database does not accept what a commit holds, so that no attempt with the same values
    # succeeds: the operations, and the address of the agent that they belong to.
    unstorable: tuple[str, ...] = ()
    agent: str | None = None


class StoreFailed(CommitFailed, StoreError):
    """A commit was not written because one before it had met a store that is full, read-only or away."""


# --- hosts and agents ----------------------------------------------------------------------------


class HostStopped(OutlastError):
    """The host is not running (not started yet, or shutting down). Call again on a running host."""


class UnknownAgent(OutlastError, LookupError):
    """This host runs no agent class of that name. Add the class to `Host(agents=[...])`."""


class InvalidName(OutlastError, ValueError):
    """Not a name that an agent can have. The message says why."""


class ActivationFailed(OutlastError):
    """The agent's `on_start` raised, so that it could not be activated. The cause is attached."""


class AgentAborted(OutlastError):
    """The agent was stopped with `abort_sub_agent()`. Its rows are kept; it starts again when used."""


class AgentDestroyed(OutlastError):
    """The agent was destroyed or deleted, with all that it owned. Call again for a new, empty one."""


class PublicError(OutlastError):
    """An error whose text clients may read: see its subclasses."""

    is_for_users = True


class ToolError(PublicError):
    """Raise this in a tool: the model and the user read its text.

    Any other exception is logged; they read only that the tool failed, and an id to find it in the log.
    """


class RpcError(PublicError):
    """Raise this in a method marked with `@rpc`: its caller on the network gets the text.

    Any other exception is logged; the caller gets a generic text, and an id to find it in the log.
    """


class RpcRefused(OutlastError, LookupError):
    """The network asked for a method that is not marked with `@rpc`, or with arguments that do not fit."""


# --- fibers --------------------------------------------------------------------------------------


class NotInFiber(OutlastError, RuntimeError):
    """`stash` was called outside a fiber of this agent, or after that fiber had ended."""


class FiberConflict(OutlastError, ValueError):
    """`id` and `idempotency_key` point at two different fibers, or one of them is blank."""


class FiberCancelled(OutlastError):
    """The fiber was cancelled with `cancel()` or `cancel_fiber()`, so there is no result."""


class FiberInterrupted(OutlastError):
    """The fiber was left for a later activation (shutdown, lost ownership). Its row is kept."""


# --- chat ----------------------------------------------------------------------------------------


class SubmissionConflict(OutlastError, ValueError):
    """A request id and an idempotency key point at two different requests."""


class TurnFailed(OutlastError):
    """A turn ended with an error while its answer was iterated over; the text is what its users are shown."""


class InsideTurn(OutlastError, RuntimeError):
    """A turn of this agent was waited for from inside one of its turns: that would wait for ever."""


def again(error: Exception) -> Exception:
    """The same error for one more victim: an instance of its own, since each gets a traceback."""
    return type(error)(*error.args)
