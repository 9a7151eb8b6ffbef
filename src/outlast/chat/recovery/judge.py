"""Judging an interrupted turn: gather the facts, call the hooks, and decide."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.inbox.concurrency import is_superseded
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.origin import AUTO
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.incoming import to_messages
from outlast.chat.message.partial import Partial
from outlast.chat.message.results import Message
from outlast.chat.message.tool_part import is_settled, tool_name
from outlast.chat.recovery import sql as decision_rows
from outlast.chat.recovery.boot import BootStrikes
from outlast.chat.recovery.budget import Incident, evaluated
from outlast.chat.recovery.chain import Chain, chain_of
from outlast.chat.recovery.decision import Decision, Facts, Pending, decide
from outlast.chat.recovery.incidents import IncidentRow, Incidents
from outlast.chat.tools.ledger import CallRow, Ledger
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.pending import PendingCalls
from outlast.chat.types import events
from outlast.chat.types.recovery import (
    CAUSES,
    Cause,
    ChatRecovery,
    ChatRecoveryContext,
    ChatRecoveryOptions,
    KeepRecoveringContext,
    PendingToolCall,
    RecoveryBootEvent,
    RecoveryBootResult,
    RecoveryExhaustedContext,
    RecoveryKind,
)
from outlast.core import json
from outlast.core.clock import to_datetime
from outlast.core.hooks import call_hook, is_overridden
from outlast.core.text import described
from outlast.store.operations import Operation

logger = logging.getLogger("outlast.chat")

WARN_FROM = 20  # attempts, with or without progress


@dataclass(slots=True)
class Verdict:
    """The decision about a turn, with the facts behind it."""

    decision: Decision
    partial: Partial
    cause: Cause
    incident: Incident | None  # None if nothing is counted
    row: IncidentRow | None
    chunks: list[str] = field(default_factory=list)  # written by the hook
    boot: RecoveryBootResult = field(default_factory=RecoveryBootResult)
    chain: Chain | None = None  # the conversation, if a hook returned one

    has_partial: bool = False

    @property
    def kind(self) -> RecoveryKind:
        """Whether recovery continues the partial answer, or asks the model again."""
        return "continue" if self.has_partial else "retry"


@dataclass(slots=True)
class Interruption:
    """An unfinished turn that is not running."""

    entry: EntryRow
    begun: dict[str, Any] | None  # the message that it continues
    partial: Partial
    path: Sequence[dict[str, Any]]  # the conversation up to the message that it answers
    live: Cause | None = None  # the cause, if it was interrupted in this process
    lives: int = 0  # how often it was interrupted in this process
    boundary: int = 0  # the last entry accepted before the interruption
    since: int = 0  # when it was interrupted, or that was noticed: milliseconds
    has_called: bool = False  # a tool has begun
    record: list[Operation] = field(default_factory=list)  # the decision, for its commit


class Judge(ChatPart):
    """Decides about the interrupted turns of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._pending_calls = parts[PendingCalls]
        self._ledger = parts[Ledger]
        self._incidents = parts[Incidents]
        self._boots = parts[BootStrikes]

    def expire(self, commit: Commit, now: int) -> None:
        commit.write((decision_rows.EXPIRE, (self.address,)))

    async def judge(self, what: Interruption, config: ChatRecovery) -> Verdict:
        """Decide about an interruption. Calls the hooks and emits events, but writes nothing."""
        entry, partial = what.entry, what.partial
        row = await self._incidents.get(entry.id)
        cause = self._cause(what, row)
        calls = {call.id: call for call in await self._ledger.of_turn(entry.id)}
        what.has_called = bool(calls)
        pending = self._pending(what)
        facts = self._facts(what, cause, pending, has_called=bool(calls))
        incident = self._evaluated(what, row, facts, config)
        facts = replace(facts, spent=None if incident is None else incident.reason)
        has_partial = facts.has_partial
        verdict = Verdict(decide(facts), partial, cause, incident, row, has_partial=has_partial)
        if incident is not None and verdict.decision.action not in ("seal", "finalise", "abort"):
            incident = await self._keep_recovering(incident, row, verdict.kind, what, config, facts)
            facts = replace(facts, spent=incident.reason)
            verdict = Verdict(decide(facts), partial, cause, incident, row, has_partial=has_partial)
        if verdict.decision.action in ("continue", "retry", "splice"):
            if facts.has_partial:
                verdict.boot, verdict.chain, verdict.chunks = await self._call_boot_hook(
                    what, cause, self._calls_left(what, calls)
                )
            options = await self._call_recovery_hook(what, verdict, config)
            facts = replace(facts, persist=options.persist, continue_=options.continue_)
            now = self._inbox.current(entry)  # cancelled or cleared while the hooks ran?
            is_cancelled = now is not None and now.cancelled is not None
            since = self._facts(what, cause, pending, has_called=bool(calls))  # new follow-ups
            facts = replace(
                facts,
                is_cancelled=is_cancelled,
                is_cleared=now is None,
                before=since.before,
                after=since.after,
                supersedes=since.supersedes,
            )
            verdict.decision = decide(facts)
        if verdict.incident is not None:
            row_number = verdict.decision.row
            reason = "boot_strikes" if facts.is_degraded else verdict.incident.reason
            verdict.incident = replace(verdict.incident, row=row_number, reason=reason)
        what.record = [self._record(what, verdict)]
        self._emit(what, verdict, config)
        return verdict

    def _record(self, what: Interruption, verdict: Verdict) -> Operation:
        entry, now = what.entry, self.activation.clock.now()
        produced = what.partial.produced
        return decision_rows.record(
            self.address, entry.id, entry.attempt, verdict.decision, verdict.cause, produced, now
        )

    # --- facts -----------------------------------------------------------------------------------

    def _cause(self, what: Interruption, row: IncidentRow | None) -> Cause:
        if what.live is not None:
            return what.live
        recorded: str | None = None if row is None else row.cause
        if recorded is None:
            is_here = self.activation.is_continued  # the same process: the agent was evicted
            recorded = "evicted" if is_here else self.activation.cause
        return next((cause for cause in CAUSES if cause == recorded), "unknown")

    def _pending(self, what: Interruption) -> Pending:
        """Return what the answer waits for."""
        left = [part for part in what.partial.calls if not is_settled(part)]
        if any(self._is_for_human(part, what.entry) for part in left):
            return "human"
        return "server" if left else "none"

    def _is_for_human(self, part: Mapping[str, Any], entry: EntryRow) -> bool:
        if part.get("state") == "approval-requested":
            return True
        options = json.decode(entry.options)
        schemas = self._pending_calls.tools_for(options if isinstance(options, dict) else {})
        names = {each.get("name") for each in schemas if isinstance(each, Mapping)}
        return part.get("state") == "input-available" and tool_name(part) in names

    def _facts(
        self, what: Interruption, cause: Cause, pending: Pending, *, has_called: bool
    ) -> Facts:
        """Gather the facts. If a tool has begun (`has_called`), the partial answer must be kept."""
        entry, partial = what.entry, what.partial
        behind = [
            other
            for other in self._inbox.open
            if other.seq > entry.seq and other.kind == "message" and other.origin != AUTO
        ]
        after = sum(other.seq > what.boundary for other in behind)
        return Facts(
            cause=cause,
            is_complete=partial.is_complete,
            is_cancelled=entry.cancelled is not None,
            has_partial=has_called or partial.adds_to(what.begun),
            has_settled_work=has_called or partial.has_settled_work,
            pending=pending,
            before=len(behind) - after,
            after=after,
            supersedes=is_superseded(entry, behind),
            is_degraded=self._boots.is_degraded,
        )

    def _calls_left(
        self, what: Interruption, calls: Mapping[str, CallRow]
    ) -> list[PendingToolCall]:
        found: list[PendingToolCall] = []
        for index, part in enumerate(what.partial.raw["parts"]):
            name = tool_name(part)
            if name is None or is_settled(part) or part.get("providerExecuted") is True:
                continue
            id = part["toolCallId"]
            begun = calls.get(id)
            state: Any = "begun" if begun is not None and begun.state == "begun" else "not_begun"
            if self._is_for_human(part, what.entry):
                state = "waiting"
            found.append(PendingToolCall(id, name, part.get("input"), index, state))
        return found

    # --- budgets ---------------------------------------------------------------------------------

    def _evaluated(
        self, what: Interruption, row: IncidentRow | None, facts: Facts, config: ChatRecovery
    ) -> Incident | None:
        if facts.is_cancelled or facts.is_complete:
            return None
        now = self.activation.clock.now()
        after = evaluated(
            None if row is None else row.incident,
            cause=facts.cause,
            progress=what.partial.produced,
            now=now,
            age=now - (what.entry.started_at or now),
            awaits_human=facts.pending == "human",
            config=config,
        )
        if after.reason is None and what.lives > config.max_attempts:  # the model keeps failing
            return replace(after, reason="max_attempts_exceeded", attempt=what.lives)
        return after

    async def _keep_recovering(
        self,
        incident: Incident,
        row: IncidentRow | None,
        kind: RecoveryKind,
        what: Interruption,
        config: ChatRecovery,
        facts: Facts,
    ) -> Incident:
        """Call `should_keep_recovering` from the second attempt on; only False stops recovery."""
        hook = config.should_keep_recovering
        is_first = row is None or row.incident is None
        if hook is None or is_first or facts.pending == "human":
            return incident
        context = KeepRecoveringContext(
            incident_id=what.entry.id,
            request_id=what.entry.id,
            attempt=incident.attempt,
            max_attempts=config.max_attempts,
            recovery_kind=kind,
            work=incident.work,
            age=timedelta(milliseconds=self.activation.clock.now() - incident.first_seen_at),
        )
        try:
            keeps = await call_hook(hook, context)
        except Exception:
            logger.exception("%s: should_keep_recovering raised", self.address)
            return incident
        return replace(incident, reason="recovery_aborted") if keeps is False else incident

    # --- hooks -----------------------------------------------------------------------------------

    async def _call_boot_hook(
        self, what: Interruption, cause: Cause, pending: list[PendingToolCall]
    ) -> tuple[RecoveryBootResult, Chain | None, list[str]]:
        hook = self.parts.agent.on_recovery_boot
        if not is_overridden(hook) or is_overridden(self.parts.agent.hydrate_messages):
            return RecoveryBootResult(), None, []
        entry, path = what.entry, list(what.path)
        head = path[-1:] if path and path[-1].get("role") == "user" else []
        waiting = [
            message
            for other in self._inbox.open
            if other.seq > entry.seq and other.messages is not None
            for message in json.decode(other.messages)
        ]
        event = RecoveryBootEvent(
            agent=self.address,
            request_id=entry.id,
            previous_run_id=f"{entry.id}:{entry.attempt}",
            cause=cause,
            settled_messages=[Message(each) for each in path[: len(path) - len(head)]],
            in_flight_users=[Message(each) for each in (*head, *waiting)],
            partial_assistant=Message(what.partial.raw),
            pending_tool_calls=pending,
        )
        try:
            result = await call_hook(hook, event)
            if result is not None and not isinstance(result, RecoveryBootResult):
                raise TypeError(
                    f"on_recovery_boot must return a RecoveryBootResult or None, got {result!r}"
                )
            result = self._checked(result or RecoveryBootResult())
            chain = None
            if result.chain is not None:
                chain = chain_of(list(result.chain), str(what.partial.raw["id"]))
        except Exception as error:
            self._hook_failed(entry, "on_recovery_boot", error)
            return RecoveryBootResult(), None, []
        return result, chain, event.writer.chunks

    def _checked(self, result: RecoveryBootResult) -> RecoveryBootResult:
        """Return the result with its messages validated."""
        ids, chain, turns = self.activation.ids, result.chain, result.recovered_turns
        return replace(
            result,
            chain=None if chain is None else to_messages(list(chain), ids),
            recovered_turns=None if turns is None else to_messages(list(turns), ids),
        )

    async def _call_recovery_hook(
        self, what: Interruption, verdict: Verdict, config: ChatRecovery
    ) -> ChatRecoveryOptions:
        hook = self.parts.agent.on_chat_recovery
        if not is_overridden(hook) or verdict.incident is None:
            return ChatRecoveryOptions()
        entry, partial = what.entry, what.partial
        options = json.decode(entry.options)
        started = entry.started_at or entry.accepted_at
        has_said = partial.adds_to(what.begun)
        parts = partial.raw["parts"] if has_said else []
        context = ChatRecoveryContext(
            incident_id=entry.id,
            attempt=verdict.incident.attempt,
            max_attempts=config.max_attempts,
            recovery_kind=verdict.kind,
            request_id=entry.id,
            stream_id=entry.id if parts else "",
            cause=verdict.cause,
            partial_text=partial.text,
            partial_parts=parts,
            recovery_data=None if verdict.row is None else verdict.row.stash,
            messages=[Message(each) for each in what.path],
            last_body=options.get("body") or {},
            last_client_tools=options.get("client_tools") or (),
            created_at=to_datetime(started),
            age=timedelta(milliseconds=max(0, self.activation.clock.now() - started)),
        )
        try:
            result = await call_hook(hook, context)
            if result is not None and not isinstance(result, ChatRecoveryOptions):
                raise TypeError(
                    f"on_chat_recovery must return ChatRecoveryOptions or None, got {result!r}"
                )
        except Exception as error:
            self._hook_failed(entry, "on_chat_recovery", error)
            return ChatRecoveryOptions()
        return result or ChatRecoveryOptions()

    def _hook_failed(self, entry: EntryRow, hook: str, error: Exception) -> None:
        """Report the failure; the default applies."""
        logger.error("%s: %s raised, using its default", self.address, hook, exc_info=error)
        reason = f"{hook} raised: {described(error)}"
        self.activation.events.emit(events.RecoveryFailed, self.address, entry.id, reason)

    async def exhausted(self, what: Interruption, verdict: Verdict, config: ChatRecovery) -> None:
        """Emit the event and call `on_exhausted` for a turn that is given up."""
        incident = verdict.incident or Incident()
        reason = incident.reason or "sealed"
        emit = self.activation.events.emit
        emit(
            events.RecoveryExhausted,
            self.address,
            what.entry.id,
            attempt=incident.attempt,
            max_attempts=config.max_attempts,
            recovery_kind=verdict.kind,
            reason=reason,
            host_deaths=incident.host_deaths,
        )
        if config.on_exhausted is None:
            return
        started = what.entry.started_at or what.entry.accepted_at
        context = RecoveryExhaustedContext(
            incident_id=what.entry.id,
            request_id=what.entry.id,
            attempt=incident.attempt,
            max_attempts=config.max_attempts,
            recovery_kind=verdict.kind,
            reason=reason,
            terminal_message=config.terminal_message,
            created_at=to_datetime(started),
            partial_text=what.partial.text,
            partial_parts=what.partial.raw["parts"],
            host_deaths=incident.host_deaths,
        )
        try:
            await call_hook(config.on_exhausted, context)
        except Exception:
            logger.exception("%s: on_exhausted raised", self.address)

    def _emit(self, what: Interruption, verdict: Verdict, config: ChatRecovery) -> None:
        emit, decision = self.activation.events.emit, verdict.decision
        incident = verdict.incident
        if incident is not None:
            about: dict[str, Any] = {
                "attempt": incident.attempt,
                "max_attempts": config.max_attempts,
                "recovery_kind": verdict.kind,
            }
            if verdict.row is None or verdict.row.incident is None:
                emit(events.RecoveryDetected, self.address, what.entry.id, **about)
            emit(events.RecoveryAttempt, self.address, what.entry.id, **about)
            if incident.attempts >= WARN_FROM:
                emit(
                    events.RecoveryGoesOn,
                    self.address,
                    what.entry.id,
                    attempts=incident.attempts,
                    work=incident.work,
                )
        emit(
            events.RecoveryDecided,
            self.address,
            what.entry.id,
            row=decision.row,
            cause=verdict.cause,
            action=decision.action,
            why=decision.why,
        )
