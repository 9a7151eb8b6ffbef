"""What is shown: the line of progress, the table at the end, the trace of an agent."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from outlast.testing.torture.checks import KINDS, Totals, Violation

TRACED = 80  # lines


@dataclass(slots=True)
class Outcome:
    """Everything that a run has come to."""

    seed: int
    store: str
    agents: int
    memory: str
    kills: Counter[str] = field(default_factory=Counter)
    totals: Totals = field(default_factory=Totals)
    violations: list[Violation] = field(default_factory=list)
    silences: list[float] = field(default_factory=list)  # seconds from a kill to the next new chunk
    late: list[float] = field(default_factory=list)  # seconds that answers took beyond their words
    poison: str | None = None  # what became of the turn that kills its process
    seconds: float = 0.0
    turns: int = 0  # that have ended, also in conversations that go on
    chunks: int = 0
    folder: Path = Path()

    @property
    def is_clean(self) -> bool:
        return not self.violations


def table(outcome: Outcome) -> str:
    """For people, and for a page of Markdown."""
    totals = outcome.totals
    silences = sorted(outcome.silences) or [0.0]
    late = sorted(outcome.late) or [0.0]
    ends = ", ".join(f"{count:,} {name}" for name, count in totals.outcomes.most_common())
    effects = ", ".join(f"{count:,} {name}" for name, count in sorted(totals.effects.items()))
    rows = [
        ("kills", f"{sum(outcome.kills.values()):,}"),
        *((f"· {kind}", f"{count:,}") for kind, count in outcome.kills.most_common()),
        ("out of memory by", outcome.memory),
        ("store, agents at a time", f"{outcome.store}, {outcome.agents}"),
        ("time", f"{outcome.seconds / 60:.1f} min"),
        ("conversations, turns", f"{totals.conversations:,}, {totals.turns:,}"),
        ("outcomes", ends),
        ("recoveries", f"{totals.recoveries:,}"),
        ("model requests", f"{totals.requests:,}"),
        ("chunks seen", f"{totals.chunks:,}"),
        ("effects", effects),
        ("· of these repeated, as their tool allows", f"{totals.repeated:,}"),
        ("calls told as unknown", f"{totals.unknown:,}"),
        ("approvals asked for", f"{totals.approvals:,}"),
        *(() if outcome.poison is None else (("a turn that kills its process", outcome.poison),)),
        ("answers late by, median", f"{statistics.median(late):.2f} s"),
        ("answers late by, worst", f"{late[-1]:.2f} s"),
        ("kill to the next new chunk, median", f"{statistics.median(silences):.2f} s"),
        ("kill to the next new chunk, worst", f"{silences[-1]:.2f} s"),
    ]
    counted = Counter(violation.kind for violation in outcome.violations)
    rows += [(f"**{kind}**", f"**{counted[kind]}**") for kind in KINDS]
    width = max(len(name) for name, _ in rows)
    lines = [f"| {name:<{width}} | {value} |" for name, value in rows]
    return "\n".join([f"| {'':<{width}} | |", f"| {'-' * width} | --- |", *lines])


def failure(outcome: Outcome, command: str) -> str:
    """What is wrong, with the trace of the first agent concerned, and how to see it again."""
    shown = [f"* {violation}" for violation in outcome.violations[:20]]
    more = len(outcome.violations) - len(shown)
    first = outcome.violations[0].agent
    lines = [
        f"{len(outcome.violations)} violation(s), seed {outcome.seed}:",
        *shown,
        *([f"… and {more} more"] if more else []),
        "",
        f"The trace of {first} (all of it: {outcome.folder}):",
        *trace(outcome.folder, first)[-TRACED:],
        "",
        f"Again: {command}",
    ]
    return "\n".join(lines)


def trace(folder: Path, agent: str) -> list[str]:
    """What happened to an agent, with all kills, in the order of time."""
    found: list[tuple[float, str]] = []
    for name in ("clients.jsonl", "served.jsonl"):
        path = folder / name
        for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            about = str(fields.get("turn") or fields.get("label") or fields.get("agent") or "")
            if fields["kind"] == "kill" or about.startswith(f"{agent}-") or about == agent:
                at, kind = fields.pop("at"), fields.pop("kind")
                text = ", ".join(f"{key} {value}" for key, value in fields.items() if value != [])
                moment = datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")[:-3]
                found.append((at, f"{moment} {kind}: {text}"))
    return [line for _, line in sorted(found)]


def command(outcome: Outcome, arguments: Sequence[str]) -> str:
    return " ".join(["outlast torture", "--seed", str(outcome.seed), *arguments])
