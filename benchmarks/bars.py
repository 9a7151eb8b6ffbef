"""What outlast promises of its own speed, judged against a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.report import Medians, number

if TYPE_CHECKING:
    from collections.abc import Iterator

# Reading the clock and waking from a sleep is not idling's fault; polling would cost more.
NO_IDLE_CPU_PCT = 0.2


@dataclass(frozen=True)
class Bar:
    """One promise: what was measured, and the most (or least) it may be."""

    claim: str
    value: float | None
    limit: float
    unit: str
    at_least: bool = False

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "NOT RUN"
        met = self.value >= self.limit if self.at_least else self.value <= self.limit
        return "PASS" if met else "MISS"

    def __str__(self) -> str:
        measured = "" if self.value is None else f"{number(self.value)}{self.unit}"
        bound = f"{'at least' if self.at_least else 'at most'} {self.limit:g}{self.unit}"
        return f"{self.verdict:<8}{self.claim:<62}{measured:>10}   {bound}"


@dataclass(frozen=True)
class Numbers:
    """Medians, asked for by name; what was not measured is None, and so is what follows from it."""

    found: Medians

    def get(self, workload: str, system: str, metric: str) -> float | None:
        """One metric of one system."""
        return self.found.get((workload, system), {}).get(metric)

    def best(self, workload: str, family: str, metric: str) -> float | None:
        """The least of a family's variants: the comparison that flatters us least."""
        values = [
            metrics[metric]
            for (measured, system), metrics in self.found.items()
            if measured == workload and system.startswith(family)
        ]
        return min(values, default=None)

    def over_floor(self, workload: str, against: str, metric: str) -> float | None:
        """Ours as a multiple of the floor's."""
        ours = self.get(workload, f"ours-{against}", metric)
        return divided(ours, self.get(workload, f"floor-{against}", metric))

    def growth(self, metric: str) -> float | None:
        """What the idle agents add to an empty store's host."""
        full, empty = self.get("w5", "ours-idle", metric), self.get("w5", "ours-empty", metric)
        return None if full is None or empty is None else full - empty


def divided(a: float | None, b: float | None) -> float | None:
    """a / b, where both are known."""
    return a / b if a is not None and b else None


def peer_bars(numbers: Numbers) -> Iterator[Bar]:
    """Ours as a share of each peer's cheapest variant, on the same engine."""
    for engine, against, peer, family, limit in (
        ("SQLite", "full", "LangGraph", "langgraph-sqlite", 0.2),
        ("SQLite", "full", "DBOS", "dbos-sqlite", 0.1),
        ("PostgreSQL", "postgres", "LangGraph", "langgraph-postgres", 0.2),
        ("PostgreSQL", "postgres", "DBOS", "dbos-postgres", 0.2),
    ):
        ours = numbers.get("w1", f"ours-{against}", "cpu_us")
        share = divided(ours, numbers.best("w1", family, "cpu_us"))
        yield Bar(f"stash on {engine}: CPU against {peer}", share, limit, "x")


def chat_bars(numbers: Numbers) -> Iterator[Bar]:
    """Streamed answers, and what turns cost and leave behind."""
    get = numbers.get
    for workload, how_many in (("w3", "1 stream"), ("w3c", "50 streams")):
        for kind in ("full", "normal"):
            rate = numbers.over_floor(workload, kind, "per_s")
            claim = f"{how_many} at {kind.upper()}: deltas/s against a bare writer"
            yield Bar(claim, rate, 0.5, "x", at_least=True)
        ours = get(workload, "ours-full", "cpu_us")
        for peer, system, limit in (
            ("LangGraph", "langgraph-sqlite", 1.0),
            ("Pydantic AI's Agent", "pydantic-ai", 0.5),
        ):
            share = divided(ours, get(workload, system, "cpu_us"))
            yield Bar(f"{how_many}: CPU of a durable delta against {peer}", share, limit, "x")
    yield Bar("turn at NORMAL", get("w3t", "ours-normal", "wall_ms"), 5, " ms")
    for workload, how in (("turncpu", "one by one"), ("turncpuc", "20 at a time")):
        full, postgres = (get(workload, f"ours-{kind}", "cpu_ms") for kind in ("full", "postgres"))
        claim = f"warm turn, {how}: CPU on PostgreSQL against FULL"
        yield Bar(claim, divided(postgres, full), 1.3, "x")
    for effect in ("once", "read"):
        call = get("w3x", f"ours-{effect}", "cpu_us")
        yield Bar(f"CPU of a tool call, ten in a step, effect={effect!r}", call, 150, " µs")
    for size in ("20k", "200k"):
        stored = get("w3b", f"ours-{size}", "kept_x")
        yield Bar(f"stored of an answer of {size.upper()}B, in its content", stored, 1.2, "x")
    for what in ("commits", "statements"):
        few, many = (get("w3s", "ours-turns", f"{what}_{when}") for when in ("few", "many"))
        growth = divided(many, few)
        yield Bar(f"{what} of a turn, after 500 turns against after 10", growth, 1.1, "x")


def recovery_bars(numbers: Numbers) -> Iterator[Bar]:
    """A server that dies in mid-answer."""
    get = numbers.get
    took = get("w4", "ours-full", "wall_ms")
    yield Bar("SIGKILL to the next chunk at a connected client", took, 200, " ms")
    median, worst = (get("w4ten", "ours-full", f"{metric}_ms") for metric in ("wall", "most"))
    yield Bar("ten SIGKILLs, 8 s apart, to the next chunk: median", median, 200, " ms")
    yield Bar("ten SIGKILLs, 8 s apart, to the next chunk: worst", worst, 500, " ms")
    ours, floor = (get("w4cold", f"{system}-full", "wall_ms") for system in ("ours", "floor"))
    more = None if ours is None or floor is None else ours - floor
    yield Bar("cold start to the next chunk: more than the floor's", more, 300, " ms")
    for workload, when in (
        ("w4", "SIGKILL"),
        ("w4ten", "ten SIGKILLs"),
        ("w4cold", "a cold start"),
    ):
        for fault, what in (
            ("lost", "words lost"),
            ("twice", "words that came twice"),
            ("stuck", "answers that did not go on"),
        ):
            yield Bar(f"{what} after {when}", get(workload, "ours-full", fault), 0, "")


def seam_bars(numbers: Numbers) -> Iterator[Bar]:
    """Continued answers: nothing twice, nothing lost, whatever the model does."""
    rows = {system: row for (workload, system), row in numbers.found.items() if workload == "seam"}
    killed = [row for name, row in rows.items() if name.startswith("ours-") and "real" not in name]
    spliced = [
        row
        for name, row in rows.items()
        if name.startswith("ours-")
        and name.endswith(("obeys", "tail", "everything", "greets", "stops"))
    ]
    for fault, what in (
        ("twice", "characters repeated"),
        ("lost", "characters lost"),
        ("stuck", "answers that did not end"),
    ):
        total = sum(row[fault] for row in killed) if killed else None
        yield Bar(f"killed, seven scripted models: {what}", total, 0, "")
    perfect = min((row["perfect_pct"] for row in spliced), default=None)
    yield Bar(
        "killed, models that repeat, greet or stop: perfect", perfect, 99, " %", at_least=True
    )
    get = numbers.get
    for name, pace in (("once", "all at once"), ("fast", "50 tokens/s")):
        system = f"splicer-{name}"
        share = get("seam", system, "perfect_pct")
        yield Bar(f"10,000 texts, {pace}: spliced", share, 99, " %", at_least=True)
        for fault, what in (("twice", "repeated"), ("lost", "lost")):
            yield Bar(f"10,000 texts, {pace}: characters {what}", get("seam", system, fault), 0, "")
        held = get("seam", system, "held_most_ms")
        yield Bar(f"10,000 texts, {pace}: new text held back", held, 400, " ms")
        characters = get("seam", system, "held_characters")
        yield Bar(f"10,000 texts, {pace}: characters held back", characters, 200, "")
    identical = get("seam", "ours-real-prefill", "perfect_pct")
    yield Bar("SmolLM2, handed its words: byte-identical", identical, 100, " %", at_least=True)


def wire_bars(numbers: Numbers) -> Iterator[Bar]:
    """Answers over WebSockets, sockets that stream or idle, and catching up."""
    get = numbers.get
    for workload, how_many in (("wire", "1 stream"), ("wirec", "50 streams")):
        rate = numbers.over_floor(workload, "full", "per_s")
        claim = f"{how_many} over the wire: deltas/s against a bare socket"
        yield Bar(claim, rate, 0.5, "x", at_least=True)
        ours = get(workload, "ours-full", "per_s")
        for peer, system, limit in (("LangGraph", "langgraph-sqlite", 1), ("Think", "think", 5)):
            times = divided(ours, get(workload, system, "per_s"))
            claim = f"{how_many} over the wire: deltas/s against {peer}"
            yield Bar(claim, times, limit, "x", at_least=True)
    turn = divided(get("wiret", "ours-full", "wall_ms"), get("wiret", "think", "wall_ms"))
    yield Bar("a tiny turn over the wire: wall against Think", turn, 0.5, "x")
    p99 = get("load", "ours-full", "p99_ms")
    yield Bar("5,000 deltas/s to 100 of 1,000 sockets: p99 delay", p99, 50, " ms")
    yield Bar(
        "an idle socket and its agent: memory", get("idle", "ours-full", "each_kb"), 40, " KB"
    )
    yield from conversation_bars(numbers)
    for kind, what in (("live", "a running answer"), ("stored", "a finished answer")):
        took = get("catchup", f"ours-{kind}", "wall_ms")
        yield Bar(f"catching up 4,000 deltas of {what}", took, 150, " ms")


def conversation_bars(numbers: Numbers) -> Iterator[Bar]:
    """Large conversations: a socket costs what any other does, and opening one takes no time to speak of."""
    get = numbers.get
    for history, what in (
        ("outputs", "50 MB of tool outputs"),
        ("pages", "50 MB of text"),
        ("many", "10,000 messages"),
    ):
        each = get("idle", f"ours-{history}", "each_kb")
        yield Bar(f"an idle socket on {what}: memory", each, 40, " KB")
        for metric, how in (("first_ms", "opening"), ("get_ms", "GET get-messages of")):
            yield Bar(f"{how} {what}", get("open", f"ours-{history}", metric), 1000, " ms")


def search_bars(numbers: Numbers) -> Iterator[Bar]:
    """Searches against those of the engine itself, over one plain table."""
    for workload, where in (("search", "100,000 messages"), ("searchmany", "10,000 conversations")):
        for against, engine in (("full", "FTS5"), ("postgres", "tsvector")):
            for metric in ("p50", "p99"):
                times = numbers.over_floor(workload, against, f"{metric}_ms")
                yield Bar(f"search in {where}: {metric} against raw {engine}", times, 1.5, "x")


def bars(found: Medians) -> Iterator[Bar]:
    """All of them, in the order of the workloads."""
    numbers = Numbers(found)
    get, over_floor = numbers.get, numbers.over_floor
    yield Bar(
        "fsynced stash: CPU against plain sqlite3", over_floor("w1", "full", "cpu_us"), 3, "x"
    )
    yield Bar(
        "fsynced stash: wall against plain sqlite3", over_floor("w1", "full", "wall_us"), 2.5, "x"
    )
    yield Bar("stash at NORMAL: CPU", get("w1", "ours-normal", "cpu_us"), 100, " µs")
    yield from peer_bars(numbers)
    yield Bar("commit beside a busy coroutine: p99", get("w1b", "ours-busy", "p99_ms"), 20, " ms")
    for against, who in (("100-agents", "in 100 agents"), ("1-agent", "in 1 agent")):
        rate = over_floor("w1c", against, "per_s")
        yield Bar(f"100 stashers {who}: rate against a bare writer", rate, 0.5, "x", at_least=True)
        yield Bar(
            f"100 stashers {who}: CPU each", get("w1c", f"ours-{against}", "cpu_us"), 20, " µs"
        )
    yield from chat_bars(numbers)
    yield from recovery_bars(numbers)
    yield from seam_bars(numbers)
    yield Bar("100,000 idle agents: memory", numbers.growth("rss_mb"), 5, " MB")
    yield Bar(
        "100,000 idle agents: CPU", get("w5", "ours-idle", "idle_cpu_pct"), NO_IDLE_CPU_PCT, " %"
    )
    yield Bar("100,000 idle agents: waking one", get("w5", "ours-idle", "wake_ms"), 2, " ms")
    yield from wire_bars(numbers)
    yield from search_bars(numbers)
    yield Bar("importing Agent and Host", get("import", "ours-import", "wall_ms"), 200, " ms")
    yield Bar("importing Think and tool", get("import", "ours-chat", "wall_ms"), 300, " ms")
