"""What must hold, whatever has died. Pure: what was seen and what is stored in, violations out."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.chat.tools.outcome import UNKNOWN
from outlast.chat.types.recovery import TERMINAL_MESSAGE
from outlast.server.public import public_chunk
from outlast.testing.torture.plan import ASKS, Plan, misplaced, turn_of, words_in
from outlast.testing.torture.rows import Entry, Rows, StoredMessage
from outlast.testing.torture.users.watcher import Conversation, Turn, folded, text_of

MISSING = "seen chunk missing"
TWICE = "text twice or with a gap"
EFFECT = "effect repeated or untold"
UNANSWERED = "input without an outcome"
RUNNING = "turn left running"
INVALID = "model request invalid"
SPINNING = "client left spinning"
FAILED = "failed for no reason"
GIVEN_UP = "healthy turn given up"
KINDS = (MISSING, TWICE, EFFECT, UNANSWERED, RUNNING, INVALID, SPINNING, FAILED, GIVEN_UP)

OUTCOMES = ("completed", "aborted", "error", "skipped", "interrupted")
MAY_REPEAT = ("idempotent", "read")
_UNKNOWN = UNKNOWN.partition(":")[0]
# Ends that the server adds for whoever comes late, to what an interruption has left open.
_CLOSING = ("text-end", "reasoning-end", "tool-output-error", "tool-output-available")


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    agent: str
    turn: str
    text: str

    def __str__(self) -> str:
        where = f"{self.agent}, {self.turn}" if self.turn else self.agent
        return f"{self.kind} ({where}): {self.text}"


@dataclass(slots=True)
class Effects:
    """What tools have done, and models were asked, as the journal tells."""

    done: defaultdict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    wrong: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    requests: Counter[str] = field(default_factory=Counter)

    def read(self, lines: Iterable[Mapping[str, Any]]) -> None:
        for line in lines:
            if line["kind"] == "effect":
                self.done[line["label"]].append(dict(line))
            elif line["kind"] == "request":
                self.requests[line["turn"]] += 1
                self.wrong[line["turn"]] += line["wrong"]


@dataclass(slots=True)
class Totals:
    """What has come of it, for the table."""

    turns: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    chunks: int = 0
    effects: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    unknown: int = 0
    approvals: int = 0
    recoveries: int = 0
    requests: int = 0
    conversations: int = 0


def audit(
    said: Conversation,
    rows: Rows,
    effects: Effects,
    totals: Totals,
    *,
    may_fail: bool = False,
) -> list[Violation]:
    """All of it, of a conversation in which nothing is under way any more.

    `may_fail`: turns may end with any error, since workers have gone on without memory.
    """
    agent = said.agent
    labels = {turn.plan.label for turn in said.turns}
    by_turn = {label: each for label, each in effects.done.items() if turn_of(label) in labels}
    found = [
        *seen_and_stored(said, rows),
        *words(said, rows),
        *effects_of(said, rows, by_turn),
        *outcomes(said, rows, may_fail=may_fail),
        *running(agent, rows),
        *given_up(agent, rows),
        *spinning(said),
    ]
    for label in labels:
        found += [Violation(INVALID, agent, label, text) for text in effects.wrong.get(label, ())]
    _count(said, rows, by_turn, totals)
    totals.requests += sum(effects.requests[label] for label in labels)
    return found


# --- the checks ----------------------------------------------------------------------------------


def seen_and_stored(said: Conversation, rows: Rows) -> Iterator[Violation]:
    """No client was shown what is not stored, or what is stored otherwise."""
    for text in said.changed:
        yield Violation(MISSING, said.agent, "", text)
    for request, chunks in said.seen.items():
        stored = rows.streams.get(request, {})
        for seq, chunk in chunks.items():
            is_added = seq >= len(stored) and json.loads(chunk).get("type") in _CLOSING
            kept = stored.get(seq)
            if (kept is None or public_chunk(kept) != chunk) and not is_added:
                text = f"chunk {seq} was seen as {chunk}, and is stored as {kept}"
                yield Violation(MISSING, said.agent, request, text)
                break
    messages = {each.id: each for each in rows.messages}
    for entry in rows.entries:
        message = messages.get(entry.message_id or "")
        chunks = said.seen.get(entry.id, {})
        told = text_of(folded(chunks)).strip()
        if told and (message is None or told not in text_of(message.body)):
            text = f"{told!r} was seen, and is not in the conversation"
            yield Violation(MISSING, said.agent, entry.id, text)


def words(said: Conversation, rows: Rows) -> Iterator[Violation]:
    """Each message stands once; each answer has its words once, in order, and no others."""
    asked = Counter(plan.label for _, plan in _asked(rows))
    for label, times in asked.items():
        if times > 1:
            yield Violation(TWICE, said.agent, label, f"the user's message stands {times} times")
    for plan, answers in _answers(rows):
        if len(answers) > 1:
            yield Violation(TWICE, said.agent, plan.label, f"it has {len(answers)} answers")
        text = "".join(text_of(each.body) for each in answers)
        numbers = words_in(text, plan.label)
        wrong = misplaced(numbers)
        if wrong is None and text.strip() != plan.text(len(numbers)).strip():
            wrong = f"it says {text!r}"
        if wrong is not None:
            yield Violation(TWICE, said.agent, plan.label, wrong)
    for turn in said.turns:
        wrong = misplaced(words_in(turn.text, turn.plan.label))
        if wrong is not None:
            yield Violation(TWICE, said.agent, turn.plan.label, f"its client was told: {wrong}")


def effects_of(
    said: Conversation, rows: Rows, done: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[Violation]:
    """What must not happen twice has not; what is told as done was done; what was done is told."""

    def violation(label: str, text: str) -> Violation:
        return Violation(EFFECT, said.agent, turn_of(label), f"{label}: {text}")

    parts: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for message in rows.messages:
        for part in message.body.get("parts", ()):
            if "toolCallId" in part and isinstance(part.get("input"), dict):
                parts[str(part["input"].get("label"))].append(part)
    allowed = {call for turn in said.turns for call, decision in turn.decisions.items() if decision}
    for label, times in done.items():
        tool = times[0]["tool"]
        if tool not in MAY_REPEAT and len(times) > 1:
            yield violation(label, f"{tool} has happened {len(times)} times")
        if tool == "idempotent" and len({each["key"] for each in times}) > 1:
            yield violation(label, "it was repeated with another key")
        if label not in parts:
            yield violation(label, f"{tool} has happened, and is not in the conversation")
        if tool == ASKS and not any(part["toolCallId"] in allowed for part in parts[label]):
            yield violation(label, "it has happened, and nobody has allowed it")
    for label, found in parts.items():
        for part in found:
            if part.get("state") == "output-available" and label not in done:
                yield violation(label, "it is told as done, and has not happened")
            if part.get("state") == "output-denied" and label in done:
                yield violation(label, "it is told as refused, and has happened")


def outcomes(said: Conversation, rows: Rows, *, may_fail: bool = False) -> Iterator[Violation]:
    """Every input has come to one end, and the end is what it says."""
    entries = {entry.id: entry for entry in rows.entries}
    answers = {plan.label: (plan, found) for plan, found in _answers(rows)}
    for turn in said.turns:
        label, entry = turn.plan.label, entries.get(turn.request)
        if entry is None:
            yield Violation(UNANSWERED, said.agent, label, "it was accepted, and is not stored")
            continue
        if entry.outcome not in OUTCOMES:
            text = f"its outcome is {entry.outcome}"
            yield Violation(UNANSWERED, said.agent, label, text)
        if entry.outcome == "aborted" and not turn.is_cancelled:
            yield Violation(
                FAILED, said.agent, label, "it was aborted, and nobody has asked for that"
            )
        if entry.outcome == "error" and not _is_given_up(entry) and not may_fail:
            yield Violation(FAILED, said.agent, label, f"its error: {entry.error}")
        if turn.end == "done" and entry.outcome in ("error", "interrupted"):
            text = f"its client was told that it is done, and it is {entry.outcome}"
            yield Violation(UNANSWERED, said.agent, label, text)
        if entry.outcome == "completed" and not turn.is_ignored:
            last = _last(rows, entry)
            found = answers.get(label, (turn.plan, []))[1]
            count = len(words_in("".join(text_of(each.body) for each in found), label))
            if last.outcome == "completed" and count < _expected(turn):
                text = f"it is completed with {count} of {turn.plan.words} words"
                yield Violation(UNANSWERED, said.agent, label, text)


def given_up(agent: str, rows: Rows) -> Iterator[Violation]:
    """Recovery goes on until every turn has ended by itself: none of them kills its process."""
    for entry in rows.entries:
        if entry.outcome == "error" and _is_given_up(entry):
            why = rows.given_up.get(entry.id, "unknown")
            yield Violation(GIVEN_UP, agent, entry.id, f"recovery gave it up: {why}")


def running(agent: str, rows: Rows) -> Iterator[Violation]:
    """Nothing is under way."""
    for entry in rows.entries:
        if entry.state != "ended":
            yield Violation(RUNNING, agent, entry.id, f"it is {entry.state}")
    for message in rows.messages:
        for part in message.body.get("parts", ()):
            if part.get("state") in ("input-streaming", "input-available", "approval-requested"):
                text = f"a call in {message.id} is {part['state']}"
                yield Violation(RUNNING, agent, "", text)


def spinning(said: Conversation) -> Iterator[Violation]:
    """Whoever waited was told the end."""
    for turn in said.turns:
        if turn.end is None:
            text = f"its client waits, after {turn.chunks} chunks"
            yield Violation(SPINNING, said.agent, turn.plan.label, text)
    for text in said.spinning:
        yield Violation(SPINNING, said.agent, "", text)


# --- what they look at ---------------------------------------------------------------------------


def _asked(rows: Rows) -> Iterator[tuple[StoredMessage, Plan]]:
    for message in rows.messages:
        if message.role == "user":
            plan = Plan.of(text_of(message.body))
            if plan is not None:
                yield message, plan


def _answers(rows: Rows) -> Iterator[tuple[Plan, list[StoredMessage]]]:
    for message, plan in _asked(rows):
        yield plan, [e for e in rows.messages if e.role == "assistant" and e.parent == message.id]


def _last(rows: Rows, entry: Entry) -> Entry:
    """The entry that went on last with the message of this one."""
    same = [
        e for e in rows.entries if e.message_id is not None and e.message_id == entry.message_id
    ]
    return same[-1] if same else entry


def _expected(turn: Turn) -> int:
    """The words of a turn that has come to its end: one that nobody was asked in has all of them."""
    if turn.plan.asks and not turn.decisions:
        place = next(n for n, step in enumerate(turn.plan.steps) if step == (ASKS,))
        return sum(step for step in turn.plan.steps[:place] if isinstance(step, int))
    return turn.plan.words


def _is_given_up(entry: Entry) -> bool:
    """Whether recovery has given up, and says so."""
    return entry.error is not None and TERMINAL_MESSAGE in entry.error


def _count(
    said: Conversation,
    rows: Rows,
    done: Mapping[str, Sequence[Mapping[str, Any]]],
    totals: Totals,
) -> None:
    totals.conversations += 1
    totals.turns += len(rows.entries)
    totals.chunks += said.chunks
    for entry in rows.entries:
        outcome = str(entry.outcome)
        if outcome == "error" and _is_given_up(entry):
            outcome = f"given up ({rows.given_up.get(entry.id, 'unknown')})"
        totals.outcomes[outcome] += 1
        totals.recoveries += max(0, entry.attempt - 1)
    for times in done.values():
        totals.effects[str(times[0]["tool"])] += len(times)
        totals.repeated += len(times) - 1
    for message in rows.messages:
        for part in message.body.get("parts", ()):
            totals.unknown += str(part.get("errorText", "")).startswith(_UNKNOWN)
            totals.approvals += isinstance(part.get("approval"), dict)
