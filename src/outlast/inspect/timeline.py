"""The history of one turn as a list of moments in plain words, from its stored rows. Pure.

Times come from the commits that record one: admission, claim, tool calls, decisions and the end. Chunks are
stored in order but without a time, and nothing records the time of a crash: such moments have no `at`, and
stand in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from outlast.chat.inbox.sql import EntryRow
from outlast.chat.recovery.budget import Incident
from outlast.core import json
from outlast.inspect import words

MomentKind = Literal[
    "accepted",
    "waiting",  # it has not started
    "claimed",
    "step",  # a request to the model
    "said",
    "called",
    "returned",
    "asked",  # a person is asked for an approval
    "answered",
    "dropped",  # the output is discarded
    "interrupted",
    "decided",
    "continued",
    "running",
    "left",  # it has not ended, and no process runs it
    "cancelled",
    "settled",
]


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened: what, when, and why."""

    kind: MomentKind
    what: str
    at: int | None = None  # milliseconds; None: unknown, but at this place
    why: str | None = None
    attempt: int = 0
    seq: int | None = None  # of its chunk
    row: int | None = None  # of the decision table
    action: str | None = None
    cause: str | None = None
    tool: str | None = None
    ok: bool = True  # False: something was lost, denied or given up


@dataclass(frozen=True, slots=True)
class CallFacts:
    """A row of the ledger; `input` is JSON."""

    id: str
    name: str
    effect: str
    state: str
    input: str
    started_at: int
    ended_at: int | None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """The decision about an interruption of this attempt."""

    attempt: int
    row: int
    action: str
    why: str
    cause: str
    produced: int
    at: int
    continued_ms: int | None = None  # from the interruption until the answer resumed
    seam: Mapping[str, Any] | None = None  # how the rest of the text was obtained, and joined to it


@dataclass(frozen=True, slots=True)
class IncidentFacts:
    """The incident of a turn that was interrupted and has not ended, or was given up."""

    state: str
    cause: str | None  # recorded before the process ended
    incident: Incident
    at: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive chunks of one attempt, as JSON."""

    seq: int
    attempt: int
    chunks: Sequence[str]


@dataclass(frozen=True, slots=True)
class TurnRows:
    """Everything that is stored about a turn."""

    agent: str
    entry: EntryRow
    pieces: Sequence[Piece] = ()
    calls: Sequence[CallFacts] = ()
    decisions: Sequence[DecisionFacts] = ()
    incident: IncidentFacts | None = None
    asked: str = ""  # the text that it answers
    said: str = ""  # the stored answer
    is_hosted: bool | None = None  # whether a host has the store open; None: unknown
    before: int = 0  # earlier entries that are still open


def timeline(rows: TurnRows) -> list[Moment]:
    """Return what happened, in order."""
    return list(_Timeline(rows).moments())


@dataclass(slots=True)
class _Timeline:
    rows: TurnRows
    steps: int = 0
    names: dict[str, str] = field(default_factory=dict)  # of tools, by call id
    seen: set[str] = field(default_factory=set)  # calls that the stream contains
    said: list[str] = field(default_factory=list)
    thought: int = 0  # characters
    said_from: int | None = None

    def moments(self) -> Iterator[Moment]:
        entry = self.rows.entry
        yield Moment("accepted", words.accepted(entry, self.rows.asked), entry.accepted_at)
        if entry.started_at is None:
            if entry.attempt:
                yield Moment("waiting", words.PUT_BACK)
            if entry.ended_at is None:
                yield Moment("waiting", words.waiting(self.rows.before, self.rows.is_hosted))
        else:
            yield from self._attempts(entry.started_at)
        yield from self._end()

    def _attempts(self, started_at: int) -> Iterator[Moment]:
        entry = self.rows.entry
        decisions = {each.attempt: each for each in self.rows.decisions}
        last = max([entry.attempt, *decisions, *(piece.attempt for piece in self.rows.pieces)])
        began = started_at
        first = next(n for n in range(1, last + 1) if n == last or not self._is_put_back(n))
        if first > 1:
            yield Moment("waiting", words.PUT_BACK, attempt=first - 1)
        yield Moment("claimed", words.CLAIMED, began, attempt=first)
        if not self.rows.pieces and entry.ended_at is not None:
            yield Moment("said", words.answer_only(self.rows.said), attempt=last)
        for attempt in range(first, last + 1):
            if attempt < last and self._is_put_back(attempt):
                yield Moment("waiting", words.PUT_BACK, attempt=attempt)
                continue
            decision = decisions.get(attempt)
            until = None if decision is None else decision.at
            chunks = list(self._chunks_of(attempt))
            for moment in self._from_stream(chunks, began, until):
                yield replace(moment, attempt=attempt)
            for moment in self._from_ledger(began, until):
                yield replace(moment, attempt=attempt)
            if decision is not None:
                yield from self._interruption(decision, is_resumed=attempt < last)
                began = decision.at
            elif attempt < last:  # from before decisions were recorded
                yield Moment("interrupted", words.interrupted("unknown"), attempt=attempt, ok=False)
                yield Moment("continued", words.continued(attempt + 1), attempt=attempt + 1)

    def _is_put_back(self, attempt: int) -> bool:
        """Return whether an attempt other than the last ended in order before the model answered."""
        is_decided = any(each.attempt == attempt for each in self.rows.decisions)
        is_forgotten = not self.rows.pieces and not self.rows.decisions  # unknown
        return not (
            is_decided
            or is_forgotten
            or any(piece.attempt == attempt for piece in self.rows.pieces)
        )

    def _chunks_of(self, attempt: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for piece in self.rows.pieces:
            if piece.attempt != attempt:
                continue
            for place, text in enumerate(piece.chunks):
                try:
                    chunk = json.decode(text)
                except ValueError:  # damaged: skip it
                    continue
                if isinstance(chunk, dict):
                    yield piece.seq + place, chunk

    # --- the stream and the ledger ---------------------------------------------------------------

    def _from_stream(
        self, chunks: Sequence[tuple[int, Mapping[str, Any]]], began: int, until: int | None
    ) -> Iterator[Moment]:
        for seq, chunk in chunks:
            kind = chunk.get("type")
            if kind == "text-delta":
                self.said.append(str(chunk.get("delta", "")))
                self.said_from = seq if self.said_from is None else self.said_from
                continue
            if kind == "reasoning-delta":
                self.thought += len(str(chunk.get("delta", "")))
                self.said_from = seq if self.said_from is None else self.said_from
                continue
            moments = list(self._chunk(str(kind), chunk, began, until))
            if moments or kind == "finish-step":
                yield from self._flush()
            for moment in moments:
                yield replace(moment, seq=seq)
        yield from self._flush()

    def _flush(self) -> Iterator[Moment]:
        text, self.said = "".join(self.said), []
        thought, self.thought = self.thought, 0
        seq, self.said_from = self.said_from, None
        if text or thought:
            yield Moment("said", words.said(text, thought), seq=seq)

    def _chunk(
        self, kind: str, chunk: Mapping[str, Any], began: int, until: int | None
    ) -> Iterator[Moment]:
        id = str(chunk.get("toolCallId", ""))
        match kind:
            case "start-step":
                self.steps += 1
                yield Moment("step", words.step(self.steps))
            case "reset-step" | "reset":
                yield Moment("dropped", words.DROPPED, ok=False)
            case "tool-input-available" if chunk.get("providerExecuted") is not True:
                self.names[id] = str(chunk.get("toolName", ""))
                yield self._called(id, chunk.get("input"), began, until)
            case "tool-input-error":
                yield Moment("called", words.half_call(str(chunk.get("toolName", ""))), ok=False)
            case "tool-output-available" | "tool-output-error" | "tool-output-denied":
                if chunk.get("providerExecuted") is True or chunk.get("preliminary") is True:
                    return
                yield from self._returned(id, kind, chunk, began)
            case "tool-approval-request":
                yield Moment("asked", words.approval(self.names.get(id, "a tool")))
            case "tool-approval-response":
                yield Moment("answered", words.approved(chunk.get("approved") is True))

    def _called(self, id: str, given: Any, began: int, until: int | None) -> Moment:
        call, name = self._call(id), self.names[id]
        self.seen.add(id)
        if call is None:
            return Moment("called", words.called(name, given, None), tool=name)
        was_then = call.started_at >= began and (until is None or call.started_at <= until)
        at = call.started_at if was_then else None  # otherwise it belongs to a later run
        return Moment("called", words.called(name, given, call.effect), at, tool=name)

    def _returned(
        self, id: str, kind: str, chunk: Mapping[str, Any], began: int
    ) -> Iterator[Moment]:
        call = self._call(id)
        name = self.names.get(id) or (call.name if call is not None else "a tool")
        is_unknown = call is not None and call.state == "unknown"
        if call is not None and call.started_at >= began and self._was_made_before(id, began):
            yield Moment(
                "called", words.called_again(name, call.effect), call.started_at, tool=name
            )
        at = None if call is None else call.ended_at
        what = words.returned(name, kind, chunk, is_unknown=is_unknown)
        yield Moment("returned", what, at, tool=name, ok=kind == "tool-output-available")

    def _was_made_before(self, id: str, began: int) -> bool:
        """Return whether the stream contains this call in an attempt before the one that began then."""
        at = next((each.at for each in self.rows.decisions if each.at == began), None)
        if at is None:
            return False
        attempt = next(each.attempt for each in self.rows.decisions if each.at == began)
        return any(
            chunk.get("type") == "tool-input-available" and chunk.get("toolCallId") == id
            for earlier in range(1, attempt + 1)
            for _, chunk in self._chunks_of(earlier)
        )

    def _call(self, id: str) -> CallFacts | None:
        return next((call for call in self.rows.calls if call.id == id), None)

    def _from_ledger(self, began: int, until: int | None) -> Iterator[Moment]:
        """Yield the calls that only the ledger contains, because the stream was deleted."""
        for call in sorted(self.rows.calls, key=lambda call: call.started_at):
            is_then = call.started_at >= began and (until is None or call.started_at <= until)
            if call.id in self.seen or not is_then or self.rows.pieces:
                continue
            self.seen.add(call.id)
            given = words.decoded(call.input)
            what = words.called(call.name, given, call.effect)
            yield Moment("called", what, call.started_at, tool=call.name)
            if call.ended_at is not None:
                what, ok = words.call_ended(call.name, call.state)
                yield Moment("returned", what, call.ended_at, tool=call.name, ok=ok)

    # --- interruptions and the end ---------------------------------------------------------------

    def _interruption(self, decision: DecisionFacts, *, is_resumed: bool) -> Iterator[Moment]:
        attempt, cause = decision.attempt, decision.cause
        what = words.interrupted(cause)
        yield Moment("interrupted", what, attempt=attempt, cause=cause, ok=False)
        yield Moment(
            "decided",
            words.decided(decision.action),
            decision.at,
            why=decision.why,
            attempt=attempt,
            row=decision.row,
            action=decision.action,
            cause=cause,
            ok=decision.action not in ("seal", "stop"),
        )
        if is_resumed:
            why = None if decision.seam is None else words.joined(decision.seam)
            what = words.continued(attempt + 1)
            yield Moment("continued", what, why=why, attempt=attempt + 1)

    def _end(self) -> Iterator[Moment]:
        entry = self.rows.entry
        if entry.cancelled is not None:
            yield Moment("cancelled", words.CANCELLED, why=entry.cancelled, ok=False)
        if entry.ended_at is not None:
            took = None if entry.started_at is None else entry.ended_at - entry.started_at
            what = words.settled(entry.outcome or "error", took, max(1, entry.attempt))
            ok = entry.outcome == "completed"
            why = entry.detail or entry.error
            yield Moment("settled", what, entry.ended_at, why=why, attempt=entry.attempt, ok=ok)
        elif entry.started_at is not None:
            yield self._not_over()

    def _not_over(self) -> Moment:
        entry, incident = self.rows.entry, self.rows.incident
        cause = None if incident is None else incident.cause
        if self.rows.is_hosted is False:
            return Moment("left", words.left(cause), attempt=entry.attempt, cause=cause, ok=False)
        what = words.RUNNING if self.rows.is_hosted else words.PERHAPS_RUNNING
        return Moment("running", what, attempt=entry.attempt)
