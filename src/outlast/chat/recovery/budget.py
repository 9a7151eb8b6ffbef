"""The budgets of recovery: what is counted about an interrupted turn, and when it is given up. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from outlast.chat.types.recovery import Cause, ChatRecovery, Reason
from outlast.core.clock import seconds
from outlast.host.wakeups.boot_order import SUSPECT_FROM

DEATHS: tuple[Cause, ...] = ("crashed", "oom", "unknown")
"""Causes for which the running turn may be to blame: the process was not asked to stop."""
DEBOUNCE = (
    30_000  # milliseconds in which interruptions of other causes without progress count as one
)


@dataclass(frozen=True, slots=True)
class Incident:
    """The record of one turn's interruptions. Times are in milliseconds."""

    attempt: int = 0  # in a row without progress
    attempts: int = 0  # in total
    first_seen_at: int = 0
    last_attempt_at: int = 0
    last_progress_at: int = 0
    progress: int = 0  # chunks produced by the last interruption
    baseline: int = 0  # chunks produced when the incident was opened
    oom_attempts: int = 0
    host_deaths: int = 0  # crashes while the turn ran without progress
    begun: int = 1  # whether the last attempt has begun; 0: it was waiting to run alone
    begun_at: int = 0  # when the last attempt began
    cause: Cause = "unknown"
    row: int = 0  # of the decision table
    reason: Reason | None = None  # why it was given up

    @property
    def work(self) -> int:
        """The number of chunks since the first interruption."""
        return max(0, self.progress - self.baseline)

    @property
    def is_suspect(self) -> bool:
        """Whether this turn may be what kills the process."""
        return self.host_deaths >= SUSPECT_FROM

    @property
    def body(self) -> dict[str, Any]:
        """The stored form."""
        return asdict(self)


def incident_of(stored: Any) -> Incident | None:
    """Return a stored record of any version; missing fields get their defaults."""
    if not isinstance(stored, Mapping):
        return None
    known: dict[str, Any] = {}
    for each in fields(Incident):
        value, default = stored.get(each.name), each.default
        if isinstance(default, int):
            known[each.name] = value if isinstance(value, int) and value >= 0 else default
        elif isinstance(value, str):
            known[each.name] = value
    return Incident(**known)


def evaluated(
    before: Incident | None,
    *,
    cause: Cause,
    progress: int,
    now: int,
    age: int,
    awaits_human: bool,
    config: ChatRecovery,
) -> Incident:
    """Return the record after one more interruption; its `reason` is set if recovery is given up."""
    if before is None:
        opened = Incident(
            attempt=1,
            attempts=1,
            first_seen_at=now,
            last_attempt_at=now,
            last_progress_at=now,
            progress=progress,
            baseline=progress,
            oom_attempts=int(cause == "oom"),
            host_deaths=int(cause in DEATHS),
            cause=cause,
        )
        return replace(opened, reason=None if awaits_human else _on_first(opened, age, config))
    has_progressed = progress > before.progress
    has_begun = bool(before.begun) or has_progressed
    is_death = has_begun and cause in DEATHS
    # A series of deploys counts as one interruption; each crash counts.
    is_soon = 0 <= now - before.last_attempt_at < DEBOUNCE and cause not in DEATHS
    counts = has_begun and (not is_soon or before.attempt == 0)
    since = before.last_progress_at or before.last_attempt_at or now
    after = replace(
        before,
        attempt=1 if has_progressed else max(1, before.attempt + counts),
        attempts=before.attempts + 1,
        first_seen_at=before.first_seen_at or now,
        last_attempt_at=before.last_attempt_at if is_soon and not has_progressed else now,
        last_progress_at=now if has_progressed or awaits_human else since,
        progress=max(progress, before.progress),
        oom_attempts=before.oom_attempts + (has_begun and cause == "oom"),
        host_deaths=is_death + (0 if has_progressed else before.host_deaths),
        begun=1,
        cause=cause,
        reason=None,
    )
    return replace(after, reason=None if awaits_human else _spent(after, now, age, config))


def _on_first(incident: Incident, age: int, config: ChatRecovery) -> Reason | None:
    if incident.oom_attempts > config.max_oom_retries:
        return "out_of_memory"
    return _stale(age, config)


def _spent(incident: Incident, now: int, age: int, config: ChatRecovery) -> Reason | None:
    if incident.oom_attempts > config.max_oom_retries:
        return "out_of_memory"
    if incident.work > config.max_recovery_work:
        return "work_budget_exceeded"
    if now - incident.last_progress_at > seconds(config.no_progress_timeout) * 1000:
        return "no_progress_timeout"
    if incident.attempt > config.max_attempts:
        return "max_attempts_exceeded"
    return _stale(age, config)


def _stale(age: int, config: ChatRecovery) -> Reason | None:
    if config.max_age is not None and age > seconds(config.max_age) * 1000:
        return "stale"
    return None
