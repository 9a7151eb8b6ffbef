"""Every event that there is: its name, channel, severity and fields. Others build on them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from outlast import Event
from outlast.agent.events import FiberEvent, ScheduleEvent
from outlast.chat.types.events import ChatEvent, InboxEvent, LedgerEvent, SubmissionEvent, ToolEvent

ROOT = Path(__file__).parent.parent.parent
FIBER = "fiber_id, fiber_name, managed"
SCHEDULE = "schedule_id, callback, kind"
RECOVERY = "request_id, attempt, max_attempts, recovery_kind"
TOOL = "request_id, tool_call_id, tool_name"
FAMILIES = (  # whose common fields the page tells once
    FiberEvent,
    ScheduleEvent,
    ChatEvent,
    InboxEvent,
    ToolEvent,
    LedgerEvent,
    SubmissionEvent,
)

EVENTS = {
    "fiber:run:started": ("fiber", "info", FIBER),
    "fiber:run:completed": ("fiber", "info", f"{FIBER}, elapsed_ms"),
    "fiber:run:failed": ("fiber", "error", f"{FIBER}, error"),
    "fiber:run:aborted": ("fiber", "info", FIBER),
    "fiber:run:interrupted": ("fiber", "warning", f"{FIBER}, recovery_reason"),
    "fiber:recovery:detected": ("fiber", "info", FIBER),
    "fiber:recovery:attempt": ("fiber", "info", FIBER),
    "fiber:recovery:handled": ("fiber", "info", f"{FIBER}, status"),
    "fiber:recovery:skipped": ("fiber", "warning", f"{FIBER}, reason"),
    "fiber:recovery:failed": ("fiber", "error", f"{FIBER}, error, reason"),
    "schedule:create": ("schedule", "info", SCHEDULE),
    "schedule:cancel": ("schedule", "info", SCHEDULE),
    "schedule:execute": ("schedule", "info", f"{SCHEDULE}, attempt"),
    "schedule:retry": ("schedule", "warning", f"{SCHEDULE}, attempt, error"),
    "schedule:complete": ("schedule", "info", f"{SCHEDULE}, elapsed_ms"),
    "schedule:error": ("schedule", "error", f"{SCHEDULE}, error, attempts"),
    "schedule:duplicate_warning": ("schedule", "warning", "callback, count"),
    "state:update": ("state", "info", ""),
    "sub_agent:created": ("sub_agent", "info", "child"),
    "sub_agent:deleted": ("sub_agent", "info", "child"),
    "sub_agent:aborted": ("sub_agent", "info", "child"),
    "battery:failed": ("battery", "error", "battery, error"),
    "lifecycle:activated": ("lifecycle", "info", ""),
    "lifecycle:evicted": ("lifecycle", "info", ""),
    "lifecycle:discarded": ("lifecycle", "warning", "reason"),
    "fence:lost": ("lifecycle", "warning", "reason"),
    "destroy": ("lifecycle", "info", ""),
    "chat:turn:start": (
        "chat",
        "info",
        "request_id, trigger, admission, continuation, attempt, parent",
    ),
    "chat:turn:finish": ("chat", "info", "request_id, status, duration_ms, error"),
    "chat:turn:interrupted": ("chat", "warning", "request_id, reason"),
    "chat:upgrade:requested": ("chat", "warning", ""),
    "chat:request:failed": ("chat", "error", "request_id, stage, messages_persisted, error"),
    "model:asked": ("model", "info", "request_id, step, model, request"),
    "chat:stream:stalled": ("chat", "warning", "request_id, timeout_ms"),
    "chat:transcript:repaired": ("transcript", "warning", "request_id, tool_call_ids"),
    "session:compacted": ("session", "info", "reason, last, tokens_before, tokens_after"),
    "session:compaction:failed": ("session", "warning", "error"),
    "session:prompt:refreshed": ("session", "info", "characters"),
    "chat:context:compacted": ("chat", "info", "request_id, reason, shortened, attempt"),
    "chat:recovery:detected": ("chat", "warning", RECOVERY),
    "chat:recovery:attempt": ("chat", "warning", RECOVERY),
    "chat:recovery:decision": ("chat", "info", "request_id, row, cause, action, why"),
    "chat:recovery:scheduled": ("chat", "info", "request_id, recovery_kind, delay_ms"),
    "chat:recovery:completed": ("chat", "info", "request_id"),
    "chat:recovery:skipped": ("chat", "info", "request_id, reason"),
    "chat:recovery:failed": ("chat", "error", "request_id, reason"),
    "chat:recovery:goes_on": ("chat", "warning", "request_id, attempts, work"),
    "chat:recovery:exhausted": ("chat", "error", f"{RECOVERY}, reason, host_deaths"),
    "chat:onstart:degraded": ("chat", "error", "step, error"),
    "chat:hydration:windowed": ("chat", "info", "hydrated_messages, budget_bytes"),
    "chat:stored:damaged": ("chat", "error", "what, error"),
    "inbox:accepted": ("inbox", "info", "request_id, kind, origin"),
    "inbox:claimed": ("inbox", "info", "request_id, kind"),
    "inbox:acked": ("inbox", "info", "request_id, kind, status"),
    "cancel:recorded": ("inbox", "info", "request_id, reason"),
    "message:request": ("message", "info", "request_id"),
    "message:response": ("message", "info", "request_id, message_id"),
    "message:clear": ("message", "info", ""),
    "message:cancel": ("message", "info", "request_id"),
    "message:error": ("message", "error", "request_id, error"),
    "tool:start": ("message", "info", f"{TOOL}, effect"),
    "tool:finish": ("message", "info", f"{TOOL}, effect, outcome, elapsed_ms, error"),
    "tool:result": ("message", "info", TOOL),
    "tool:approval": ("message", "info", f"{TOOL}, approved"),
    "action:ledger:replayed": ("message", "info", "tool_name, key"),
    "action:ledger:conflict": ("message", "warning", "tool_name, key"),
    "action:ledger:pending": ("message", "warning", "tool_name, key"),
    "action:ledger:reclaimed": ("message", "info", "tool_name, key"),
    "submission:create": ("message", "info", "submission_id, idempotency_key"),
    "submission:status": ("message", "info", "submission_id, status"),
    "submission:error": ("message", "error", "submission_id, error"),
    "rpc": ("rpc", "info", "method, elapsed_ms"),
    "rpc:error": ("rpc", "error", "method, elapsed_ms, error"),
}


def kinds() -> Iterator[type[Event]]:
    """Every class of events of outlast that has a name."""
    package = ROOT / "src"
    for path in package.rglob("events.py"):
        importlib.import_module(".".join(path.relative_to(package).with_suffix("").parts))
    waiting = [Event]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("outlast.") and hasattr(kind, "name"):
            yield kind


def told_by(kind: type[Event]) -> str:
    return ", ".join(kind._fields[2:])


def own_fields(kind: type[Event]) -> str:
    """Without those that all of its family have, which the page tells once."""
    common = next((told_by(family) for family in FAMILIES if issubclass(kind, family)), "")
    return told_by(kind).removeprefix(common).removeprefix(", ")


def test_names_channels_severities_and_fields_are_as_they_are_listed_here() -> None:
    found = {kind.name: (kind.channel, kind.severity, told_by(kind)) for kind in kinds()}
    assert found == EVENTS


def test_no_two_classes_have_one_name() -> None:
    classes: dict[str, set[str]] = {}
    for kind in kinds():
        classes.setdefault(kind.name, set()).add(kind.__qualname__)
    assert [names for names in classes.values() if len(names) > 1] == []


def test_the_page_on_events_lists_them_all_with_their_classes_and_fields() -> None:
    page = (ROOT / "docs" / "events.md").read_text()
    rows = re.findall(r"^\| `([\w:]+)` \| `(\w+)` \|(.*?)\|", page, re.MULTILINE)
    listed = {name: (kind, ", ".join(re.findall(r"`(\w+)`", text))) for name, kind, text in rows}
    assert len(listed) == len(rows)
    assert listed == {kind.name: (kind.__name__, own_fields(kind)) for kind in kinds()}
