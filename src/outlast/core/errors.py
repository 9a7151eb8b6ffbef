"""Every error that outlast raises, as one tree. Catch `OutlastError` for all of them."""

from __future__ import annotations


class OutlastError(Exception):
    """Base class of every error that outlast itself raises."""


# --- the store -----------------------------------------------------------------------------------


class StoreError(OutlastError):
    """The store could not complete an operation. The subclasses say why."""


class StoreURLError(StoreError, ValueError):
    """The store's URL names an unknown engine or contains an unknown setting."""


class StoreLocked(StoreError):
    """Another process has locked this SQLite file or PostgreSQL schema. The message names the process."""

    pid: int | None = None  # of that process, when known and on this machine


class StoreTooNew(StoreError):
    """A newer version of outlast, or of a battery, wrote the store. Upgrade, or restore a backup."""


class StoreReadOnly(StoreError):
    """The store is not writable. Check the permissions of the file and of its folder."""


class StoreFull(StoreError):
    """No space is left. The commit was rolled back; free some space and the store resumes."""


class StoreCorrupt(StoreError):
    """The file is not a valid database. Restore a backup."""


class StoreUnavailable(StoreError):
    """The store is unreachable. The message says what was tried."""


class StoreGone(StoreUnavailable):
    """Someone removed, moved or replaced the files of a SQLite store while the host was running.

    The host stores nothing more until it restarts, and the outcome of the last commits is unknown.
    """


class StoreClosed(StoreError):
    """The store was closed, or its host stopped."""


class ValueTooLarge(StoreError, ValueError):
    """A value is larger than the store accepts (`max_value_bytes`). Nothing was written."""


class CorruptValue(StoreError):
    """A stored value is no longer valid JSON. The message names it; other values are unaffected."""


# --- commits and ownership -----------------------------------------------------------------------


class OwnershipLost(OutlastError):
    """Another activation took over this agent. Nothing was written; this activation must stop."""


class CommitRefused(OutlastError):
    """A condition of the commit did not hold, so nothing was written. The agent continues."""


class CommitFailed(OutlastError):
    """This commit, or an earlier one of the same agent, failed. Nothing was written.

    The host discards the agent and boots it again from the store; repeat the call.
    """

    # Set when the database rejects the values of a commit, so that a retry with the same values would fail
    # too: the operations, and the address of the agent that they belong to.
    unstorable: tuple[str, ...] = ()
    agent: str | None = None


class StoreFailed(CommitFailed, StoreError):
    """The commit was not written because an earlier one met a full, read-only or unreachable store."""


# --- hosts and agents ----------------------------------------------------------------------------


class HostStopped(OutlastError):
    """The host is not running (not started yet, or shutting down). Repeat the call on a running host."""


class UnknownAgent(OutlastError, LookupError):
    """This host runs no agent class with that name. Add the class to `Host(agents=[...])`."""


class InvalidName(OutlastError, ValueError):
    """The string is not a valid agent name. The message says why."""


class ActivationFailed(OutlastError):
    """The agent's `on_start` raised, so the agent was not activated. The cause is attached."""


class AgentAborted(OutlastError):
    """`abort_sub_agent()` stopped the agent. Its rows are kept; the next call starts it again."""


class AgentDestroyed(OutlastError):
    """The agent was destroyed or deleted with everything it owned. The next call makes a new, empty agent."""


class PublicError(OutlastError):
    """An error whose message clients may read: see its subclasses."""

    is_for_users = True


class ToolError(PublicError):
    """Raise this in a tool: the model and the user read its message.

    Any other exception is logged; they read only that the tool failed, and an id to find it in the log.
    """


class CallFailed(ToolError):
    """A tool that another tool called has failed. The text says why."""


class ApprovalInside(CallFailed):
    """A tool that needs an approval was called inside another call, where nobody can give one."""


class OutcomeUnknown(ToolError):
    """A call was interrupted, nobody knows whether it has happened, and it must not run again by itself."""


class CallChanged(OutlastError, RuntimeError):
    """A call that runs again after an interruption made other calls than before, so that what came of those
    cannot be used. Make the same calls in the same order."""


class RpcError(PublicError):
    """Raise this in a method marked with `@rpc`: the caller on the network receives its message.

    Any other exception is logged; the caller receives a generic message and an id to find it in the log.
    """


class RpcRefused(OutlastError, LookupError):
    """A client called a method that is not marked with `@rpc`, or passed arguments that do not fit."""


# --- fibers --------------------------------------------------------------------------------------


class NotInFiber(OutlastError, RuntimeError):
    """`stash` was called outside a fiber of this agent, or after that fiber ended."""


class FiberConflict(OutlastError, ValueError):
    """`id` and `idempotency_key` identify two different fibers, or one of them is blank."""


class FiberCancelled(OutlastError):
    """The fiber was cancelled with `cancel()` or `cancel_fiber()`, so there is no result."""


class FiberInterrupted(OutlastError):
    """The fiber stopped and a later activation resumes it (shutdown, lost ownership). Its row is kept."""


# --- chat ----------------------------------------------------------------------------------------


class SubmissionConflict(OutlastError, ValueError):
    """A request id and an idempotency key identify two different requests."""


class TurnFailed(OutlastError):
    """A turn failed while its answer was being iterated over; the message is the one shown to users."""


class InsideTurn(OutlastError, RuntimeError):
    """Code inside a turn waited for another turn of the same agent, which would deadlock."""


def again(error: Exception) -> Exception:
    """Return a copy of the error for another waiter: each raise adds a traceback to its own instance."""
    return type(error)(*error.args)
