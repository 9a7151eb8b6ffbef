"""The decision table of recovery: from the facts of an interruption to a decision. Pure; the only place.

The rows are tried in order, and the first that matches decides. The event `chat:recovery:decision` contains
the number of the row. *Follow-ups* are user messages that wait behind the turn, accepted *before* or *after*
the interruption; *server* is a call without an outcome that the agent runs; *human* is a call that waits for
the client or for an approval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outlast.chat.types.recovery import Cause, Reason

Action = Literal[
    "finalise",  # the answer was complete: store it
    "abort",  # it was cancelled: keep the partial answer
    "skip",  # the conversation was cleared: keep nothing
    "seal",  # a budget is used up: keep the partial answer, and report that recovery was given up
    "stop",  # a hook declined to continue: keep the partial answer, and report an interruption
    "handled",  # a hook handled everything itself: end without the partial answer
    "park",  # it waits for a human: end the turn, as without an interruption
    "requeue",  # it had not begun
    "retry",  # there is no partial answer: ask the model again
    "restart",  # discard the partial answer: ask the model again
    "continue",  # continue the partial answer
    "splice",  # the user has moved on: keep the partial answer, and continue with the next message
]

Pending = Literal["none", "server", "human"]


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an interruption."""

    cause: Cause = "unknown"
    is_complete: bool = False  # the model had finished its answer
    is_cleared: bool = False  # the conversation was cleared
    is_cancelled: bool = False  # durably
    is_applied: bool = True  # its message is in the transcript
    has_partial: bool = False  # there is a partial answer
    has_settled_work: bool = False  # a tool has run
    pending: Pending = "none"
    before: int = 0  # follow-ups accepted before the interruption
    after: int = 0  # and after it
    supersedes: bool = False  # by `message_concurrency`, a follow-up replaces this turn
    spent: Reason | None = None  # the budget that is used up
    is_degraded: bool = False  # three boots in a row crashed
    persist: bool | None = None  # from `on_chat_recovery`
    continue_: bool | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, the row of the table, and the reason."""

    row: int
    action: Action
    why: str
    denies: bool = False  # close the calls that wait for a human
    shrinks: bool = False  # use less of the conversation, after a delay
    keeps: bool = False  # keep the partial answer all the same, because a tool has run


def decide(facts: Facts) -> Decision:
    """Decide what to do with an interrupted turn."""
    for rows in (_ended, _given_up, _for_humans, _by_hook, _by_cause):
        decision = rows(facts)
        if decision is not None:
            return decision
    raise AssertionError(f"no row matches {facts}")


def _ended(facts: Facts) -> Decision | None:
    """Rows 1 to 7: it was cancelled or cleared, or its answer was complete."""
    follows = facts.before + facts.after > 0
    if facts.is_cleared:
        return Decision(7, "skip", "the conversation was cleared")
    if facts.is_cancelled:
        if facts.pending == "human" and facts.has_partial:
            return Decision(6, "abort", "it was cancelled while waiting for a human", denies=True)
        if facts.has_partial:
            row = 5 if follows else 4
            return Decision(row, "abort", "it was cancelled in the middle of its answer")
        return Decision(3 if follows else 2, "abort", "it was cancelled before its answer began")
    if facts.is_complete:
        return Decision(1, "finalise", "the answer was complete, but not stored yet")
    return None


def _given_up(facts: Facts) -> Decision | None:
    """Rows 8, 9, 28 and 29: recovery is given up. Budgets do not apply while it waits for a human."""
    if facts.is_degraded:
        return Decision(28, "seal", "the process crashed three times while the agent was starting")
    if facts.spent is None or facts.pending == "human":
        return None
    if facts.spent == "stale":
        if facts.before + facts.after and facts.has_partial:
            return Decision(29, "splice", "it is too old, and the user has moved on")
        return Decision(29, "seal", "it is too old")
    return Decision(9 if facts.before + facts.after else 8, "seal", facts.spent)


def _for_humans(facts: Facts) -> Decision | None:
    """Rows 10 to 12: it waits for a human."""
    if facts.pending != "human":
        return None
    if facts.after:
        why = "the user has moved on without answering"
        return Decision(12, "splice", why, denies=True)
    if facts.before:
        return Decision(11, "park", "it waits for a human, and the follow-ups wait for it")
    return Decision(10, "park", "it waits for a human")


def _by_hook(facts: Facts) -> Decision | None:
    """Row 30: the result of `on_chat_recovery`. The work of tools is kept in any case."""
    if facts.continue_ is False and facts.persist is False:
        if facts.has_settled_work:
            why = "on_chat_recovery handled it; the answer is kept, because a tool has run"
            return Decision(30, "handled", why, keeps=True)
        return Decision(30, "handled", "on_chat_recovery handled it")
    if facts.continue_ is False:
        return Decision(30, "stop", "on_chat_recovery declined to continue")
    if facts.persist is False and facts.has_partial and not facts.has_settled_work:
        return Decision(30, "restart", "on_chat_recovery discarded the partial answer")
    return None


def _by_cause(facts: Facts) -> Decision | None:
    """Rows 13 to 27: it continues, unless the user has moved on."""
    if not facts.is_applied:
        return Decision(13, "requeue", "it had not begun")
    moved_on = facts.has_partial and (facts.after > 0 or (facts.before > 0 and facts.supersedes))
    is_folded = not facts.has_partial and facts.after > 0 and facts.supersedes
    if facts.cause == "oom":
        if not facts.has_partial:
            return Decision(25, "retry", "memory ran out before the answer began", shrinks=True)
        if moved_on:
            return Decision(27, "splice", "memory ran out, and the user has moved on")
        return Decision(26, "continue", "memory ran out in the middle of the answer", shrinks=True)
    if facts.cause == "stalled":
        if not facts.has_partial:
            return Decision(22, "retry", "the model sent nothing")
        if moved_on:
            return Decision(24, "splice", "the model stalled, and the user has moved on")
        return Decision(23, "continue", "the model stalled in the middle of its answer")
    if not facts.has_partial:
        if is_folded:
            return Decision(
                16, "splice", "the answer had not begun, and a newer message replaces it"
            )
        if facts.after:
            return Decision(16, "retry", "the answer had not begun; newer messages wait")
        row = 15 if facts.before else 14
        return Decision(row, "retry", "it was interrupted before its answer began")
    if moved_on:
        row = 21 if facts.after else 20
        return Decision(row, "splice", "the user has moved on")
    if facts.before:
        return Decision(
            19, "continue", "it was interrupted in the middle of its answer; others wait"
        )
    if facts.pending == "server":
        return Decision(18, "continue", "it was interrupted while a tool was running")
    return Decision(17, "continue", "it was interrupted in the middle of its answer")
