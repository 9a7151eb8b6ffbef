"""What becomes of an interrupted turn: the facts in, a decision out. Pure, and nobody else decides.

The rows are tried in order, and the first that fits decides; each has its number, which the event
`chat:recovery:decision` names. In the table, *follow-ups* are user messages that wait behind the turn,
accepted *before* it was interrupted or *after*; *server* is a call that we run and that has no outcome;
*human* is one that waits for the client or for an approval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outlast.chat.types.recovery import Cause, Reason

Action = Literal[
    "finalise",  # the answer was complete: store it
    "abort",  # somebody has cancelled it: keep what was said
    "skip",  # it was cleared: keep nothing
    "seal",  # enough: keep what was said, and say that it was given up
    "stop",  # a hook does not want it to go on: the same, in other words
    "handled",  # a hook has seen to everything itself: it ends, and what was said is not kept
    "park",  # it waits for a human: the turn ends, as it does without an interruption
    "requeue",  # it had not begun
    "retry",  # nothing was said: ask the model again
    "restart",  # what was said is thrown away: ask the model again
    "continue",  # go on where it stopped
    "splice",  # the user has moved on: keep what was said, and go on with what they said
]

Pending = Literal["none", "server", "human"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an interruption."""

    cause: Cause = "unknown"
    is_complete: bool = False  # the model had said everything
    is_cleared: bool = False  # the conversation was cleared since
    is_cancelled: bool = False  # durably
    is_applied: bool = True  # its message stands in the transcript
    has_partial: bool = False  # something can be shown of its answer
    has_settled_work: bool = False  # a tool has done something
    pending: Pending = "none"
    before: int = 0  # follow-ups accepted before the interruption
    after: int = 0  # and after it
    supersedes: bool = False  # by `message_concurrency`, a follow-up takes the place of this turn
    spent: Reason | None = None  # which budget is used up
    is_degraded: bool = False  # three boots in a row have not come to an end
    persist: bool | None = None  # what `on_chat_recovery` says
    continue_: bool | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done, by which row of the table, and why."""

    row: int
    action: Action
    why: str
    denies: bool = False  # calls that wait for a human are closed
    shrinks: bool = False  # with less of the conversation, and after a while
    keeps: bool = False  # what was said is kept all the same, because a tool has done something


def decide(facts: Facts) -> Decision:
    """The decision about an interrupted turn."""
    for rows in (_ended, _given_up, _for_humans, _by_hook, _by_cause):
        decision = rows(facts)
        if decision is not None:
            return decision
    raise AssertionError(f"no row fits {facts}")


def _ended(facts: Facts) -> Decision | None:
    """Rows 1 to 7: somebody has ended it, or it had ended by itself."""
    follows = facts.before + facts.after > 0
    if facts.is_cleared:
        return Decision(7, "skip", "the conversation was cleared")
    if facts.is_cancelled:
        if facts.pending == "human" and facts.has_partial:
            return Decision(6, "abort", "it was cancelled while it waited for a human", denies=True)
        if facts.has_partial:
            row = 5 if follows else 4
            return Decision(row, "abort", "it was cancelled in the middle of its answer")
        return Decision(3 if follows else 2, "abort", "it was cancelled before anything was said")
    if facts.is_complete:
        return Decision(1, "finalise", "the answer was complete, and only not stored yet")
    return None


def _given_up(facts: Facts) -> Decision | None:
    """Rows 8, 9, 28 and 29: no more attempts. Never while a human is being waited for."""
    if facts.is_degraded:
        return Decision(28, "seal", "the agent died three times while it was starting")
    if facts.spent is None or facts.pending == "human":
        return None
    if facts.spent == "stale":
        if facts.before + facts.after and facts.has_partial:
            return Decision(29, "splice", "it is too old, and the user has moved on")
        return Decision(29, "seal", "it is too old")
    return Decision(9 if facts.before + facts.after else 8, "seal", facts.spent)


def _for_humans(facts: Facts) -> Decision | None:
    """Rows 10 to 12: somebody is asked something."""
    if facts.pending != "human":
        return None
    if facts.after:
        why = "the user has moved on without answering"
        return Decision(12, "splice", why, denies=True)
    if facts.before:
        return Decision(11, "park", "it waits for a human, and what follows waits for it")
    return Decision(10, "park", "it waits for a human")


def _by_hook(facts: Facts) -> Decision | None:
    """Row 30: `on_chat_recovery` said so. What tools have done is kept all the same."""
    if facts.continue_ is False and facts.persist is False:
        if facts.has_settled_work:
            why = "on_chat_recovery has handled it; the answer is kept, because a tool has run"
            return Decision(30, "handled", why, keeps=True)
        return Decision(30, "handled", "on_chat_recovery has handled it")
    if facts.continue_ is False:
        return Decision(30, "stop", "on_chat_recovery does not want it to go on")
    if facts.persist is False and facts.has_partial and not facts.has_settled_work:
        return Decision(30, "restart", "on_chat_recovery does not want what was said")
    return None


def _by_cause(facts: Facts) -> Decision | None:
    """Rows 13 to 27: it goes on, unless the user has moved on."""
    if not facts.is_applied:
        return Decision(13, "requeue", "it had not begun")
    moved_on = facts.has_partial and (facts.after > 0 or (facts.before > 0 and facts.supersedes))
    is_folded = not facts.has_partial and facts.after > 0 and facts.supersedes
    if facts.cause == "oom":
        if not facts.has_partial:
            return Decision(25, "retry", "memory ran out before anything was said", shrinks=True)
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
            return Decision(16, "splice", "nothing was said, and a newer message takes its place")
        if facts.after:
            return Decision(16, "retry", "nothing was said; what came since waits its turn")
        row = 15 if facts.before else 14
        return Decision(row, "retry", "it was interrupted before anything was said")
    if moved_on:
        row = 21 if facts.after else 20
        return Decision(row, "splice", "the user has moved on")
    if facts.before:
        return Decision(19, "continue", "it was interrupted in the middle; what waits comes after")
    if facts.pending == "server":
        return Decision(18, "continue", "it was interrupted while a tool was running")
    return Decision(17, "continue", "it was interrupted in the middle of its answer")
